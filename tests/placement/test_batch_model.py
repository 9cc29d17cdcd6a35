"""The fast model of the batch problem, by hand on small cases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodemgr.placement import batch_model, plain_policies
from nodemgr.placement.batches import HOUR_MS
from nodemgr.placement.failures import BadCluster, Cluster, Failures
from tests.placement.support import hours

CALM = Cluster(gpus=4, rate_per_hour=0.0, history_hours=0.0)
INDEX = plain_policies.product("index")


def failing(cluster: Cluster, times: dict[int, list[float]]) -> Failures:
    """Failures of the GPUs at these hours."""
    failures = Failures(cluster, "none")
    failures.times_ms = tuple(
        tuple(round(hour * HOUR_MS) for hour in times.get(gpu, [])) for gpu in range(cluster.gpus)
    )
    return failures


def completions(
    cluster: Cluster, times: dict[int, list[float]], *jobs: tuple[int, float]
) -> list[float]:
    outcome = batch_model.run(hours(*jobs), failing(cluster, times), INDEX)
    return [round(each / HOUR_MS, 3) for each in outcome.completions_ms]


def test_jobs_start_strictly_in_order() -> None:
    """The third fits beside the first, and waits behind the second."""
    assert completions(CALM, {}, (3, 2.0), (4, 1.0), (1, 1.0)) == [2.0, 3.0, 4.0]


def test_a_failure_costs_the_work_the_restart_and_the_recovery_of_the_gpu() -> None:
    restart = 300 / 3600
    found = completions(CALM, {1: [1.5]}, (2, 2.0), (2, 1.0))
    assert found == [round(1.5 + restart + 2.0, 3), 1.0]
    all_needed = completions(CALM, {1: [1.5]}, (4, 2.0))
    assert all_needed == [round(1.5 + 1.0 + restart + 2.0, 3)]


def test_a_checkpoint_keeps_the_work_before_it() -> None:
    cluster = replace(CALM, checkpoint_ms=HOUR_MS // 2)
    assert completions(cluster, {0: [1.6]}, (1, 2.0)) == [round(1.6 + 300 / 3600 + 0.5, 3)]


def test_a_second_failure_during_the_restart_loses_no_more_work() -> None:
    cluster = replace(CALM, checkpoint_ms=HOUR_MS // 2, recovery_ms=0)
    found = completions(cluster, {0: [1.6, 1.65]}, (1, 2.0))
    assert found == [round(1.65 + 300 / 3600 + 0.5, 3)]


def test_an_interrupted_job_goes_back_to_its_place() -> None:
    ends = 2.0 + 300 / 3600 + 2.0
    found = completions(CALM, {0: [1.0]}, (4, 2.0), (4, 0.5))
    assert found == [round(ends, 3), round(ends + 0.5, 3)]


def test_a_job_that_is_wider_than_the_gpus_in_service_delays_no_other() -> None:
    found = completions(CALM, {0: [1.0]}, (4, 2.0), (1, 0.5))
    assert found == [round(2.0 + 300 / 3600 + 2.0, 3), 1.5]


def test_an_idle_gpu_that_fails_delays_no_job_that_needs_it_not() -> None:
    assert completions(CALM, {3: [0.5]}, (1, 2.0)) == [2.0]


def test_a_batch_that_never_ends_counts_to_the_horizon() -> None:
    cluster = Cluster(gpus=2, bad_part=1.0, rate_per_hour=1.0, bad_factor=20.0, horizon_hours=100.0)
    outcome = batch_model.run(hours((2, 50.0)), Failures(cluster, "a"), INDEX)
    assert (outcome.is_done, outcome.makespan_ms) == (False, 100 * HOUR_MS)


def test_a_cluster_of_bad_gpus_only_ends_short_jobs() -> None:
    cluster = Cluster(gpus=4, bad_part=1.0)
    outcome = batch_model.run(hours((4, 0.5), (2, 0.5)), Failures(cluster, "a"), INDEX)
    assert outcome.is_done


def test_jobs_that_no_cluster_can_run_are_refused_in_one_line() -> None:
    for jobs in (hours((5, 1.0)), hours((0, 1.0)), hours((1, -1.0)), hours((1, 0.0))):
        with pytest.raises(BadCluster, match="of a cluster of 4"):
            batch_model.run(jobs, Failures(CALM, "a"), INDEX)
