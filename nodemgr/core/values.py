"""Values: the dataclasses that the core's words are made of, and one that differs from another in some fields.

Knows: dataclasses. Must not know: what any of them says.
Some ten are made for each answer, with a hundred fields, while a client waits for it. A dataclass that is frozen at run time
pays for each field four times over; so these are frozen by the type checker (mypy --strict): assigning to a field is an
error there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

V = TypeVar("V")


@dataclass_transform(frozen_default=True)
def value(cls: type[V]) -> type[V]:
    """Makes a class one of values: compared and hashed by its fields, which are never assigned to again."""
    return dataclass(slots=True, unsafe_hash=True)(cls)


def replace(before: V, **changes: Any) -> V:
    """The value with these fields instead. Raises KeyError for a field that it has not."""
    kind: Any = type(before)
    places, members = _fields(kind)
    row = list(members(before))
    for name, after in changes.items():
        row[places[name]] = after
    made: V = kind(*row)
    return made


@cache
def _fields(kind: Any) -> tuple[dict[str, int], Callable[[Any], tuple[Any, ...]]]:
    places = {field.name: place for place, field in enumerate(fields(kind))}
    return places, attrgetter(*places)
