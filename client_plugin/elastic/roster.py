"""GPUs and workers of an elastic task, as the plan sees them.

Knows: the states of a worker. Must not know: processes, sockets, the clock.
"""

from __future__ import annotations

from typing import Dict, Iterator, List, Optional, Tuple

STARTING = "starting"
PARKED = "parked"
READY = "ready"
MEMBER = "member"
LEAVING = "leaving"
DONE = "done"

STAGES: Dict[Tuple[str, str], str] = {
    (STARTING, "parked"): PARKED,
    (PARKED, "given"): STARTING,
    (STARTING, "hello"): READY,
    (READY, "hello"): READY,
    (MEMBER, "hello"): MEMBER,
    (DONE, "hello"): READY,
    (READY, "named"): MEMBER,
    (MEMBER, "named"): MEMBER,
    (MEMBER, "dropped"): LEAVING,
    (MEMBER, "done"): DONE,
    (LEAVING, "done"): DONE,
}
"""A worker's stage, the event, its next stage. A pair that is not here changes nothing."""

FAILURES_MOST = 3
"""A GPU's workers that may end in a row before one of them became a member."""


class Worker:
    """One process on one GPU, or a spare, whose GPU is "". Its number is never used again."""

    def __init__(self, number: int, gpu: str) -> None:
        self.number = number
        self.gpu = gpu
        self.stage = STARTING
        self.formed = 0
        """The newest generation that it has formed; 0: none, it has no state."""
        self.failed: Optional[int] = None
        """Its block has failed: the number of blocks in a row that failed in this step."""
        self.has_trained = True
        """False: its block has failed in its first step."""
        self.failures_before = 0
        """Of its seat, when it became a member."""
        self.gone_on = False
        """It has said that it leaves, after its last step."""
        self.doomed = False
        """It was told to end, or was killed by the plan."""
        self.is_early = False
        """It was killed before any worker had said hello: perhaps the others go on without it."""
        self.kill_s: Optional[float] = None
        """When it is killed if it has not ended by then."""

    def take(self, event: str) -> None:
        self.stage = STAGES.get((self.stage, event), self.stage)


class Seat:
    """One GPU of the lease."""

    def __init__(self, gpu: str, *, accepted: bool, since_s: float = 0.0) -> None:
        self.gpu = gpu
        self.accepted = accepted
        self.since_s = since_s
        """When it was offered."""
        self.deadline_s: Optional[float] = None
        """The deadline of its recall; None: it is not recalled."""
        self.exchanged = False
        """Another GPU is left in the place of this recalled one."""
        self.failures = 0
        self.closed = False
        """No further worker starts here."""

    @property
    def wanted(self) -> bool:
        return self.deadline_s is None


class Roster:
    """The seats by GPU in the order of the lease, and the living workers by number."""

    def __init__(self, gpus: Tuple[str, ...]) -> None:
        self.seats: Dict[str, Seat] = {gpu: Seat(gpu, accepted=True) for gpu in gpus}
        self.workers: Dict[int, Worker] = {}
        self._next = 0

    def start(self, gpu: str) -> Worker:
        worker = Worker(self._next, gpu)
        self._next += 1
        self.workers[worker.number] = worker
        return worker

    def on(self, gpu: str) -> Optional[Worker]:
        """The living worker on this GPU. There is at most one."""
        return next((worker for worker in self.workers.values() if worker.gpu == gpu), None)

    def spare(self) -> Optional[Worker]:
        """The worker that has no GPU yet. There is at most one."""
        return next((w for w in self.workers.values() if not w.gpu and not w.doomed), None)

    def free_seats(self) -> List[Seat]:
        """Places where a worker can start."""
        return [
            seat
            for seat in self.seats.values()
            if seat.wanted and not seat.closed and self.on(seat.gpu) is None
        ]

    def stage(self, *stages: str) -> List[Worker]:
        """The living workers in these stages that were not told to end, by number."""
        return [w for w in self.workers.values() if w.stage in stages and not w.doomed]

    def stays(self, worker: Worker) -> bool:
        """Whether the worker's GPU is not asked back."""
        seat = self.seats.get(worker.gpu)
        return seat is not None and seat.wanted

    def late(self, now_s: float, margin_s: float) -> Iterator[Worker]:
        """Workers on a recalled GPU whose deadline is close."""
        for seat in self.seats.values():
            worker = self.on(seat.gpu)
            if seat.deadline_s is not None and now_s >= seat.deadline_s - margin_s and worker:
                yield worker
