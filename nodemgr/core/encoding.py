"""Rows of the store as JSON-able values, and back: typed, strict, every kind.

Knows: the dataclasses of model.py by their annotations, so that a new field needs nothing here. Must not know: JSON text,
SQL, what a row means.
A field that is missing takes its default, if it has one (a row of an older version); one that is unknown, or of another
type, is an error: a store is never guessed at.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any

from nodemgr.core.model import Env, Gpu, Grant, Process, Record, Request, Residue, Task

KINDS: dict[str, Any] = {
    "gpu": Gpu,
    "env": Env,
    "task": Task,
    "process": Process,
    "grant": Grant,
    "request": Request,
    "residue": Residue,
    "record": Record,
    "counter": int,
}
"""What each kind of row holds (state.STORED)."""

Codec = tuple[Callable[[Any], Any], Callable[[Any, str], Any]]
"""How a value of one type becomes JSON-able, and how it comes back (the text says where in the row it stands)."""


class EncodingError(ValueError):
    """A row is not what its kind should be; the message says where and why."""


def encode(kind: str, value: object) -> Any:
    """A value made of dict, list, str, int, bool and None. KeyError for an unknown kind."""
    return _codec(KINDS[kind])[0](value)


def decode(kind: str, data: object) -> Any:
    """The dataclass (or for a counter the integer) that `encode` was given. Raises EncodingError."""
    if kind not in KINDS:
        raise EncodingError(f"{kind} is no kind of row")
    return _codec(KINDS[kind])[1](data, kind)


@cache
def _codec(annotation: Any) -> Codec:
    if dataclasses.is_dataclass(annotation):
        return _dataclass_codec(annotation)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _enum_codec(annotation)
    if isinstance(annotation, types.UnionType):
        return _optional_codec(annotation)
    if typing.get_origin(annotation) is tuple:
        return _tuple_codec(annotation)
    if annotation in (int, str, bool):
        return _plain_codec(annotation)
    raise TypeError(f"no row can hold {annotation}")


def _plain_codec(annotation: type) -> Codec:
    def back(data: Any, where: str) -> Any:
        if type(data) is not annotation:  # True is an int, but no count
            raise EncodingError(f"{where} is {data!r}, not of type {annotation.__name__}")
        return data

    return _as_it_is, back


def _as_it_is(value: Any) -> Any:
    return value


def _enum_codec(annotation: type[enum.Enum]) -> Codec:
    def back(data: Any, where: str) -> Any:
        try:
            return annotation(data)
        except ValueError:
            raise EncodingError(f"{where} is {data!r}, which is no {annotation.__name__}") from None

    return lambda value: value.value, back


def _optional_codec(annotation: types.UnionType) -> Codec:
    (inner,) = (member for member in annotation.__args__ if member is not type(None))
    there, back = _codec(inner)
    optional = there if there is _as_it_is else lambda value: None if value is None else there(value)
    return optional, lambda data, where: None if data is None else back(data, where)


def _tuple_codec(annotation: Any) -> Codec:
    inner, more = typing.get_args(annotation)
    if more is not Ellipsis:
        raise TypeError(f"no row can hold {annotation}")
    there, back = _codec(inner)

    def tuple_back(data: Any, where: str) -> Any:
        if not isinstance(data, list):
            raise EncodingError(f"{where} is {data!r}, not a list")
        return tuple(back(member, f"{where}[{index}]") for index, member in enumerate(data))

    return list if there is _as_it_is else lambda value: [there(member) for member in value], tuple_back


def _dataclass_codec(annotation: Any) -> Codec:
    hints = typing.get_type_hints(annotation)
    fields = {field.name: _codec(hints[field.name]) for field in dataclasses.fields(annotation)}
    required = {field.name for field in dataclasses.fields(annotation) if field.default is dataclasses.MISSING}
    names = tuple(fields)
    values = attrgetter(*names)
    changed = [(name, there) for name, (there, _) in fields.items() if there is not _as_it_is]

    def there(value: Any) -> dict[str, Any]:
        row = dict(zip(names, values(value), strict=True))
        for name, change in changed:
            row[name] = change(row[name])
        return row

    def back(data: Any, where: str) -> Any:
        if not isinstance(data, dict):
            raise EncodingError(f"{where} is {data!r}, not an object")
        if unknown := data.keys() - fields.keys():
            raise EncodingError(f"{where} has unknown fields: {', '.join(sorted(map(str, unknown)))}")
        if missing := required - data.keys():
            raise EncodingError(f"{where} lacks fields: {', '.join(sorted(missing))}")
        return annotation(**{name: fields[name][1](member, f"{where}.{name}") for name, member in data.items()})

    return there, back
