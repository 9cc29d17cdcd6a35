"""The plan of an elastic task: what has happened goes in, what is to be done comes out.

    orders = plan.step(event, now_s, checkpoint)

Knows: the GPUs of the lease, the workers and their stages; generations (scripts with the three
lines) and rounds (unmodified scripts). Must not know: processes, sockets, files, the clock.
"""

from __future__ import annotations

import signal
from typing import List, Optional, Tuple

from .orders import (
    NO_CHECKPOINT,
    Accept,
    BlockFailed,
    Checkpoint,
    Coming,
    Decline,
    Died,
    Done,
    EndAsked,
    Failed,
    Finish,
    Formed,
    GiveGpu,
    GpuOffered,
    GpuRecalled,
    GpuWithdrawn,
    Hello,
    LeaseRejoined,
    Leaving,
    Left,
    NoRoom,
    Parked,
    PlanEvent,
    PlanOrder,
    Quit,
    Report,
    Resized,
    Saved,
    Signal,
    StartWorker,
    TaskLost,
)
from .resize_generations import Generations
from .roster import (
    DONE,
    FAILURES_MOST,
    LEAVING,
    MEMBER,
    PARKED,
    READY,
    STARTING,
    Roster,
    Seat,
    Worker,
)
from .spares import Spares
from .torchrun_rounds import Rounds

MARGIN_S = 0.3
"""The plan ends the worker on a recalled GPU this much before the manager does."""
EXCHANGE_S = 1.0
"""The time before a deadline when another GPU is left in place of the only one with the state."""
KILL = int(signal.SIGKILL)
LEAVE_S = 1.0
"""The time that a worker has to end after its last step."""
POLL_S = 0.25
"""How often a checkpoint is looked for while a change waits for it."""


SAID = (Parked, Hello, Resized, Failed, Leaving, BlockFailed, Done, Quit, Saved)
"""The events that are a living worker's own words."""


class ElasticPlan:
    """One elastic task."""

    def __init__(
        self, gpus: Tuple[str, ...], now_s: float, *, checkpoints: bool, most_gpus: int
    ) -> None:
        """`gpus`: those of the lease. `checkpoints`: the user has named the checkpoint."""
        self.roster = Roster(gpus)
        self.generations = Generations()
        self.rounds = Rounds(now_s, checkpoints=checkpoints)
        self.spares = Spares(most_gpus)
        self.inline = False
        """Whether the script has the three lines; not known before the first hello."""
        self.finishing = False
        self.finished = False
        self.code: Optional[int] = None
        self._failure = 0
        """The code of the last worker that failed since the newest generation was formed."""
        self._checkpoint = NO_CHECKPOINT
        self._now_s = now_s

    def begin(self, checkpoint: Checkpoint = NO_CHECKPOINT) -> List[PlanOrder]:
        """The first workers."""
        return self.rounds.start(self.roster, checkpoint, self._now_s)

    def step(
        self, event: PlanEvent, now_s: float, checkpoint: Checkpoint = NO_CHECKPOINT
    ) -> List[PlanOrder]:
        self._now_s, self._checkpoint = now_s, checkpoint
        if self.finished:
            return []
        return [*self._take(event), *self._settle()]

    def wake_s(self) -> Optional[float]:
        """When a TimePassed is due at the latest."""
        times = [
            deadline - MARGIN_S for seat in self.roster.seats.values()
            if (deadline := seat.deadline_s) is not None and self.roster.on(seat.gpu)
        ]  # fmt: skip
        times += [w.kill_s for w in self.roster.workers.values() if w.kill_s is not None]
        if self.inline:
            times += self.generations.wake_s()
            times += [
                seat.deadline_s - EXCHANGE_S for seat in self.roster.seats.values()
                if seat.deadline_s is not None and not seat.exchanged
            ]  # fmt: skip
            times += [] if (spare_s := self._spare_s()) is None else [spare_s]
        else:
            recalled = any(not seat.wanted for seat in self.roster.seats.values())
            offered = any(not seat.accepted for seat in self.roster.seats.values())
            waits = self.rounds.checkpoints and (recalled or offered)
            times += [self.rounds.young_until_s()] if offered or self.rounds.is_short else []
            times += [self._now_s + POLL_S] if waits else []
        return min((time_s for time_s in times if time_s > self._now_s), default=None)

    # -- events --

    def _take(self, event: PlanEvent) -> List[PlanOrder]:
        if isinstance(event, SAID):
            worker = self.roster.workers.get(event.worker)
            return [] if worker is None else self._said(event, worker)
        if isinstance(event, Died):
            gone = self.roster.workers.pop(event.worker, None)
            return [] if gone is None else self._died(gone, event.code)
        if isinstance(event, (GpuOffered, GpuRecalled, GpuWithdrawn, LeaseRejoined)):
            return self._lease(event)
        if isinstance(event, Coming):
            self.rounds.is_coming = True
        elif isinstance(event, NoRoom):
            self.spares.no_room(self._now_s)
            self.roster.workers.pop(event.worker, None)
        if isinstance(event, TaskLost):
            return self._end_all(KILL, 0.0, 1)
        if isinstance(event, EndAsked):
            return self._end_all(event.signal, event.grace_s, -event.signal)
        return []

    def _lease(self, event: PlanEvent) -> List[PlanOrder]:
        seats = self.roster.seats
        if isinstance(event, GpuOffered) and event.gpu not in seats:
            seats[event.gpu] = Seat(event.gpu, accepted=False, since_s=self._now_s)
        elif isinstance(event, GpuRecalled):
            if event.gpu not in seats:
                return [Left(event.gpu)]
            seats[event.gpu].deadline_s = event.deadline_s
        elif isinstance(event, GpuWithdrawn) and event.gpu in seats:
            seats[event.gpu].deadline_s = None
            seats[event.gpu].exchanged = False
        elif isinstance(event, LeaseRejoined):
            return self._repeat(event.gpus)
        return []

    def _repeat(self, gpus: Tuple[str, ...]) -> List[PlanOrder]:
        """The words that the manager may have missed."""
        seats = self.roster.seats
        for gpu in gpus:
            seats.setdefault(gpu, Seat(gpu, accepted=False, since_s=self._now_s))
        for seat in seats.values():
            if seat.gpu not in gpus:
                seat.deadline_s = self._now_s  # taken away meanwhile
        return [Accept(p.gpu) for p in seats.values() if p.accepted and p.wanted]

    def _said(self, event: PlanEvent, worker: Worker) -> List[PlanOrder]:
        generations = self.generations
        if isinstance(event, Parked):
            worker.take("parked")
            return self._give(worker, worker.gpu) if worker.gpu else []
        if isinstance(event, Hello):
            self.inline = True
            orders = generations.hello(worker, event.phase, self._now_s)
            if worker.stage == MEMBER:
                orders += generations.repeat(worker, self.roster)
            return orders + self._accept(worker.gpu)
        if isinstance(event, Resized):
            generations.resized(worker, event.generation)
        elif isinstance(event, Failed):
            generations.failed(worker, event.generation, self._now_s)
        elif isinstance(event, Leaving):
            self._let_go(worker)
        elif isinstance(event, BlockFailed):
            generations.block_failed(worker, event.phase, event.step, event.own)
        elif isinstance(event, Saved):
            generations.saved(event.step)
        elif isinstance(event, (Done, Quit)):
            generations.done(worker, event.phase, is_whole=isinstance(event, Done))
        return []

    def _let_go(self, worker: Worker) -> None:
        if worker.stage == LEAVING:
            worker.gone_on = worker.doomed = True
            worker.kill_s = self._now_s + LEAVE_S

    def _died(self, worker: Worker, code: int) -> List[PlanOrder]:
        orders: List[PlanOrder] = []
        if not worker.gpu:
            self.spares.died()
            return orders
        is_short = not self.inline and self.rounds.is_short
        expected = worker.doomed or code == 0 or is_short
        if not expected:
            orders.append(Report("ENDED", worker=worker.number, code=code))
            self._failure = code
        seat = self.roster.seats.get(worker.gpu)
        if not self.inline:
            if not self.finishing and not worker.is_early:
                orders += self.rounds.died(
                    doomed=worker.doomed, code=code, checkpoint=self._checkpoint,
                    now_s=self._now_s,
                )  # fmt: skip
            return orders
        self.generations.died(worker, code)
        if code > 0 and (worker.failed or 0) >= FAILURES_MOST and not self.finishing:
            report = Report("SAME_STEP", size=FAILURES_MOST)
            return [*orders, report, *self._end_all(KILL, 0.0, code)]
        if seat is not None and code == 0 and worker.stage == MEMBER:
            seat.closed = True
        if seat is not None and not expected and not (worker.formed and worker.has_trained):
            seat.failures = max(seat.failures, worker.failures_before) + 1
            seat.closed = seat.failures >= FAILURES_MOST
        first = worker.number == next(iter(self.generations.members), -1)
        if worker.stage == DONE and code != 0 and self.code is None and (first or not expected):
            self.code = code
        return orders

    def _is_the_end(self) -> bool:
        """Whether no worker is left that can go on, and none will come."""
        if self.generations.lost_state(self.roster):
            return True
        open_seats = any(not p.closed for p in self.roster.seats.values())
        no_worker = not any(worker.gpu for worker in self.roster.workers.values())
        return no_worker and (self.generations.over or not open_seats)

    # -- orders --

    def _settle(self) -> List[PlanOrder]:
        if self.inline and not self.finishing:
            self._exchange()
        orders = [*self._leave_early(), *self._kill_late()]
        if not self.finishing:
            orders += self._run_generations() if self.inline else self._run_rounds()
        orders += self._leave()
        if self.finishing and not self.roster.workers and not self.finished:
            self.finished = True
            orders.append(Finish(self.code or 0))
        return orders

    def _exchange(self) -> None:
        """Leave a GPU without the state in place of the only one with it, whose recall is due.

        The manager withdraws the recall: a task at its least number has no GPU to recall.
        """
        seat = self.generations.only_state(self.roster)
        if seat is None or seat.deadline_s is None or seat.exchanged:
            return
        others = [each for each in self.roster.seats.values() if each.wanted and not each.closed]
        if others and self._now_s >= seat.deadline_s - EXCHANGE_S:
            seat.exchanged = True
            others[-1].deadline_s = seat.deadline_s

    def _leave_early(self) -> List[PlanOrder]:
        """A worker without state leaves a recalled GPU at once, and costs the others nothing.

        Once workers have said hello, `_run_generations` does the same.
        """
        if self.inline or self.finishing or not self.rounds.may_say_hello(self._now_s):
            return []
        orders: List[PlanOrder] = []
        workers = self.roster.stage(STARTING)
        if any(self.roster.stays(worker) for worker in workers):
            for worker in workers:
                if worker.gpu and not self.roster.stays(worker):
                    worker.is_early = self.rounds.is_short = True
                    orders.append(Report("EARLY", worker=worker.number, gpu=worker.gpu))
                    orders.append(self._kill(worker))
        return orders

    def _kill_late(self) -> List[PlanOrder]:
        """Workers that were to end, and workers on GPUs whose recall is due."""
        due = [
            w for w in self.roster.workers.values()
            if w.kill_s is not None and self._now_s >= w.kill_s
        ]  # fmt: skip
        late = [w for w in self.roster.late(self._now_s, MARGIN_S) if w not in due]
        stuck = self.generations.stuck(self.roster, self._now_s) if self.inline else []
        orders: List[PlanOrder] = []
        for worker in [*due, *late, *(w for w in stuck if w not in late and w not in due)]:
            if worker.doomed and worker.kill_s is None:
                continue  # it was killed, and its end is not known yet
            if not worker.doomed:
                key = "TOO_LATE" if self.inline else "TAKEN"
                key = "STUCK" if worker in stuck else key
                orders.append(Report(key, worker=worker.number, gpu=worker.gpu))
                self._failure = -KILL
            orders.append(self._kill(worker))
        return orders

    def _kill(self, worker: Worker) -> PlanOrder:
        worker.doomed, worker.kill_s = True, None
        return Signal(worker.number, KILL)

    def _run_generations(self) -> List[PlanOrder]:
        over = self.generations.over
        orders: List[PlanOrder] = []
        if self._failure < 0 and self.generations.resume(self.roster, self._now_s):
            orders.append(Report("RESUMED"))
        if self._is_the_end():
            failure = 0 if over else self._failure
            return self._end_all(KILL, 0.0, failure if self.code is None else self.code)
        for worker in [
            *self.generations.dropped(self.roster),
            *self.roster.stage(STARTING, PARKED, READY),
        ]:
            if over or (worker.gpu and not self.roster.stays(worker)):
                orders.append(self._kill(worker))
        for seat in [] if over else self.roster.free_seats():
            orders += self._fill(seat)
        due_s = self._spare_s()
        orders += [self._start("")] if due_s is not None and self._now_s >= due_s else []
        sent = self.generations.settle(self.roster, self._now_s)
        if any(isinstance(order, Formed) for order in sent):
            self._failure = 0
        orders += sent
        if self.generations.exhausted():
            return [*orders, Report("BROKEN"), *self._end_all(KILL, 0.0, 1)]
        for seat in list(self.roster.seats.values()):
            orders += self._give_back(seat, over)
        return orders

    def _give_back(self, seat: Seat, over: bool) -> List[PlanOrder]:
        """A GPU on which no worker can run is left, so that a recall never takes another one."""
        roster = self.roster
        if not (seat.closed or (over and not seat.accepted)) or roster.on(seat.gpu) is not None:
            return []
        if seat.failures >= FAILURES_MOST:
            orders: List[PlanOrder] = [Report("GIVEN_BACK", gpu=seat.gpu, size=FAILURES_MOST)]
        else:
            orders = []
        if not seat.accepted:
            return [*orders, *self._decline(seat)]
        if over or not any(worker.gpu for worker in roster.workers.values()):
            return []  # the task is about to end
        del roster.seats[seat.gpu]
        return [*orders, Left(seat.gpu)]

    def _fill(self, seat: Seat) -> List[PlanOrder]:
        """A worker for this GPU: the spare, or a new one."""
        spare = self.roster.spare()
        if spare is None:
            return [self._start(seat.gpu)]
        self.spares.given()
        return self._give(spare, seat.gpu)

    def _start(self, gpu: str) -> PlanOrder:
        worker = self.roster.start(gpu)
        size = sum(bool(each.gpu) for each in self.roster.workers.values()) or 1
        return StartWorker(worker.number, gpu, size - 1, size, 0)

    def _give(self, spare: Worker, gpu: str) -> List[PlanOrder]:
        """A spare that is not parked yet gets its GPU when it is."""
        spare.gpu = gpu
        if spare.stage != PARKED:
            return []
        spare.take("given")
        return [GiveGpu(spare.number, gpu)]

    def _spare_s(self) -> Optional[float]:
        """When a spare is to be started."""
        generations = self.generations
        if not generations.members or not generations.formed or generations.over:
            return None
        return self.spares.due_s(self.roster, generations.sent_s)

    def _run_rounds(self) -> List[PlanOrder]:
        if self.rounds.code is not None:
            return self._end_all(int(signal.SIGTERM), 2.0, self.rounds.code)
        orders = self.rounds.settle(self.roster, self._checkpoint, self._now_s)
        for order in list(orders):
            if isinstance(order, StartWorker):
                orders += self._accept(order.gpu)
        for seat in list(self.roster.seats.values()):
            if seat.wanted and self.rounds.refused(seat, self._checkpoint, self._now_s):
                orders += self.rounds.keeps(self._checkpoint, len(self.roster.workers))
                orders += self._decline(seat)
        if not self.roster.workers:
            return orders + self._end_all(KILL, 0.0, 0)
        return orders

    def _accept(self, gpu: str) -> List[PlanOrder]:
        seat = self.roster.seats.get(gpu)
        if seat is None or seat.accepted:
            return []
        seat.accepted = True
        return [Accept(gpu)]

    def _decline(self, seat: Seat) -> List[PlanOrder]:
        del self.roster.seats[seat.gpu]
        return [Decline(seat.gpu)]

    def _leave(self) -> List[PlanOrder]:
        """GpuRecalled GPUs on which no worker is any more."""
        gone = [
            seat.gpu for seat in self.roster.seats.values()
            if not seat.wanted and self.roster.on(seat.gpu) is None
        ]  # fmt: skip
        for gpu in gone:
            del self.roster.seats[gpu]
        return [Left(gpu) for gpu in gone]

    def _end_all(self, number: int, grace_s: float, code: int) -> List[PlanOrder]:
        if self.finishing and self.code is not None and number != KILL:
            grace_s = 0.0  # asked a second time: at once
        self.finishing = True
        self.code = code
        orders: List[PlanOrder] = []
        for worker in self.roster.workers.values():
            if worker.doomed and worker.kill_s is None:
                continue
            now = number == KILL or grace_s == 0.0
            orders.append(Signal(worker.number, KILL if now else number))
            worker.doomed = True
            worker.kill_s = None if now else self._now_s + grace_s
        return orders
