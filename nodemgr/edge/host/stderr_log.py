"""The manager's messages on stderr: one line a fact, for an administrator or the journal.

No other module writes there.
"""

from __future__ import annotations

import sys
import traceback

from client_plugin.messages.form import MessageLine, relayed
from nodemgr.messages import manager_log as log


def say(line: MessageLine) -> None:
    """Prints one line without control characters. A closed stderr is no error."""
    try:
        sys.stderr.write(f"nodemgr: {relayed(line)}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass


def fault(where: str, error: BaseException) -> None:
    """A fault of ours, to be seen whole; the manager goes on."""
    say(log.INTERNAL_FAULT_AT(where=where, error=repr(error)))
    for entry in traceback.format_exception(error):
        for line in entry.rstrip().splitlines():
            say(relayed(line.strip()))
