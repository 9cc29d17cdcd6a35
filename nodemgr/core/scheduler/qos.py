"""The next compute share of a task that has a time to keep.

Knows: the patent's rules of elastic adjustment ([39, 40, 42, 99, 100]; docs/allocation.md).
Must not know: tasks, clocks, where a figure comes from. Each figure about time is an Estimate.

A task misses its time if elapsed + remaining > preset. Then it gets 10 % more of each of its GPUs,
step by step, from the free share first, then from best-effort tasks, the youngest first. A task
that keeps its time gives back what it got beyond the share that it asked for, as soon as another
task wants the GPU. The launch gate holds a task at its share, and edge/compute/overuse.py pauses a
task whose use stays above it: no rule here looks at the use.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from nodemgr.core.model.values import value

STEP_PERCENT = 10
WHOLE_PERCENT = 100


class EstimateSource(enum.StrEnum):
    GIVEN = "given"
    """A user or an administrator named it."""
    PROGRESS = "progress"
    """It follows from the progress that the task reports."""
    PREDICTED = "predicted"
    """It follows from the forecast of the task."""


@value
class Estimate:
    """A time that a decision rests on, and its origin."""

    time_ms: int
    source: EstimateSource = EstimateSource.GIVEN


class GpuShares(NamedTuple):
    """One GPU of the task."""

    free_percent: int
    best_effort: tuple[tuple[str, int], ...]
    """The best-effort tasks on it with their granted percent, the youngest first."""

    @property
    def available_percent(self) -> int:
        return self.free_percent + sum([percent for _, percent in self.best_effort])


@value
class QosState:
    """The service that a task gets now, and the service that it needs."""

    elapsed_ms: int
    remaining: Estimate | None
    """None: unknown; then the share stays."""
    preset: Estimate
    asked_percent: int
    share_percent: int
    gpus: tuple[GpuShares, ...]
    is_contended: bool
    """Another task wants one of its GPUs, or more of it."""

    @property
    def is_missed(self) -> bool:
        return self.remaining is not None and self.is_missed_by(self.remaining.time_ms)

    def is_missed_by(self, remaining_ms: int) -> bool:
        return self.elapsed_ms + remaining_ms > self.preset.time_ms


class ShareChange(NamedTuple):
    share_percent: int
    """The task's next share, on each of its GPUs."""
    taken: tuple[tuple[str, int], ...] = ()
    """The percent that each best-effort task loses for it."""


def remaining(elapsed_ms: int, done: int, total: int) -> Estimate | None:
    """The rest of the time at the pace so far; None before the first part is done."""
    if done <= 0:
        return None
    return Estimate(elapsed_ms * max(0, total - done) // done, EstimateSource.PROGRESS)


def predicted(run_ms: int, done: int, total: int) -> Estimate:
    """The rest of a predicted run, after this part of its iterations ([34-39, 97])."""
    return Estimate(run_ms * max(0, total - done) // max(1, total), EstimateSource.PREDICTED)


def next_share(state: QosState) -> ShareChange:
    """The task's share after this step."""
    if state.remaining is None:
        return ShareChange(state.share_percent)
    if state.is_missed:
        return _more(state)
    if not state.is_contended:
        return ShareChange(state.share_percent)
    lower_percent = max(state.asked_percent, state.share_percent - STEP_PERCENT)
    if lower_percent < state.share_percent and _suffices(state, lower_percent):
        return ShareChange(lower_percent)
    return ShareChange(state.share_percent)


def _suffices(state: QosState, percent: int) -> bool:
    """Whether the time is kept with this share: the pace is taken to follow the share."""
    assert state.remaining is not None
    slower_ms = state.remaining.time_ms * state.share_percent // max(1, percent)
    return not state.is_missed_by(slower_ms)


def _more(state: QosState) -> ShareChange:
    """One step more, or the rest of what the GPUs have."""
    step_percent = min(
        STEP_PERCENT,
        WHOLE_PERCENT - state.share_percent,
        *[gpu.available_percent for gpu in state.gpus],
    )
    if step_percent <= 0:
        return ShareChange(state.share_percent)
    taken: dict[str, int] = {}
    for gpu in state.gpus:
        _take(gpu, step_percent, taken)
    return ShareChange(state.share_percent + step_percent, tuple(taken.items()))


def _take(gpu: GpuShares, step_percent: int, taken: dict[str, int]) -> None:
    """Take from the GPU's best-effort tasks what is not free there.

    A task has the same share on each of its GPUs: its loss on another one counts here too.
    """
    already_percent = sum([taken.get(task_id, 0) for task_id, _ in gpu.best_effort])
    missing_percent = step_percent - gpu.free_percent - already_percent
    for task_id, granted_percent in gpu.best_effort:
        if missing_percent <= 0:
            return
        lost_percent = min(missing_percent, granted_percent - taken.get(task_id, 0))
        if lost_percent > 0:
            taken[task_id] = taken.get(task_id, 0) + lost_percent
            missing_percent -= lost_percent
