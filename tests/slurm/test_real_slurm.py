"""The short forms of `python -m tests.slurm`, where Slurm is installed and root runs the tests."""

from __future__ import annotations

import pytest

from tests.slurm import epilog, scenarios, storm
from tests.slurm.site import missing

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing())]


def test_a_storm() -> None:
    with storm.cluster("--idle-return", "5s") as made:
        print(storm.play(made, 60, 20, seed=1))


@pytest.mark.parametrize("name", ["preemption", "suspension"])
def test_a_node_is_taken(name: str) -> None:
    print(scenarios.ALL[name]())


def test_no_foreign_job_and_no_grant_at_one_time() -> None:
    print(epilog.with_epilog(20))
