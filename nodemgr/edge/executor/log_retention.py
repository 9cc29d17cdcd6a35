"""How long the files of a job that has ended stay: until they are too old, too many or too much,
the oldest first.

Knows: the bounds, when each job ended, how much it has written. Must not know: where its files are
(the factory), who reads them.

There is no timer: bounds are looked at when a job ends and when the manager starts, for nothing
grows in between. And as long as a power failure could lose what the store knows of a job's end, its
files stay, for they tell it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from nodemgr.edge.executor.interface import ResourceFactory
from nodemgr.edge.host import stderr_log

DAY_NS = 86_400 * 10**9
MOST_JOBS = 1_000


class Commits(Protocol):
    """As the journal counts them."""

    @property
    def commits(self) -> int: ...

    @property
    def on_disk(self) -> int: ...


class _EndedJob(NamedTuple):
    ended_wall_ns: int
    size_bytes: int
    commit: int
    """That has its end, or a later one."""


class LogRetention:
    """The jobs whose files are still there, the oldest first."""

    def __init__(
        self,
        factory: ResourceFactory,
        journal: Commits,
        most_bytes: int,
        days: int,
        is_living: Callable[[str], bool],
    ) -> None:
        """`is_living`: the job is to run again, so that its files are not ours."""
        self._factory = factory
        self._journal = journal
        self._most_bytes = most_bytes
        self._age_ns = days * DAY_NS
        self._is_living = is_living
        self._ended: dict[str, _EndedJob] = {}
        self._bytes = 0

    def begin(self, ended: Iterable[tuple[str, int]], now_wall_ns: int) -> None:
        """What an earlier manager left: (job, when it ended), oldest first.

        More of them than are kept, so that what it did not come to is done now.
        """
        for job_id, ended_wall_ns in ended:
            self._add(job_id, ended_wall_ns)
        self._sweep(now_wall_ns)

    def add(self, job_id: str, now_wall_ns: int) -> None:
        """It has ended just now, perhaps not for the first time."""
        self._drop(job_id)
        self._add(job_id, now_wall_ns)
        self._sweep(now_wall_ns)

    def _add(self, job_id: str, ended_wall_ns: int) -> None:
        size_bytes = self._factory.room_bytes(job_id)
        self._ended[job_id] = _EndedJob(ended_wall_ns, size_bytes, self._journal.commits)
        self._bytes += size_bytes

    def _drop(self, job_id: str) -> None:
        before = self._ended.pop(job_id, None)
        self._bytes -= 0 if before is None else before.size_bytes

    def _sweep(self, now_wall_ns: int) -> None:
        while self._ended:
            job_id, oldest = next(iter(self._ended.items()))
            in_bounds = len(self._ended) <= MOST_JOBS and self._bytes <= self._most_bytes
            if (
                in_bounds and now_wall_ns - oldest.ended_wall_ns <= self._age_ns
            ) or oldest.commit > self._journal.on_disk:
                return
            self._drop(job_id)
            if not self._is_living(job_id):
                try:
                    self._factory.delete(job_id)
                except OSError as error:
                    stderr_log.say(f"what job {job_id} left cannot be removed: {error}")
