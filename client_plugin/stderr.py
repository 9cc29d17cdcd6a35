"""Messages of this package to the user, and the end of its own faults.

A fault ends in one line, once, and never in the user's program.

Knows: sys.stderr. Must not know: why something failed.
"""

from __future__ import annotations

import sys
from typing import Callable

_said: set[str] = set()
_is_stderr: Callable[[], bool] | None = None


def write(text: str) -> None:
    """Write to stderr; never raise.

    A closed or missing stderr, or an encoding that lacks a character, is the user's right.
    """
    try:
        if _is_stderr is not None and _writes_to_descriptor_2() and not _is_stderr():
            return
        sys.stderr.write(text)
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        pass


def heed(is_stderr: Callable[[], bool]) -> None:
    """`is_stderr` answers whether descriptor 2 is the program's stderr still, and no file of it."""
    global _is_stderr
    _is_stderr = is_stderr


def _writes_to_descriptor_2() -> bool:
    try:
        return sys.stderr.fileno() == 2
    except (OSError, ValueError):  # an object of the program's own, such as a notebook's
        return False


def printable(text: str) -> str:
    """The text without control characters, since a line may contain another user's words."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def say(what: str, next: str = "") -> None:
    """`next`: the remedy of the event. A whole line has none."""
    if next:
        from .messages.form import stated  # here: most programs never need a line

        what = stated(what, next)
    write(f"nodemgr: {printable(what)}\n")


def say_once(what: str, next: str = "") -> None:
    if what not in _said:
        _said.add(what)
        say(what, next)


def report(part: str, error: BaseException) -> None:
    """A fault of ours, reported once. The table is loaded here: most programs never need it."""
    from .messages import hook as messages

    say_once(messages.PART_FAILED(part=part, kind=type(error).__name__, error=error))
