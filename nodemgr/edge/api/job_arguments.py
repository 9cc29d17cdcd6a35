"""The arguments of orders about jobs: what a stranger may say, and how much of it.

Knows: what the kernel and the store take. Must not know: what is done with it.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from typing import Any

from client_plugin import fields
from client_plugin.messages.form import Part
from nodemgr.core.model import array_rows
from nodemgr.core.model.entities import EarlySignal, Ranges
from nodemgr.core.state.work_queue import line_name, queue_name
from nodemgr.core.views.job_rows import STAGES, Cursor
from nodemgr.edge.kernel.processes import one_line
from nodemgr.edge.rpc.cost import MAX_NAMED
from nodemgr.edge.rpc.operation import OperationError, duration, flag, integer
from nodemgr.messages import jobs as messages
from nodemgr.paths import ENV_NAME_FORM, is_env_name

MAX_WORD_CHARS = 2_048
"""Of a word of a command for people, whose line is shorter."""
MAX_STRING_BYTES = 2**17 - 1
"""The kernel takes no longer argument or variable (MAX_ARG_STRLEN)."""
MAX_STRINGS_BYTES = 2**20
"""Arguments and variables, each."""
MAX_STRINGS = 10_000
MAX_PATH_BYTES = 4_095
MAX_INDEX = 2**31 - 1
MAX_JOBS_NAMED = MAX_NAMED
MAX_NAME_CHARS = 64
MAX_SUBMITTED = 256
"""The most submissions in one order."""
MAX_ROWS = 200
"""The most rows of a list in one answer, which is made between two beats of others."""
_JOB = re.compile(r"j[0-9]{1,15}(\.[0-9]{1,10})?", re.ASCII)
_NAMED = re.compile(r"j[0-9]{1,15}(\.([0-9]{1,10}|\*))?", re.ASCII)
"""`j12.*`: those of an array that wait as one row."""
_WAITER = re.compile(rf"{_NAMED.pattern}|r[0-9]{{1,18}}", re.ASCII)
_ORDERED = re.compile(rf"{_NAMED.pattern}|[rt][0-9]{{1,18}}", re.ASCII)
_ALL_ORDERED = re.compile(rf"({_ORDERED.pattern})(\n({_ORDERED.pattern}))*", re.ASCII)
_TASK = re.compile("t[0-9]{1,15}", re.ASCII)
_CURSOR = re.compile(
    rf"{STAGES[0]}:(?P<queue>[^:]+):(?P<stamp>-?[0-9]{{1,20}})"
    rf"|(?P<stage>{'|'.join(STAGES[1:])}):(?P<job>[0-9]{{1,15}})\.(?P<index>-1|[0-9]{{1,10}})",
    re.ASCII,
)
_CURSOR_OF_MANY = re.compile(
    r"(?P<stage>living|ended|ids):(?P<number>[0-9]{1,15})\.(?P<index>-[12]|[0-9]{1,10})", re.ASCII
)
_KEY = re.compile("[0-9a-f]{16,64}", re.ASCII)

Parse = Callable[[object], Any]


def _matching(pattern: re.Pattern[str], form: Part) -> Parse:
    def parse(value: object) -> str:
        if not isinstance(value, str) or pattern.fullmatch(value) is None:
            raise OperationError(form())
        return value

    return parse


job = _matching(_JOB, messages.NOT_JOB)
named = _matching(_NAMED, messages.NOT_JOB)
waiter = _matching(_WAITER, Part("is neither a job (j12) nor a waiting request (r17)"))
task = _matching(_TASK, Part("is no task: t17, as nodemgr status shows it"))
_ordered = _matching(_ORDERED, Part("is no job (j12), waiting request (r17) or lease (t17)"))
key = _matching(_KEY, Part("must be 16 to 64 hexadecimal digits of the submitter's own choice"))
umask = integer(0, 0o777)
cursor = integer(0, 2**62)
number = integer(1, 2**31)
limit = integer(1, MAX_ROWS)
_index = integer(0, MAX_INDEX)


def queue(value: object) -> str:
    if not isinstance(value, str) or not is_env_name(value):
        raise OperationError(f"is no name of a queue: {ENV_NAME_FORM}")
    return value


def cursor_at(value: object) -> Cursor:
    """The end of a page in the list of waiting and running jobs, in the form of `written`."""
    found = _CURSOR.fullmatch(value) if isinstance(value, str) else None
    if found is None or not _is_line(found["queue"] or "x"):
        raise OperationError(messages.NOT_CURSOR())
    if found["queue"] is not None:
        return Cursor("queued", found["queue"], int(found["stamp"]))
    return Cursor(found["stage"], number=(int(found["job"]), int(found["index"])))


def cursor_of_many(value: object) -> tuple[str, int, int]:
    """Where an order over many jobs goes on: a stage and two numbers, as it was answered."""
    found = _CURSOR_OF_MANY.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise OperationError(messages.NOT_CURSOR())
    return found["stage"], int(found["number"]), int(found["index"])


def _is_line(text: str) -> bool:
    """Whether this is the name of a line of a queue."""
    queue = queue_name(text)
    return is_env_name(queue) and text in [line_name(queue, number) for number in range(3)]


def written(end: Cursor) -> str:
    return (
        f"queued:{end.queue}:{end.queued_ns}"
        if end.stage == STAGES[0]
        else f"{end.stage}:{end.number[0]}.{end.number[1]}"
    )


def jobs(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MAX_JOBS_NAMED:
        raise OperationError(f"must be a list of at most {MAX_JOBS_NAMED} jobs")
    return tuple(dict.fromkeys(job(entry) for entry in value))


def submissions(value: object) -> list[object]:
    """Each is checked by itself, so that one which cannot be keeps no other from being taken."""
    if not isinstance(value, list) or not 0 < len(value) <= MAX_SUBMITTED:
        raise OperationError(f"must be a list of 1 to {MAX_SUBMITTED} jobs")
    return value


def ordered(value: object) -> tuple[str, ...]:
    """The ids that orders may name: jobs, requests and leases."""
    if not isinstance(value, list) or len(value) > MAX_JOBS_NAMED:
        raise OperationError(f"must be a list of at most {MAX_JOBS_NAMED} ids")
    if not _are_ids(value):
        for entry in value:
            _ordered(entry)
    return tuple(dict.fromkeys(value))


def _are_ids(value: list[object]) -> bool:
    """One look at all of them: a tenth of a look at each."""
    try:
        text = "\n".join(value)  # type: ignore[arg-type]  # else a TypeError
    except TypeError:
        return False
    return text.count("\n") == len(value) - 1 and _ALL_ORDERED.fullmatch(text) is not None


def array(value: object) -> Ranges:
    """The indices of an array, in any order: each a number, or a run from a first to a last one."""
    if not isinstance(value, list) or len(value) > fields.MAX_ARRAY:
        raise OperationError(messages.MUST_BE_NUMBERS(limit=fields.MAX_ARRAY))
    found = array_rows.joined(_run(entry) for entry in value)
    if array_rows.count(found) > fields.MAX_ARRAY:
        raise OperationError(messages.MUST_BE_NUMBERS(limit=fields.MAX_ARRAY))
    return found


def _run(value: object) -> tuple[int, int]:
    if not isinstance(value, list):
        return _index(value), _index(value)
    if len(value) != 2 or _index(value[0]) > _index(value[1]):
        raise OperationError(messages.MUST_BE_NUMBERS(limit=fields.MAX_ARRAY))
    return value[0], value[1]


def early_signal(value: object) -> EarlySignal:
    """`["USR1", 60000]`."""
    if not isinstance(value, list) or len(value) != 2 or value[0] not in fields.SIGNALS:
        raise OperationError(f"must be a signal ({', '.join(fields.SIGNALS)}) and a time in ms")
    return EarlySignal(value[0], duration(1_000, fields.MAX_SIGNAL_MS)(value[1]))


def name(value: object) -> str:
    if not isinstance(value, str) or len(value) > MAX_NAME_CHARS or not value.isprintable():
        raise OperationError(f"must be a text of at most {MAX_NAME_CHARS} characters on one line")
    return value


def _string(value: object) -> str:
    """An argument or variable for the kernel: bytes without NUL, as os.fsdecode reads them."""
    if not isinstance(value, str) or "\0" in value:
        raise OperationError("must be texts without NUL")
    try:
        size_bytes = len(os.fsencode(value))
    except UnicodeEncodeError:
        raise OperationError(
            "has characters that this system cannot encode: leave them out"
        ) from None
    if size_bytes > MAX_STRING_BYTES:
        raise OperationError(
            f"holds one of {size_bytes} bytes: the system takes at most {MAX_STRING_BYTES}"
        )
    return value


def _strings(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MAX_STRINGS:
        raise OperationError(f"must be a list of at most {MAX_STRINGS} texts")
    if _are_plain(value):
        return tuple(value)
    found = tuple(_string(entry) for entry in value)
    if sum(map(len, found)) > MAX_STRINGS_BYTES:
        raise OperationError(
            f"are more than {MAX_STRINGS_BYTES} bytes together: send fewer (env -i)"
        )
    return found


def _are_plain(value: list[object]) -> bool:
    """Whether no text of the list needs a check of its own.

    Together they are no longer than one may be, and their characters are bytes in every encoding.
    """
    try:
        text = "\n".join(value)  # type: ignore[arg-type]  # else a TypeError
    except TypeError:
        return False
    return len(text) <= MAX_STRING_BYTES and text.isascii() and "\0" not in text


def argv(value: object) -> tuple[str, ...]:
    found = _strings(value)
    if not found or not found[0]:
        raise OperationError("names no command: name one after --")
    return found


def environ(value: object) -> tuple[str, ...]:
    found = _strings(value)
    if [variable for variable in found if "=" not in variable or variable[0] == "="]:
        raise OperationError("must be a list of NAME=value")
    return found


def directory(value: object) -> str:
    path = _string(value)
    if not path.startswith("/") or len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise OperationError("must be an absolute path")
    return path


OF_KIND = {
    fields.QUEUE: queue, fields.JOBS: jobs, fields.ARRAY: array, fields.TEXT: name,
    fields.FLAG: flag, fields.SIGNAL: early_signal,
}  # fmt: skip
"""The kinds of a job's fields that no other order has."""


# -- a command for people --


def command_line(words: tuple[str, ...]) -> str:
    """The command in a shell's form, on one bounded line."""
    return one_line(
        " ".join(
            shlex.quote(word) if word.isprintable() else repr(word)
            for word in (word[:MAX_WORD_CHARS] for word in words[:64])
        )
    )


def name_of(command: str) -> str:
    """The name of a job that was given none."""
    return one_line(os.path.basename(command.rstrip("/")))[:MAX_NAME_CHARS]
