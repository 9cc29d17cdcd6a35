"""The manager's messages on stderr: one line a fact, for an administrator or the journal.

No other module writes there.
"""

from __future__ import annotations

import sys
import traceback


def say(text: str) -> None:
    """Prints one line without control characters. A closed stderr is no error."""
    line = "".join(
        character if character.isprintable() else "?" for character in " ".join(text.split())
    )
    try:
        sys.stderr.write(f"nodemgr: {line}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass


def fault(where: str, error: BaseException) -> None:
    """A fault of ours, to be seen whole; the manager goes on."""
    say(f"internal fault {where}: {error!r}")
    for entry in traceback.format_exception(error):
        for line in entry.rstrip().splitlines():
            say(f"  {line}")
