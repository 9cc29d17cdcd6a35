"""`reliable` that may wait, in bench/placement: by hand on tiny cases, off for equal GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.placement.waiting import WaitingModel
from nodemgr.placement import batch_model, plain_policies
from nodemgr.placement.batches import HOUR_MS
from nodemgr.placement.failures import Cluster, Failures
from nodemgr.placement.rollouts import Instance
from tests.placement.support import TINY, hours, made_up
from tests.support.examples import examples

RELIABLE = plain_policies.product("reliable")


def batch(*rows: tuple[int, float]) -> Instance:
    """On four GPUs, one of which fails twice an hour."""
    return Instance(hours(*rows), Failures(TINY, "waiting", "the bad GPU"), "waiting")


def test_a_long_job_waits_for_a_good_gpu_that_is_free_soon() -> None:
    found = WaitingModel(batch((3, 0.5), (1, 4.0)), RELIABLE).run()
    assert found.completions_ms == (HOUR_MS // 2, 4.5 * HOUR_MS)
    assert found.interruptions == 0


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([(3, 0.5), (1, 0.2)], id="it fails hardly in its time"),
        pytest.param([(2, 0.5), (4, 1.0)], id="it needs more GPUs than are good"),
    ],
)
def test_a_job_does_not_wait_in_vain(rows: list[tuple[int, float]]) -> None:
    one = batch(*rows)
    assert WaitingModel(one, RELIABLE).run() == batch_model.run(one.jobs, one.failures, RELIABLE)


@pytest.mark.parametrize("seed", range(examples(5)))
def test_equal_gpus_are_never_left(seed: int) -> None:
    equal = replace(Cluster(gpus=6), bad_factor=1.0)
    one = made_up(str(seed), equal, 12)
    assert WaitingModel(one, RELIABLE).run() == batch_model.run(one.jobs, one.failures, RELIABLE)
