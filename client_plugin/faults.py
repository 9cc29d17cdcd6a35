"""Messages of this package to the user, and the end of its own faults.

A fault ends in one line, once, and never in the user's program.

Knows: sys.stderr. Must not know: why something failed.
"""

from __future__ import annotations

import sys

_said: set[str] = set()


def write(text: str) -> None:
    """Write to stderr; never raise.

    A closed or missing stderr, or an encoding that lacks a character, is the user's right.
    """
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        pass


def printable(text: str) -> str:
    """The text without control characters, since a line may contain another user's words."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def say(line: str) -> None:
    write(f"nodemgr: {printable(line)}\n")


def say_once(line: str) -> None:
    if line not in _said:
        _said.add(line)
        say(line)


def report(part: str, error: BaseException) -> None:
    """A fault of ours, reported once. The table is loaded here: most programs never need it."""
    from .messages import hook as messages

    say_once(messages.PART_FAILED(part=part, kind=type(error).__name__, error=error))
