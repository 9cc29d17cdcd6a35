"""The words of a leader; what is said by others, twice, or about other GPUs."""

from __future__ import annotations

import pytest

from client_plugin.messages.form import stated
from nodemgr.core.elastic.offers import DECLINED_MS
from nodemgr.core.model.effects import SendAck
from nodemgr.core.model.entities import RETAINED_RESIZES, DenyCode, GpuRange, Word
from nodemgr.core.views import job_rows
from tests.core.world import Node


def led(gpus: int = 3) -> Node:
    node = Node(gpus)
    node.quota("a", gpus)
    node.asks("a", 9, 1)
    node.asks("a", 1, 1, most=gpus, elastic=True)
    node.dies(9)
    node.passes(2_000)
    return node


def test_accepted_ends_an_offer_and_may_be_said_twice() -> None:
    node = led()
    (offered,) = node.state.elastics["t2"].offered
    for _ in range(2):
        node.says("a", 1, Word.ACCEPTED, int(offered[4:]))
        assert len(node.of(SendAck)) == 1
        assert node.state.elastics["t2"].offered == ()
    assert len(node.gpus_of(1) or ()) == 3


@pytest.mark.parametrize("word", list(Word))
def test_another_process_is_refused(word: Word) -> None:
    node = led()
    token = node.state.tasks["t2"].token
    node.asks("a", 2, token=token)
    for pid in (2, 77):
        node.says("a", pid, word, 0)
        denied = node.denied(pid)
        assert denied is not None
        assert denied.code is DenyCode.BAD_REQUEST
    assert len(node.gpus_of(1) or ()) == 3


@pytest.mark.parametrize("word", list(Word))
def test_a_word_about_an_unknown_gpu_changes_nothing(word: Word) -> None:
    node = led()
    before = node.rows()
    node.says("a", 1, word, 99)
    assert node.rows() == before
    assert len(node.of(SendAck)) == 1


def test_the_last_gpu_is_not_left() -> None:
    node = led()
    for index in range(3):
        node.says("a", 1, Word.LEFT, index)
    assert len(node.gpus_of(1) or ()) == 1


def test_declined_without_an_offer_changes_nothing() -> None:
    node = led()
    for index in range(3):
        node.says("a", 1, Word.ACCEPTED, index)
    for index in range(3):
        node.says("a", 1, Word.DECLINED, index)
    assert len(node.gpus_of(1) or ()) == 3


def resizes(node: Node, task: str = "t1") -> list[tuple[int, int, int, str]]:
    record = node.state.records[task]
    return [(int(row.uuid[-1]), row.before, row.after, row.why) for row in record.resizes]


def test_each_resize_is_recorded_with_its_reason() -> None:
    node = Node(3)
    node.quota("a", 2, borrow=1)
    node.quota("b", 3)
    node.asks("a", 1, 1, most=3, elastic=True)
    assert resizes(node) == [], "the GPUs of the start are no resize"
    node.passes(2_000)
    node.asks("b", 2, 2)
    node.says("a", 1, Word.LEFT, 2)
    assert resizes(node) == [
        (2, 2, 3, "it was idle, and a borrows it beyond its quota of 2"),
        (2, 3, 2, "the task left it, which it had borrowed, for r2 of b"),
    ]
    assert node.published("task.shrunk")[0]["reason"].endswith("for r2 of b")
    node.passes(10_000)
    assert resizes(node)[2:] == [
        (
            1,
            2,
            1,
            stated(
                f"GPU {1} was recalled for r2 of b, and the task did not leave it within 10 s",
                "the task goes on with its other GPUs",
            ),
        )
    ]
    node.dies(2)
    node.driver_shows(1, 2, 0)
    node.driver_shows(1, 1, 0)
    node.passes(10_000)
    assert resizes(node)[3:4] == [(1, 1, 2, "it was idle")]


def test_a_job_keeps_the_resizes_of_its_attempt() -> None:
    node = Node(2)
    node.quota("a", 2)
    job_id = node.submits("a", gpus=1, gpu_range=GpuRange(2, True))
    assert job_id is not None
    node.begins(job_id)
    (task,) = node.state.tasks.values()
    node.asks("a", 5, 1, most=2, elastic=True, token=task.token)
    (late,) = node.state.elastics[task.task_id].arrivals[1:]
    node.says("a", 5, Word.LEFT, int(late[4:]))
    node.dies(5)
    node.job_ends(job_id)
    (attempt,) = node.job(job_id).attempts
    (resize,) = attempt.resizes
    assert (resize.uuid, resize.before, resize.after) == (late, 2, 1)
    (row,) = job_rows.told(node.job(job_id), None, {late: 1}, lambda *_: False, tails=False)[
        "attempts"
    ]
    (told,) = row["resizes"]
    assert (told["from"], told["to"], told["gpu_index"]) == (2, 1, 1)
    assert told["why"] == "the task gave it back"


def test_the_last_resizes_stay() -> None:
    node = led(2)
    for _ in range(RETAINED_RESIZES):
        index = int(node.state.elastics["t2"].arrivals[-1][4:])
        node.says("a", 1, Word.LEFT, index)
        node.driver_shows(1, index, 0)
        node.passes(DECLINED_MS + 2_000)
    found = resizes(node, "t2")
    assert len(found) == RETAINED_RESIZES
    assert found[-1][1:3] == (1, 2)
