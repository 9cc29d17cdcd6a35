"""The plan of samples: every step has its samples once, whatever the number of workers."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_plugin.training.plan import Permutation, SamplePlan, mixed, part
from tests.support.examples import examples


@st.composite
def plans(draw: st.DrawFn) -> SamplePlan:
    batch = draw(st.integers(1, 60))
    return SamplePlan(
        samples=draw(st.integers(batch, 300)),
        global_batch=batch,
        max_per_gpu=draw(st.integers(1, 70)),
        epochs=draw(st.integers(1, 4)),
        seed=draw(st.integers(-5, 2**40)),
        virtual_workers=draw(st.integers(0, batch)),
    )


@given(st.integers(1, 3000), st.integers(), st.integers(0, 50))
@settings(max_examples=examples(60), deadline=None)
def test_a_permutation_has_each_number_once(count: int, seed: int, epoch: int) -> None:
    order = Permutation(count, seed, epoch)
    assert sorted(order[place] for place in range(count)) == list(range(count))
    with pytest.raises(IndexError):
        order[count]


def test_permutations_differ_and_look_random() -> None:
    """Each place holds each number about equally often: chi-squared, far from its extremes."""
    count, seeds = 16, 4000
    found = Counter(
        (place, Permutation(count, seed)[place]) for seed in range(seeds) for place in range(count)
    )
    expected = seeds / count
    chi_squared = sum(
        (found[place, number] - expected) ** 2 / expected
        for place in range(count)
        for number in range(count)
    )
    freedom = (count - 1) ** 2
    assert abs(chi_squared - freedom) < 6 * (2 * freedom) ** 0.5
    neighbours = sum(
        abs(Permutation(1000, 5)[place + 1] - Permutation(1000, 5)[place]) == 1
        for place in range(999)
    )
    assert neighbours < 10


@given(st.integers(0, 500), st.integers(1, 40))
@settings(max_examples=examples(100), deadline=None)
def test_parts_cover_and_differ_by_one_at_most(count: int, parts: int) -> None:
    every = [part(count, number, parts) for number in range(parts)]
    assert [place for each in every for place in each] == list(range(count))
    assert max(map(len, every)) - min(map(len, every)) <= 1


@given(plans(), st.integers(1, 9), st.data())
@settings(max_examples=examples(150), deadline=None)
def test_a_step_has_the_same_samples_with_any_number_of_workers(
    plan: SamplePlan, size: int, data: st.DataObject
) -> None:
    step = data.draw(st.integers(0, plan.steps - 1))
    pieces = [piece for rank in range(size) for piece in plan.pieces(step, rank, size)]
    samples = [sample for piece in pieces for sample in piece.samples]
    assert samples == plan.samples_of(step)
    assert len(set(samples)) == plan.global_batch
    assert all(0 < len(piece.samples) <= plan.max_per_gpu for piece in pieces)


@given(plans(), st.integers(1, 9), st.data())
@settings(max_examples=examples(100), deadline=None)
def test_a_virtual_worker_computes_the_same_pieces_wherever_it_is(
    plan: SamplePlan, size: int, data: st.DataObject
) -> None:
    plan = plan._replace(virtual_workers=plan.virtual_workers or 1)
    step = data.draw(st.integers(0, plan.steps - 1))
    alone = plan.pieces(step, 0, 1)
    spread = [piece for rank in range(size) for piece in plan.pieces(step, rank, size)]
    assert spread == alone
    assert {piece.worker for piece in alone} == set(range(plan.virtual_workers))
    for worker in range(plan.virtual_workers):
        own = [piece for piece in alone if piece.worker == worker]
        assert [piece.opens for piece in own] == [True] + [False] * (len(own) - 1)
        assert [piece.closes for piece in own] == [False] * (len(own) - 1) + [True]


@given(plans())
@settings(max_examples=examples(60), deadline=None)
def test_an_epoch_has_no_sample_twice_and_leaves_less_than_a_batch(plan: SamplePlan) -> None:
    for epoch in range(plan.epochs):
        steps = range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
        seen = [sample for step in steps for sample in plan.samples_of(step)]
        assert len(seen) == len(set(seen)) > plan.samples - plan.global_batch
        assert {plan.epoch_of(step) for step in steps} == {epoch}


def test_the_order_is_fixed_for_ever() -> None:
    """A checkpoint of an older version continues with the same samples."""
    plan = SamplePlan(1000, 8, 4, 2, 1)
    assert plan.samples_of(0) == FIRST
    assert mixed(1, 2, 3) == MIXED
    assert len({plan.seed_of(step, worker) for step in range(50) for worker in range(8)}) == 400


FIRST = [147, 719, 190, 688, 638, 505, 278, 927]
MIXED = 3851293329796251419
