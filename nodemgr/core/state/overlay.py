"""Tables that can be read with a step's changes, while the base stays unchanged.

`step` thus stays pure at the cost of its change alone.

Knows: dictionaries and sets of members. Must not know: their contents. An Overlay is a dictionary
seen through the changes of one step; Groups are the same for sets of members in the order of their
arrival. With its first change a table enters itself into the step's list of changed tables.
`settle` writes the changes into the base: only State.apply calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

K = TypeVar("K")
V = TypeVar("V")
K_in = TypeVar("K_in", contravariant=True)
V_out = TypeVar("V_out", covariant=True)


class Readable(Protocol[K_in, V_out]):
    """The reads that a plain dictionary and an Overlay offer."""

    def get(self, key: K_in, /) -> V_out | None: ...
    def __getitem__(self, key: K_in, /) -> V_out: ...
    def values(self) -> Iterable[V_out]: ...
    def __len__(self) -> int: ...


class Overlay(Generic[K, V]):
    """A dictionary and what one step changes in it.

    None stands for nothing there, so no value is None. As long as nothing is changed, `get` is the
    dictionary's own.
    """

    __slots__ = ("base", "changed", "changes", "get", "stored")

    def __init__(self, base: dict[K, V], changed: list[Table]) -> None:
        self.base = base
        self.changed = changed
        self.changes: dict[K, V | None] = {}
        self.get: Callable[[K], V | None] = base.get
        self.stored: tuple[str, Callable[[Any], str]] | None = None
        """Its kind in the store, and how a key is written there; None: it follows from others."""

    def __getitem__(self, key: K, /) -> V:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __contains__(self, key: K) -> bool:
        return self.get(key) is not None

    def __len__(self) -> int:
        return sum(1 for _ in self) if self.changes else len(self.base)

    def __iter__(self) -> Iterator[K]:
        changes = self.changes
        if not changes:
            yield from self.base
            return
        for key in self.base:
            if key not in changes:
                yield key
        for key, value in changes.items():
            if value is not None:
                yield key

    def values(self) -> Iterator[V]:
        if not self.changes:
            return iter(self.base.values())
        return (self[key] for key in self)

    def put(self, key: K, value: V) -> None:
        if not self.changes:
            self._begin()
        self.changes[key] = value

    def drop(self, key: K) -> None:
        """It need not be there."""
        if not self.changes:
            self._begin()
        self.changes[key] = None

    def _begin(self) -> None:
        """From now on `get` sees changes."""
        self.get = partial(_through, self.changes, self.base)
        self.changed.append(self)

    def settle(self) -> None:
        base = self.base
        for key, value in self.changes.items():
            if value is None:
                base.pop(key, None)
            else:
                base[key] = value


def _through(changes: dict[K, V | None], base: dict[K, V], key: K) -> V | None:
    return changes[key] if key in changes else base.get(key)


class Groups(Generic[K, V]):
    """Sets of members by key, and what one step changes in them.

    A member is added and removed at most once a step.
    """

    __slots__ = ("added", "base", "changed", "removed", "stored")

    def __init__(self, base: dict[K, dict[V, None]], changed: list[Table]) -> None:
        self.base = base
        self.changed = changed
        self.added: dict[K, dict[V, None]] = {}
        self.removed: dict[K, set[V]] = {}
        self.stored = None

    def members(self, key: K) -> Iterator[V]:
        removed: set[V] | frozenset[V] = self.removed.get(key, frozenset())
        for member in self.base.get(key, ()):
            if member not in removed:
                yield member
        yield from self.added.get(key, ())

    def count(self, key: K) -> int:
        """How many members there are, without looking at each."""
        return (
            len(self.base.get(key, ()))
            - len(self.removed.get(key, ()))
            + len(self.added.get(key, ()))
        )

    def add(self, key: K, member: V) -> None:
        self._begin()
        self.added.setdefault(key, {})[member] = None

    def remove(self, key: K, member: V) -> None:
        self._begin()
        added = self.added.get(key)
        if added is not None and member in added:
            del added[member]
        else:
            self.removed.setdefault(key, set()).add(member)

    def _begin(self) -> None:
        if not self.added and not self.removed:
            self.changed.append(self)

    def settle(self) -> None:
        base = self.base
        for key, members in self.removed.items():
            group = base[key]
            for member in members:
                del group[member]
            if not group:
                del base[key]
        for key, added in self.added.items():
            if added:
                base.setdefault(key, {}).update(added)


Table = Overlay[Any, Any] | Groups[Any, Any]


def first(members: Iterable[V]) -> V | None:
    """The first of them, or None where there is none."""
    return next(iter(members), None)
