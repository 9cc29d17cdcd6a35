"""Values: the base of the core's dataclasses, and a copy of a value with other fields.

Knows: dataclasses. Must not know: the meaning of any. Some ten are made for each answer, with a
hundred fields, while a client waits for it. A dataclass that is frozen at run time pays for each
field four times over; so these are frozen by the type checker (mypy --strict): assigning to a field
is an error there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
from operator import attrgetter
from typing import Any, ParamSpec, TypeVar, dataclass_transform

P = ParamSpec("P")
V = TypeVar("V")


@dataclass_transform(frozen_default=True)
def value(cls: type[V]) -> type[V]:
    """Make a class one of values: compared and hashed by its fields, which never change."""
    return dataclass(slots=True, unsafe_hash=True)(cls)


def maker(kind: Callable[P, V]) -> Callable[P, V]:
    """A class of values as a function, for calls by keywords while a client waits.

    A class that is called so puts the keywords into a dictionary and takes them out again, and
    costs four times as much.
    """
    known = fields(kind)  # type: ignore[arg-type]
    names = {f"default_{field.name}": field.default for field in known}
    return _compiled(
        kind, ", ".join(map(_parameter, known)), [field.name for field in known], names
    )


def _parameter(field: Field[Any]) -> str:
    """Raises TypeError for a default that is made anew each time."""
    if field.default_factory is not MISSING:
        raise TypeError(f"{field.name} has a factory")
    return field.name if field.default is MISSING else f"{field.name}=default_{field.name}"


def replace(before: V, **changes: Any) -> V:
    """The value with these fields instead. Raises AttributeError for a field that it has not."""
    kind: Any = type(before)
    made: V = _copier(kind)(before)
    for name, after in changes.items():
        setattr(made, name, after)
    return made


@cache
def _copier(kind: Any) -> Callable[[Any], Any]:
    return _compiled(kind, "before", [f"before.{field.name}" for field in fields(kind)], {})


def terms(value: Any, without: str) -> dict[str, Any]:
    """Every field but this one, by name, as events and answers carry them."""
    kind: Any = type(value)
    names, members, tuples = _terms_of(kind)
    found = dict(zip(names, members(value), strict=True))
    for name in tuples:
        found[name] = list(found[name])
    del found[without]
    return found


@cache
def _terms_of(kind: Any) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]], list[str]]:
    """The names of the fields, what reads all of them, and the names of those with a tuple.

    One call reads all fields: a status has such a row for each environment.
    """
    names = tuple(field.name for field in fields(kind))
    tuples = [field.name for field in fields(kind) if str(field.type).startswith("tuple")]
    return names, attrgetter(*names), tuples


def _compiled(
    kind: Any, parameters: str, members: list[str], names: dict[str, Any]
) -> Callable[..., Any]:
    """Makes a value with these members, in the order of its fields."""
    made: Callable[..., Any] = eval(
        f"lambda {parameters}: kind({', '.join(members)})", {**names, "kind": kind}
    )
    return made
