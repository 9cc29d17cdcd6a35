"""Values: the base of the core's dataclasses, and a copy of a value with other fields.

Knows: dataclasses. Must not know: the meaning of any. Some ten are made for each answer, with a
hundred fields, while a client waits for it. A dataclass that is frozen at run time pays for each
field four times over; so these are frozen by the type checker (mypy --strict): assigning to a field
is an error there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
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
    found = {field.name: getattr(value, field.name) for field in fields(value)}
    del found[without]
    return {name: list(one) if isinstance(one, tuple) else one for name, one in found.items()}


def _compiled(
    kind: Any, parameters: str, members: list[str], names: dict[str, Any]
) -> Callable[..., Any]:
    """Makes a value with these members, in the order of its fields."""
    made: Callable[..., Any] = eval(
        f"lambda {parameters}: kind({', '.join(members)})", {**names, "kind": kind}
    )
    return made


def filler(tables: Mapping[str, tuple[type, Any]]) -> Callable[[Any, Any, Any], None]:
    """A function of (target, source, changed) that sets the target's attributes of these names.

    Each becomes view(the source's attribute, changed), with `stored` set.
    Compiled, since a loop over the names costs a third more, and each step makes all of them.
    """
    names: dict[str, Any] = {}
    lines = ["def fill(target, source, changed):"]
    for name, (view, stored) in tables.items():
        names[f"view_{name}"], names[f"stored_{name}"] = view, stored
        lines.append(f" target.{name} = table = view_{name}(source.{name}, changed)")
        if stored is not None:
            lines.append(f" table.stored = stored_{name}")
    eval(compile("\n".join(lines), "fill", "exec"), names)
    made: Callable[[Any, Any, Any], None] = names["fill"]
    return made
