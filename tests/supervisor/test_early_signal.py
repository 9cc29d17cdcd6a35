"""The signal of `--signal`: before the time limit, a shutdown, or an end for another task."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from nodemgr.core.model.entities import Cause, EarlySignal
from nodemgr.edge.executor import local
from tests.supervisor.world import World

MakeWorld = Callable[..., World]
HOUR_MS = 3_600_000
SAVES = (
    "sh", "-c",
    "trap 'echo usr1' USR1; trap 'echo term; exit 7' TERM; echo ready; while :; do sleep 600 &"
    " wait; done",
)  # fmt: skip
ALMOST = EarlySignal("USR1", HOUR_MS - 1)
AT_ONCE = EarlySignal("USR1", 1)


def ready(make_world: MakeWorld, early: EarlySignal | None) -> World:
    world = make_world()
    world.factory.create(world.order(*SAVES, signal=early))
    world.said()
    world.begun()
    return world


def output(world: World) -> list[str]:
    return world.file("log").read_text().splitlines()


def test_it_comes_before_the_time_limit_once_and_term_at_it(make_world: MakeWorld) -> None:
    world = ready(make_world, ALMOST)
    for _ in range(2):
        world.set_limit(HOUR_MS)
        assert world.said(2) == ["ready", "usr1"]
    world.set_limit(2 * HOUR_MS)
    world.set_limit(1)
    status = world.end()
    assert (status.cause, status.exit_code) == (Cause.TIME_LIMIT, 7)
    last = "nodemgr: the job was ended at its time limit of 1 ms: submit it with a longer --time"
    assert output(world) == ["ready", "usr1", "term", last]


def test_a_job_that_does_not_handle_it_ended_at_its_time_limit(make_world: MakeWorld) -> None:
    world = make_world()
    limits = {"time_limit_ms": HOUR_MS, "signal": ALMOST}
    status = world.run("sleep", "600", **limits)
    assert (status.cause, status.signal) == (Cause.TIME_LIMIT, signal.SIGUSR1)
    assert "ended by its --signal USR1, before its time limit of 1 h" in output(world)[-1]


def test_it_comes_before_the_term_of_a_shutdown(make_world: MakeWorld) -> None:
    world = ready(make_world, AT_ONCE)
    os.kill(world.supervisor(), signal.SIGTERM)
    assert world.end().cause is Cause.SUPERVISOR_LOST, "the node is still up"
    assert output(world)[:3] == ["ready", "usr1", "term"]


def test_a_withdrawal_does_not_wait_for_the_rest_of_its_time(make_world: MakeWorld) -> None:
    world = ready(make_world, ALMOST)
    os.kill(world.supervisor(), signal.SIGTERM)
    world.said(2)
    world.factory.withdraw("j1", 1, "withdrawn by bob")
    assert world.end().exit_code == 7
    assert output(world)[:3] == ["ready", "usr1", "term"]


@pytest.mark.parametrize(
    ("early", "warns", "said"),
    [(AT_ONCE, True, ["usr1", "term"]), (AT_ONCE, False, ["term"]), (None, True, ["term"])],
)
def test_it_comes_before_an_end_for_another_task_alone(
    make_world: MakeWorld, early: EarlySignal | None, warns: bool, said: list[str]
) -> None:
    world = ready(make_world, early)
    world.factory.withdraw("j1", 1, "another task needs its GPU", warns=warns)
    assert world.end().why == "another task needs its GPU"
    assert output(world)[1:-1] == said
    assert output(world)[-1].startswith("nodemgr: the job was ended: another task needs its GPU")


def test_a_supervisor_that_does_not_know_of_it_ends_its_job_all_the_same(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the version before, whose launcher goes on: it blocks the signal, and reads none."""
    monkeypatch.setattr(local, "WARNS", signal.SIGWINCH)
    monkeypatch.setattr(local, "RELUCTANCE_S", 0.0)
    world = ready(make_world, AT_ONCE)
    world.factory.withdraw("j1", 1, "another task needs its GPU", warns=True)
    assert world.end().exit_code == 7
    assert output(world)[1:-1] == ["term"]


def test_another_task_waits_for_a_part_of_a_long_time_alone(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "MAX_YIELD_MS", 1)
    world = ready(make_world, ALMOST)
    world.factory.withdraw("j1", 1, "another task needs its GPU", warns=True)
    assert world.end().exit_code == 7
    assert "term" in output(world)[1:-1]
