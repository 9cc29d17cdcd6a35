"""The manager's messages on stderr: one line a fact, for an administrator or the journal.

No other module writes there.
"""

from __future__ import annotations

import sys
import traceback

from client_plugin.messages.form import as_line, relayed


def say(what: str, next: str = "") -> None:
    """Prints one line without control characters. A closed stderr is no error."""
    try:
        sys.stderr.write(f"nodemgr: {relayed(as_line(what, next))}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass


def fault(where: str, error: BaseException) -> None:
    """A fault of ours, to be seen whole; the manager goes on."""
    say(f"internal fault {where}: {error!r}", "please report it with the lines below")
    for entry in traceback.format_exception(error):
        for line in entry.rstrip().splitlines():
            say(relayed(line.strip()))
