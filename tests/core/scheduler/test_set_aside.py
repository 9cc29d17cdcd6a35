"""A decision that raises sets its entry aside; all other entries go on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nodemgr.core.elastic import resizes
from nodemgr.core.model.effects import Publish
from nodemgr.core.scheduler import passes, set_aside
from nodemgr.core.views import snapshot
from tests.core.world import Node, gpu

MINUTE_MS = set_aside.AGAIN_MS


@pytest.fixture(name="faulty")
def _faulty(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The envs with requests whose decision raises, after it has reserved all GPUs."""
    faulty: set[str] = set()
    consider = passes.consider

    def raising(draft, scheduling_pass, request, **more):  # type: ignore[no-untyped-def]
        if request.env in faulty:
            scheduling_pass.reserved = dict.fromkeys(draft.gpus, request)
            draft.publish("gpu.failed", {})
            raise KeyError("GPU-0")
        return consider(draft, scheduling_pass, request, **more)

    monkeypatch.setattr(passes, "consider", raising)
    return faulty


def node() -> Node:
    node = Node(2)
    node.may_fail = True
    for env in ("a", "b"):
        node.quota(env, 2)
    return node


def test_all_others_go_on_and_its_own_changes_are_undone(faulty: set[str]) -> None:
    busy = node()
    faulty.add("a")
    job_id = busy.submits("a", gpus=1)
    busy.asks("a", 1, 1)
    assert "entry.set_aside" in [effect.name for effect in busy.of(Publish)]
    assert not busy.published("gpu.failed")
    told = busy.told(1)
    assert told is not None
    assert "set aside, because the decision about it failed (KeyError('GPU-0'))" in told.why
    busy.asks("b", 2, 2)
    assert busy.gpus_of(2) == [0, 1]
    rows = snapshot.set_aside(busy.state)
    assert [row["entry"] for row in rows] == [job_id, "r2"]
    assert snapshot.set_aside(busy.state, "b") == []


def test_it_is_tried_again_after_a_minute_once_something_has_changed(faulty: set[str]) -> None:
    busy = node()
    faulty.add("a")
    job_id = busy.submits("a", gpus=1)
    faulty.clear()
    busy.passes(2 * MINUTE_MS)
    assert busy.queued_jobs() == [job_id], "nothing has changed that its decision rests on"
    busy.quota("a", 1)
    assert busy.queued_jobs() == []
    assert not busy.state.set_aside


def test_a_change_within_the_minute_counts_at_its_end(faulty: set[str]) -> None:
    busy = node()
    faulty.add("a")
    job_id = busy.submits("a", gpus=1)
    faulty.clear()
    busy.drains(1)
    busy.passes(MINUTE_MS - 1_000)
    assert busy.queued_jobs() == [job_id]
    busy.passes(1_000)
    assert busy.queued_jobs() == []


def test_a_request_that_leaves_is_forgotten(faulty: set[str]) -> None:
    busy = node()
    faulty.add("a")
    job_id = busy.submits("a", gpus=1)
    assert job_id is not None
    busy.withdraws(job_id)
    busy.asks("b", 2, 1)
    assert not busy.state.set_aside
    assert busy.state.wake_ns() is not None


def test_a_crowd_of_them_is_set_aside_over_several_passes(faulty: set[str]) -> None:
    busy = node()
    busy.asks("b", 1, 2)
    crowd = 2 * set_aside.MOST_IN_A_STEP + 3
    for pid in range(crowd):
        busy.asks("a", 100 + pid, 2)
    busy.asks("b", 2, 1)
    faulty.add("a")
    busy.dies(1)
    assert len(busy.state.set_aside) == crowd
    assert busy.gpus_of(2) == [0]


def test_a_part_without_an_entry_is_set_aside_too(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = node()
    busy.gpus_are([gpu(index) for index in range(3)])
    busy.asks("a", 1, 1, most=2, elastic=True)

    def raising(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(resizes, "settle", raising)
    busy.submits("b", gpus=1)
    assert busy.queued_jobs() == []
    assert [row["entry"] for row in snapshot.set_aside(busy.state)] == ["GPUs of elastic tasks"]


def test_a_restart_forgets_it(faulty: set[str]) -> None:
    busy = node()
    faulty.add("a")
    busy.submits("a", gpus=1)
    busy.restart()
    busy.asks("b", 2, 2)
    assert busy.gpus_of(2) == [0, 1]


def test_a_long_reason_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(*_arguments: object, **_more: object) -> None:
        raise KeyError("x" * 100_000)

    monkeypatch.setattr(passes, "consider", raising)
    busy = node()
    busy.submits("a", gpus=1)
    rows = snapshot.set_aside(busy.state)
    assert len(str(rows)) < 1_000
    assert "xxx" in str(rows)
