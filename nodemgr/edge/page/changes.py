"""The difference between two views, as the event `change` carries it. Pure.

Knows: which lists of a view have rows with a key. Must not know: the meaning of a row, viewers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

View = Mapping[str, Any]

ROW_KEYS: Mapping[str, tuple[str, ...]] = {
    "gpus": ("uuid",),
    "tasks": ("id",),
    "envs": ("name",),
    "queue": ("request", "id"),
    "jobs": ("id",),
}
"""List -> the fields of which the first with a value is a row's key."""
DERIVED = frozenset({"duration_seconds", "waited_seconds", "last_beat_age_seconds"})
"""Fields that follow from `since` and the time: they alone make no change."""
CLOCK = "now"


def changes(before: View, after: View) -> dict[str, Any] | None:
    """The change from one view to the next; None: none but the time."""
    told: dict[str, Any] = {"set": {}, "rows": {}, "gone": {}, "order": {}}
    for name, value in after.items():
        if name in ROW_KEYS and isinstance(value, list) and isinstance(before.get(name), list):
            _rows(name, before[name], value, told)
        elif name != CLOCK and (name not in before or before[name] != value):
            told["set"][name] = value
    told = {name: part for name, part in told.items() if part}
    return {CLOCK: after.get(CLOCK), **told} if told else None


def _rows(name: str, before: list[Any], after: list[Any], told: dict[str, Any]) -> None:
    old, new = _by_key(name, before), _by_key(name, after)
    changed = {
        key: difference for key, row in new.items() if (difference := _fields(old.get(key), row))
    }
    if changed:
        told["rows"][name] = changed
    if gone := [key for key in old if key not in new]:
        told["gone"][name] = gone
    if list(old) != list(new):
        told["order"][name] = list(new)


def _by_key(name: str, rows: list[Any]) -> dict[str, Mapping[str, Any]]:
    return {
        str(next((row[key] for key in ROW_KEYS[name] if row.get(key) is not None), "")): row
        for row in rows
    }


def _fields(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> Mapping[str, Any]:
    """All fields of a new row, else those with another value."""
    if old is None:
        return new
    return {
        name: value
        for name, value in new.items()
        if name not in DERIVED and (name not in old or old[name] != value)
    }
