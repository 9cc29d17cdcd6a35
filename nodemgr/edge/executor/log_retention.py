"""How long the files of an ended job stay.

The oldest are removed when they are too old, too many or too large.

Knows: the bounds, the time of each job's end, the size of its output. Must not know: the place of
its files (the factory), their readers.

There is no timer: bounds are checked when a job ends and when the manager starts, because nothing
grows in between. While a power failure could lose the store's record of a job's end, the job's
files stay, because they report that end again. Beyond the bounds the store is synced first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from nodemgr.edge.executor.interface import ResourceFactory
from nodemgr.edge.host import stderr_log

DAY_NS = 86_400 * 10**9
MOST_JOBS = 1_000


class Commits(Protocol):
    """The journal's count of commits."""

    @property
    def commits(self) -> int: ...

    @property
    def on_disk(self) -> int: ...

    def sync(self) -> None:
        """Afterwards `on_disk` is `commits`, unless the disk refuses."""


class _EndedJob(NamedTuple):
    ended_wall_ns: int
    size_bytes: int
    commit: int
    """The commit that has its end, or a later one."""


class LogRetention:
    """The jobs with retained files, the oldest first."""

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
        """Take over an earlier manager's (job, time of its end), oldest first.

        They may be more than the bounds allow, so the rest of its removals is done now.
        """
        for job_id, ended_wall_ns in ended:
            self._add(job_id, ended_wall_ns)
        self._sweep(now_wall_ns)

    def add(self, job_id: str, now_wall_ns: int) -> None:
        """Adds a job that has just ended, perhaps not for the first time."""
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
            if in_bounds and now_wall_ns - oldest.ended_wall_ns <= self._age_ns:
                return
            if oldest.commit > self._journal.on_disk:
                self._journal.sync()
            if oldest.commit > self._journal.on_disk:
                return
            self._drop(job_id)
            if not self._is_living(job_id):
                try:
                    self._factory.delete(job_id)
                except OSError as error:
                    stderr_log.say(
                        f"what job {job_id} left cannot be removed: {error}",
                        "remove its directory under jobs in the state directory",
                    )
