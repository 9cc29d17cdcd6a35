"""The equivariant scorer: the same in torch and in C, and its training on a tiny case."""

from __future__ import annotations

from random import Random

import pytest

from nodemgr.edge.placement import scoring
from nodemgr.placement import batch_model, rollouts, scorer
from nodemgr.placement.batches import HOUR_MS
from nodemgr.placement.rollouts import Decision, Instance
from nodemgr.placement.scorer import ScorerSettings, ScorerTraining
from tests.placement.support import SMALL, made_up, tiny

pytestmark = pytest.mark.frameworks

FEW = ScorerSettings(hidden=6, batches=2, placements=4, randoms=2, learning_rate=0.02)


def test_the_forward_pass_in_c_is_that_of_torch() -> None:
    instance, decisions = made_up("a", SMALL, 12), list[Decision]()
    training = ScorerTraining(tiny, 1, FEW)
    weights = training.weights({})
    policy = rollouts.by_score(weights, Random(1), decisions)
    batch_model.run(instance.jobs, instance.failures, policy)
    rows, mask, _ = scorer.tensors(decisions)
    assert len({decision.candidates for decision in decisions}) > 1
    scores = training.module(rows, mask)
    for decision, row in zip(decisions, scores.tolist(), strict=True):
        found = scoring.score_rows(weights, decision.rows, decision.candidates)
        assert found == pytest.approx(row[: decision.candidates], abs=1e-4)


def test_the_probability_of_picks_is_that_of_draws_without_return() -> None:
    import torch

    scores = torch.tensor([[0.0, 1.0, 2.0], [0.0, 1.0, 9.0]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    picks = torch.tensor([[2, 0], [1, -1]])
    logs, _ = scorer.log_probability(scores, mask, picks)
    e = 2.718281828459045
    first = (e**2 / (1 + e + e**2)) * (1 / (1 + e))
    assert logs.exp().tolist() == pytest.approx([first, e / (1 + e)], rel=1e-5)


def makespan_hours(training: ScorerTraining, instance: Instance) -> float:
    policy = rollouts.by_score(training.weights({}))
    return batch_model.run(instance.jobs, instance.failures, policy).makespan_ms / HOUR_MS


def test_it_unlearns_a_wrong_order_and_finds_the_optimum_of_a_tiny_case() -> None:
    """It begins with the highest rate first; the optimum keeps the long jobs from that GPU."""
    import torch

    training = ScorerTraining(tiny, 3, FEW)
    with torch.no_grad():
        training.module.last.weight.mul_(-0.25)
    tests = [tiny(Random(), f"test/{number}") for number in range(5)]
    assert min(makespan_hours(training, instance) for instance in tests) > 3.0
    for number in range(60):
        training.round(number)
    assert [makespan_hours(training, instance) for instance in tests] == [3.0] * 5


def test_a_training_is_that_of_its_seed_and_can_be_resumed() -> None:
    def draw(random: Random, seed: str) -> Instance:
        return made_up(seed, SMALL, 8)

    whole, first, second = (ScorerTraining(draw, 1, FEW) for _ in range(3))
    rounds = [whole.round(number) for number in range(4)]
    assert [first.round(number) for number in range(2)] == rounds[:2]
    second.restore(first.state())
    assert [second.round(number) for number in range(2, 4)] == rounds[2:]
    assert second.weights({}) == whole.weights({})
