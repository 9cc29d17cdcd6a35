"""The orders of fresh GPUs, by hand and by the optimum of a tiny case."""

from __future__ import annotations

import itertools
import math

import pytest

from nodemgr.core.placement.policies import (
    POLICIES,
    RECENT_HOURS,
    KnownGpu,
    SizedJob,
    expected_loss,
    is_endangered,
    is_short,
    reliable,
)

GIB = 1 << 30


def gpu(index: int, rate: float = 1e-4, **more: float) -> KnownGpu:
    fill = {"remaining_memory_bytes": 80 * GIB, "tasks": 0, **more}
    return KnownGpu(index, f"GPU-{index}", rate_per_hour=rate, **fill)  # type: ignore[arg-type]


LONG, SHORT = SizedJob(4, 24.0), SizedJob(1, 0.25)


def test_the_plain_orders_are_those_of_the_design() -> None:
    gpus = [
        gpu(0, remaining_memory_bytes=60 * GIB),
        gpu(1, remaining_memory_bytes=40 * GIB, tasks=1),
        gpu(2, remaining_memory_bytes=80 * GIB),
    ]
    firsts = {name: POLICIES[name](gpus, LONG)[0] for name in ("spread", "pack", "index")}
    assert firsts == {"spread": 2, "pack": 1, "index": 0}


def test_a_long_wide_job_takes_the_reliable_gpus_and_a_short_one_the_others() -> None:
    gpus = [gpu(0, 4e-4), gpu(1, 1e-5), gpu(2, 5e-5), gpu(3, 1e-4)]
    assert reliable(gpus, LONG) == [1, 2, 3, 0]
    assert reliable(gpus, SHORT) == [0, 3, 2, 1]
    assert is_short(SHORT)
    assert not is_short(LONG)


def test_a_job_of_unknown_time_takes_the_reliable_gpus() -> None:
    assert reliable([gpu(0, 4e-4), gpu(1, 1e-5)], SizedJob(1)) == [1, 0]


def test_a_short_job_too_avoids_a_gpu_on_which_it_would_fail() -> None:
    assert reliable([gpu(0, 1.9), gpu(1, 1e-5), gpu(2, 1.1)], SHORT) == [1, 0, 2]


def test_a_gpu_that_failed_lately_comes_last() -> None:
    gpus = [gpu(0, 1e-5, quiet_hours=RECENT_HOURS / 2), gpu(1, 1e-2)]
    assert reliable(gpus, LONG) == reliable(gpus, SHORT) == [1, 0]


def test_an_idle_gpu_comes_before_a_crowded_one() -> None:
    assert reliable([gpu(0, 1e-6, tasks=3), gpu(1, 4e-4)], LONG) == [1, 0]


def test_gpus_with_equal_records_keep_the_order_spread() -> None:
    gpus = [gpu(at, remaining_memory_bytes=(40 + at % 3) * GIB) for at in range(9)]
    for job in (LONG, SHORT, SizedJob(1)):
        assert reliable(gpus, job) == POLICIES["spread"](gpus, job)


@pytest.mark.parametrize("rate", [0.0, math.inf, 1e300])
def test_extreme_rates_keep_an_order(rate: float) -> None:
    gpus = [gpu(at, rate) for at in range(3)]
    for job in (LONG, SHORT, SizedJob(1), SizedJob(1, 0.0), SizedJob(2, -3.0)):
        assert sorted(reliable(gpus, job)) == [0, 1, 2]


def test_no_candidates_are_no_order() -> None:
    assert all(policy([], LONG) == [] for policy in POLICIES.values())


@pytest.mark.parametrize(
    ("rate", "quiet_hours", "job", "expected"),
    [
        (1e-2, math.inf, SizedJob(1, 5.0), False),
        (1e-2, math.inf, SizedJob(1, 5.1), True),
        (1e-2, math.inf, SizedJob(1), True),
        (1e-5, math.inf, SizedJob(8, 24.0), False),
        (1e-5, RECENT_HOURS / 2, SizedJob(1, 0.1), True),
        (0.0, math.inf, SizedJob(1, 1e9), False),
        (math.inf, math.inf, SizedJob(1, 0.1), True),
    ],
)
def test_a_gpu_endangers_a_job_by_its_rate_and_its_last_failure(
    rate: float, quiet_hours: float, job: SizedJob, expected: bool
) -> None:
    assert is_endangered(gpu(0, rate, quiet_hours=quiet_hours), job) is expected


def test_four_gpus_one_bad_and_three_jobs_find_the_optimum() -> None:
    """Against all 24 placements of three jobs of one GPU each on four GPUs."""
    rates = {0: 1e-4, 1: 4e-3, 2: 1e-4, 3: 1e-4}
    jobs = [SizedJob(1, 12.0), SizedJob(1, 4.0), SizedJob(1, 2.0)]

    def loss(order: tuple[int, ...]) -> float:
        return sum(expected_loss(rates[at], job) for at, job in zip(order, jobs, strict=True))

    free, placed = dict(rates), []
    for job in jobs:
        gpus = [gpu(index, rate) for index, rate in free.items()]
        placed.append(gpus[reliable(gpus, job)[0]].index)
        del free[placed[-1]]
    optimum = min(map(loss, itertools.permutations(rates, 3)))
    assert loss(tuple(placed)) == pytest.approx(optimum)
    assert 1 not in placed


def test_where_all_gpus_are_taken_the_short_job_has_the_bad_one() -> None:
    """The optimum of four jobs on four GPUs, found without a look at later jobs."""
    rates = {0: 1e-4, 1: 4e-3, 2: 1e-4, 3: 1e-4}
    free = dict(rates)
    placed = []
    for job in [SizedJob(1, 0.5), SizedJob(1, 12.0), SizedJob(1, 4.0), SizedJob(1, 2.0)]:
        gpus = [gpu(index, rate) for index, rate in free.items()]
        placed.append(gpus[reliable(gpus, job)[0]].index)
        del free[placed[-1]]
    assert placed == [1, 0, 2, 3]
