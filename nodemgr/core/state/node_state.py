"""The manager's state: its tables as plain dictionaries.

Any module may read; only Draft.settle writes.

Knows: the tables, and the values that follow from them at once.
Must not know: how and why a row changes (draft.py, and the modules beside manager.py), nor clocks,
sockets, files.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodemgr.core.model.entities import MS, Config, Grant, ProcessKey, Request, Uuid
from nodemgr.core.model.schema import Deadline
from nodemgr.core.state import accounting
from nodemgr.core.state.tables import STORED, Rows
from nodemgr.core.state.work_queue import WorkQueue


class State(Rows):
    """The whole state of the manager. The tables are plain dictionaries (tables.py)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.queue_ahead_ns = 0
        """The lead of the queue's clock over the monotonic clock, which a boot sets back."""
        self.stamped_ns = 0
        """The last stamp of the queue's clock.

        Stamps are unique, so each request can return to its exact place.
        """
        self.version = 0
        """The number of applied transitions. A transition made for another version is refused."""
        self.deadlines: list[tuple[int, Deadline]] = []
        """The agenda, earliest first."""
        self.queue = WorkQueue(config.queues, config.ageing_ms * MS)

    def wake_ns(self) -> int | None:
        """The time a Tick is due at the latest; None: no Tick is needed."""
        times = [*self.timers.values(), *(due_ns for due_ns, _ in self.deadlines[:1])]
        return min(times) if times else None

    def is_up(self, place: str) -> bool:
        """Can a job be started there now?"""
        return self.launch_hosts.get(place) == ""

    def queue_now(self, now_ns: int) -> int:
        """The queue's clock: it orders waiting requests across restarts and boots."""
        return now_ns + self.queue_ahead_ns

    def waiting(self) -> Iterator[tuple[Request, int]]:
        """Every waiting request in the order of service, with its position in its queue."""
        return (
            (self.requests[request_id], position) for request_id, position, _ in self.queue.listed()
        )

    def used_gpus(self, env: str) -> tuple[Uuid, ...]:
        """The healthy GPUs that the env holds through tasks that are not stalled.

        This is `used` in docs/ARCHITECTURE.md.
        """
        return tuple(uuid for uuid in self.gpus if accounting.is_used(self, env, uuid))

    def remaining_bytes(self, uuid: Uuid) -> int:
        """The bytes of a GPU's memory that can still be promised."""
        return accounting.gpu_remaining(self, self.gpus[uuid])

    def watched(self) -> Iterator[tuple[ProcessKey, int | None]]:
        """The processes with watched deaths and beats, with their PIDs."""
        for process in self.processes.values():
            yield process.key, process.pid
        for request in self.requests.values():
            for asker in request.askers:
                if asker.process not in self.processes:
                    yield asker.process, asker.pid

    def watched_grants(self) -> Iterator[Grant]:
        """The grants with memory figures that the next Tick must bring."""
        envs = {self.requests[request_id].env for request_id in self.wants_figures}
        for grant in self.grants.values():
            shrinks = (grant.env, grant.uuid) in self.unsettled and accounting.target(
                self, grant
            ) < grant.memory_bytes
            if shrinks or grant.env in envs:
                yield grant

    def rows(self) -> Iterator[tuple[str, str, object]]:
        """The rows that the store should hold: (kind, key, value)."""
        for name, (kind, key_text) in STORED.items():
            for key, value in getattr(self, name).items():
                yield kind, key_text(key), value
