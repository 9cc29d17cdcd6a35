"""The starter's pauses. Its processes: tests/edge/web/test_web_page.py."""

from __future__ import annotations

from nodemgr.edge.page.starter import (
    FIRST_PAUSE_S,
    MAX_PAUSE_S,
    SETTLED_S,
    pause_after,
)


def test_a_process_that_dies_at_once_is_started_ever_less_often() -> None:
    pauses_s = [FIRST_PAUSE_S / 2]
    for _ in range(20):
        pauses_s.append(pause_after(pauses_s[-1], 0.01))
    assert pauses_s[1] == FIRST_PAUSE_S
    assert pauses_s == sorted(pauses_s)
    assert pauses_s[-1] == MAX_PAUSE_S


def test_one_that_has_lived_is_started_soon() -> None:
    assert pause_after(MAX_PAUSE_S, SETTLED_S) == FIRST_PAUSE_S
