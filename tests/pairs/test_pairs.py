"""Each row of the table, and that the table is whole."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import get_args

import pytest

from nodemgr.core.model import events
from nodemgr.core.model.entities import Quota, RunSpec
from tests.pairs.driver import Driver
from tests.pairs.features import FEATURES
from tests.pairs.rows import ROWS, Row
from tests.support.manager import Manager


def names(of: type) -> set[str]:
    return {field.name for field in dataclasses.fields(of)}


def test_each_order_and_each_field_belongs_to_a_feature() -> None:
    orders = {event.__name__ for event in get_args(events.Event) if "by" in names(event)}
    known = orders | names(Quota) | names(RunSpec) | names(events.Submission)
    covered = set(itertools.chain(*FEATURES.values()))
    assert known - covered == set()
    assert covered - known - {"Submission"} == set()


def test_each_feature_has_a_row() -> None:
    assert {feature for both in ROWS for feature in both} == set(FEATURES)


@pytest.mark.parametrize("row", ROWS.values(), ids=map(" x ".join, ROWS))
def test_a_pair(row: Row, make_manager: Callable[..., Manager]) -> None:
    node = Driver(make_manager(simulate="2x1GiB"))
    row(node)
    node.is_sound()
