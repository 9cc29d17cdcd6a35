"""How a verb says that something did not work: one line on stderr and an exit code from one table.

Knows: exit codes. Must not know: what the verbs do.
"""

from __future__ import annotations

import enum

import click


class Exit(enum.IntEnum):
    """The exit codes that are ours; `run` becomes its command and so has the command's own."""

    FAILED = 1
    USAGE = 2
    UNREACHABLE = 69
    WAIT_TIMED_OUT = 75
    QUOTA_REFUSES = 77
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127
    INTERRUPTED = 130
    BROKEN_PIPE = 141


class Fault(Exception):
    """What happened, whose limit it was, what to do: one line."""

    def __init__(self, message: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class Lost(Fault):
    """The manager was asked, and went away before it answered: nobody knows what it has done."""

    def __init__(self, message: str) -> None:
        super().__init__(message, Exit.UNREACHABLE)


def say(line: str) -> None:
    """A message: to stderr, so that stdout carries data alone."""
    click.echo(f"nodemgr: {line}", err=True)
