"""The source's examples: states, masks, picks one by one, the reward."""

from __future__ import annotations

from array import array
from random import Random

import pytest

from nodemgr.core.placement.policies import SizedJob as Job
from nodemgr.edge.placement import scoring
from nodemgr.edge.placement.weights import FEATURES, SCORER, Weights, count_of
from nodemgr.placement import batch_model, plain_policies, rollouts
from nodemgr.placement.observed import SeenGpu, uuid_of
from nodemgr.placement.rollouts import PickSample
from tests.placement.support import SMALL, made_up


def seen(*indexes: int) -> list[SeenGpu]:
    return [SeenGpu(index, uuid_of(index)) for index in indexes]


def test_the_state_is_n_t_s() -> None:
    """[60-63]: of four GPUs the last two failed or are taken, s = [0, 0, 1, 1]."""
    state = scoring.state_of(2, 12.0, [0, 1], 4)
    assert state[2:] == (0, 0, 1, 1)
    assert state[:2] == (2 / scoring.GPUS_SCALE, 12 / scoring.HOURS_SCALE)


@pytest.mark.parametrize("random", [None, Random(1)])
def test_a_masked_gpu_is_never_picked(random: Random | None) -> None:
    outputs = [0.0, 1.0, 1e9, 1e9]
    for _ in range(200):
        assert rollouts.masked_pick(outputs, (0, 0, 1, 1), random) in {0, 1}


def test_without_draws_the_largest_probability_wins() -> None:
    assert rollouts.masked_pick([0.5, 2.0, 3.0, 1.0], (0, 0, 1, 0), None) == 1


def test_draws_have_the_probabilities_of_the_softmax() -> None:
    random = Random(5)
    picks = [rollouts.masked_pick([0.0, 1.0986, 9.0], (0, 0, 1), random) for _ in range(4_000)]
    assert picks.count(1) / len(picks) == pytest.approx(0.75, abs=0.03)


def test_n_gpus_are_picked_one_by_one_each_from_the_state_after_the_last() -> None:
    samples: list[PickSample] = []
    policy = rollouts.by_network(lambda state: [4.0, 3.0, 2.0, 1.0], 4, None, samples)
    assert policy(seen(1, 2, 3), Job(2, 1.0)) == [0, 1]
    first, second = samples
    assert (first.state[2:], first.action, first.next_state[2:]) == ((1, 0, 0, 0), 1, (1, 1, 0, 0))
    assert (second.state, second.action) == (first.next_state, 2)
    assert second.next_state[2:] == (1, 1, 1, 0)


def test_the_reward_is_the_part_of_the_random_time_that_is_saved() -> None:
    assert rollouts.reward(200.0, 150.0) == 0.25
    assert rollouts.reward(100.0, 110.0) == pytest.approx(-0.1)


def test_the_random_time_is_the_smallest_of_several_placements() -> None:
    instance = made_up("a", SMALL, 6)
    times = [
        batch_model.run(
            instance.jobs, instance.failures, plain_policies.randomly(f"a/random/{number}")
        ).makespan_ms
        for number in range(5)
    ]
    assert rollouts.best_random_ms(instance, 5) == min(times)
    assert rollouts.best_random_ms(instance, 1) == times[0]


def scorer(log_rate: float) -> Weights:
    """Its score is this weight times log_rate."""
    shape = (len(FEATURES), 1)
    values = array("f", [0.0] * count_of(SCORER, shape))
    values[-1 - len(FEATURES)] = log_rate
    return Weights(SCORER, shape, values)


def test_the_scorer_orders_all_candidates_and_notes_its_decisions() -> None:
    gpus = seen(0, 1, 2)
    for gpu, rate in zip(gpus, (0.02, 0.5, 0.001), strict=True):
        gpu.rate_per_hour = rate
    decisions: list[rollouts.Decision] = []
    policy = rollouts.by_score(scorer(-1.0), None, decisions)
    assert policy(gpus, Job(2, 1.0)) == [2, 0, 1]
    assert [decision.picks for decision in decisions] == [(2, 0)]
    assert policy(gpus, Job(3, 1.0)) == [2, 0, 1]
    assert len(decisions) == 1, "a job that takes all candidates leaves no choice"
