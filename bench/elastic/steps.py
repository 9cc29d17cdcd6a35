"""The record of steps that a training's workers share, and the figures of a change in it.

Must not know: processes, managers.
"""

from __future__ import annotations

import json
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

LIMIT_S = 240.0
POLL_S = 0.02


class Step(NamedTuple):
    """One step that one worker has completed."""

    step: int
    rank: int
    size: int
    pid: int
    at_s: float


class StepFile:
    """The steps of one training. Times are those of the monotonic clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.steps: list[Step] = []
        self.ready: list[int] = []
        """The PIDs of workers that have come to where a spare waits."""
        self._place = 0

    def read(self) -> list[Step]:
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._place)
                whole, end, _ = file.read().rpartition(b"\n")
            self._place += len(whole) + len(end)
            for line in map(json.loads, whole.splitlines()):
                if "ready" in line:
                    self.ready.append(line["ready"])
                else:
                    self.steps.append(Step(**line))
        return self.steps

    def await_size(self, size: int, since_s: float, limit_s: float = LIMIT_S) -> Step:
        """The first step after `since_s` that `size` workers have made together."""
        end_s = time.monotonic() + limit_s
        while time.monotonic() < end_s:
            for each in self.read():
                if each.at_s > since_s and each.size == size:
                    return each
            time.sleep(POLL_S)
        raise SystemExit(f"no step of {size} workers within {limit_s:.0f} s: {self.steps[-3:]}")

    def pid_of(self, rank: int) -> int:
        """The process that has this rank now."""
        return next(each.pid for each in reversed(self.read()) if each.rank == rank)

    def pause_s(self, begin_s: float, end_s: float) -> float:
        """The longest time without a step from `begin_s` to `end_s`, beyond a usual one."""
        times = _times([each for each in self.read() if each.at_s <= end_s])
        gaps = [(after, after - before) for before, after in pairwise(times)]
        usual = [gap for after, gap in gaps if after < begin_s][-50:]
        return max(gap for after, gap in gaps if after >= begin_s) - statistics.median(usual)

    def lost(self, begin_s: float) -> int:
        """The completed steps that were made again after `begin_s`.

        A worker that leaves may write its last line late: that line counts for nothing. Neither do
        steps that an earlier start from a checkpoint makes again.
        """
        every = self.read()
        old = {each.pid for each in every if each.at_s <= begin_s}
        last = {each.pid: place for place, each in enumerate(every) if each.pid in old}
        newest, worst = -1, 0
        for place, each in enumerate(every):
            if each.at_s > begin_s and each.step < newest and place != last.get(each.pid):
                worst = max(worst, newest - each.step + 1)
            newest = each.step if each.at_s <= begin_s else max(newest, each.step)
        return worst


def _times(steps: list[Step]) -> list[float]:
    """When each step, a repeated one too, was completed by the first of its workers."""
    pairs = zip(steps, [None, *steps], strict=False)
    return [each.at_s for each, before in pairs if before is None or each.step != before.step]
