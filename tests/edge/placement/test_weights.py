"""The file of weights: what it holds comes back, and anything else is refused in one line."""

from __future__ import annotations

import json
import math
import os
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodemgr.edge.placement import weights
from nodemgr.edge.placement.weights import FEATURES, SCORER, SOURCE, Weights, WeightsError

HIDDEN = 3


def some(kind: str = SCORER, widths: tuple[int, ...] = (len(FEATURES), HIDDEN)) -> Weights:
    count = weights.count_of(kind, widths)
    values = array("f", (math.sin(place) / 3 for place in range(count)))
    return Weights(kind, widths, values, {"seed": 7})


@pytest.mark.parametrize(
    "given", [some(), some(SOURCE, (6, 5, 4))], ids=lambda given: str(given.kind)
)
def test_a_file_holds_the_weights_as_they_were(tmp_path: Path, given: Weights) -> None:
    path = tmp_path / "weights.json"
    weights.save(path, given)
    found = weights.load(path, given.kind)
    assert (found.kind, found.widths, found.trained) == (given.kind, given.widths, {"seed": 7})
    assert list(found.values) == pytest.approx(list(given.values), rel=1e-6)
    weights.save(path, found)
    assert weights.load(path, given.kind).values == found.values


def test_a_scorer_of_the_largest_use_is_below_a_megabyte() -> None:
    assert len(weights.dump(some(widths=(len(FEATURES), 96)))) < 1_000_000


def changed(**fields: Any) -> Callable[[dict[str, Any]], str]:
    return lambda body: json.dumps(body | fields)


def without(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda body: json.dumps({key: value for key, value in body.items() if key != name})


COUNT = weights.count_of(SCORER, (len(FEATURES), HIDDEN))
BAD: dict[str, tuple[Callable[[dict[str, Any]], str], str]] = {
    "cut": (lambda body: json.dumps(body)[:-40], "it is no JSON; it may be cut"),
    "empty": (lambda body: "", "it is no JSON; it may be cut"),
    "a list": (lambda body: "[1]", "its schema version is None, not 1"),
    "deep": (lambda body: "[" * 100_000, "it is no JSON; it may be cut"),
    "another version": (changed(schema_version=2), "its schema version is 2, not 1"),
    "another kind": (changed(kind=SOURCE), "its network is 'source', not scorer"),
    "other widths": (changed(widths=[len(FEATURES), HIDDEN + 1]), "its shapes fit no network"),
    "no widths": (without("widths"), "its shapes fit no network"),
    "huge": (changed(widths=[len(FEATURES), 10**9]), "its shapes fit no network"),
    "words as widths": (changed(widths=["8", "3"]), "its shapes fit no network"),
    "other features": (changed(features=["x"] * len(FEATURES)), "its shapes fit no network"),
    "too few": (changed(weights=[0.5] * (COUNT - 1)), "its shapes fit no network"),
    "NaN": (changed(weights=[math.nan] * COUNT), "one of its weights is no finite number"),
    "infinite": (changed(weights=[math.inf] * COUNT), "one of its weights is no finite number"),
    "words": (changed(weights=["1"] * COUNT), "one of its weights is no finite number"),
    "true": (changed(weights=[True] * COUNT), "one of its weights is no finite number"),
    "other numbers": (changed(weights=[0.5] * COUNT), "its checksum is wrong"),
    "no checksum": (changed(checksum=""), "its checksum is wrong"),
    "trained without end": (
        changed(trained={"reward": math.inf}),
        "its account of the training is no JSON",
    ),
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_a_file_that_holds_no_such_network_is_refused_in_one_line(
    tmp_path: Path, case: str
) -> None:
    spoil, fault = BAD[case]
    path = tmp_path / "weights.json"
    path.write_text(spoil(json.loads(weights.dump(some()))))
    with pytest.raises(WeightsError) as caught:
        weights.load(path)
    assert str(caught.value).partition(" is not used: ")[2].startswith(fault)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_too_large_is_not_parsed(tmp_path: Path) -> None:
    path = tmp_path / "weights.json"
    path.write_text(" " * 1_000_001)
    with pytest.raises(WeightsError, match="larger than 1000000 bytes"):
        weights.load(path)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["fifo", "directory"])
def test_what_is_no_regular_file_is_refused_without_a_wait(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "weights.json")
    with pytest.raises(WeightsError, match=r"no regular file|Is a directory"):
        weights.load(tmp_path / "weights.json")


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="cannot be read: No such file"):
        weights.load(tmp_path / "none.json")
