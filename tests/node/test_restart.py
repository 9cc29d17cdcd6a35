"""The manager dies at the worst moments: no answer is lost, and running tasks go on."""

from __future__ import annotations

import os
import random
import re
import signal
from collections import Counter
from collections.abc import Callable

import pytest

from nodemgr.simulator import SimulatedNode
from tests.node.programs import Supervised, finish, said
from tests.support.manager import Manager

GIB = 2**30
STOPPED = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuInit(0); cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 30)); print("allocated", flush=True)
sys.stdin.readline()
print("then", cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(sys.argv[1]))),
    flush=True)
sys.stdin.readline()
"""
"""Allocates at once when it goes on."""
AWAY = re.compile(
    r"(nodemgr: no answer from the manager at .*; the task goes on, and is announced again when it"
    r" is back\n)?"
)
"""A task reports a manager that is away for five seconds.

A busy machine may take that long for a restart.
"""
Make = Callable[..., Manager]


def test_running_tasks_are_found_again_and_go_on(make_manager: Make) -> None:
    manager = make_manager(simulate="2x8GiB")
    manager.quota("alice", 1, memory_bytes=4 * GIB)
    manager.quota("bob", 2)
    first, second = manager.hold("alice", "-b", str(GIB)), manager.hold("bob", NODEMGR_GPUS="1")
    assert said(first)["error"] is None
    events = manager.events(since=None)
    said(second)
    waiter = manager.hold("bob", NODEMGR_GPUS="2")
    events.expect("task.waiting", env="bob")
    before = manager.status()
    manager.kill()
    manager.start()
    assert "2 running tasks found again" in manager.log
    after = manager.status()
    assert [task["id"] for task in after["tasks"]] == [task["id"] for task in before["tasks"]]
    assert [(row["id"], row["position"]) for row in after["queue"]] == [
        (row["id"], row["position"]) for row in before["queue"]
    ]
    assert after["envs"] == before["envs"]
    late = manager.hold("alice", "-b", str(4 * GIB))
    assert said(late)["error"] == "CUDA_ERROR_OUT_OF_MEMORY", (
        "what was allocated before the restart counts"
    )
    finish(first)
    finish(late)
    assert said(waiter)["devices"] == 2
    code, stderr = finish(second)
    assert code == 0
    assert AWAY.fullmatch(stderr), stderr
    assert finish(waiter)[0] == 0


def test_who_was_stopped_over_a_restart_finds_what_the_earlier_manager_allowed(
    make_manager: Make,
) -> None:
    """It continues by the old limits until it has rejoined: no other gets that memory before."""
    manager = make_manager(
        simulate="1x8GiB", environment={"NODEMGR_BEAT_MS": "50", "NODEMGR_TIMEOUT_MS": "1500"}
    )
    manager.quota("alice", 1)
    manager.quota("bob", 1, memory_bytes=4 * GIB)
    program = manager.spawn("alice", ["python3", "-S", "-c", STOPPED, str(6 * GIB)])
    assert program.stdout is not None
    assert program.stdin is not None
    assert program.stdout.readline() == "allocated\n"
    os.kill(program.pid, signal.SIGSTOP)
    manager.restart()
    events = manager.events()
    events.expect("task.stalled", env="alice")
    waiter = manager.hold("bob", "-b", str(3 * GIB))
    events.expect("task.waiting", env="bob")
    program.stdin.write("\n")
    program.stdin.flush()
    os.kill(program.pid, signal.SIGCONT)
    assert program.stdout.readline() == "then 0\n"
    code, stderr = finish(program)
    assert code == 0
    assert AWAY.fullmatch(stderr), stderr
    assert said(waiter)["error"] is None


def test_a_clean_end_leaves_leases_as_they_are(make_manager: Make) -> None:
    manager = make_manager(simulate="1x8GiB")
    manager.quota("alice", 1)
    program = manager.hold("alice")
    said(program)
    assert manager.stop() == 0
    manager.start()
    assert [task["pids"] for task in manager.status()["tasks"]] == [[program.pid]]
    assert [event["name"] for event in manager.call("events", since=0)["events"]].count(
        "manager.stopping"
    ) == 1


def test_what_died_while_the_manager_was_away_is_buried_and_the_next_is_served(
    make_manager: Make,
) -> None:
    manager = make_manager(simulate="1x8GiB")
    for env in ("alice", "bob"):
        manager.quota(env, 1)
    events = manager.events()
    holder = manager.hold("alice")
    said(holder)
    waiter = manager.hold("bob")
    events.expect("task.waiting", env="bob")
    manager.kill()
    holder.kill()
    holder.wait()
    manager.start()
    assert said(waiter)["error"] is None


@pytest.mark.parametrize(
    ("when", "commit"),
    [
        ("after", 6),
        pytest.param("before", 6, marks=pytest.mark.slow),
        pytest.param("after", 7, marks=pytest.mark.slow),
        ("before", 8),
        pytest.param("after", 9, marks=pytest.mark.slow),
    ],
)
def test_deaths_around_commits_lose_nothing(make_manager: Make, when: str, commit: int) -> None:
    """Each manager is killed before or after a given commit, and so is the next.

    Through quotas, grants, a kill and the end.
    """
    manager = make_manager(
        simulate="1x8GiB", environment={"NODEMGR_SIM_CRASH": f"{when}:{commit}"}, start=False
    )
    manager.start(wait=False)
    with Supervised(manager) as supervised:
        for env in ("alice", "bob"):
            supervised.call("quota_set", env=env, gpus=1, memory_bytes=4 * GIB)
        assert [quota["gpus"] for quota in supervised.call("quota_show")["quotas"]] == [1, 1]
        first, second = manager.hold("alice", "-b", str(GIB)), manager.hold("alice", "-b", str(GIB))
        third = manager.hold("bob", NODEMGR_MEMORY=str(2 * GIB))
        for program in (first, second, third):
            assert said(program)["error"] is None
        second.kill()
        for program in (first, third):
            assert finish(program)[0] == 0
        status = supervised.until_idle()
        assert [gpu["memory_granted_bytes"] for gpu in status["gpus"]] == [0]
        allocations = supervised.call("allocations")["allocations"]
        events = supervised.call("events", since=0, limit=1_000)["events"]
        assert [event["sequence"] for event in events] == list(range(1, len(events) + 1)), (
            "no number is missing or twice"
        )
        named = Counter(event["name"] for event in events)
        assert len(allocations) == named["task.granted"] == named["task.ended"] == 3
        assert all(allocation["ended_wall_ns"] is not None for allocation in allocations)
        assert supervised.deaths >= 1


@pytest.mark.slow
def test_deaths_at_random_under_load(make_manager: Make) -> None:
    """Programs come and go while the manager is killed again and again, some events apart."""
    chance = random.Random(20_261_121)
    manager = make_manager(simulate="2x8GiB")
    with Supervised(manager) as supervised:
        for env in ("alice", "bob", "carol"):
            supervised.call("quota_set", env=env, gpus=1, memory_bytes=4 * GIB)
        events = manager.events(since=None)
        programs = []
        for _ in range(5):
            programs += [
                manager.hold(env, "-b", str(GIB), "-s", "0") for env in ("alice", "bob", "carol")
            ]
            events.expect("task.granted")
            for _ in range(chance.randrange(3)):
                if any(program.poll() is None for program in programs):
                    events.expect("task.ended")
            while (process := manager.process) is None or process.poll() is not None:
                pass  # the next one is on its way
            os.kill(process.pid, signal.SIGKILL)
        for program in programs:
            code, stderr = finish(program)
            assert code in (0, 1), stderr
            assert code == 0 or "out of GPU memory by quota" in stderr
        assert supervised.deaths >= 3
        status = supervised.until_idle()
        assert [gpu["memory_granted_bytes"] for gpu in status["gpus"]] == [0, 0]
        assert len(status["envs"]) == 3
        with SimulatedNode.open(manager.run_dir / "sim") as simulated:
            assert [device.used_bytes for device in simulated.books()] == [0, 0]
        ended = [
            allocation["ended_wall_ns"]
            for allocation in supervised.call("allocations")["allocations"]
        ]
        assert ended
        assert None not in ended
