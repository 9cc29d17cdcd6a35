"""The soak, small and short. Full size: `python -m tests.soak`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.soak.run import SCENARIOS, SMALL, soak
from tests.support.manager import Manager

QUICK = {"upheaval"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in SCENARIOS],
)
def test_the_sum_never_exceeds_the_grant_and_ends_at_zero(
    name: str, make_manager: Callable[..., Manager]
) -> None:
    tally = soak(make_manager(simulate="1x16GiB"), name, SMALL, seconds=0.7, seed=7)
    assert tally.operations > 0
