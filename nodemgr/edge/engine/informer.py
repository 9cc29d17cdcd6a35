"""Reports each GPU, quota and lease that is added, changed or removed to its subscribers.

Knows: the rows of the state that are resources, and when a resource counts as present.
Must not know: the subscribers, the use of a change.
Source: the patent CN109828833A (ClusterInformer).

It reads a step's changes from that step's rows. So one mechanism reports lease ends, device health
and quotas, after they are stored. A device reports its own change where the driver can (`stirred`).
The informer's task then has the devices read; otherwise it sleeps without a timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from nodemgr.core.model.effects import Save
from nodemgr.core.model.entities import Gpu, Task
from nodemgr.core.state.node_state import State
from nodemgr.edge.host import stderr_log

ResourceKind = Literal["gpu", "quota", "lease", "queue"]
Change = Literal["added", "changed", "removed"]


@dataclass(frozen=True, slots=True)
class Resource:
    kind: ResourceKind
    name: str
    """A GPU's UUID, an environment's name, a task's id; empty for the queues."""


class News(NamedTuple):
    change: Change
    resource: Resource


QUEUE_CHANGED = News("changed", Resource("queue", ""))
"""The core requests a scheduling pass: the queues changed, or a rule of admission."""

Subscriber = Callable[[str, list[News]], None]
"""Called with the cause (the event's name) and the news of one step."""
NewsKinds = frozenset[tuple[Change, ResourceKind]]
"""The news that a subscriber is called for."""


def _is_there(value: object) -> bool:
    """An ill GPU cannot be granted, so it counts as absent."""
    return value is not None and (not isinstance(value, Gpu) or value.usable)


def _shape(value: Any) -> object:
    """The part of a row with reported changes.

    A lease's processes do not change the free memory.
    """
    return (value.state, value.gpus) if isinstance(value, Task) else value


_TABLES: dict[str, tuple[ResourceKind, str]] = {
    "gpu": ("gpu", "gpus"),
    "env": ("quota", "envs"),
    "task": ("lease", "tasks"),
}
"""Row kinds that are resources: their name here, and the state's table of them."""


class ClusterInformer:
    """Finds resource changes and calls subscribers. `run` is its task."""

    def __init__(self, read: Callable[[], None]) -> None:
        """`read` reads the devices again and steps the core with the result."""
        self._read = read
        self._hint = asyncio.Event()
        self._subscribers: list[tuple[Subscriber, NewsKinds | None]] = []

    def subscribe(self, subscriber: Subscriber, wanted: NewsKinds | None = None) -> None:
        """Calls `subscriber` in the loop, after the news are stored and their step has ended.

        With `wanted`: only for a step with at least one such change.
        """
        self._subscribers.append((subscriber, wanted))

    # -- changes of a step --

    @staticmethod
    def news(state: State, saved: Iterable[Save]) -> list[News]:
        """The changes of the open step, which made these rows."""
        found: list[News] = []
        for save in saved:
            if save.kind in _TABLES:
                kind, table = _TABLES[save.kind]
                before, after = getattr(state, table).before(save.key), save.value
                was, is_now = _is_there(before), _is_there(after)
                if was and is_now:
                    if _shape(before) != _shape(after):
                        found.append(News("changed", Resource(kind, save.key)))
                elif was or is_now:
                    found.append(News("added" if is_now else "removed", Resource(kind, save.key)))
        return found

    def notify(self, cause: str, found: list[News]) -> None:
        """Calls each subscriber once, if there are news for it."""
        if not found:
            return
        kinds = {(news.change, news.resource.kind) for news in found}
        for subscriber, wanted in self._subscribers:
            if wanted is not None and wanted.isdisjoint(kinds):
                continue
            try:
                subscriber(cause, found)
            except Exception as error:  # the other subscribers are still called
                stderr_log.fault(f"in a subscriber to the news of {cause}", error)

    # -- reports of devices --

    def stirred(self) -> None:
        """A device may have appeared, disappeared or failed. Called in the loop."""
        self._hint.set()

    async def run(self) -> None:
        """Reads the devices after each `stirred`. Never returns."""
        while True:
            await self._hint.wait()
            self._hint.clear()
            self._read()
