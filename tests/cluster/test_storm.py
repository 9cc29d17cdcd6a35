"""Jobs under kills of each process, stops and cuts: each begins once, none is lost."""

from __future__ import annotations

import pytest

from tests.cluster.storm import KINDS, WITH_RUNNERS, storm


def test_thirty_jobs_under_six_strikes() -> None:
    counts = storm(jobs=30, strikes=len(KINDS), pauses_s=(0.1,), simulate="2x8GiB")
    assert (counts["begun twice"], counts["lost"]) == (0, 0)


@pytest.mark.slow
def test_a_hundred_jobs_with_runners_that_are_killed() -> None:
    counts = storm(jobs=100, strikes=14, seed=2, kinds=WITH_RUNNERS)
    assert counts["lost"] == 0


@pytest.mark.long
def test_a_thousand_jobs() -> None:
    counts = storm(jobs=1_000, strikes=60, nodes=4, simulate="8x8GiB")
    assert (counts["begun twice"], counts["lost"]) == (0, 0)
