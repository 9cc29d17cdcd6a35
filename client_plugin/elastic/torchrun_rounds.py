"""Rounds of an elastic task whose script is an unmodified one for torchrun.

Any change of the set of GPUs, and any death, ends all workers and starts a new round from the
script's checkpoint, as torch's own elastic agent does. A planned change therefore waits for a
checkpoint that is newer than the round.

Pure: workers, the time and what is known of the checkpoint in, orders out.
"""

from __future__ import annotations

import signal
from typing import List, Optional

from .orders import NO_CHECKPOINT, Checkpoint, PlanOrder, Report, Signal, StartWorker
from .roster import Roster, Seat

YOUNG_S = 30.0
"""The time in which a script may say hello; an offer is not declined in it."""
COMING_S = 600.0
"""The same once it has imported `elastic`, from the start of each round."""
HOLD_S = 30.0
"""The time that an offered GPU waits for a checkpoint, once the script is not young any more."""
LOSS_S = 60.0
"""A task grows only from a checkpoint that is younger: the work since then is done again."""
RESTARTS_MOST = 3
"""Failures in a row; a round that lasts, and saves a checkpoint, ends the row."""
LASTING_S = 30.0
"""A script may save a checkpoint at its start, and fail again and again."""
TERM_S = 2.0
"""The time that workers have to end after SIGTERM."""


class Rounds:
    """The present round: which checkpoint it began from, and whether it ends."""

    def __init__(self, begun_s: float, *, checkpoints: bool) -> None:
        self.begun_s = begun_s
        self.checkpoints = checkpoints
        """Whether the user has named the script's checkpoint."""
        self.number = 0
        self.ending = False
        self.over = False
        """A worker has ended with success: the others are left to end too."""
        self.code: Optional[int] = None
        """The exit code with which the task fails."""
        self._mark = 0
        """The newest checkpoint that there was when the round began."""
        self._started_s = begun_s
        self._restarts = 0
        self._has_said = False
        self.is_coming = False
        """The script has imported `elastic` of the client, and has not said hello yet."""
        self.is_short = False
        """A worker has left before any said hello: a script for torchrun cannot go on."""

    def fresh(self, checkpoint: Checkpoint) -> bool:
        """Whether there is a checkpoint newer than the last resize."""
        return self.checkpoints and checkpoint.complete > self._mark

    def young(self, now_s: float) -> bool:
        return now_s < self.young_until_s()

    def young_until_s(self) -> float:
        return self._started_s + COMING_S if self.is_coming else self.begun_s + YOUNG_S

    def may_say_hello(self, now_s: float) -> bool:
        """Whether the script may have the three lines: it has had little time to reach them."""
        may = self.is_coming or not self.checkpoints
        return may and self.young(now_s) and not (self.ending or self.over)

    def died(
        self, *, doomed: bool, code: int, checkpoint: Checkpoint, now_s: float
    ) -> List[PlanOrder]:
        """The end of a worker: of success, of a planned end, or of a failure."""
        if code == 0 and not doomed:
            self.over = True
            return []
        if self.ending or doomed:
            self.ending = True
            return []
        if self.is_short and not self.over:
            return self._start_short()
        if self.fresh(checkpoint) and now_s >= self._started_s + LASTING_S:
            self._restarts = 0
        allowed = self.checkpoints or (self.young(now_s) and code < 0)
        if self.over or not allowed or self._restarts >= RESTARTS_MOST:
            self.code = code
            gives_up = allowed and not self.over
            return [Report("GAVE_UP", size=RESTARTS_MOST)] if gives_up else []
        self._restarts += 1
        self.ending = True
        return [Report("RESTARTED" if checkpoint.seen else "BEGUN_ANEW", code=code)]

    def settle(self, roster: Roster, checkpoint: Checkpoint, now_s: float) -> List[PlanOrder]:
        """Resizes where a checkpoint allows it; starts the next round once all have ended."""
        if self._changed(roster) and self._may_resize(roster, checkpoint, now_s):
            self.ending = True
        short = self.is_short and not self.ending and not self.over and not self.young(now_s)
        orders = self._start_short() if short else []
        if not self.ending or self.over:
            return []
        if roster.workers:
            return orders + self._end(roster, now_s)
        self.ending = False
        return orders + self.start(roster, checkpoint, now_s)

    def _start_short(self) -> List[PlanOrder]:
        """It has no three lines, or its workers wait for the one that left."""
        self.ending = True
        return [Report("FEWER")]

    def start(
        self, roster: Roster, checkpoint: Checkpoint = NO_CHECKPOINT, now_s: float = 0.0
    ) -> List[PlanOrder]:
        """A round on all seats that are not asked back."""
        seats = roster.free_seats()
        if not seats:
            self.code = 1
            return [Report("NO_GPU_LEFT")]
        self.number += 1
        self._mark, self._started_s = checkpoint.seen, now_s
        self.is_short = False
        orders: List[PlanOrder] = [] if self.number == 1 else [Report("SIZE", size=len(seats))]
        for rank, seat in enumerate(seats):
            worker = roster.start(seat.gpu)
            orders.append(StartWorker(worker.number, seat.gpu, rank, len(seats), self.number))
        return orders

    def refused(self, seat: Seat, checkpoint: Checkpoint, now_s: float) -> bool:
        """Whether an offer that no round has taken is to be declined."""
        if seat.accepted or self.ending or self.young(now_s):
            return False
        return self.over or not self.checkpoints or now_s >= seat.since_s + HOLD_S

    def keeps(self, checkpoint: Checkpoint, size: int) -> List[PlanOrder]:
        """Once: the reason why the script does not grow."""
        if self._has_said or self.over or checkpoint.seen:
            return []
        self._has_said = True
        return [Report("NOT_YET" if self.checkpoints else "KEEPS_SIZE", size=size)]

    def _may_resize(self, roster: Roster, checkpoint: Checkpoint, now_s: float) -> bool:
        recalled = any(not seat.wanted for seat in roster.seats.values())
        loses_little = now_s < checkpoint.written_s + LOSS_S
        return self.fresh(checkpoint) and (recalled or loses_little)

    def _changed(self, roster: Roster) -> bool:
        """Whether the next round would have other GPUs, and at least one."""
        wanted = {seat.gpu for seat in roster.seats.values() if seat.wanted}
        return bool(wanted) and wanted != {worker.gpu for worker in roster.workers.values()}

    def _end(self, roster: Roster, now_s: float) -> List[PlanOrder]:
        orders: List[PlanOrder] = []
        for worker in roster.workers.values():
            if not worker.doomed:
                worker.doomed, worker.kill_s = True, now_s + TERM_S
                orders.append(Signal(worker.number, int(signal.SIGTERM)))
        return orders
