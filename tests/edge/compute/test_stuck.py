"""GPUs on which turns do not go on, reading by reading. No process is accused."""

from __future__ import annotations

import pytest

from nodemgr.edge.compute.registry import Reading
from nodemgr.edge.compute.stuck import STUCK_READINGS, WAITED_NS, StuckTurns

SECOND_NS = 1_000_000_000
GPU = "GPU-0"
ONE, OTHER = "unix:10:1", "unix:20:1"


def reading(key: str, percent: int, *, waited_ns: int = 0, is_open: bool = True) -> Reading:
    used_ns = percent * SECOND_NS // 100
    return Reading(key, GPU, used_ns, SECOND_NS, False, waited_ns, is_open)


def waits(percent: int = 0) -> Reading:
    return reading(OTHER, percent, waited_ns=WAITED_NS)


@pytest.mark.parametrize(
    ("readings", "sampled", "holder", "is_stuck"),
    [
        ([reading(ONE, 0), waits(10)], {}, ONE, True),
        ([reading(ONE, 0), waits(10)], {}, None, True),
        ([reading(ONE, 40), waits(10)], {}, ONE, False),
        ([reading(ONE, 100), waits(10)], {(ONE, GPU): 5}, ONE, True),
        ([reading(ONE, 0), waits(10)], {(ONE, GPU): 90}, ONE, False),
        ([reading(ONE, 0), reading(OTHER, 10, waited_ns=WAITED_NS - 1)], {}, OTHER, False),
        ([reading(ONE, 0), waits(0)._replace(is_open=False)], {}, OTHER, False),
        ([reading(ONE, 0), reading(OTHER, 10)], {}, ONE, True),
        ([reading(ONE, 5), reading(OTHER, 10)], {}, ONE, False),
        ([reading(ONE, 0), reading(OTHER, 0)], {}, ONE, False),
        ([reading(ONE, 0), reading(OTHER, 90)], {}, OTHER, False),
        ([reading(ONE, 0), reading(OTHER, 100)], {}, ONE, False),
        ([reading(ONE, 0), waits(100)], {(OTHER, GPU): 40}, ONE, True),
    ],
    ids=[
        "idle while one waits", "no holder", "busy", "the driver sees an idle GPU",
        "the driver sees a busy GPU", "a short wait", "its gate is closed", "held idle",
        "held for work", "both are idle", "held by the one that works",
        "the other one computes all the time", "the driver sees that it does not",
    ],
)  # fmt: skip
def test_turns_that_do_not_go_on(
    readings: list[Reading],
    sampled: dict[tuple[str, str], int],
    holder: str | None,
    is_stuck: bool,
) -> None:
    stuck = StuckTurns()
    assert stuck.judge(readings, sampled, {GPU: holder}) == [], "its processes are new"
    for _ in range(STUCK_READINGS - 1):
        assert stuck.judge(readings, sampled, {GPU: holder}) == []
    assert stuck.judge(readings, sampled, {GPU: holder}) == ([GPU] if is_stuck else [])
    assert stuck.judge(readings, sampled, {GPU: holder}) == [], "it begins anew"


def test_one_good_reading_between_begins_anew() -> None:
    stuck = StuckTurns()
    for _ in range(STUCK_READINGS):
        assert stuck.judge([reading(ONE, 0), waits()], {}, {GPU: ONE}) == []
        assert stuck.judge([reading(ONE, 90), waits()], {}, {GPU: ONE}) == []


def test_short_programs_that_follow_each_other_are_not_stuck() -> None:
    """In each reading two that have just begun: one waits while the other one loads."""
    stuck = StuckTurns()
    for pid in range(10, 10 + 4 * STUCK_READINGS, 2):
        one, other = f"unix:{pid}:1", f"unix:{pid + 1}:1"
        readings = [reading(one, 2), reading(other, 4, waited_ns=2 * WAITED_NS)]
        assert stuck.judge(readings, {}, {GPU: one}) == []


def test_a_holder_that_lasts_is_seen_beside_short_programs() -> None:
    stuck, found = StuckTurns(), []
    for pid in range(20, 20 + STUCK_READINGS + 1):
        readings = [reading(ONE, 0), reading(f"unix:{pid}:1", 10)]
        found += stuck.judge(readings, {}, {GPU: ONE})
    assert found == [GPU]


def test_a_page_of_one_env_is_never_looked_at() -> None:
    stuck = StuckTurns()
    for _ in range(2 * STUCK_READINGS):
        assert stuck.judge([reading(ONE, 0), waits()], {}, {}) == []
