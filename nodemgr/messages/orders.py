"""Messages about the form of an order, and about the manager that receives it."""

from __future__ import annotations

from client_plugin.messages.form import (
    Message,
    Part,
)

ARGUMENTS_NOT_OBJECT = Message("args must be an object", code="usage")
UNKNOWN_ARGUMENT = Message(
    "unknown argument {names}",
    "leave it out, or use the client of the manager's version",
    code="usage",
)

MUST_BE_NAMES = Part("must be a list of at most {limit} {kind}s")
UNKNOWN_NAME = Part(
    "this node knows no {kind} {name!r}: getent lists the users and groups of the node"
)

OTHER_ENV = Message(
    "this connection speaks for {env} alone",
    "leave --env out, or ask an administrator",
    code="refused",
)
NOT_STORED = Message(
    "not done, since it cannot be stored: {fault}",
    "see `nodemgr doctor`, then try again",
    code="store",
)
STORE_FAILED = Message(
    "the store failed: {fault}", "see `nodemgr doctor`, then try again", code="store"
)
INTERNAL_FAULT = Message(
    "internal fault: {error}",
    "please report it with the lines of the manager's log",
    code="internal",
)

# -- requests of programs --

MEMORY_RANGE_ABSURD = Message(
    "a range of memory from {least} to {most} bytes cannot be meant",
    "a range has at least one byte, and ends no earlier than it begins",
)
