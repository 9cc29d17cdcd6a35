"""The main job on a simulated node: real manager, real shim, unmodified CUDA programs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nodemgr.simulator import SimulatedNode
from tests.node.programs import finish, said
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import Events, Manager

GIB = 2**30

Make = Callable[..., Manager]


@pytest.fixture
def node(make_manager: Make) -> Manager:
    """Two GPUs of 8 GiB; three environments with a GPU each."""
    manager = make_manager(simulate="2x8GiB")
    for env in ("alice", "bob", "carol"):
        manager.quota(env, 1)
    return manager


@pytest.mark.parametrize("route", ["link", "dlsym", "proc"])
def test_a_program_gets_a_gpu_when_it_uses_cuda_and_gives_it_back(
    node: Manager, route: str
) -> None:
    events = node.events(since=None)
    program = node.hold("alice", "-r", route, "-b", str(GIB))
    assert said(program)["allocated_bytes"] == GIB
    granted = events.expect("task.granted", env="alice")
    assert granted["pids"] == [program.pid]
    (task,) = node.status()["tasks"]
    assert (task["env"], task["pids"], task["state"]) == ("alice", [program.pid], "running")
    assert finish(program) == (0, "")
    assert events.expect("task.ended")["task"] == task["id"]
    assert node.status()["tasks"] == []


def test_a_program_that_uses_no_cuda_gets_nothing(node: Manager) -> None:
    program = node.spawn("alice", ["true"])
    assert finish(program) == (0, "")
    assert [event["name"] for event in node.call("events", since=0)["events"]] == [
        "manager.started",
        *["quota.set"] * 3,
    ]


def test_the_third_waits_with_its_place_and_gets_the_gpu_of_the_first_that_ends(
    node: Manager,
) -> None:
    events = node.events(since=None)
    first, second = node.hold("alice"), node.hold("bob")
    uuid = said(first)["uuid"]
    said(second)
    third = node.hold("carol")
    waiting = events.expect("task.waiting", env="carol")
    assert waiting["position"] == 1
    (row,) = node.status()["queue"]
    assert (row["id"], row["env"], row["position"]) == (waiting["task"], "carol", 1)
    assert "alice" in row["reason"]
    assert third.stderr is not None
    assert "place 1" in third.stderr.readline(), "it is told while it waits"
    first.kill()
    granted = events.expect("task.granted", env="carol")
    assert granted["gpus"] == [uuid]
    assert granted["waited_ns"] > 0
    assert said(third)["uuid"] == uuid
    assert finish(third)[0] == 0


def test_memory_beyond_the_quota_is_refused_as_the_driver_would(make_manager: Make) -> None:
    node = make_manager(simulate="1x8GiB")
    node.quota("alice", 1, memory_bytes=4 * GIB)
    first = node.hold("alice", "-b", str(2 * GIB))
    result = said(first)
    assert result["total_bytes"] == 4 * GIB, "the quota, not the GPU"
    assert result["free_bytes"] <= 2 * GIB
    second = node.hold("alice", "-b", str(3 * GIB))
    assert said(second)["error"] == "CUDA_ERROR_OUT_OF_MEMORY"
    code, stderr = finish(second)
    assert code == 1
    assert (
        "out of GPU memory by quota, not by the GPU: 3.00 GiB asked on GPU 0 (your 1st);" in stderr
    )
    assert finish(first)[0] == 0


def test_a_quota_raised_live_holds_from_the_next_allocation(make_manager: Make) -> None:
    node = make_manager(simulate="1x8GiB")
    node.quota("alice", 1, memory_bytes=2 * GIB)
    said(node.hold("alice", "-b", str(GIB)))
    assert said(node.hold("alice", "-b", str(2 * GIB)))["error"] == "CUDA_ERROR_OUT_OF_MEMORY"
    node.quota("alice", 1, memory_bytes=4 * GIB)
    assert said(node.hold("alice", "-b", str(2 * GIB)))["error"] is None


def test_many_processes_of_one_env_never_take_more_than_its_grant(make_manager: Make) -> None:
    """By the simulator's own books."""
    node = make_manager(simulate="1x8GiB", environment={"NODEMGR_MAX_TASKS_PER_GPU": "64"})
    node.quota("alice", 1, memory_bytes=2 * GIB)
    programs = [
        node.hold("alice", "-b", str(256 * 2**20), "-n", "4", NODEMGR_SIM_GROUP="alice")
        for _ in range(6)
    ]
    results = [said(program) for program in programs]
    with SimulatedNode.open(node.run_dir / "sim") as books:
        now, peak = books.group(0, "alice")
    # the last ones may find no room for a context
    assert now == sum(result.get("allocated_bytes", 0) for result in results)
    assert peak <= 2 * GIB
    assert any(result["error"] == "CUDA_ERROR_OUT_OF_MEMORY" for result in results)


def test_a_task_killed_with_9_leaves_nothing_behind(node: Manager) -> None:
    events = node.events(since=None)
    program = node.hold("alice", "-b", str(GIB))
    uuid = said(program)["uuid"]
    program.kill()
    assert events.expect("task.ended")["why"] == "its process ended"
    gpu = next(gpu for gpu in node.status()["gpus"] if gpu["uuid"] == uuid)
    assert (
        gpu["tasks"],
        gpu["memory_granted_bytes"],
        gpu["memory_used_bytes"],
        gpu["memory_residue_bytes"],
    ) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("gpus", "options", "reason"),
    [(1, {"NODEMGR_GPUS": "2"}, "quota"), (0, {}, "GPU"), (20, {"NODEMGR_GPUS": "3"}, "node")],
    ids=["over-quota", "no-gpu", "more-than-node"],
)
def test_what_cannot_be_had_is_refused_with_its_reason(
    node: Manager, gpus: int, options: dict[str, str], reason: str
) -> None:
    node.quota("dave", gpus)
    program = node.hold("dave", **options)
    code, stderr = finish(program)
    assert code == 3, "no CUDA"
    assert reason in stderr
    assert stderr.count("\n") == 1


def test_who_will_not_wait_is_refused_at_once(node: Manager) -> None:
    for env in ("alice", "bob"):
        said(node.hold(env))
    program = node.hold("carol", NODEMGR_WAIT="0")
    code, stderr = finish(program)
    assert code == 3
    assert "GPU" in stderr
    assert node.status()["queue"] == []


def test_run_that_will_not_wait_says_who_holds_what_and_runs_the_command(node: Manager) -> None:
    """`run` gives the command's own exit code: what it does without a GPU is its affair."""
    for env in ("alice", "bob"):
        said(node.hold(env))
    source = "import ctypes, sys; sys.exit(40 + (ctypes.CDLL('libcuda.so.1').cuInit(0) == 100))"
    command = [
        sys.executable,
        "-m",
        "nodemgr",
        "run",
        "--env",
        "carol",
        "--wait",
        "0",
        "--",
        sys.executable,
        "-S",
        "-c",
        source,
    ]
    environ = {**os.environ, "NODEMGR_RUN_DIR": str(node.run_dir)}
    ended = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False
    )
    assert ended.returncode == 41, ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line.startswith("nodemgr: ")
    assert "alice" in line or "bob" in line
    assert node.status()["queue"] == []


def test_a_waiter_that_dies_leaves_the_queue(node: Manager) -> None:
    events = node.events(since=None)
    for env in ("alice", "bob"):
        said(node.hold(env))
    waiter = node.hold("carol")
    events.expect("task.waiting", env="carol")
    waiter.kill()
    events.expect("request.withdrawn", env="carol")
    assert node.status()["queue"] == []


def test_visible_devices_is_a_wish_and_none_means_cpu(make_manager: Make) -> None:
    node = make_manager(simulate="4x8GiB")
    node.quota("alice", 4)
    two = node.hold("alice", CUDA_VISIBLE_DEVICES="0,1")
    assert said(two)["devices"] == 2
    none = node.hold("alice", CUDA_VISIBLE_DEVICES="")
    assert finish(none)[0] == 3
    assert len(node.status()["tasks"]) == 1


BRISK = {"NODEMGR_BEAT_MS": "50", "NODEMGR_TIMEOUT_MS": "1500"}
"""A program that beats is not taken for silent on a busy machine."""


def stop_a_holder(node: Manager) -> tuple[subprocess.Popen[str], Events]:
    """A program of alice's that has a GiB and is stopped; and the events after task.stalled."""
    node.quota("alice", 1)
    events = node.events()
    program = node.hold("alice", "-b", str(GIB))
    said(program)
    os.kill(program.pid, signal.SIGSTOP)
    events.expect("task.stalled")
    return program, events


def test_a_stopped_task_is_stalled_keeps_its_memory_and_comes_back(make_manager: Make) -> None:
    program, events = stop_a_holder(make_manager(simulate="1x8GiB", environment=BRISK))
    changed = events.expect("grant.changed")
    assert changed["memory_bytes"] >= GIB, "what it holds stays charged"
    os.kill(program.pid, signal.SIGCONT)
    events.expect("task.resumed")
    code, stderr = finish(program)
    assert (code, stderr) == (0, "")


RESTARTS = """
import ctypes, os, sys
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
print("used", flush=True)
sys.stdin.readline()
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_a_process_that_went_on_as_another_program_is_called_so(make_manager: Make) -> None:
    node = make_manager(simulate="1x8GiB", environment=BRISK)
    node.quota("alice", 1)
    node.quota("bob", 1)
    program = node.spawn(
        "alice", [sys.executable, "-S", "-c", RESTARTS, "/bin/sh", "-c", "read line"]
    )
    assert program.stdin is not None
    assert program.stdout is not None
    assert program.stdout.readline() == "used\n"
    events = node.events()
    program.stdin.write("\n")
    program.stdin.flush()
    events.expect("task.stalled", task="t1")
    waiter = node.hold("bob")
    reason = events.expect("task.waiting", env="bob")["reason"]
    told = r"alice/t1 holds GPU 0 since .*, and runs another program since \d\d:\d\d"
    assert re.search(told, reason)
    program.communicate("\n", timeout=WAIT_LIMIT_S)
    assert said(waiter)["error"] is None


def test_a_program_that_restarts_itself_keeps_its_task(node: Manager) -> None:
    command = [sys.executable, "-S", "-c", RESTARTS]
    program = node.spawn("alice", [*command, *command, "/bin/true"])
    assert program.stdin is not None
    assert program.stdout is not None
    events = node.events()
    for _ in range(2):
        assert program.stdout.readline() == "used\n"
        assert [task["id"] for task in node.status()["tasks"]] == ["t1"]
        assert node.status()["tasks"][0]["state"] == "running"
        program.stdin.write("\n")
        program.stdin.flush()
    program.wait(WAIT_LIMIT_S)
    events.expect("task.ended", task="t1")


def test_a_stopped_task_is_ended_after_the_grace_where_the_policy_says_so(
    make_manager: Make, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text('stalled = "kill"\nstalled_grace_ms = 100\n')
    program, events = stop_a_holder(
        make_manager(simulate="1x8GiB", options=["--config", str(config)], environment=BRISK)
    )
    assert program.wait(WAIT_LIMIT_S) == -signal.SIGKILL
    assert events.expect("task.ended")["env"] == "alice"
    program.communicate()


STOPPED = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
def check(code):
    if code: print("error", code, flush=True)
    return code
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
check(cuda.cuInit(0)); check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
check(cuda.cuCtxSetCurrent(context))
check(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 30)))
print("allocated", flush=True)
sys.stdin.readline()
print("then", cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 20)), flush=True)
sys.stdin.readline()
"""


def test_a_stopped_task_whose_gpu_went_on_is_refused_memory_and_not_harmed(
    make_manager: Make,
) -> None:
    node = make_manager(simulate="1x8GiB", environment=BRISK)
    node.quota("alice", 1)
    node.quota("bob", 1, memory_bytes=4 * GIB)
    events = node.events()
    program = node.spawn("alice", ["python3", "-S", "-c", STOPPED])
    assert program.stdout is not None
    assert program.stdin is not None
    assert program.stdout.readline() == "allocated\n"
    os.kill(program.pid, signal.SIGSTOP)
    events.expect("task.stalled", env="alice")
    other = node.hold("bob", "-b", str(2 * GIB))
    assert said(other)["error"] is None, "its slot is offered to others"
    used = node.status()["gpus"][0]
    assert used["memory_granted_bytes"] >= 4 * GIB + GIB, "its memory is not"
    os.kill(program.pid, signal.SIGCONT)
    events.expect("task.fenced", env="alice")
    program.stdin.write("\n")
    program.stdin.flush()
    assert program.stdout.readline() == "then 2\n", "CUDA_ERROR_OUT_OF_MEMORY"
    assert finish(program, told="went to others")[0] == 0


CONFINED = """
import ctypes, platform, struct, sys
cuda, libc = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(None)
context = ctypes.c_void_p()
codes = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)]
seccomp, sendmsg, sendto = (317, 46, 44) if platform.machine() == "x86_64" else (277, 211, 206)
load, equal, answer, kill, allow = 0x20, 0x15, 0x06, 0x80000000, 0x7FFF0000
rules = [(load, 0, 0, 0), (equal, 1, 0, sendmsg), (equal, 0, 1, sendto), (answer, 0, 0, kill),
    (answer, 0, 0, allow)]
code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *rule) for rule in rules))
program = ctypes.create_string_buffer(struct.pack("=H6xQ", len(rules), ctypes.addressof(code)))
libc.prctl(38, 1, 0, 0, 0)
codes.append(libc.syscall(seccomp, 1, 1, program))
print(codes, flush=True)
sys.stdin.readline()
print(cuda.cuDevicePrimaryCtxRelease(0), flush=True)
"""


def test_a_program_that_confined_itself_lives_on_and_ends_as_ever(make_manager: Make) -> None:
    """seccomp kills it at sendmsg and sendto: its beats still count.

    The kernel reports its end.
    """
    node = make_manager(simulate="2x8GiB", environment=BRISK)
    node.quota("bob", 1)
    program = node.spawn("bob", ["python3", "-S", "-c", CONFINED])
    assert program.stdout is not None
    assert program.stdout.readline() == "[0, 0, 0]\n"
    # it was stopped later: when it is silent for the timeout, so would the other be
    _stopped, events = stop_a_holder(node)
    wanted = [("bob", "running"), ("alice", "stalled")]
    # on a busy machine bob may be silent for a moment, too
    while [(task["env"], task["state"]) for task in node.status()["tasks"]] != wanted:
        assert program.poll() is None
    code, stderr = finish(program)
    assert (code, stderr) == (0, "")
    events.expect("task.ended", env="bob")


FORKED = """
import ctypes, os, sys
cuda = ctypes.CDLL("libcuda.so.1")
def use(say):
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    codes = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        cuda.cuCtxSetCurrent(context),
             cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 20))]
    print(say, codes, flush=True)
use("parent")
child = os.fork()
if child == 0:
    use("child"); sys.stdin.readline(); os._exit(0)
sys.stdin.readline(); os.waitpid(child, 0)
"""


def test_a_forked_child_joins_the_lease_with_a_connection_of_its_own(node: Manager) -> None:
    events = node.events(since=None)
    program = node.spawn("alice", ["python3", "-S", "-c", FORKED])
    assert program.stdout is not None
    assert program.stdout.readline() == "parent [0, 0, 0, 0]\n"
    assert program.stdout.readline() == "child [0, 0, 0, 0]\n"
    joined = events.expect("task.joined")
    (task,) = node.status()["tasks"]
    assert len(task["pids"]) == task["connected"] == 2
    assert joined["task"] == task["id"]
    program.kill()
    events.expect("task.left", task=task["id"])
    (task,) = node.status()["tasks"]
    assert program.pid not in task["pids"], "a child that outlives its root keeps the lease"


def test_a_gpu_that_disappears_is_told_and_not_granted_until_it_is_back(node: Manager) -> None:
    events = node.events(since=None)
    program = node.hold("alice")
    said(program)
    (task,) = node.status()["tasks"]
    index = task["gpu_indices"][0]
    with SimulatedNode.open(node.run_dir / "sim") as simulated:
        simulated.lose(index)
        events.expect("gpu.lost")
        waiter = node.hold("bob")
        assert said(waiter)["uuid"] != task["gpus"][0]
        late = node.hold("carol")
        events.expect("task.waiting", env="carol")
        simulated.restore(index)
        events.expect("gpu.restored")
    assert finish(program, told=f"GPU {index}")[0] == 0
    assert said(late)["uuid"] == task["gpus"][0]


def test_a_released_task_is_told_and_lives_on_without_memory(node: Manager) -> None:
    program = node.spawn("alice", ["python3", "-S", "-c", STOPPED])
    assert program.stdout is not None
    assert program.stdin is not None
    program.stdout.readline()
    events = node.events(since=None)
    (task,) = node.status()["tasks"]
    node.call("release", task=task["id"])
    events.expect("task.ended")
    program.stdin.write("\n")
    program.stdin.flush()
    assert program.stdout.readline() == "then 2\n"
    (kept,) = node.status()["residues"]
    assert (kept["env"], kept["pid"], kept["gpu"], kept["alive"]) == (
        "alice",
        program.pid,
        task["gpus"][0],
        True,
    )
    assert kept["memory_bytes"] > 0
    assert finish(program, told="root took this task")[0] == 0
