"""The share of a task that has a time to keep: the source's examples, then sequences of steps."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodemgr.core.model.values import replace
from nodemgr.core.scheduler.qos import (
    Estimate,
    EstimateSource,
    GpuShares,
    QosState,
    ShareChange,
    next_share,
    remaining,
)
from tests.support.examples import examples

MINUTE_MS = 60_000

MISSED = QosState(
    elapsed_ms=90_000,
    remaining=Estimate(MINUTE_MS),
    preset=Estimate(2 * MINUTE_MS),
    asked_percent=30,
    share_percent=30,
    gpus=(GpuShares(50, ()),),
    is_contended=False,
)
"""The example of [39, 99]: 1m30 + 1m > 2m."""
KEPT = replace(MISSED, remaining=Estimate(30_000))

TABLE = {
    "[39, 99] 1m30 + 1m > 2m is missed: [40, 100] one step from the free share": (
        MISSED,
        ShareChange(40),
    ),
    "1m30 + 30s = 2m is kept": (KEPT, ShareChange(30)),
    "nothing is known of the rest": (replace(MISSED, remaining=None), ShareChange(30)),
    "[100] from the free share first, then from best effort, the youngest first": (
        replace(MISSED, gpus=(GpuShares(4, (("young", 5), ("old", 40))),)),
        ShareChange(40, (("young", 5), ("old", 1))),
    ),
    "[100] the GPU has less than a step": (
        replace(MISSED, gpus=(GpuShares(0, (("be", 7),)),)),
        ShareChange(37, (("be", 7),)),
    ),
    "[100] the GPU has no more": (replace(MISSED, gpus=(GpuShares(0, ()),)), ShareChange(30)),
    "at most the whole GPU": (
        replace(MISSED, share_percent=95, gpus=(GpuShares(20, ()),)),
        ShareChange(100),
    ),
    "the whole GPU is its own": (
        replace(MISSED, share_percent=100, gpus=(GpuShares(0, ()),)),
        ShareChange(100),
    ),
    "a step on two GPUs is bounded by the one that has less": (
        replace(MISSED, gpus=(GpuShares(50, ()), GpuShares(6, ()))),
        ShareChange(36),
    ),
    "a best-effort task on both GPUs loses once": (
        replace(MISSED, gpus=(GpuShares(0, (("be", 20),)), GpuShares(5, (("be", 20),)))),
        ShareChange(40, (("be", 10),)),
    ),
    "two GPUs with a best-effort task each": (
        replace(MISSED, gpus=(GpuShares(0, (("a", 20),)), GpuShares(5, (("b", 20),)))),
        ShareChange(40, (("a", 10), ("b", 5))),
    ),
    "it gives back what it got, one step at a time": (
        replace(KEPT, remaining=Estimate(10_000), share_percent=60, is_contended=True),
        ShareChange(50),
    ),
    "to what it asked for and no further": (
        replace(KEPT, remaining=Estimate(10_000), share_percent=36, is_contended=True),
        ShareChange(30),
    ),
    "not where the smaller share would miss the time: 25s * 60 / 50 = 30s, 26s is 31s": (
        replace(KEPT, remaining=Estimate(26_000), share_percent=60, is_contended=True),
        ShareChange(60),
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_next_share(name: str) -> None:
    state, expected = TABLE[name]
    assert next_share(state) == expected


@pytest.mark.parametrize(
    ("elapsed_ms", "done", "total", "expected_ms"),
    [
        (90_000, 60, 100, 60_000),
        (90_000, 0, 100, None),
        (90_000, 100, 100, 0),
        (90_000, 110, 100, 0),
        (0, 1, 100, 0),
    ],
)
def test_the_rest_follows_from_the_pace(
    elapsed_ms: int, done: int, total: int, expected_ms: int | None
) -> None:
    found = remaining(elapsed_ms, done, total)
    assert found == (
        None if expected_ms is None else Estimate(expected_ms, EstimateSource.PROGRESS)
    )


def test_steps_end_when_the_time_is_kept() -> None:
    """A task needs 70 % of its GPU: it gets 10 % more four times, and no fifth time."""
    state = replace(MISSED, gpus=(GpuShares(15, (("be", 45),)),), is_contended=True)
    shares, held_percent = [], 45
    for _ in range(6):
        needed_ms = 30_000 * 70 // state.share_percent
        change = next_share(replace(state, remaining=Estimate(needed_ms)))
        lost_percent = sum(percent for _, percent in change.taken)
        held_percent -= lost_percent
        grown_percent = change.share_percent - state.share_percent
        free_percent = state.gpus[0].free_percent - (grown_percent - lost_percent)
        state = replace(
            state,
            share_percent=change.share_percent,
            gpus=(GpuShares(free_percent, (("be", held_percent),)),),
        )
        shares.append(change.share_percent)
    assert shares == [40, 50, 60, 70, 70, 70]
    assert held_percent == 20


percents = st.integers(0, 100)


@settings(deadline=None, max_examples=examples(150))
@given(
    times=st.tuples(*[st.integers(0, 10**9)] * 3),
    asked_percent=st.integers(1, 100),
    extra_percent=percents,
    gpus=st.lists(
        st.tuples(percents, st.dictionaries(st.sampled_from("abcd"), percents)),
        min_size=1,
        max_size=3,
    ),
    contended=st.booleans(),
)
def test_no_gpu_is_overdrawn(
    times: tuple[int, int, int],
    asked_percent: int,
    extra_percent: int,
    gpus: list[tuple[int, dict[str, int]]],
    contended: bool,
) -> None:
    granted: dict[str, int] = {}
    for _, tasks in gpus:
        for task_id, percent in tasks.items():
            granted.setdefault(task_id, percent)
    rows = tuple(
        GpuShares(free, tuple((task_id, granted[task_id]) for task_id in tasks))
        for free, tasks in gpus
    )
    share_percent = min(100, asked_percent + extra_percent)
    state = QosState(
        times[0],
        Estimate(times[1]),
        Estimate(times[2]),
        asked_percent,
        share_percent,
        rows,
        contended,
    )
    change = next_share(state)
    taken = dict(change.taken)
    assert asked_percent <= change.share_percent <= 100
    assert abs(change.share_percent - share_percent) <= 10
    assert all(0 < percent <= granted[task_id] for task_id, percent in taken.items())
    for row in rows:
        given_up = sum(taken.get(task_id, 0) for task_id, _ in row.best_effort)
        assert change.share_percent - share_percent <= row.free_percent + given_up
