"""Failures of a simulated cluster: their rates, their drift, and that all policies share them."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from statistics import fmean

import pytest

from nodemgr.core.placement import rates
from nodemgr.core.placement.rates import Track
from nodemgr.placement.batches import HOUR_MS
from nodemgr.placement.failures import BadCluster, Cluster, Failures
from nodemgr.placement.observed import Observed

CLUSTER = Cluster(gpus=10, rate_per_hour=0.01, bad_factor=20.0, recovery_ms=0)
HOURS = CLUSTER.history_hours + CLUSTER.horizon_hours


def test_gpus_fail_at_their_rates() -> None:
    found: dict[float, list[int]] = {}
    for seed in range(10):
        failures = Failures(CLUSTER, str(seed))
        for gpu, times in enumerate(failures.times_ms):
            found.setdefault(failures.rate_per_hour(gpu, 0), []).append(len(times))
    assert sorted(found) == [0.01, pytest.approx(0.2)]
    for rate, counts in found.items():
        assert fmean(counts) == pytest.approx(rate * HOURS, rel=0.1)


def test_one_seed_gives_the_same_failures_and_another_one_others() -> None:
    assert Failures(CLUSTER, "a").times_ms == Failures(CLUSTER, "a").times_ms
    assert Failures(CLUSTER, "a").times_ms != Failures(CLUSTER, "b").times_ms


def test_the_bad_gpus_can_be_the_same_while_the_times_differ() -> None:
    one, other = Failures(CLUSTER, "a", "bad"), Failures(CLUSTER, "b", "bad")
    true = [[each.rate_per_hour(gpu, 0) for gpu in range(10)] for each in (one, other)]
    assert true[0] == true[1]
    assert one.times_ms != other.times_ms


def test_a_gpu_does_not_fail_while_it_is_down() -> None:
    cluster = replace(CLUSTER, recovery_ms=5 * HOUR_MS)
    for times in Failures(cluster, "a").times_ms:
        gaps = [after - before for before, after in pairwise(times)]
        assert min(gaps, default=math.inf) >= cluster.recovery_ms


def test_drifting_rates_move_to_other_gpus() -> None:
    failures = Failures(replace(CLUSTER, drift_hours=240.0), "a")
    bad = [
        {gpu for gpu in range(10) if failures.rate_per_hour(gpu, day * 24 * HOUR_MS) > 0.1}
        for day in range(60)
    ]
    assert {len(gpus) for gpus in bad} == {2}
    assert 3 <= len(set(map(frozenset, bad))) <= 7


def test_without_rates_nothing_fails() -> None:
    for cluster in (replace(CLUSTER, rate_per_hour=0.0), replace(CLUSTER, gpus=1, bad_part=0.0)):
        failures = Failures(replace(cluster, rate_per_hour=0.0), "a")
        assert not any(failures.times_ms)
        assert failures.next_ms(0, 0) == math.inf


@pytest.mark.parametrize(
    "wrong",
    [{"gpus": 0}, {"gpus": 1_001}, {"bad_part": 1.5}, {"rate_per_hour": -1.0},
     {"rate_per_hour": math.nan}, {"rate_per_hour": math.inf}, {"bad_factor": math.inf},
     {"recovery_ms": -1}, {"checkpoint_ms": 0}, {"drift_hours": 0.0}, {"horizon_hours": 0.0}],
    ids=str,
)  # fmt: skip
def test_parameters_of_no_cluster_are_refused_in_one_line(wrong: dict[str, float]) -> None:
    with pytest.raises(BadCluster) as caught:
        Cluster(**wrong)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert f"with {next(iter(wrong))} " in str(caught.value)


def test_estimates_are_those_of_the_manager() -> None:
    """Running sums here, all ages anew in core/placement/rates.py."""
    failures, now_ms = Failures(CLUSTER, "a"), 300 * HOUR_MS
    observed = Observed(failures)
    tracks = {}
    for gpu, times in enumerate(failures.times_ms):
        for time_ms in times:
            if 0 <= time_ms <= now_ms:
                observed.failed(gpu, time_ms)
        ages = [(now_ms - time_ms) / HOUR_MS for time_ms in times if time_ms <= now_ms]
        tracks[gpu] = Track("model", CLUSTER.history_hours + 300, tuple(ages))
    expected = rates.learned(tracks)
    for seen in observed.refresh(now_ms, range(10)):
        assert seen.rate_per_hour == pytest.approx(expected[seen.index].per_hour)
        assert seen.failures == len(tracks[seen.index].failure_ages_hours)
        assert seen.quiet_hours == pytest.approx(min(tracks[seen.index].failure_ages_hours))
