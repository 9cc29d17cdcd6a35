"""Messages about the form of an order, and about the manager that receives it."""

from __future__ import annotations

from client_plugin.messages.form import (
    Message,
    Part,
)

NOT_JSON = Message("an order is one JSON object", 'send one with "verb" and "args"', code="usage")
NO_VERB = Message('an order must be one JSON object with "verb" and "args"', code="usage")
UNKNOWN_VERB = Message("unknown verb {verb!r}", "the verbs are {known}", code="usage")
ARGUMENTS_NOT_OBJECT = Message("args must be an object", code="usage")
NO_SUCH_GPU = Message(
    "there is no GPU {index}",
    "the GPUs are {known}",
    code="not_found",
)
UNKNOWN_ARGUMENT = Message(
    "unknown argument {names}",
    "leave it out, or use the client of the manager's version",
    code="usage",
)
MISSING_ARGUMENT = Message(
    "argument {names} is missing",
    "send it, or use the client of the manager's version",
    code="usage",
)
WRONG_ARGUMENT = Message(
    "{argument}: {wrong}",
)

MUST_BE_NUMBER = Part("must be a whole number from {low} to {high}")
MUST_BE_DURATION = Part("must be from {low} to {high}, in whole milliseconds")
MUST_BE_ONE_OF = Part("must be one of {names}{meant}")
MUST_BE_TEXT = Part("must be a text of 1 to 256 characters")
NOT_ENV_NAME = Part("is no name of an environment: {form}")
MUST_BE_NAMES = Part("must be a list of at most {limit} {kind}s")
UNKNOWN_NAME = Part(
    "this node knows no {kind} {name!r}: getent lists the users and groups of the node"
)
MUST_BE_FLAG = Part("must be true or false")

OUTSIDE_SHEET = Message(
    "a sheet has {sheet_bytes} bytes, and no order of {order_bytes} at {start_bytes} is on it",
    "send a range on the sheet",
    code="usage",
)
MANY_SHEETS = Message(
    "too many long orders are being written at this moment",
    "try again in a second",
    code="busy",
)
NO_SHEET_WRITTEN = Message(
    "an order without an argument is written on a sheet",
    "ask for a sheet first, on the same connection",
    code="usage",
)
NO_SHEET = Message(
    "an order that stands on a sheet needs one",
    "ask for a sheet first, on the same connection",
    code="usage",
)
NO_FILE_OVER_UDP = Message(
    "this order needs the UNIX socket, since no file can be sent over UDP",
    "send it from the node or from a container",
    code="refused",
)
MANY_FILES = Message(
    "this connection was sent {limit} files already",
    "open another connection",
    code="refused",
)
LONG_ANSWER = Message(
    "the answer is too long for this connection",
    "ask for less (--limit, --since), or ask an administrator",
    code="refused",
)
OTHER_ENV = Message(
    "this connection speaks for {env} alone",
    "leave --env out, or ask an administrator",
    code="refused",
)
ADMINS_VERB = Message(
    "{verb} is for administrators: root, the manager's user, the group nodemgr",
    "ask one of them, or run it on the node",
    code="refused",
)
NOT_STORED = Message(
    "not done, since it cannot be stored: {fault}",
    "see `nodemgr doctor`, then try again",
    code="store",
)
SINCE_AFTER_UNTIL = Message(
    "the time `since` is later than `until`",
    "name an earlier `since`; without `until` it is the present time",
    code="usage",
)
STORE_FAILED = Message(
    "the store failed: {fault}", "see `nodemgr doctor`, then try again", code="store"
)
INTERNAL_FAULT = Message(
    "internal fault: {error}",
    "please report it with the lines of the manager's log",
    code="internal",
)
NO_TASK = Message(
    "there is no task or waiting request {task!r}",
    "`nodemgr status` lists them",
    code="not_found",
)
ENV_HAS_NO_TASK = Message(
    "{env} has no task or waiting request {task!r}",
    "`nodemgr status` lists them",
    code="not_found",
)

# -- requests of programs --

FORKED_CHILD = Message("this connection belongs to process {pid}", "a forked child opens its own")
FIGURE_TOO_LARGE = Message("{key}={value} cannot be meant", "at most {limit}")
FIGURE_TOO_SMALL = Message("{key}={value} cannot be meant", "at least {limit}")
RANGE_ABSURD = Message(
    "a range from {least} to {most} GPUs cannot be meant",
    "a range has at least one GPU, and ends no earlier than it begins",
)
MEMORY_RANGE_ABSURD = Message(
    "a range of memory from {least} to {most} bytes cannot be meant",
    "a range has at least one byte, and ends no earlier than it begins",
)
CLASS_UNKNOWN = Part("class={value} is none of {known}")
MAY_NOT_ENTER = Message(
    "{user} may not enter {env}",
    "an administrator names who may (nodemgr quota set --user)",
)
GRANT_NOT_STORED = Message("the manager cannot store a grant now: {why}")
JOB_NOT_STORED = Message("the manager cannot store a job now: {why}")
STORE_NOT_READ = Message("the manager cannot look into its store now: {why}")
WAITS_FOR_LEDGER = Part(
    "the manager was restarted and waits for the memory ledger of {env} to come back with its"
    " running tasks",
)
LEDGER_LOST_AT_RESTART = Part("the manager, which lost the memory ledger when it was restarted")
