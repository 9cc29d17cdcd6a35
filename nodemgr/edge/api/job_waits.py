"""Waits for the end of jobs: each gets one call, when none of its jobs lives any more.

Knows: which jobs live. Must not know: the waiter, the form of its answer.

A wait stands at one living job of its list at a time, and moves on to the next when that one has
ended: a wait for an array of ten thousand costs no more than one for a single job. A job may wait
within its array's row, or leave it: the end of either moves on both who stand there.
"""

from __future__ import annotations

from collections.abc import Callable

from nodemgr.core.model import job_ids
from nodemgr.core.state.node_state import State
from nodemgr.core.views import job_rows

Then = Callable[[], None]


class _Wait:
    def __init__(self, job_ids: tuple[str, ...], then: Then) -> None:
        self.job_ids = list(reversed(job_ids))
        """The jobs that may live, the next one last."""
        self.then = then


class Waits:
    """All waits of this manager."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._at: dict[str, list[_Wait]] = {}

    def begin(self, job_ids: tuple[str, ...], then: Then) -> Callable[[], None]:
        """Calls `then` when all of these jobs (or arrays) have ended, at once if they have.

        Returns what gives the wait up.
        """
        wait = _Wait(job_ids, then)
        self._go_on(wait)
        return lambda: self._give_up(wait)

    def final(self, job_id: str) -> None:
        """This job has ended, or all that waited within this array's row."""
        array = job_ids.array_of(job_id)
        within = [] if array else [name for name in self._at if name.startswith(f"{job_id}.")]
        for name in (job_id, *([array] if array else within)):
            for wait in self._at.pop(name, ()):
                self._go_on(wait)

    def __len__(self) -> int:
        return sum(map(len, self._at.values()))

    def _go_on(self, wait: _Wait) -> None:
        while wait.job_ids:
            living = job_rows.any_living(self._state, wait.job_ids[-1])
            if living is not None:
                self._at.setdefault(living.job_id, []).append(wait)
                return
            wait.job_ids.pop()
        wait.then()

    def _give_up(self, wait: _Wait) -> None:
        for job_id, waits in list(self._at.items()):
            if wait in waits:
                waits.remove(wait)
                if not waits:
                    del self._at[job_id]
