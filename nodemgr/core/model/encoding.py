"""Rows of the store as JSON texts, and back: typed, strict, every kind.

Knows: the dataclasses of entities.py by their annotations, so that a new field needs nothing here.
Must not know: SQL, what a row means. A field that is missing takes its default, if it has one (a
row of an older version); one that is unknown, or of another type, is an error: a store is never
guessed at.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
import types
import typing
from collections.abc import Callable
from functools import cache
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from nodemgr.core.model.array_rows import written
from nodemgr.core.model.entities import (
    Assignment,
    ElasticLease,
    Ended,
    Env,
    Failure,
    Gpu,
    GpuRecord,
    Grant,
    Job,
    JobPayload,
    JobSpec,
    Process,
    QueueRow,
    Ranges,
    Record,
    Request,
    Task,
    UnreclaimedMemory,
)

KINDS: dict[str, Any] = {
    "gpu": Gpu,
    "env": Env,
    "task": Task,
    "process": Process,
    "grant": Grant,
    "request": Request,
    "residue": UnreclaimedMemory,
    "record": Record,
    "queue": QueueRow,
    "gpu_record": GpuRecord,
    "failure": Failure,
    "spec": JobSpec,
    "job": Job,
    "elastic": ElasticLease,
    "assignment": Assignment,
    "counter": int,
    "history": Ended,
}
"""The dataclass of each kind of row: those of node_state.STORED, and the history's."""

_RANGES = re.compile("([0-9]{1,10}(-[0-9]{1,10})?(,[0-9]{1,10}(-[0-9]{1,10})?)*)?", re.ASCII)
WITH_FEATURES = "+"
"""The sign behind the number of a payload's words."""

Writer = Callable[[Any], str]
"""The JSON text of a value of one type."""
Reader = Callable[[Any, str], Any]
"""From a JSON value to the value; the text is its place in the row, for errors."""


class EncodingError(ValueError):
    """A row has not the form of its kind; the message has the place and the reason."""


def encode(kind: str, value: object) -> str:
    """One line of JSON. KeyError for an unknown kind."""
    return _WRITERS[kind](value)


def decode(kind: str, text: str) -> Any:
    """The dataclass (or for a counter the integer) that `encode` was given.

    Raises EncodingError.
    """
    if kind not in _READERS:
        raise EncodingError(f"{kind} is no kind of row")
    return decode_as(KINDS[kind], kind, text)


def encode_as(row: Any, value: object) -> str:
    """As `encode`, for a row of this dataclass."""
    return _writer(row)(value)


def decode_as(row: Any, kind: str, text: str) -> Any:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise EncodingError(f"{kind} is no JSON: {error}") from None
    return _reader(row)(data, kind)


def pack(payload: JobPayload) -> bytes:
    """A payload without its directory: the number of words of its command, words, variables.

    Each word and variable ends with a NUL. No JSON: bytes that are no text would take six times
    their room. With features, a sign follows the number, and the features come first.
    """
    count, words = str(len(payload.argv)), (*payload.argv, *payload.environ)
    if payload.features:
        count, words = f"{count}{WITH_FEATURES}", (payload.features, *words)
    return "\0".join((count, *words)).encode("utf-8", "surrogateescape")


def unpack(cwd: bytes, data: bytes) -> JobPayload:
    """The payload that `pack` was given. Raises EncodingError."""
    count, *words = data.decode("utf-8", "surrogateescape").split("\0")
    features = ""
    if count.endswith(WITH_FEATURES) and words:
        count, features = count[: -len(WITH_FEATURES)], words.pop(0)
    if not (count.isascii() and count.isdigit() and 0 < int(count) <= len(words)):
        raise EncodingError(
            f"a payload begins with {count[:20]!r}, not with the number of its command's words"
        )
    argv, environ = tuple(words[: int(count)]), tuple(words[int(count) :])
    return JobPayload(argv, cwd.decode("utf-8", "surrogateescape"), environ, features)


@cache
def _writer(annotation: Any) -> Writer:
    """One format string, compiled once, as `dataclasses` makes its methods.

    A row is written while a client waits.
    """
    names = {"quoted": quoted}
    writer: Writer = eval(f"lambda value: f'''{_format(annotation, 'value', names)}'''", names)
    return writer


def _format(annotation: Any, value: str, names: dict[str, Any]) -> str:
    """A format of the JSON text of the expression `value`; its functions are in `names`."""
    if dataclasses.is_dataclass(annotation):
        members = [
            f"{quoted(name)}:{_format(hint, f'{value}.{name}', names)}"
            for name, hint in typing.get_type_hints(annotation).items()
        ]
        return f"{{{{{','.join(members)}}}}}"
    if annotation == Ranges:
        names["written"] = written
        return f'"{{written({value})}}"'
    if typing.get_origin(annotation) is tuple and Ellipsis not in typing.get_args(annotation):
        kinds = enumerate(typing.get_args(annotation))
        return f"[{','.join(_format(kind, f'{value}[{at}]', names) for at, kind in kinds)}]"
    if typing.get_origin(annotation) is tuple:
        return f"[{{','.join(map({_called(_member(annotation), names)}, {value}))}}]"
    return f"{{{_expression(annotation, value, names)}}}"


def _expression(annotation: Any, value: str, names: dict[str, Any]) -> str:
    """The expression between the braces of a format."""
    if isinstance(annotation, types.UnionType):
        return f"'null' if {value} is None else {_expression(_inner(annotation), value, names)}"
    if annotation is bool:
        return f"'true' if {value} else 'false'"
    if annotation is int:
        return value
    return f"{_called(annotation, names)}({value})"


def _called(annotation: Any, names: dict[str, Any]) -> str:
    """The name of what writes a value of this type."""
    if isinstance(annotation, type) and issubclass(annotation, str):  # a StrEnum is its value
        return "quoted"
    if not (
        annotation in (bool, int)
        or dataclasses.is_dataclass(annotation)
        or typing.get_origin(annotation) is tuple
    ):
        raise TypeError(f"no row can hold {annotation}")
    names[writer := f"writer_{len(names)}"] = _writer(annotation)
    return writer


def _inner(annotation: types.UnionType) -> Any:
    """The type `inner` of `inner | None`."""
    (inner,) = (member for member in annotation.__args__ if member is not type(None))
    return inner


def _member(annotation: Any) -> Any:
    """The type `member` of `tuple[member, ...]`."""
    member, more = typing.get_args(annotation)
    if more is not Ellipsis:
        raise TypeError(f"no row can hold {annotation}")
    return member


@cache
def _reader(annotation: Any) -> Reader:
    if dataclasses.is_dataclass(annotation):
        return _dataclass_reader(annotation)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _enum_reader(annotation)
    if isinstance(annotation, types.UnionType):
        inner = _reader(_inner(annotation))
        return lambda data, where: None if data is None else inner(data, where)
    if annotation == Ranges:
        return _ranges
    if typing.get_origin(annotation) is tuple and Ellipsis not in typing.get_args(annotation):
        return _fixed_reader([_reader(kind) for kind in typing.get_args(annotation)])
    if typing.get_origin(annotation) is tuple:
        return _tuple_reader(_reader(_member(annotation)))
    if annotation in (int, str, bool):
        return _plain_reader(annotation)
    raise TypeError(f"no row can hold {annotation}")


def _plain_reader(annotation: type) -> Reader:
    def back(data: Any, where: str) -> Any:
        if type(data) is not annotation:  # True is an int, but no count
            raise EncodingError(f"{where} is {data!r}, not of type {annotation.__name__}")
        return data

    return back


def _enum_reader(annotation: type[enum.Enum]) -> Reader:
    def back(data: Any, where: str) -> Any:
        try:
            return annotation(data)
        except ValueError:
            raise EncodingError(f"{where} is {data!r}, which is no {annotation.__name__}") from None

    return back


def _ranges(data: Any, where: str) -> Any:
    """`0-4,7`: a list of pairs would take ten times as long to write and to read."""
    if not isinstance(data, str) or _RANGES.fullmatch(data) is None:
        raise EncodingError(f"{where} is {data!r}, not a set of numbers such as 0-4,7")
    runs = (run.partition("-") for run in data.split(",") if run)
    return tuple((int(first), int(last or first)) for first, _, last in runs)


def _fixed_reader(members: list[Reader]) -> Reader:
    def back(data: Any, where: str) -> Any:
        if not isinstance(data, list) or len(data) != len(members):
            raise EncodingError(f"{where} is {data!r}, not a list of {len(members)}")
        pairs = enumerate(zip(members, data, strict=True))
        return tuple(member(entry, f"{where}[{at}]") for at, (member, entry) in pairs)

    return back


def _tuple_reader(member: Reader) -> Reader:
    def back(data: Any, where: str) -> Any:
        if not isinstance(data, list):
            raise EncodingError(f"{where} is {data!r}, not a list")
        return tuple(member(entry, f"{where}[{index}]") for index, entry in enumerate(data))

    return back


def _dataclass_reader(annotation: Any) -> Reader:
    fields = {name: _reader(hint) for name, hint in typing.get_type_hints(annotation).items()}
    every = dataclasses.fields(annotation)
    required = {field.name for field in every if field.default is dataclasses.MISSING}

    def back(data: Any, where: str) -> Any:
        if not isinstance(data, dict):
            raise EncodingError(f"{where} is {data!r}, not an object")
        if unknown := data.keys() - fields.keys():
            raise EncodingError(
                f"{where} has unknown fields: {', '.join(sorted(map(str, unknown)))}"
            )
        if missing := required - data.keys():
            raise EncodingError(f"{where} lacks fields: {', '.join(sorted(missing))}")
        found = {name: fields[name](member, f"{where}.{name}") for name, member in data.items()}
        return annotation(**found)

    return back


_WRITERS: dict[str, Writer] = {kind: _writer(annotation) for kind, annotation in KINDS.items()}
_READERS: dict[str, Reader] = {kind: _reader(annotation) for kind, annotation in KINDS.items()}
"""Made here, since making one takes up to 4 ms: too long within an order's step."""
