"""Elastic jobs on the decision core: times by hand, and books that must agree."""

from __future__ import annotations

from random import Random

import pytest

from bench.trace.elastic_model import (
    UNITS,
    ElasticModel,
    ElasticModelFault,
    HeldSpan,
    Range,
    ResizeCosts,
    units_per_ms,
)
from nodemgr.core.manager import Transition
from nodemgr.placement.batches import SimJob
from tests.core.invariants import promises
from tests.support.examples import examples

FREE = ResizeCosts(join_ms=0, pause_ms=0, leave_ms=0)
COSTS = ResizeCosts(join_ms=600, pause_ms=200, leave_ms=700)
CALM_MS = 2_000
HOUR_MS = 3_600_000


class Promised(ElasticModel):
    """The core's promises hold after every step."""

    def _noted(self, transition: Transition) -> None:
        super()._noted(transition)
        assert promises.check(self.state) == []


def ran(
    jobs: list[SimJob],
    gpus: int,
    ranges: dict[int, Range],
    costs: ResizeCosts = FREE,
    efficiency: float = 1.0,
) -> ElasticModel:
    model = Promised(jobs, gpus, ranges, costs, efficiency)
    assert model.run().is_done
    model.check()
    return model


def test_a_job_alone_starts_with_its_greatest_number() -> None:
    model = ran([SimJob(0, 2, HOUR_MS)], 4, {0: Range(1, 4)})
    assert model.done_ms == {0: HOUR_MS // 2}


def test_a_job_grows_after_the_calm_and_pays_for_it() -> None:
    """One GPU for 10 s + calm + join, then a pause, then two GPUs."""
    jobs = [SimJob(0, 1, 10_000), SimJob(1, 1, 60_000)]
    model = ran(jobs, 2, {1: Range(1, 2)}, COSTS)
    before_ms = 10_000 + CALM_MS + COSTS.join_ms
    assert model.done_ms[1] == before_ms + COSTS.pause_ms + (60_000 - before_ms) // 2
    assert model.trainings[1].resized_ms == [before_ms]


def test_a_rigid_job_gets_the_gpus_above_the_least_number() -> None:
    """The elastic job has four GPUs until the other comes, and one while that one runs."""
    jobs = [SimJob(0, 1, 100_000), SimJob(1, 3, 5_000, comes_ms=10_000)]
    model = ran(jobs, 4, {0: Range(1, 4)}, COSTS)
    assert model.started_ms[1] == 10_000 + COSTS.leave_ms
    assert model.done_ms[1] == model.started_ms[1] + 5_000
    left_ms, joined_ms = model.trainings[0].resized_ms
    assert left_ms == model.started_ms[1]
    assert joined_ms == model.done_ms[1] + CALM_MS + COSTS.join_ms
    done = 4 * left_ms + (joined_ms - left_ms - COSTS.pause_ms)
    assert model.done_ms[0] == joined_ms + COSTS.pause_ms + -(-(100_000 - done) // 4)


def test_the_speed_is_that_of_the_trace_on_the_named_number() -> None:
    assert units_per_ms(3, 3, 0.7) == UNITS
    assert units_per_ms(4, 2, 0.9) == 1.8 * UNITS
    assert units_per_ms(8, 2, 0.9) == round(3.24 * UNITS)
    assert units_per_ms(1, 2, 1.0) == UNITS // 2


def jobs_of(random: Random, count: int) -> list[SimJob]:
    comes = sorted(random.randrange(4 * HOUR_MS) for _ in range(count))
    return [
        SimJob(number, random.choice((1, 1, 2, 4)), random.randrange(1, HOUR_MS), at)
        for number, at in enumerate(comes)
    ]


@pytest.mark.parametrize("seed", range(examples(3)))
@pytest.mark.parametrize("costs", [COSTS, ResizeCosts(12_000, 9_200, 20_000)])
def test_books_agree_at_random(seed: int, costs: ResizeCosts) -> None:
    """The second costs are longer than the calm, and than the deadline of a recall."""
    random = Random(seed)
    jobs = jobs_of(random, 25)
    ranges = {
        job.number: Range(max(1, job.gpus // 2), min(5, 4 * job.gpus))
        for job in jobs
        if random.random() < 0.6
    }
    model = ran(jobs, 5, ranges, costs, 0.9)
    assert any(each.resized_ms for each in model.trainings.values()), "no job was resized"


def test_books_that_do_not_agree_are_found() -> None:
    jobs = [SimJob(0, 1, 10_000), SimJob(1, 1, 60_000)]
    model = ran(jobs, 2, {1: Range(1, 2)}, COSTS)
    stretches = model.trainings[1].stretches
    stretches[0] = stretches[0]._replace(lasts_ms=stretches[0].lasts_ms + 5)
    with pytest.raises(ElasticModelFault, match="units of work too much"):
        model.check()
    stretches[0] = stretches[0]._replace(lasts_ms=stretches[0].lasts_ms - 5)
    model.spans = [each for each in model.spans if each.number == 0 or each.gpu == 1]
    with pytest.raises(ElasticModelFault, match="trained on GPUs that it did not have"):
        model.check()
    model.spans.append(HeldSpan(0, 0, 0, 5))
    with pytest.raises(ElasticModelFault, match="job 0 had its GPUs for"):
        model.check()
