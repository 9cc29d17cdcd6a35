"""What the manager says on stderr: one line a fact, for an administrator or the journal. Nothing else writes there."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """One line. A closed stderr is no reason to fail."""
    try:
        sys.stderr.write(f"nodemgr: {' '.join(text.split())}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass
