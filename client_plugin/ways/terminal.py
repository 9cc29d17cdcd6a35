"""The terminal that stdout is.

Knows: its width. Must not know: what is written there.
"""

from __future__ import annotations

import os
import sys

WIDTH = 80
"""The width of an output that is no terminal."""


def columns() -> int:
    """The width by shutil.get_terminal_size's rule: COLUMNS, else the terminal's.

    shutil itself imports three compression libraries, which takes as long as a tenth of a verb.
    """
    said = os.environ.get("COLUMNS", "")
    if said.isascii() and said.isdecimal() and len(said) < 6 and int(said) > 0:
        return int(said)
    if sys.__stdout__ is None:
        return WIDTH
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or WIDTH
    except (ValueError, OSError):
        return WIDTH
