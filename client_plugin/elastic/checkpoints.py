"""The time of a script's newest checkpoint: a file, or the newest file in a directory.

Knows: files. Must not know: what a checkpoint holds.
"""

from __future__ import annotations

import os
from typing import Optional

SETTLED_NS = 1_000_000_000
"""A file that was written this recently may not be complete."""


def newest_ns(path: Optional[str], now_ns: int) -> int:
    """The modification time of the newest complete checkpoint; 0 without one.

    `now_ns`: the time of the day.
    """
    if path is None:
        return 0
    newest = _modified_ns(path) if os.path.isfile(path) else _newest_below(path)
    return newest if newest <= now_ns - SETTLED_NS else 0


def _newest_below(directory: str) -> int:
    return max(
        (
            _modified_ns(os.path.join(folder, name))
            for folder, _, names in os.walk(directory)
            for name in names
        ),
        default=0,
    )


def _modified_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:  # replaced at this moment
        return 0
