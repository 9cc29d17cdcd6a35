"""An array waits as one row: what an order to it costs, and when an element leaves it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from nodemgr.core.lifecycle.restart import restore
from nodemgr.core.manager import step
from nodemgr.core.model import array_rows, encoding, events
from nodemgr.core.model.effects import Save, StartJob, SubmitAnswered
from nodemgr.core.model.entities import DenyCode, Job, JobState, RunSpec
from nodemgr.core.views import job_rows
from tests.core.world import WALL, Node, submission

LONG = 10_000


def node_of(gpus: int = 2, **config: object) -> Node:
    node = Node(gpus, **config)
    node.quota("alice", gpus)
    return node


def submitted(node: Node, **more: object) -> str:
    job_id = node.submits("alice", **more)
    assert job_id is not None
    return job_id


def busy(**more: object) -> tuple[Node, str]:
    """A node without a free GPU, and an array that waits."""
    node = node_of()
    submitted(node, gpus=2)
    return node, submitted(node, gpus=1, **more)


def positions(node: Node) -> list[tuple[str | None, int]]:
    return [(request.job_id, position) for request, position in node.state.waiting()]


# The set of its indices.


def row_of(*indices: int, job_id: str = "j1") -> Job:
    return Job(
        job_id, "alice", "train", RunSpec("python", 1, None, None), "ann", "s1", "normal", WALL,
        JobState.HELD, queued_ns=100, indices=array_rows.joined((each, each) for each in indices),
    )  # fmt: skip


def test_runs_of_indices_are_joined() -> None:
    assert array_rows.joined([(4, 4), (0, 1), (1, 2), (3, 3), (9, 9)]) == ((0, 4), (9, 9))
    assert array_rows.written(((0, 4), (9, 9))) == "0-4,9"
    assert list(array_rows.numbers(((0, 2), (9, 9)))) == [0, 1, 2, 9]
    assert array_rows.shown(tuple((i, i) for i in range(0, 60, 2))).endswith(",36,38,…")


@pytest.mark.parametrize(
    ("job_id", "rest", "queued_ns", "rest_ns"),
    [
        ("j1.0", ((1, 2), (7, 7)), 100, 101),
        ("j1.1", ((0, 0), (2, 2), (7, 7)), 101, 100),
        ("j1.2", ((0, 1), (7, 7)), 102, 100),
        ("j1.7", ((0, 2),), 103, 100),
    ],
)
def test_an_element_leaves_the_row(job_id: str, rest: object, queued_ns: int, rest_ns: int) -> None:
    own, remaining = array_rows.split(row_of(0, 1, 2, 7), job_id)
    assert (own.job_id, own.indices, own.size, own.queued_ns) == (job_id, (), 1, queued_ns)
    assert remaining is not None
    assert (remaining.indices, remaining.size, remaining.queued_ns) == (rest, 3, rest_ns)


def test_the_last_element_leaves_no_row() -> None:
    assert array_rows.split(row_of(3), "j1.3")[1] is None


@pytest.mark.parametrize("job_id", ["j1.3", "j1.07", "j1", "j1.*", "j2.1", "j1."])
def test_another_name_is_none_of_the_row(job_id: str) -> None:
    assert array_rows.element(row_of(0, 1, 7), job_id) is None
    with pytest.raises(ValueError, match="is none of j1"):
        array_rows.split(row_of(0, 1, 7), job_id)


# In its queue.


def test_an_array_is_one_row_from_which_each_start_takes_the_first() -> None:
    node, array = busy(array=range(5))
    assert positions(node) == [(array, 1)]
    last = submitted(node, gpus=1)
    assert positions(node) == [(array, 1), (last, 6)]
    node.job_ends("j1")
    assert [start.job_id for start in node.of(StartJob)] == [f"{array}.0", f"{array}.1"]
    assert node.state.jobs[array].indices == ((2, 4),)
    assert positions(node) == [(array, 1), (last, 4)]
    for index in range(5):
        node.job_ends(f"{array}.{index}")
    assert node.state.jobs.keys() == {last}


def test_an_element_that_could_not_begin_stands_where_it_stood() -> None:
    node, array = busy(array=range(4))
    last = submitted(node, gpus=1)
    node.job_ends("j1")
    node.place(up=False)
    node.gives_back((f"{array}.1", 1), (f"{array}.0", 1))
    assert node.queued_jobs() == [f"{array}.{index}" for index in range(4)] + [last]
    node.restart()
    assert node.queued_jobs() == [f"{array}.{index}" for index in range(4)] + [last]


def test_a_row_at_the_front_goes_behind_one_that_comes_back_between_its_elements() -> None:
    node = node_of()
    submitted(node, gpus=2)
    first, second = (submitted(node, gpus=1, array=range(4)) for _ in range(2))
    node.job_ends("j1")
    node.moves(second, first=True)
    node.place(up=False)
    node.gives_back((f"{first}.0", 1), (f"{first}.1", 1))
    node.holds(f"{second}.0")
    node.holds(f"{second}.1")
    queued = node.queued_jobs()
    assert sorted(queued[:4]) == [f"{first}.0", f"{first}.1", f"{second}.2", f"{second}.3"]
    node.restart()
    assert node.queued_jobs() == queued
    node.place()
    assert [start.job_id for start in node.of(StartJob)] == queued[:2]


def test_an_element_that_an_order_names_alone_gets_a_row_of_its_own() -> None:
    node, array = busy(array=range(4))
    node.holds(f"{array}.2")
    assert node.state.jobs[array].indices == ((0, 1), (3, 3))
    assert node.job(f"{array}.2").state is JobState.HELD
    node.moves(f"{array}.3", first=True)
    assert node.queued_jobs() == [f"{array}.3", f"{array}.0", f"{array}.1"]
    node.withdraws(f"{array}.0")
    assert node.history[f"{array}.0"].job.state is JobState.WITHDRAWN
    node.frees(f"{array}.2")
    assert node.queued_jobs() == [f"{array}.{index}" for index in (3, 1, 2)]


@pytest.mark.parametrize("length", [1, 3])
def test_what_waits_behind_an_element_has_its_turn_when_it_is_held(length: int) -> None:
    node = node_of()
    submitted(node, gpus=1)
    array = submitted(node, gpus=2, array=range(length))
    last = submitted(node, gpus=1)
    assert node.job(last).state is JobState.QUEUED
    for index in range(length):
        node.holds(f"{array}.{index}")
    assert node.job(last).state is JobState.STARTING


def test_an_order_that_changes_nothing_leaves_the_row_as_it_is() -> None:
    node, array = busy(array=range(4))
    before = dict(node.state.jobs)
    node.frees(f"{array}.2")
    node.requeues(f"{array}.2")
    node.moves(f"{array}.2", "nosuch")
    node.holds(f"{array}.4")
    assert node.state.jobs == before


def test_an_order_may_be_for_those_that_wait_together_alone() -> None:
    node, array = busy(array=range(4))
    node.job_ends("j1")
    node.withdraws(f"{array}.*")
    assert node.state.jobs.keys() == {f"{array}.0", f"{array}.1"}
    assert node.history[array].job.indices == ((2, 3),)
    assert {node.state.jobs[job_id].state for job_id in node.state.jobs} == {JobState.STARTING}


def test_its_events_name_the_array_and_its_indices() -> None:
    node, array = busy(array=(0, 1, 2, 7))
    (event,) = node.published("job.submitted")
    assert {key: event[key] for key in ("job", "jobs", "indices", "position")} == {
        "job": array, "jobs": 4, "indices": "0-2,7", "position": 4,
    }  # fmt: skip


def test_more_runs_than_a_row_may_have_are_refused() -> None:
    node = node_of()
    most = array_rows.MAX_RUNS
    assert node.submits("alice", array=range(0, 2 * most, 2)) is not None
    assert node.submits("alice", array=range(0, 2 * most + 2, 2)) is None
    (answer,) = node.of(SubmitAnswered)
    assert answer.code is DenyCode.BAD_REQUEST
    assert answer.reason.endswith("more than 1000 separate runs of numbers: submit several arrays")


# Who waits for it, and its end.


@pytest.mark.parametrize("named", ["j2.1", "j2"])
def test_who_waits_for_an_element_within_the_row_ends_with_it(named: str) -> None:
    node, array = busy(array=range(3))
    waiter, other = (submitted(node, after=(name,)) for name in (named, f"{array}.2"))
    node.withdraws(f"{array}.1")
    assert node.history[waiter].job.state is JobState.WITHDRAWN
    assert node.job(other).state is JobState.DEPENDENCY
    node.withdraws(array)
    assert node.history[other].job.state is JobState.WITHDRAWN
    assert not node.state.awaited


def test_an_element_that_ended_within_the_row_runs_again_alone() -> None:
    node, array = busy(array=range(4))
    node.withdraws(array)
    node.requeues(f"{array}.1")
    assert node.state.jobs[f"{array}.1"].state is JobState.QUEUED
    assert node.history[array].job.indices == ((0, 0), (2, 3))
    node.withdraws(f"{array}.1")
    node.requeues(array)
    assert node.history.keys() == {f"{array}.1"}
    assert node.queued_jobs() == [f"{array}.{index}" for index in (0, 2, 3)]


def test_the_bounds_count_its_jobs() -> None:
    node, _ = busy(array=range(4))
    assert node.state.env_jobs == {"alice": 5}
    assert node.state.queued == {"normal": 4}
    assert node.state.living.size == 5
    small = node_of(max_env_jobs=6)
    assert small.submits("alice", array=range(6), hold=True) is not None
    assert small.submits("alice") is None


# What it costs.


def work(does: Callable[[], object]) -> int:
    """The calls and returns of functions, also of those in C."""
    count = 0

    def see(_frame: FrameType, _event: str, _argument: Any) -> None:
        nonlocal count
        count += 1

    sys.setprofile(see)
    try:
        does()
    finally:
        sys.setprofile(None)
    return count


ORDERS: dict[str, Callable[[Node, str], events.Event]] = {
    "hold": lambda _node, array: events.HoldJob(array, "root", WALL),
    "unhold": lambda _node, array: events.UnholdJob(array, "root", WALL),
    "move": lambda _node, array: events.MoveJob(array, "low", False, "root", WALL),
    "to the front": lambda _node, array: events.MoveJob(array, None, True, "root", WALL),
    "hold one": lambda _node, array: events.HoldJob(f"{array}.7", "root", WALL),
    "start two": lambda node, _array: events.JobEnded(
        "j1", 1, 0, None, "", node.state.jobs["j1"].attempts[0].cause, "", None, WALL
    ),
    "withdraw": lambda _node, array: events.WithdrawJob(array, "root", WALL),
}  # fmt: skip


def costs(length: int) -> dict[str, int]:
    node = node_of()
    submitted(node, gpus=2)
    found, state = {}, node.state

    def carry_out(event: events.Event) -> None:
        made = step(state, event, node.now_ns)
        for save in made.saved:
            if save.value is not None and save.kind in encoding.KINDS:
                encoding.encode(save.kind, save.value)
        made.apply()

    array = submission("alice", gpus=1, array=range(length))
    found["submit"] = work(lambda: carry_out(events.SubmitJobs((array,), WALL)))
    rows = [(kind, key, value) for kind, key, value in state.rows()]
    found["list"] = work(lambda: job_rows.queue(state, node.now_ns, env=None, limit=100))
    found["filter"] = work(lambda: list(state.living.behind("alice")))
    found["load"] = work(lambda: restore(node.config, rows, node.now_ns))
    for name, order in ORDERS.items():
        found[name] = work(lambda order=order: carry_out(order(node, "j2")))  # type: ignore[misc]
    return found


def test_what_it_costs_does_not_grow_with_its_length() -> None:
    short, long = costs(20), costs(LONG)
    assert {name: (short[name], calls) for name, calls in long.items() if calls > short[name]} == {}


def test_a_start_writes_the_row_and_the_element() -> None:
    node, array = busy(array=range(LONG))
    node.job_ends("j1")
    rows = [save for save in node.of(Save) if save.kind == "job" and save.value is not None]
    assert {save.key for save in rows} == {array, f"{array}.0", f"{array}.1"}
    assert all(len(encoding.encode("job", save.value)) < 2_000 for save in rows)
