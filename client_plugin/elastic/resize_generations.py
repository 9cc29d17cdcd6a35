"""Generations of an elastic task whose script has the three lines: resizes without a restart.

A generation is a set of workers with ranks. Generations only rise. One is *formed* when each of
its members says so; a planned change waits for that. The death of a member does not wait.

Pure: workers and the time in, orders out.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Set, Tuple

from .orders import Formed, Members, Over, PlanOrder, Report
from .roster import DONE, LEAVING, MEMBER, READY, STARTING, Roster, Seat, Worker

FIRST_WAIT_S = 2.0
"""The time that the first worker that is ready gives to the others."""
FAILED_CALM_S = 0.1
"""A collective fails some milliseconds before the death is known that broke it."""
FORM_LIMIT_S = 60.0
"""A member that has not formed a generation for this long, while others have, is killed."""
FAILURES_MOST = 3
"""Failures in a row: of collectives without a death, or of workers at the same step."""
LASTING_S = 10.0
"""A generation that was in force for this long ends a row of failures."""


class Generations:
    """The newest generation, and what has happened since it was sent."""

    def __init__(self) -> None:
        self.number = 0
        self.phase = 1
        self.over = False
        """A member's loop has ended: nobody joins or leaves this phase any more."""
        self.members: Tuple[int, ...] = ()
        """Of the newest generation, by rank, the dead included."""
        self._last: Tuple[int, ...] = ()
        """Of the generation in which the first loop has ended."""
        self.base: Tuple[int, ...] = ()
        """Of the newest generation that was formed: these share a collective."""
        self.formed = True
        self.sent_s = 0.0
        self.had_state = False
        self.now = False
        """The newest generation, or one before it that was not formed, was sent as "now"."""
        self._sent: Dict[int, Tuple[int, ...]] = {}
        """By generation, since the last one that was formed: its members."""
        self._missing: Dict[int, Set[int]] = {}
        """By generation: its members that have not said that they have formed it."""
        self._broken = False
        self._failed_s: Optional[float] = None
        self._failures = 0
        self._failed_step = 0
        self._at_one_step = 0
        """The step of the last failed block, and the blocks in a row that failed in it."""
        self._first_s: Optional[float] = None
        self._saved_step = self._resumed_step = 0
        """Of the newest checkpoint, from 1, now and at the last loss of the state."""
        self._resumes = 0
        """Losses in a row without a newer checkpoint between them."""

    # -- words of workers --

    def hello(self, worker: Worker, phase: int, now_s: float) -> List[PlanOrder]:
        if phase < self.phase or (phase == self.phase and self.over):
            return [Over(worker.number, phase)]
        if phase > self.phase:
            self.phase, self.over = phase, False
            self.members, self.base, self.formed = (), (), True
            self._broken, self._saved_step = False, 0
        if not self.members and self._first_s is None:
            self._first_s = now_s
        worker.take("hello")
        worker.failed = None
        return []

    def resized(self, worker: Worker, generation: int) -> None:
        """A generation may be formed after a newer one was sent: its members train until then."""
        missing = self._missing.get(generation)
        if missing is None or worker.number not in missing:
            return
        missing.discard(worker.number)
        worker.formed = max(worker.formed, generation)
        if not missing:
            self.had_state, self.base = True, self._sent[generation]

    def failed(self, worker: Worker, generation: int, now_s: float) -> None:
        if generation == self.number and worker.number in self.members and not self._broken:
            self._failed_s = now_s if self._failed_s is None else self._failed_s

    def block_failed(self, worker: Worker, phase: int, step: int, own: int) -> None:
        """The others go on at once, before the death of the process, which need not come."""
        if phase != self.phase or worker.stage != MEMBER or worker.failed is not None:
            return
        before = self._at_one_step if step == self._failed_step else 0
        self._failed_step, self._at_one_step = step, before + 1
        worker.failed = self._at_one_step
        worker.has_trained = own > 1
        self._broken = True

    def saved(self, step: int) -> None:
        self._saved_step = step

    def done(self, worker: Worker, phase: int, *, is_whole: bool) -> None:
        """The end of a worker's loop. `is_whole`: after the last step, which its peers end too.

        The newest generation may have come too late for it, and is never formed then.
        """
        if phase != self.phase or worker.stage not in (MEMBER, LEAVING):
            return
        is_late = False
        if worker.stage == MEMBER:
            self.over = True
            self._last = self._sent.get(worker.formed, self.base)
            is_late = self.now and worker.formed < self.number
        self._broken = self._broken or is_late or not is_whole
        worker.take("done")

    def dropped(self, roster: Roster) -> List[Worker]:
        """Joiners that no worker with the state is left to form a generation with."""
        members = [w for w in roster.stage(MEMBER) if self.over and w.failed is None]
        if any(worker.number in self._last for worker in members):
            return []
        for worker in members:
            worker.take("dropped")
        return members

    def died(self, worker: Worker, code: int) -> None:
        """Note what the death of a worker breaks.

        Another member may have formed the newest generation and not have said it yet: the death of
        a named worker breaks it, too.
        """
        parted = worker.gone_on or (worker.stage == LEAVING and code == 0) or worker.stage == DONE
        parted = parted or worker.failed is not None
        shares = worker.number in self.base and not parted
        named = worker.number in self.members and worker.stage == MEMBER and worker.failed is None
        self._broken = self._broken or shares or named

    # -- the next generation --

    def settle(self, roster: Roster, now_s: float) -> List[PlanOrder]:
        orders = self._conclude(roster, now_s)
        self._give_up_waiting(now_s)
        names = self._next_members(roster, now_s)
        if names is None:
            return orders
        urgent = self._broken or (self.now and not self.formed)
        return orders + self._send(roster, names, urgent, now_s)

    def wake_s(self) -> List[float]:
        """Times at which something becomes due."""
        times = []
        if self._failed_s is not None:
            times.append(self._failed_s + FAILED_CALM_S)
        if self._first_s is not None and not self.members:
            times.append(self._first_s + FIRST_WAIT_S)
        if not self.formed:
            times.append(self.sent_s + FORM_LIMIT_S)
        return times

    def exhausted(self) -> bool:
        """Whether collectives broke too often in a row without a death."""
        return self._failures > FAILURES_MOST

    def stuck(self, roster: Roster, now_s: float) -> List[Worker]:
        """Members that have not formed an urgent generation long after others have."""
        if self.formed or not self.now or now_s < self.sent_s + FORM_LIMIT_S:
            return []
        living = self._living(roster)
        late = [worker for worker in living if worker.formed < self.number]
        return late if len(late) < len(living) else []

    def lost_state(self, roster: Roster) -> bool:
        """Whether there was a state and no worker has it that can give it to others."""
        return self.had_state and not any(w.formed for w in roster.stage(READY, MEMBER, DONE))

    def resume(self, roster: Roster, now_s: float) -> bool:
        """Whether the state is lost, and the training begins again at its checkpoint."""
        if self.over or not self._saved_step or not self.lost_state(roster):
            return False
        self._resumes = self._resumes + 1 if self._saved_step <= self._resumed_step else 1
        if self._resumes > FAILURES_MOST:
            return False
        self._resumed_step, self.had_state = self._saved_step, False
        if not any(worker.stage == MEMBER for worker in self._living(roster)):
            self.members, self.base, self.formed = (), (), True
            self._broken, self._first_s = False, now_s
        return True

    def only_state(self, roster: Roster) -> Optional[Seat]:
        """The GPU of the only worker that has the state; None: several have it, or none."""
        holders = [w for w in roster.stage(READY, MEMBER, DONE) if w.formed and w.failed is None]
        return roster.seats.get(holders[0].gpu) if len(holders) == 1 else None

    def _living(self, roster: Roster) -> List[Worker]:
        return [roster.workers[n] for n in self.members if n in roster.workers]

    def _conclude(self, roster: Roster, now_s: float) -> List[PlanOrder]:
        """Notes that the newest generation is formed, once it is."""
        if self.formed or self._broken:
            return []
        living = self._living(roster)
        if len(living) < len(self.members) or any(w.formed < self.number for w in living):
            return []
        self.formed, self.now = True, False
        self._sent, self._missing = {}, {}
        for worker in living:
            seat = roster.seats[worker.gpu]
            worker.failures_before = max(worker.failures_before, seat.failures)
            seat.failures = 0
        return [Formed(self.number), Report("SIZE", size=len(self.members))]

    def _give_up_waiting(self, now_s: float) -> None:
        if self._failed_s is None or now_s < self._failed_s + FAILED_CALM_S:
            return
        self._failures = 1 if now_s - self.sent_s > LASTING_S else self._failures + 1
        self._failed_s, self._broken = None, True

    def _next_members(self, roster: Roster, now_s: float) -> Optional[Tuple[int, ...]]:
        """The members of a generation that has to be sent now; None: none has to."""
        present = [
            w for w in self._living(roster)
            if w.stage == MEMBER and not w.doomed and w.failed is None
        ]  # fmt: skip
        if self._broken:
            return self._named(roster, present, joiners=not self.over)
        if not self.formed or self.over:
            return None
        if not self.members and self._still_waits(roster, now_s):
            return None
        names = self._named(roster, present, joiners=True)
        return names if names != self.members else None

    def _named(
        self, roster: Roster, present: List[Worker], *, joiners: bool
    ) -> Optional[Tuple[int, ...]]:
        """Those of the present whose GPU stays, by rank, and those that are ready.

        A worker with the state stays among them, even one whose GPU is asked back: the others get
        the state from it first.
        """
        new = [w for w in roster.stage(READY) if roster.stays(w)] if joiners else []
        staying = [w for w in present if self.over or roster.stays(w)]
        if self.had_state and not any(w.formed for w in [*staying, *new]):
            staying = [w for w in present if w in staying or w is self._keeper(present)]
            if not any(w.formed for w in staying):
                return None  # the state ends with the process whose block has failed
        names = tuple(w.number for w in [*staying, *new])
        return names or None

    def _keeper(self, present: List[Worker]) -> Optional[Worker]:
        return next((worker for worker in present if worker.formed), None)

    def _still_waits(self, roster: Roster, now_s: float) -> bool:
        """Whether the first generation of a phase waits for workers that may be ready soon."""
        if self._first_s is None:
            return True
        coming = [w for w in roster.stage(STARTING, DONE) if roster.stays(w)]
        return bool(coming) and now_s < self._first_s + FIRST_WAIT_S

    def _send(
        self, roster: Roster, names: Tuple[int, ...], urgent: bool, now_s: float
    ) -> List[PlanOrder]:
        leavers = [
            w for w in self._living(roster)
            if w.number not in names and w.stage == MEMBER and w.failed is None
        ]  # fmt: skip
        for worker in leavers:
            worker.take("dropped")
        members = [roster.workers[number] for number in names]
        for worker in members:
            worker.take("named")
        holder = next((worker for worker in members if worker.formed), members[0])
        self.number += 1
        self.members, self.formed, self.sent_s = names, False, now_s
        self._sent[self.number], self._missing[self.number] = names, set(names)
        self.now = urgent
        self._broken = False
        self._failed_s = self._first_s = None
        parting = [w.number for w in roster.stage(LEAVING) if not w.gone_on]
        return [
            Members(
                self.number, tuple((w.number, w.gpu) for w in members),
                (*names, *parting), holder.number, holder.formed > 0, urgent,
                self.phase,
            )
        ]  # fmt: skip

    def repeat(self, worker: Worker, roster: Roster) -> List[PlanOrder]:
        """The newest generation again, for a member that has come back with hello."""
        living = self._living(roster)
        holder = next((w for w in living if w.formed and w is not worker), living[0])
        pairs = tuple((w.number, w.gpu) for w in living)
        return [
            Members(
                self.number, pairs, (worker.number,), holder.number, holder.formed > 0,
                self.now, self.phase,
            )
        ]  # fmt: skip
