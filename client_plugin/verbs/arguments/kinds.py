"""Values of options that several verbs share: sizes, durations, names, ids, moments.

Knows: the right form of each, and the completions of a shell. Must not know: the use of a value.
"""

from __future__ import annotations

import os
import re
import time

from client_plugin import fields, units
from client_plugin.fields import MAX_ARRAY, MAX_GPUS, MAX_MODEL_CHARACTERS, Field
from client_plugin.verbs.arguments.parser import ValueKind, VerbOption, WrongValue
from client_plugin.ways import choice, locations
from client_plugin.ways.choice import Whom
from client_plugin.ways.faults import Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, NoReturn, Optional, Sequence, Tuple

MAX_DIGITS = 19
ARRAY_FORM = "write indices and ranges: 0-9 or 0-9,12"
COMPLETED_ENDED = 50
"""The most ended jobs, the last ones, that a shell completes."""
JOB_FORM = r"[jc][0-9]{1,15}(\.([0-9]{1,10}|\*))?"
"""`c12`: a job of the cluster's head."""


def count(low: int, high: Optional[int] = None) -> ValueKind:
    """A whole number within limits; no `high`: as many as one likes."""

    def parse(text: str) -> int:
        value = (
            int(text) if text.isascii() and text.isdecimal() and len(text) < MAX_DIGITS else None
        )
        if value is None or value < low or (high is not None and value > high):
            if high is None:
                raise WrongValue(f"{text!r} is no whole number of at least {low}")
            raise WrongValue(f"{text!r} is no whole number from {low} to {high}")
        return value

    return ValueKind("n", parse)


def _gpu_range(text: str) -> Tuple[int, Optional[int]]:
    """The least and the greatest number of `2-4`; of `2`, the number and None."""

    least, dash, most = text.partition("-")
    if not dash and text.isdecimal():
        return GPUS.parse(text), None
    if not (least.isdecimal() and most.isdecimal()):
        raise WrongValue(
            f"{text!r} is neither a number of GPUs nor a range",
            "write a number such as 2, or the least and the most, such as 1-4",
        )
    first, last = count(1, MAX_GPUS).parse(least), count(1, MAX_GPUS).parse(most)
    if last < first:
        raise WrongValue(
            f"{text!r} is no range of GPUs: it ends before it begins", f"write {last}-{first}"
        )
    return first, last


def _size_range(text: str) -> Tuple[int, Optional[int]]:
    """The least and the greatest size of `8GiB-24GiB`; of `8GiB`, the size and None."""
    least, dash, most = text.partition("-")
    if not dash:
        return units.parse_size(text), None

    if not least or not most:
        raise WrongValue(
            f"{text!r} is no range of memory: an end is missing", "write it as in 8GiB-24GiB"
        )
    first, last = units.parse_size(least), units.parse_size(most)
    if last < first:
        raise WrongValue(
            f"{text!r} is no range of memory: it ends before it begins", f"write {most}-{least}"
        )
    return first, last


def _signal(text: str) -> List[Any]:
    """`USR1@60s` as the signal's name and the time in ms."""
    name, at, time_text = text.partition("@")
    name = name.upper()
    name = name[3:] if name.startswith("SIG") else name
    if not at or name not in fields.SIGNALS:
        raise WrongValue(
            f"{text!r} is no signal and time",
            f"write it as in USR1@60s, with {', '.join(fields.SIGNALS)}",
        )
    before_ms = duration(1_000).parse(time_text)
    if before_ms > fields.MAX_SIGNAL_MS:
        most = units.format_duration(fields.MAX_SIGNAL_MS)
        raise WrongValue(f"{time_text!r} is more than {most}", "name a shorter time")
    return [name, before_ms]


def _path(text: str) -> str:
    """Not empty, as an unset variable of a shell would have it."""
    if not text or "\0" in text:
        raise WrongValue(f"{text!r} is no path", "name a file or a directory")
    return text


def wrong_name(text: str, what: str) -> NoReturn:

    raise WrongValue(f"{text!r} is no name of {what}: {locations.ENV_NAME_FORM}")


def _env(text: str) -> str:
    if not locations.is_env_name(text):
        wrong_name(text, "an environment")
    return text


def _envs(whom: Whom, _incomplete: str) -> List[str]:
    try:
        return sorted(os.listdir(os.path.join(whom.found_run_dir(), "envs")))
    except OSError:
        return []


def _queue(text: str) -> str:
    if not locations.is_env_name(text):
        wrong_name(text, "a queue")
    return text


def queues(whom: Whom, _incomplete: str) -> List[str]:
    try:
        return [row["name"] for row in choice.choose(whom)[0].ask("queue", limit=1)["queues"]]
    except Fault:
        return []


def job(requests: bool = False, ended: bool = False, tasks: bool = False) -> ValueKind:
    """The id of a job, of an array, or of a job of an array.

    `requests`, `tasks`: ids of waiting requests, or of tasks, are taken, too. `ended`: a shell
    completes ended jobs, too.
    """
    form = JOB_FORM + ("|r[0-9]{1,15}" if requests else "") + ("|t[0-9]{1,15}" if tasks else "")

    def parse(text: str) -> str:
        if re.fullmatch(form, text, re.ASCII) is None:
            known = "j12, or j12.3 of an array" + (", or r17 of a request" if requests else "")
            known += ", or t17 of a task" if tasks else ""
            raise WrongValue(
                f"{text!r} is no job: write its id as `nodemgr queue` shows it ({known})"
            )
        return text

    return ValueKind("job", parse, lambda whom, _incomplete: _jobs(whom, requests, ended))


def _jobs(whom: Whom, requests: bool, ended: bool) -> List[str]:
    found: Dict[str, None] = {}
    try:
        for way in choice.choose(whom):
            past = way.ask("history", limit=COMPLETED_ENDED)["history"] if ended else []
            present = [row["id"] for row in way.ask("queue")["queue"] if row["job"] or requests]
            for one in (*(row["job"] for row in past), *present):
                found[one.partition(".")[0]] = found[one] = None  # an array goes before its jobs
    except Fault:
        pass
    return list(found)


def _several(kind: ValueKind) -> ValueKind:
    """`j3,j4` as ids."""

    def complete(whom: Whom, incomplete: str) -> List[str]:
        assert kind.complete is not None
        before, comma, last = incomplete.rpartition(",")
        return [before + comma + one for one in kind.complete(whom, last)]

    return ValueKind(
        "jobs", lambda text: [kind.parse(part.strip()) for part in text.split(",")], complete
    )


def _array(text: str) -> List[List[int]]:
    """`0-9,12` as runs, each from a first to a last number."""

    found: List[List[int]] = []
    if "%" in text:
        raise WrongValue(
            f"{text!r}: no limit of elements that run at a time is known, the environment's"
            " GPUs limit them",
            "leave out %, or submit the rest as a second array with --after",
        )
    for part in text.split(","):
        match = re.fullmatch("([0-9]{1,9})(?:-([0-9]{1,9}))?", part.strip(), re.ASCII)
        if match is None:
            raise WrongValue(f"{text!r} is no array: {ARRAY_FORM}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise WrongValue(f"{part!r} runs backwards: {ARRAY_FORM}")
        found.append([first, last])
    count, end = 0, -1
    for first, last in sorted(found):
        count += max(0, last - max(first, end + 1) + 1)
        end = max(end, last)
    if count > MAX_ARRAY:
        raise WrongValue(f"{text!r} has more than {MAX_ARRAY} elements: submit several arrays")
    return found


def duration(low_ms: int = 0, instead: str = "") -> ValueKind:
    """At least so long; `instead`: what else to write."""

    def parse(text: str) -> int:
        duration_ms = units.parse_duration_ms(text)
        if duration_ms < low_ms:
            least = units.format_duration(low_ms)
            raise WrongValue(f"{text!r} is less than {least}", f"name a longer time{instead}")
        return duration_ms

    return ValueKind("duration", parse)


def one_of(name: str, *words: str) -> ValueKind:
    """One of these words."""

    def parse(text: str) -> str:
        if text not in words:
            raise WrongValue(f"{text!r} is no {name}", f"write {', '.join(words)}")
        return text

    return ValueKind(name, parse, lambda _whom, _incomplete: list(words))


def _moment(text: str) -> int:
    """A time in the past, as nanoseconds since the epoch.

    The form is an age (`2h`) or a date (`2026-01-31T12:00`).
    """
    import datetime

    try:
        moment_ns = int(datetime.datetime.fromisoformat(text).timestamp()) * 10**9
    except ValueError:
        pass
    else:
        if moment_ns > time.time_ns():
            raise WrongValue(f"{text} is still to come: name a time in the past")
        return moment_ns
    try:
        return time.time_ns() - units.parse_duration_ms(text) * 10**6
    except units.UnitError:
        raise WrongValue(
            f"{text!r} is no time: write how long ago (30min, 2h, 7d) or a date (2026-01-31T12:00)"
        ) from None


def _gpu_model(text: str) -> str:
    """A name, or rates: no name of a model has a colon."""
    from client_plugin.ways import named_rates

    if ":" in text and not named_rates.is_valid(text):
        raise WrongValue(
            f"{text!r} is no GPU model: write its name, or NAME:TFLOPS:GBPS:GIB with rates above 0 "
            "such as own:19.5:1555:40"
        )
    if not 0 < len(text) <= MAX_MODEL_CHARACTERS or not text.isprintable():
        raise WrongValue(
            f"{text[:100]!r} is no GPU model: write its name, 1 to {MAX_MODEL_CHARACTERS} "
            "printable characters"
        )
    return text


def _task(text: str) -> str:
    if text.startswith("j"):
        raise WrongValue(
            f"{text!r} is a job: name its task as nodemgr status shows it (nodemgr queue withdraw "
            f"{text} ends the job)"
        )
    if re.fullmatch("[tr][0-9]{1,18}", text, re.ASCII) is None:
        raise WrongValue(
            f"{text!r} is no task: write its id as `nodemgr status` shows it (t17, or r17 in the "
            "queue)"
        )
    return text


TEXT = ValueKind("text", str)
FILE = ValueKind("file", _path)
SIZE = ValueKind("size", units.parse_size)
SIZE_RANGE = ValueKind("size", _size_range)
DURATION = duration()
KEEPING = duration(1)
PERCENT = ValueKind("percent", units.parse_percent)
MOMENT = ValueKind("time", _moment)
ACQUIRE = one_of("moment", "start")
ENV = ValueKind("env", _env, _envs)
QUEUE = ValueKind("queue", _queue, queues)
GPU_MODEL = ValueKind("model", _gpu_model)
GPUS = count(0, MAX_GPUS)
GPU_RANGE = ValueKind("n", _gpu_range)
ARRAY = ValueKind("indices", _array)
JOB = job()
JOB_OR_ENDED = job(ended=True)
JOB_OR_REQUEST = job(requests=True)
JOB_OR_TASK = job(ended=True, tasks=True)
JOBS = _several(JOB_OR_ENDED)
TASK = ValueKind("task", _task)
OF_KIND = {
    fields.SIZE: SIZE, fields.PERCENT: PERCENT, fields.TEXT: TEXT, fields.FILE: FILE,
    fields.NAMES: TEXT, fields.QUEUE: QUEUE, fields.JOBS: JOBS, fields.ARRAY: ARRAY,
    fields.SIGNAL: ValueKind("signal", _signal),
}  # fmt: skip
OF_RANGE = {fields.COUNT: GPU_RANGE, fields.SIZE: SIZE_RANGE}


def of_field(field: Field) -> Optional[ValueKind]:
    """The values of the field's option; None: it is a flag."""
    if field.most:
        return OF_RANGE[field.kind]
    if field.kind == fields.WORD:
        return one_of((field.metavar or field.option.lstrip("-")).lower(), *field.choices)
    kind = OF_KIND.get(field.kind)
    if field.kind == fields.COUNT:
        kind = count(field.low, field.high)
    if field.kind == fields.DURATION:
        kind = duration(field.low, f", or {field.unset}" if field.unset else "")
    if kind is None or not field.unset:
        return kind
    parse = kind.parse
    return ValueKind(
        kind.name, lambda text: text if text == field.unset else parse(text), kind.complete
    )


def options_of(rows: Sequence[Field]) -> Tuple[VerbOption, ...]:
    """The options of fields; their keys are the names."""
    return tuple(
        VerbOption(
            field.option, kind=of_field(field), key=field.name, help=field.help,
            metavar=field.metavar, repeat=field.kind in fields.REPEATED,
        )
        for field in rows
    )  # fmt: skip
