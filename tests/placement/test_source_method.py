"""The source's training: its networks, its replay stack, and a tiny case with a known optimum."""

from __future__ import annotations

from random import Random

import pytest

from nodemgr.edge.placement import scoring
from nodemgr.placement import batch_model, rollouts, source_method
from nodemgr.placement.batches import HOUR_MS
from nodemgr.placement.rollouts import Instance, PickSample
from nodemgr.placement.source_method import ReplayStack, Rewarded, SourceTraining
from tests.placement.support import SMALL, made_up, tiny

GPUS = 4


def entry(number: int) -> Rewarded:
    return Rewarded(PickSample((0.0,), number, (0.0,)), 0.0)


def test_the_oldest_sample_falls_out_of_a_full_stack() -> None:
    stack = ReplayStack(3)
    for number in range(5):
        stack.push(entry(number))
    assert [each.sample.action for each in stack.entries()] == [2, 3, 4]


def test_samples_are_drawn_at_random_and_never_more_than_there_are() -> None:
    stack = ReplayStack(10)
    for number in range(6):
        stack.push(entry(number))
    drawn = [each.sample.action for each in stack.drawn(Random(1), 4)]
    assert len(set(drawn)) == 4
    assert len(stack.drawn(Random(1), 40)) == 6


@pytest.mark.frameworks
def test_the_networks_have_the_layers_of_the_source() -> None:
    training = SourceTraining(tiny, 1, 16)
    widths = source_method.exported(training.policy, {}).widths
    assert widths == (18, 256, 196, 196, 128, 16)
    assert source_method.exported(training.value, {}).widths == (18, 256, 196, 196, 128, 1)


@pytest.mark.frameworks
def test_the_forward_pass_in_c_is_that_of_torch() -> None:
    import torch

    training = SourceTraining(tiny, 1, GPUS)
    state = (0.25, 0.5, 0.0, 1.0, 0.0, 0.0)
    expected = training.policy(torch.tensor([state]))[0].tolist()
    found = scoring.dense(training.weights({}), state)
    assert found == pytest.approx(expected, abs=1e-5)


def makespan_hours(training: SourceTraining, instance: Instance) -> float:
    weights = training.weights({})
    policy = rollouts.by_network(lambda state: scoring.dense(weights, state), GPUS)
    return batch_model.run(instance.jobs, instance.failures, policy).makespan_ms / HOUR_MS


@pytest.mark.frameworks
def test_it_finds_the_optimum_of_a_tiny_case() -> None:
    """One of four GPUs is bad; the optimum keeps the long jobs from it."""
    training = SourceTraining(tiny, 3, GPUS)
    for number in range(60):
        training.round(number)
    found = [makespan_hours(training, tiny(Random(), f"test/{number}")) for number in range(5)]
    assert found == [3.0] * 5


@pytest.mark.frameworks
def test_a_training_is_that_of_its_seed_and_can_be_resumed() -> None:
    def draw(random: Random, seed: str) -> Instance:
        return made_up(seed, SMALL, 8)

    whole, first, second = (SourceTraining(draw, 1, 6) for _ in range(3))
    rounds = [whole.round(number) for number in range(6)]
    assert [first.round(number) for number in range(3)] == rounds[:3]
    second.restore(first.state())
    assert [second.round(number) for number in range(3, 6)] == rounds[3:]
    assert second.weights({}) == whole.weights({})
