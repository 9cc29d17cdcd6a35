"""Kills at random instants under a real manager, and the judge of such a series."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.elastic.kills import problem
from tests.elastic.kills.series import SUMS, LeaderLife, judge, play

pytestmark = pytest.mark.frameworks

KILLS = int(os.environ.get("NODEMGR_KILLS", "4"))

EXACT = 1e-9


@pytest.mark.slow
@pytest.mark.timeout(900 + 60 * KILLS)
@pytest.mark.parametrize("sums", SUMS)
def test_kills_at_random_instants(tmp_path: Path, sums: str) -> None:
    """CONTRIBUTING.md "Test" has the command of the long series."""
    print(play(tmp_path, KILLS, 1, sums))


def lines(*made: tuple[int, int]) -> list[dict[str, Any]]:
    """Lines of the pairs of a worker and its step."""
    losses = problem.losses(12)
    return [{"worker": worker, "step": step, "loss": losses[step]} for worker, step in made]


def test_the_step_under_way_may_be_repeated() -> None:
    begun = LeaderLife(0, lines((0, 0), (1, 0), (1, 1), (0, 1), (2, 1), (0, 2)))
    assert judge([begun, LeaderLife(1, lines((0, 1), (0, 2), (0, 3)))], EXACT) == 4


def test_new_workers_may_go_on_from_a_checkpoint() -> None:
    begun = lines((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (1, 3))
    assert judge([LeaderLife(0, begun, (1,))], EXACT) == 4
    with pytest.raises(AssertionError, match="after step 2"):
        judge([LeaderLife(0, begun, (0,))], EXACT)


def test_a_worker_that_leaves_may_write_its_last_line_late() -> None:
    assert judge([LeaderLife(0, lines((0, 0), (1, 0), (0, 1), (0, 2), (1, 1), (0, 3)))], EXACT) == 4


@pytest.mark.parametrize("steps", [(1, 2), (0, 2), (0, 1, 0), (0, 1, 2, 1, 2)])
def test_a_lost_step_and_one_made_twice_by_a_worker_are_found(steps: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError, match="step"):
        judge([LeaderLife(0, lines(*((0, step) for step in steps)))], EXACT)


def test_two_steps_made_again_by_others_are_found() -> None:
    with pytest.raises(AssertionError, match="after step 2"):
        judge([LeaderLife(0, lines((0, 0), (0, 1), (0, 2), (1, 1), (1, 2)))], EXACT)


def test_a_wrong_sum_is_found() -> None:
    wrong = lines((0, 0), (0, 1), (0, 2))
    wrong[2]["loss"] += 1e-6
    with pytest.raises(AssertionError, match="'step': 2"):
        judge([LeaderLife(0, wrong)], EXACT)
