"""Samples in the store and as a table; the weight of one user."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodemgr.core.forecast import samples
from nodemgr.core.forecast.samples import Predicted, SampleOwner
from tests.core.forecast.trainings import features, owner, sample
from tests.support.examples import examples


def test_a_sample_is_what_it_was_after_packing() -> None:
    for row in (
        sample(),
        sample(step_ns=None, peak_bytes=None, utilization_percent=None),
        sample(predicted=Predicted(1, 2, 3, 4)),
    ):
        assert samples.parse(samples.packed(row)) == row


@pytest.mark.parametrize(
    "change",
    [
        {"user": 7}, {"user": "x" * 300}, {"env": None}, {"driver": 5}, {"run_ms": -1},
        {"run_ms": None}, {"steps": True},
        {"peak_bytes": "1"}, {"predicted": {}}, {"predicted": None}, {"features": {}},
        {"wall_ns": 1.5},
    ],
)  # fmt: skip
def test_a_damaged_sample_is_none(change: dict[str, Any]) -> None:
    assert samples.parse(json.dumps(json.loads(samples.packed(sample())) | change)) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", "[" * 100_000])
def test_a_text_of_another_form_is_none(text: str) -> None:
    assert samples.parse(text) is None


def test_a_table_row_has_a_cell_for_each_column_and_nothing_of_the_user() -> None:
    row = samples.csv_row(sample(user="ann"))
    assert len(row) == len(samples.COLUMNS)
    assert "ann" not in row
    assert not {"user", "env", "command"} & set(samples.COLUMNS)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=60))
def test_no_user_weighs_more_than_the_bound(users: list[str]) -> None:
    weights = samples.weights([owner(user) for user in users])
    assert sum(weights) == pytest.approx(1)
    bound = max(samples.MAX_PART_PER_MILLE / 1000, 1 / len(set(users)))
    for user in set(users):
        part = sum(weight for weight, name in zip(weights, users, strict=True) if name == user)
        assert part <= bound + 1e-6


def test_a_thousand_samples_of_one_user_do_not_move_the_median_of_three_others() -> None:
    users = ["eve"] * 1_000 + ["ann", "bob", "cid"] * 3
    figures = [1e9] * 1_000 + [10.0] * 9
    rows = zip(figures, samples.weights([owner(user) for user in users]), strict=True)
    assert samples.median(rows) == 10.0


def test_an_environment_weighs_no_more_for_its_many_users() -> None:
    owners = [SampleOwner("eve", f"uid{number}") for number in range(1_000)]
    owners += [SampleOwner(name, "ann") for name in ("a", "b", "c")]
    weights = samples.weights(owners)
    assert sum(weights) == pytest.approx(1)
    assert sum(weights[:1_000]) == pytest.approx(0.333)
    assert weights[0] == pytest.approx(0.333 / 1_000)
    figures = [1e9] * 1_000 + [10.0] * 3
    assert samples.median(zip(figures, weights, strict=True)) == 10.0


def test_in_one_environment_no_user_weighs_more_than_the_bound() -> None:
    owners = [SampleOwner("dev", "eve")] * 100 + [
        SampleOwner("dev", name) for name in ("a", "b", "c")
    ]
    assert sum(samples.weights(owners)[:100]) == pytest.approx(0.333)


def test_places_are_shared_between_names() -> None:
    assert samples.fair_counts({"eve": 1_000, "a": 3, "b": 9}, 12) == {"a": 3, "b": 4, "eve": 5}
    assert samples.fair_counts({"eve": 1_000}, 12) == {"eve": 12}
    assert samples.fair_counts({"a": 1, "b": 2}, 12) == {"a": 1, "b": 2}
    assert sum(samples.fair_counts(dict.fromkeys("abcdef", 1), 4).values()) == 4
    assert samples.fair_counts({}, 4) == {}


def test_the_newest_of_each_environment_keep_their_order() -> None:
    envs = ["a", "eve", "b", "a", "eve", "eve"]
    assert samples.newest_of_each(envs, {"a": 1, "b": 1, "eve": 2}) == [2, 3, 4, 5]
    assert samples.newest_of_each(envs, {}) == []


def test_an_announced_forecast_has_no_run_time() -> None:
    row = samples.Announced(owner(), "ab", features(), (("A", Predicted(1, 2, 3, 4)),))
    assert row.predicted_on("A") == Predicted(1, 2, 3, None)
    assert row.predicted_on("B") == Predicted()


def test_the_median_of_nothing_is_none() -> None:
    assert samples.weights([]) == []
    assert samples.median([]) is None
