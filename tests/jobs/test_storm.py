"""A short storm; CONTRIBUTING.md "Test" has the long one."""

from __future__ import annotations

import pytest

from tests.jobs.storm import storm


@pytest.mark.slow
def test_a_storm_loses_and_repeats_nothing() -> None:
    assert storm(seconds=1, seed=1, submissions=10, kills=5)["attempts"] > 0
