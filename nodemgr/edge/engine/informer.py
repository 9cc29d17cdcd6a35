"""What the node has to give, as events: each GPU, quota and lease that is added, changed or removed, told to whoever asked for it.

Knows: which rows of the state are resources, and when one counts as there. Must not know: who listens, what a change is good for.
Source: the queueing patent named in DESIGN.md (ClusterInformer).

It learns what a step changed from that step's rows, so that lease ends, device health and quotas are told by one mechanism and
after they are stored. Devices say by themselves that something happened to them where the driver can (`stirred`); its task then has
them looked at, and sleeps without a timer otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from nodemgr.core.model.effects import Save
from nodemgr.core.model.entities import Gpu, Task
from nodemgr.core.state.node_state import State
from nodemgr.edge.host import stderr_log

ResourceKind = Literal["gpu", "quota", "lease"]


@dataclass(frozen=True, slots=True)
class Resource:
    kind: ResourceKind
    name: str
    """A GPU's UUID, an environment's name, a task's id."""


Callback = Callable[[Resource], None]


def _is_there(value: object) -> bool:
    """An ill GPU can be given to nobody: it is as if it were taken out."""
    return value is not None and (not isinstance(value, Gpu) or value.healthy)


def _shape(value: Any) -> object:
    """What of a row makes it another resource than before. A lease's processes come and go without a change of what is free."""
    return (value.state, value.gpus) if isinstance(value, Task) else value


_TABLES: dict[str, tuple[ResourceKind, str]] = {"gpu": ("gpu", "gpus"), "env": ("quota", "envs"), "task": ("lease", "tasks")}
"""Rows that are resources: what they are called here, and the state's table of them."""


class ClusterInformer:
    """`run` is the task."""

    def __init__(self, read: Callable[[], None]) -> None:
        """`look` has the devices read anew, and what is found stepped through the core."""
        self._read = read
        self._hint = asyncio.Event()
        self._listeners: list[dict[str, Callback]] = []

    def subscribe(self, *, added: Callback | None = None, changed: Callback | None = None, removed: Callback | None = None) -> None:
        """Each is called in the loop, once the change is stored and its own step is over."""
        given = {"added": added, "changed": changed, "removed": removed}
        self._listeners.append({name: callback for name, callback in given.items() if callback is not None})

    # -- what a step changed --

    @staticmethod
    def news(state: State, saved: Iterable[Save]) -> list[tuple[str, Resource]]:
        """What these rows mean to a state that they are not yet in."""
        found = []
        for save in saved:
            if save.kind in _TABLES:
                kind, table = _TABLES[save.kind]
                before, after = getattr(state, table).get(save.key), save.value
                was, is_now = _is_there(before), _is_there(after)
                if was and is_now:
                    if _shape(before) != _shape(after):
                        found.append(("changed", Resource(kind, save.key)))
                elif was or is_now:
                    found.append(("added" if is_now else "removed", Resource(kind, save.key)))
        return found

    def notify(self, news: Iterable[tuple[str, Resource]]) -> None:
        for what, resource in news:
            for callbacks in self._listeners:
                if what in callbacks:
                    try:
                        callbacks[what](resource)
                    except Exception as error:  # the others are told all the same
                        stderr_log.fault(f"telling that {resource.kind} {resource.name} was {what}", error)

    # -- what devices say by themselves --

    def stirred(self) -> None:
        """A device may have come, gone or failed; in the loop."""
        self._hint.set()

    async def run(self) -> None:
        """Never returns."""
        while True:
            await self._hint.wait()
            self._hint.clear()
            self._read()
