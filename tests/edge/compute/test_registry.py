"""Slots by task and process, the words that follow the core, pages that are replaced."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest

from nodemgr.core.model.entities import (
    Config,
    Process,
    RunSpec,
    Suspension,
    Task,
    TaskClass,
    TaskState,
    Transport,
)
from nodemgr.core.state.node_state import State
from nodemgr.core.views.figures import GateUse
from nodemgr.edge.compute.launch_gate import SLOTS, GateState, LaunchGate, LaunchGateError
from nodemgr.edge.compute.registry import (
    CALM_NS,
    DEFAULT_WINDOW_NS,
    LONE_WINDOW_NS,
    MOST_CALM_NS,
    URGENT_WINDOW_NS,
    GateFiles,
    Gates,
    words_of,
)
from tests.edge.compute.turns import IN_FLIGHT, LAST_ACTIVITY, USED, WAITING, Turns

SECOND_NS = 1_000_000_000
NOW_NS = 1_000 * SECOND_NS


def task_of(number: int, env: str = "alice", **fields: object) -> Task:
    task = Task(
        f"t{number}", env, f"{number:x}", ("GPU-0",), ("GPU-0",), TaskState.RUNNING,
        RunSpec("train", 1, None, None, compute_percent=40), 0, 0, granted_percent=40,
    )  # fmt: skip
    own = {name: fields.pop(name) for name in ("task_class", "compute_percent") if name in fields}
    return replace(task, run=replace(task.run, **own), **fields)


def process_of(task: Task, pid: int, **fields: object) -> Process:
    process = Process(
        f"unix:{pid}:1", task.env, task.task_id, Transport.UNIX, pid, "u", 0, 0, "1", gated=True
    )
    return replace(process, **fields)


class Node:
    """Gates, and the rows that the core would have."""

    def __init__(self) -> None:
        self.gates = Gates()
        self.state = State(Config())
        self.now_ns = NOW_NS

    def grants(self, task: Task, pid: int) -> GateFiles | None:
        process = process_of(task, pid)
        self.state.tasks[task.task_id] = task
        self.state.processes[process.key] = process
        return self.gates.place(task, process, self.now_ns)

    def changes(self, task: Task, **fields: object) -> None:
        self.state.tasks[task.task_id] = replace(task, **fields)
        self.gates.settle(self.state)

    def dies(self, pid: int) -> None:
        del self.state.processes[f"unix:{pid}:1"]
        self.gates.settle(self.state)


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    yield node
    node.gates.close()


def word(files: GateFiles | None, index: int = 0) -> tuple[int, int, int]:
    """(state, class, share) of a process, as its client reads them."""
    assert files is not None
    row = os.pread(files.fds[2 * index], 8, 64 + 16 * files.slots[index])
    (found,) = struct.unpack("=Q", row)
    return found >> 16 & 0xFF, found >> 8 & 0xFF, found & 0xFF


def turns_of(files: GateFiles | None) -> Turns:
    assert files is not None
    return Turns(files.fds[1])


# -- the words of a task --


@pytest.mark.parametrize(
    ("fields", "state", "share"),
    [
        ({}, GateState.OPEN, 40),
        ({"granted_percent": 0}, GateState.CLOSED, 0),
        ({"granted_percent": None, "compute_percent": None}, GateState.OPEN, 100),
        ({"suspension": Suspension.SUSPENDING}, GateState.SUSPENDED, 40),
        ({"suspension": Suspension.SUSPENDED}, GateState.SUSPENDED, 40),
        ({"suspension": Suspension.RESUMING}, GateState.SUSPENDED, 40),
        ({"state": TaskState.STALLED}, GateState.CLOSED, 40),
        ({"suspension": Suspension.SUSPENDED, "granted_percent": 0}, GateState.SUSPENDED, 0),
    ],
)
def test_the_words_follow_the_task(fields: dict[str, object], state: GateState, share: int) -> None:
    task = task_of(17, **fields)
    words = words_of(task, process_of(task, 1))
    assert (words.state, words.share_percent, words.group) == (state, share, 17)


def test_a_process_without_a_lease_is_fenced() -> None:
    task = task_of(1)
    assert words_of(task, process_of(task, 1, fenced=True)).state is GateState.FENCED


def test_a_task_that_used_too_much_is_paused() -> None:
    task = task_of(1)
    assert words_of(task, process_of(task, 1), paused=True).state is GateState.PAUSED


@pytest.mark.parametrize("fields", [{"granted_percent": 0}, {"state": TaskState.STALLED}])
def test_a_task_that_may_not_compute_is_closed_for_that_reason(fields: dict[str, object]) -> None:
    task = task_of(1, **fields)
    assert words_of(task, process_of(task, 1), paused=True).state is GateState.CLOSED


# -- slots --


def test_nothing_is_there_without_a_gated_process(node: Node) -> None:
    assert not node.gates
    assert node.gates.read(NOW_NS) == []
    assert node.gates.check(NOW_NS) == []
    assert node.gates.uses() == {}


def test_processes_on_a_gpu_share_its_files(node: Node) -> None:
    first, second = node.grants(task_of(1), 10), node.grants(task_of(2, "bob"), 20)
    assert first is not None
    assert second is not None
    assert first.fds == second.fds
    assert (first.slots, second.slots) == ((0,), (1,))


def test_a_second_grant_has_the_same_slot(node: Node) -> None:
    first = node.grants(task_of(1), 10)
    assert node.grants(task_of(1, granted_percent=30), 10) == first
    assert word(first) == (GateState.OPEN, 0, 30)


def test_a_task_of_two_gpus_has_two_slots(node: Node) -> None:
    node.grants(task_of(1), 10)
    files = node.grants(task_of(2, gpus=("GPU-0", "GPU-1")), 20)
    assert files is not None
    assert files.slots == (1, 0)
    assert len(set(files.fds)) == 4


def test_a_slot_follows_its_task(node: Node) -> None:
    task = task_of(1, task_class=TaskClass.BEST_EFFORT)
    files = node.grants(task, 10)
    node.changes(task, granted_percent=0)
    assert word(files) == (GateState.CLOSED, 2, 0)
    node.changes(task, suspension=Suspension.SUSPENDED)
    assert word(files) == (GateState.SUSPENDED, 2, 40)
    node.changes(task)
    assert word(files) == (GateState.OPEN, 2, 40)


def test_a_share_is_written_before_its_row_is_stored(node: Node) -> None:
    task = task_of(1)
    files = node.grants(task, 10)
    other = node.grants(task_of(2), 20)
    node.gates.share("t1", 0)
    assert word(files) == (GateState.CLOSED, 0, 0)
    assert word(other) == (GateState.OPEN, 0, 40)
    node.gates.share("t1", 30)
    assert word(files) == (GateState.CLOSED, 0, 30), "its gate opens with its row"
    node.changes(task, granted_percent=30)
    assert word(files) == (GateState.OPEN, 0, 30)
    node.gates.share("t99", 0)


def test_a_share_opens_no_gate_of_a_suspended_task(node: Node) -> None:
    task = task_of(1, suspension=Suspension.SUSPENDED)
    files = node.grants(task, 10)
    node.gates.share("t1", 0)
    assert word(files) == (GateState.SUSPENDED, 0, 0)


def test_a_process_that_left_its_lease_is_fenced(node: Node) -> None:
    task = task_of(1)
    files = node.grants(task, 10)
    del node.state.tasks["t1"]
    node.gates.settle(node.state)
    assert word(files)[0] == GateState.FENCED


def test_a_gpu_that_the_task_has_no_more_is_fenced(node: Node) -> None:
    task = task_of(1, gpus=("GPU-0", "GPU-1"))
    files = node.grants(task, 10)
    node.changes(task, gpus=("GPU-1",))
    assert word(files, 0)[0] == GateState.FENCED
    assert word(files, 1)[0] == GateState.OPEN


def test_a_dead_process_leaves_its_slot(node: Node) -> None:
    task = task_of(1)
    node.grants(task, 10)
    files = node.grants(task, 11)
    assert files is not None
    node.dies(10)
    again = node.grants(task, 12)
    assert again is not None
    assert (files.slots, again.slots) == ((1,), (0,))


def test_the_last_process_takes_the_page_with_it(node: Node) -> None:
    node.grants(task_of(1), 10)
    assert node.gates
    node.dies(10)
    assert not node.gates
    assert node.gates.check(NOW_NS) == []


def test_a_full_page_gives_no_gate_and_no_half_of_one(node: Node) -> None:
    for pid in range(SLOTS):
        assert node.grants(task_of(1), 100 + pid) is not None
    wide = task_of(2, gpus=("GPU-1", "GPU-0"))
    assert node.grants(wide, 10) is None
    assert "unix:10:1" not in node.gates
    assert node.gates.check(NOW_NS) == []


def test_no_descriptor_left_is_one_error_and_leaves_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> LaunchGate:
        raise LaunchGateError("launch gate: Too many open files")

    monkeypatch.setattr(LaunchGate, "create", fails)
    with pytest.raises(LaunchGateError, match="Too many open files"):
        node.grants(task_of(1), 10)
    assert not node.gates


def window_ns(files: GateFiles | None) -> int:
    assert files is not None
    (found,) = struct.unpack_from("=Q", os.pread(files.fds[0], 64, 0), 24)
    return int(found)


def test_the_window_is_large_for_a_task_alone(node: Node) -> None:
    files = node.grants(task_of(1), 10)
    assert window_ns(files) == LONE_WINDOW_NS
    node.grants(task_of(2), 20)
    assert window_ns(files) == DEFAULT_WINDOW_NS
    node.dies(20)
    assert window_ns(files) == LONE_WINDOW_NS


def test_the_window_is_small_beside_latency_sensitive_work(node: Node) -> None:
    urgent = task_of(1, task_class=TaskClass.LATENCY_SENSITIVE)
    files = node.grants(urgent, 10)
    alone_ns = window_ns(files)
    node.grants(task_of(2), 20)
    assert window_ns(files) == URGENT_WINDOW_NS < alone_ns
    node.dies(20)
    assert window_ns(files) == alone_ns


# -- MPS --


def test_mps_divides_the_gpu_instead_of_turns(node: Node) -> None:
    def spatial(files: GateFiles | None) -> int:
        assert files is not None
        (found,) = struct.unpack_from("=I", os.pread(files.fds[0], 64, 0), 44)
        return int(found)

    files = node.grants(task_of(1), 10)
    assert files is not None
    assert (files.threads, spatial(files)) == (None, 0)
    node.gates.divide(spatial=True)
    files = node.grants(task_of(1), 10)
    assert files is not None
    assert (files.threads, spatial(files)) == (40, 1)
    plain = node.grants(task_of(2, compute_percent=None, granted_percent=None), 20)
    assert plain is not None
    assert plain.threads is None, "a plain task has all threads"
    node.gates.divide(spatial=False)
    assert spatial(files) == 0


# -- readings --


def test_a_reading_has_the_use_since_the_last(node: Node) -> None:
    files = node.grants(task_of(1), 10)
    with turns_of(files) as turns:
        turns.row(0, {USED: SECOND_NS // 4, LAST_ACTIVITY: NOW_NS + 5, IN_FLIGHT: 1,
                      WAITING: NOW_NS + SECOND_NS // 2})  # fmt: skip
    (first,) = node.gates.read(NOW_NS + SECOND_NS)
    assert (first.used_ns, first.elapsed_ns) == (SECOND_NS // 4, SECOND_NS)
    assert (first.in_flight, first.waited_ns) == (True, SECOND_NS // 2)
    (second,) = node.gates.read(NOW_NS + 2 * SECOND_NS)
    assert second.used_ns == 0
    assert node.gates.uses() == {("unix:10:1", "GPU-0"): GateUse(0, NOW_NS + 5)}


def test_a_last_activity_that_goes_back_changes_nothing(node: Node) -> None:
    """A neighbour has written it: the page is shared."""
    files = node.grants(task_of(1), 10)
    for written_ns in (NOW_NS + 5, 0):
        with turns_of(files) as turns:
            turns.row(0, {LAST_ACTIVITY: written_ns})
        node.gates.read(NOW_NS + SECOND_NS)
        assert node.gates.uses()["unix:10:1", "GPU-0"].active_ns == NOW_NS + 5


def test_a_process_that_never_launched_is_idle_since_its_grant(node: Node) -> None:
    node.grants(task_of(1), 10)
    node.gates.read(NOW_NS + SECOND_NS)
    assert node.gates.uses()["unix:10:1", "GPU-0"].active_ns == NOW_NS


def test_no_figure_is_below_zero_or_above_the_whole(node: Node) -> None:
    files = node.grants(task_of(1), 10)
    with turns_of(files) as turns:
        for value in (2**64 - 1, 0, 2**62, 5):
            turns.row(0, dict.fromkeys((USED, LAST_ACTIVITY, WAITING, IN_FLIGHT), value))
            node.now_ns += SECOND_NS
            (found,) = node.gates.read(node.now_ns)
            assert 0 <= found.used_ns <= found.elapsed_ns
            assert found.waited_ns >= 0
            (use,) = node.gates.uses().values()
            assert 0 <= use.used_percent <= 100
            assert use.active_ns <= node.now_ns


# -- pages that cannot be believed --


def garble(files: GateFiles | None) -> None:
    with turns_of(files) as turns:
        turns.garbage(1)


def test_garbage_on_a_page_of_two_envs_accuses_none(node: Node) -> None:
    files = node.grants(task_of(1), 10)
    node.grants(task_of(2, "bob"), 20)
    garble(files)
    (found,) = node.gates.check(NOW_NS)
    assert (found.uuid, found.culprit) == ("GPU-0", None)


def test_each_env_gets_a_page_of_its_own_then(node: Node) -> None:
    one, two = task_of(1), task_of(2, "bob")
    before = node.grants(one, 10)
    node.grants(two, 20)
    assert set(node.gates.split("GPU-0", NOW_NS)) == {"unix:10:1", "unix:20:1"}
    first, second = node.grants(one, 10), node.grants(two, 20)
    assert before is not None
    assert first is not None
    assert second is not None
    assert not set(first.fds) & set(second.fds)
    garble(first)
    (found,) = node.gates.check(NOW_NS)
    assert found.culprit == "unix:10:1", "no other env could write there"


def test_a_new_process_joins_its_envs_page(node: Node) -> None:
    one = task_of(1)
    node.grants(one, 10)
    node.grants(task_of(2, "bob"), 20)
    node.gates.split("GPU-0", NOW_NS)
    first, second = node.grants(one, 10), node.grants(one, 11)
    assert first is not None
    assert second is not None
    assert first.fds == second.fds


def test_the_envs_meet_again_when_it_is_calm(node: Node) -> None:
    one, two = task_of(1), task_of(2, "bob")
    node.grants(one, 10)
    node.grants(two, 20)
    node.gates.split("GPU-0", NOW_NS)
    node.grants(one, 10)
    node.grants(two, 20)
    assert node.gates.merge(NOW_NS + CALM_NS - 1) == []
    assert set(node.gates.merge(NOW_NS + CALM_NS)) == {"unix:10:1", "unix:20:1"}
    first, second = node.grants(one, 10), node.grants(two, 20)
    assert first is not None
    assert second is not None
    assert first.fds == second.fds


def test_each_fault_keeps_them_apart_for_longer(node: Node) -> None:
    one, two = task_of(1), task_of(2, "bob")
    now_ns, calms = NOW_NS, []
    for _ in range(8):
        node.grants(one, 10)
        node.grants(two, 20)
        node.gates.split("GPU-0", now_ns)
        node.grants(one, 10)
        node.grants(two, 20)
        began_ns = now_ns
        while not node.gates.merge(now_ns):
            now_ns += SECOND_NS
        calms.append(now_ns - began_ns)
    assert calms[:3] == [CALM_NS, 2 * CALM_NS, 4 * CALM_NS]
    assert calms[-1] == MOST_CALM_NS


def test_a_process_that_has_not_come_back_has_no_place(node: Node) -> None:
    node.grants(task_of(1), 10)
    node.gates.split("GPU-0", NOW_NS)
    assert node.gates.read(NOW_NS) == []
    node.gates.settle(node.state)
    node.dies(10)
    assert not node.gates
