"""The content of `status --json`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from nodemgr.core.model.entities import PredictedRun, Quota, Suspension, TaskState
from nodemgr.core.views import job_rows, snapshot
from nodemgr.core.views.figures import Readings
from tests.core.world import GIB, WALL, Node, key

KEYS = {
    "gpus": {
        "index",
        "uuid",
        "name",
        "memory_total_bytes",
        "memory_granted_bytes",
        "memory_used_bytes",
        "tasks",
        "state",
    },
    "envs": {"name", "quota", "gpus", "memory_remaining_bytes"},
    "tasks": {
        "id",
        "env",
        "state",
        "gpus",
        "pids",
        "command",
        "since",
        "duration_seconds",
        "last_beat_age_seconds",
    },
    "queue": {"id", "env", "gpus", "priority", "position", "reason"},
}
"""The fields on which scripts may rely."""


def busy_node() -> Node:
    node = Node(2)
    node.quota("alice", 1, 40)
    node.quota("bob", 2)
    node.asks("alice", 10)
    node.asks("alice", 11, udp=True, gib=10, used_gib={0: 0})
    node.asks("bob", 20, 2)
    return node


def status(node: Node, **more: Any) -> dict[str, Any]:
    figures = {"used_bytes": {"GPU-0": 3 * GIB}, "last_beat_ns": node.beats} | more
    shown = snapshot.status(node.state, node.now_ns, **figures)
    assert json.loads(json.dumps(shown)) == shown
    return shown


def test_the_keys_that_are_promised_are_there() -> None:
    shown = status(busy_node())
    assert shown["schema_version"] == 1
    for part, keys in KEYS.items():
        for row in shown[part]:
            assert keys <= row.keys()


def test_a_gpu() -> None:
    first, second = status(busy_node())["gpus"]
    assert (first["index"], first["uuid"], first["state"], first["tasks"]) == (
        0,
        "GPU-0",
        "healthy",
        2,
    )
    assert first["memory_granted_bytes"] == 40 * GIB
    assert first["memory_used_bytes"] == 3 * GIB
    assert second["memory_used_bytes"] is None  # never read


def test_an_env() -> None:
    alice, bob = status(busy_node())["envs"]
    assert (alice["name"], alice["gpus"], alice["memory_remaining_bytes"], alice["waiting"]) == (
        "alice",
        ["GPU-0"],
        0,
        0,
    )
    assert (bob["gpus"], bob["memory_remaining_bytes"], bob["waiting"]) == ([], None, 1)


def test_a_task() -> None:
    node = busy_node()
    node.now_ns += 90_500_000_000
    node.beats[key(10)] = node.now_ns - 2_100_000_000
    first, second = status(node)["tasks"]
    assert (first["id"], first["env"], first["state"], first["gpus"], first["pids"]) == (
        "t1",
        "alice",
        "running",
        ["GPU-0"],
        [10],
    )
    assert (first["duration_seconds"], first["last_beat_age_seconds"], first["since"]) == (
        90,
        2,
        WALL // 10**9,
    )
    assert (first["memory_limit_bytes"], first["transports"]) == ([30 * GIB], ["unix"])
    assert (second["pids"], second["transports"], second["memory_limit_bytes"]) == (
        [],
        ["udp"],
        [10 * GIB],
    )


def test_a_task_of_a_job_shows_the_forecast_for_its_own_gpu_model() -> None:
    node = Node(1)
    node.quota("alice", 1)
    runs = (
        PredictedRun("another", 7, 8, 9, 10, 11),
        PredictedRun("simulated", 5 * GIB, 40, 2_000_000_000, 119, 179),
    )
    node.begins(node.submits("alice", gpus=1, predicted=runs) or "")
    (row,) = status(node)["tasks"]
    assert row["predicted"] == {
        "gpu_model": "simulated", "memory_bytes": 5 * GIB, "utilization_percent": 40,
        "step_seconds": 2.0, "run_seconds": 0.119, "expected_seconds": 0.179,
    }  # fmt: skip


def test_a_task_whose_beats_nobody_knows() -> None:
    assert status(busy_node(), last_beat_ns={})["tasks"][0]["last_beat_age_seconds"] is None


def test_a_waiting_request() -> None:
    node = busy_node()
    (waiting,) = status(node)["queue"]
    assert (
        waiting["id"],
        waiting["env"],
        waiting["gpus"],
        waiting["priority"],
        waiting["position"],
    ) == ("r3", "bob", 2, "normal", 1)
    assert "alice/t1 holds GPU 0" in waiting["reason"]
    assert waiting["state"] == "waiting"
    node.disconnects(20)
    assert status(node)["queue"][0]["state"] == "away"


def test_a_lost_gpu_and_a_pending_raise() -> None:
    node = Node(1)
    node.quota("alice", 1, 30)
    node.quota("bob", 1, 40)
    node.asks("alice", 10)
    node.asks("bob", 20)
    node.quota("alice", 1, 60)
    assert status(node)["envs"][0]["memory_pending_bytes"] == 20 * GIB
    node.loses(0)
    assert status(node)["gpus"][0]["state"] == "lost"


def test_a_suspended_task_has_a_grant_of_its_env_and_none_of_the_gpu() -> None:
    node = Node(1)
    for env in ("alice", "bob"):
        node.quota(env, 1)
    node.asks("alice", 10)
    node.is_suspended("t1")
    node.asks("bob", 20)
    shown = status(node)
    assert shown["gpus"][0]["memory_granted_bytes"] == 80 * GIB
    assert [env["memory_granted_bytes"] for env in shown["envs"]] == [80 * GIB, 80 * GIB]


def test_an_env_sees_its_own_part_and_all_gpus() -> None:
    shown = status(busy_node(), env="bob")
    assert [env["name"] for env in shown["envs"]] == ["bob"]
    assert (len(shown["gpus"]), shown["tasks"], len(shown["queue"])) == (2, [], 1)


def test_tasks_stand_in_the_order_of_their_numbers() -> None:
    node = Node(1)
    node.quota("alice", 1)
    for pid in range(1, 12):
        node.asks("alice", pid)
    assert [task["id"] for task in status(node)["tasks"]] == [
        f"t{number}" for number in range(1, 12)
    ]


def test_a_quota() -> None:
    shown = snapshot.quota("alice", Quota(2, 80 * GIB, users=("ann",)))
    assert (shown["env"], shown["gpus"], shown["memory_per_gpu_bytes"], shown["users"]) == (
        "alice",
        2,
        40 * GIB,
        ["ann"],
    )


def node_with_jobs() -> Node:
    """alice's j1 runs, j2 waits for its GPU, j3 is held, j4 waits for j1 and j2."""
    node = Node(1)
    node.quota("alice", 1)
    node.quota("bob", 1)
    for more in (
        {"time_limit_ms": 60_000, "max_restarts": 1},
        {"name": "second"},
        {"hold": True},
        {"after": ("j1", "j2")},
    ):
        node.submits("alice", **more)
    node.begins("j1")
    return node


def test_what_waits_is_shown_with_its_job_and_what_is_in_no_queue_without_a_place() -> None:
    node = node_with_jobs()
    node.asks("bob", 20)
    shown = status(node)["queue"]
    assert [(row["id"], row.get("job"), row["position"], row["state"]) for row in shown] == [
        ("j2", "j2", 1, "queued"),
        ("r3", None, 2, "waiting"),
        ("j3", "j3", None, "held"),
        ("j4", "j4", None, "after"),
    ]
    assert [row["reason"] for row in shown[2:]] == [
        "held by ann (uid 1000) (nodemgr queue unhold j3)",
        "waits for j1, j2 to end well",
    ]
    for row in shown:
        assert KEYS["queue"] <= row.keys()
    assert (shown[0]["name"], shown[0]["users"], shown[0]["pids"]) == ("second", ["ann"], [])
    assert [row["id"] for row in status(node, env="bob")["queue"]] == ["r3"]


def test_running_jobs_are_shown_with_their_gpus() -> None:
    node = node_with_jobs()
    (running,) = status(node)["jobs"]
    assert (running["id"], running["state"], running["gpus"], running["position"]) == (
        "j1",
        "running",
        1,
        None,
    )
    assert (running["time_limit_seconds"], running["since"]) == (60, WALL // 10**9)
    assert status(node, env="bob")["jobs"] == []
    (task,) = status(node)["tasks"]
    assert (task["job"], task["users"], task["processes"]) == ("j1", ["ann"], 0)
    alice, _ = status(node)["envs"]
    assert (alice["jobs"], alice["waiting"]) == (4, 1)


@pytest.mark.parametrize("suspension", list(Suspension))
def test_a_job_whose_task_is_suspended_is_shown_so(suspension: Suspension) -> None:
    node = node_with_jobs()
    (task,) = node.state.tasks.values()
    node.state.tasks[task.task_id] = replace(task, suspension=suspension)
    (job,), (row,) = status(node)["jobs"], status(node)["tasks"]
    shown = "running" if suspension is Suspension.NONE else suspension.value
    assert job["state"] == row["state"] == shown == job_rows.job_state(node.state, node.job("j1"))


def test_a_job_that_ended_makes_the_same_row() -> None:
    node = node_with_jobs()
    node.job_ends("j1", 3)
    node.withdraws("j1")
    row = job_rows.told(node.job("j1"), None, {}, lambda *_: False, tails=True)
    assert (row["state"], row["why"], row["exit_code"], row["attempts"][0]["log_tail"]) == (
        "withdrawn",
        "root (uid 0) withdrew it",
        3,
        "the last line\n",
    )
    assert [entry["what"] for entry in row["deeds"]] == ["submitted", "withdrawn"]
    assert json.loads(json.dumps(row)) == row


@pytest.mark.parametrize(("peaks", "shown"), [((), None), ((0,), None), ((None, 7, 5), 7)])
def test_a_job_has_the_largest_peak_of_its_attempts(
    peaks: tuple[int | None, ...], shown: int | None
) -> None:
    job = node_with_jobs().job("j1")
    attempts = tuple(replace(job.attempts[0], peak_bytes=peak) for peak in peaks)
    told = job_rows.told(replace(job, attempts=attempts), None, {}, lambda *_: False, tails=True)
    assert told["peak_bytes"] == shown


# -- launch gates --


@pytest.mark.parametrize(
    ("gated", "change", "shown"),
    [
        (False, {"granted_percent": 40}, ("none", None)),
        (True, {}, ("open", None)),
        (True, {"granted_percent": 100}, ("open", None)),
        (True, {"granted_percent": 40}, ("limited", None)),
        (True, {"granted_percent": 0}, ("closed", "no_share")),
        (True, {"suspension": Suspension.SUSPENDED}, ("closed", "suspended")),
        (True, {"suspension": Suspension.RESUMING}, ("closed", "resuming")),
        (True, {"state": TaskState.STALLED, "granted_percent": 40}, ("closed", "stalled")),
    ],
)
def test_the_gate_of_a_task(
    gated: bool, change: dict[str, Any], shown: tuple[str, str | None]
) -> None:
    node = Node(1)
    node.quota("alice", 1)
    node.asks("alice", 10)
    task, process = node.task(10), node.state.processes[key(10)]
    assert task is not None
    members = [replace(process, gated=True), replace(process, gated=gated)]
    task = replace(task, **change)
    assert snapshot.gate(task, members, is_paused=False) == shown
    if shown[0] in ("open", "limited"):
        assert snapshot.gate(task, members, is_paused=True) == ("closed", "paused")
    else:
        assert snapshot.gate(task, members, is_paused=True) == shown


def test_a_task_that_is_paused_for_its_use_has_a_closed_gate() -> None:
    node = Node(1)
    node.quota("alice", 1)
    node.asks("alice", 10)
    task = node.task(10)
    assert task is not None
    process = node.state.processes[key(10)]
    node.state.processes[key(10)] = replace(process, gated=True)
    readings = Readings(paused=frozenset({task.task_id}))
    (row,) = status(node, readings=readings)["tasks"]
    assert (row["gate"], row["gate_reason"]) == ("closed", "paused")
    (row,) = status(node)["tasks"]
    assert (row["gate"], row["gate_reason"]) == ("open", None)


def test_an_elastic_task_shows_its_range_and_the_gpus_that_it_borrows() -> None:
    node = Node(4)
    node.quota("a", 2, borrow=1)
    node.asks("a", 1, 1, most=3, elastic=True)
    node.asks("a", 2, 1)
    (first, plain) = status(node)["tasks"]
    assert (first["gpus_min"], first["gpus_max"], first["borrowed"]) == (1, 3, 0)
    assert (plain["gpus_min"], plain["gpus_max"], plain["borrowed"]) == (None, None, None)
    node.passes(2_000)
    (first, _) = status(node)["tasks"]
    assert (len(first["gpus"]), first["borrowed"]) == (3, 1)


def test_a_request_for_a_range_shows_it() -> None:
    node = Node(4)
    for env in "ab":
        node.quota(env, 4)
    node.asks("b", 9, 4)
    node.asks("a", 1, 2, most=3, elastic=True)
    node.asks("a", 2, 1)
    ranged, plain = status(node)["queue"]
    assert (ranged["gpus"], ranged["gpus_min"], ranged["gpus_max"]) == (2, 2, 3)
    assert ranged["elastic"]
    assert (plain["gpus_min"], plain["gpus_max"], plain["elastic"]) == (None, None, False)
