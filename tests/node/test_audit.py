"""Programs that bypass the shim, on a simulated node, are found by the driver's figures.

They are reported, fenced or ended; foreign processes are left alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from nodemgr.paths import payload_dir
from tests.node.programs import finish, said
from tests.shim.world import LINKED_WITH_DRIVER, compiled
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import HOLD, Manager

GIB = 2**30
LIBRARY = payload_dir() / "client_plugin" / "_lib" / "libnodemgr.so"

Make = Callable[..., Manager]

PARENT = """
import os, subprocess, sys, ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
codes = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
    cuda.cuCtxSetCurrent(context)]
without = {name: value for name, value in os.environ.items() if not name.startswith(("LD_PRELOAD",
    "NODEMGR_", "CUDA_"))}
child = subprocess.Popen(sys.argv[1:], env=without, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    text=True)
child.stdout.readline()
print(codes, child.pid, flush=True)
sys.stdin.readline()
child.stdin.close(); print(child.wait(), flush=True)
"""
"""Holds a lease, and starts a child that knows of no manager."""

MEMBER = """
import ctypes, sys
own = ctypes.CDLL(sys.argv[1])
own.nodemgr_begin(ctypes.c_int64(1), ctypes.c_int64(-1), ctypes.c_int64(-1), b"member")
while own.nodemgr_poll(100, None, 0) == 1: pass
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
codes = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
    cuda.cuCtxSetCurrent(context),
         cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(sys.argv[2])))]
print(codes, flush=True)
sys.stdin.readline()
"""
"""Asks properly, and allocates without the shim: a lease by the hook alone."""


CLONE_NEWNS = 0x0002_0000
ENVIRONMENT = {
    "NODEMGR_BEAT_MS": "50",
    "NODEMGR_AUDIT_TOLERANCE_BYTES": str(GIB // 4),
    "NODEMGR_ENFORCE_GRACE_MS": "300",
}


@pytest.fixture
def node(make_manager: Make) -> Manager:
    """A GPU of 16 GiB, a quick audit."""
    manager = make_manager(simulate="1x16GiB", environment=ENVIRONMENT)
    manager.quota("alice", 1, memory_bytes=4 * GIB)
    manager.quota("bob", 1, memory_bytes=4 * GIB)
    return manager


def parent(node: Manager, gib: int = 2) -> tuple[subprocess.Popen[str], int]:
    """A program of alice's with a lease, and its child's PID."""
    program = node.spawn(
        "alice", [sys.executable, "-S", "-c", PARENT, str(HOLD), "-b", str(gib * GIB)]
    )
    assert program.stdout is not None
    codes, pid = program.stdout.readline().rsplit(" ", 1)
    assert codes == "[0, 0, 0]"
    return program, int(pid)


def member(node: Manager, gib: int, *, ends: bool = False) -> subprocess.Popen[str]:
    """A program of alice's with a lease that nothing holds to its quota.

    `ends`: it may be ended before it says what it got.
    """
    program = node.spawn(
        "alice", [sys.executable, "-S", "-c", MEMBER, str(LIBRARY), str(gib * GIB)], shim=False
    )
    assert program.stdout is not None
    assert program.stdout.readline() in ("[0, 0, 0, 0]\n", *([""] if ends else []))
    return program


BEHIND = """
#include <stddef.h>
#include <stdint.h>
int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *),
    cuMemAlloc_v2(uint64_t *, size_t);
int take(int count, size_t bytes)
{
    void *context;
    uint64_t address;
    int taken = 0;
    if (cuInit(0) != 0 || cuDevicePrimaryCtxRetain(&context,
        0) != 0 || cuCtxSetCurrent(context) != 0)
        return -1;
    while (taken < count && cuMemAlloc_v2(&address, bytes) == 0)
        taken++;
    return taken;
}
"""

LOADER = """
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    int result = ((int (*)(unsigned))dlsym(cuda, "cuInit"))(0);
    int deep = argc > 2 && strcmp(argv[2], "RTLD_DEEPBIND") == 0;
    void *behind = deep ? dlopen(argv[1], RTLD_NOW | RTLD_DEEPBIND)
        : dlmopen(LM_ID_NEWLM, argv[1], RTLD_NOW);
    int taken = ((int (*)(int, size_t))dlsym(behind, "take"))(40, 64 << 20);
    printf("%d %d\\n", result, taken);
    fflush(stdout);
    return getchar() == 0;
}
"""
"""Holds a lease, and loads a library that finds the driver before it finds the shim."""


def stranger(node: Manager, gib: int) -> subprocess.Popen[str]:
    """A program that was started without any environment of ours."""
    environment = {"LD_LIBRARY_PATH": str(node.run_dir / "sim"), "PATH": os.environ["PATH"]}
    program = subprocess.Popen(
        [str(HOLD), "-b", str(gib * GIB)], env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    node._programs.append(program)
    said(program)
    return program


def violations(node: Manager) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = node.status()["violations"]
    return found


def test_a_child_that_goes_round_the_shim_is_its_environments_and_counts_there(
    node: Manager,
) -> None:
    events = node.events()
    program, pid = parent(node)
    violation = events.expect("audit.violation", env="alice", pid=pid)
    assert (violation["offence"], violation["enforce"], violation["action"]) == (
        "no_lease",
        "warn",
        "none",
    )
    assert violation["memory_bytes"] >= 2 * GIB
    (row,) = violations(node)
    assert (row["pid"], "without a lease" in row["text"]) == (pid, True)
    (check,) = [check for check in node.call("doctor")["checks"] if check["name"] == "audit"]
    assert (check["ok"], f"process {pid} of alice" in check["detail"]) == (False, True)
    other = node.hold("alice", "-b", str(3 * GIB))
    assert said(other)["error"] == "CUDA_ERROR_OUT_OF_MEMORY", "2 of its 4 GiB are taken"
    _, stderr = finish(other)
    assert "out of GPU memory by quota" in stderr
    assert finish(program)[0] == 0
    events.expect("task.ended")


def test_one_episode_is_told_once_and_its_end(node: Manager) -> None:
    events = node.events()
    program, pid = parent(node)
    holder = node.hold("bob")
    said(holder)
    events.expect("audit.violation", pid=pid)
    finish(program)
    events.expect("audit.ended", pid=pid)
    assert violations(node) == []
    names = [event["name"] for event in events.seen]
    assert names.count("audit.violation") == 1


def test_kill_ends_a_child_without_a_lease_and_leaves_its_parent(node: Manager) -> None:
    node.quota("alice", 1, enforce="kill")
    events = node.events()
    program, pid = parent(node)
    assert events.expect("audit.violation", pid=pid)["action"] == "SIGTERM"
    events.expect("audit.ended", pid=pid)
    stdout, _ = program.communicate("\n", timeout=WAIT_LIMIT_S)
    assert (program.returncode, stdout) == (0, f"{-signal.SIGTERM}\n")


def test_kill_waits_for_the_grace_time_and_no_longer(node: Manager) -> None:
    node.quota("alice", 1, enforce="kill")
    events = node.events()
    program = node.spawn(
        "alice",
        ["/bin/sh", "-c", 'trap "" TERM; exec "$@"', "sh", str(HOLD), "-b", str(GIB)],
        shim=False,
    )
    said(program)
    holder = node.hold("bob")
    said(holder)
    events.expect("audit.violation", pid=program.pid, env="alice")
    events.expect("audit.killed", pid=program.pid)
    assert program.wait(WAIT_LIMIT_S) == -signal.SIGKILL
    assert holder.poll() is None


def test_who_started_in_an_environment_belongs_to_it_without_a_lease_there(node: Manager) -> None:
    """Its own start says so, and its user may enter."""
    events = node.events()
    said(node.hold("bob"))
    program = node.spawn("alice", [str(HOLD), "-b", str(GIB)], shim=False)
    said(program)
    assert events.expect("audit.violation", pid=program.pid)["env"] == "alice"


@pytest.mark.parametrize("enforce", ["warn", "fence", "kill"])
def test_a_stranger_is_counted_and_never_touched(node: Manager, enforce: str) -> None:
    for env in ("alice", "bob"):
        node.quota(env, 1, memory_bytes=(4 if env == "alice" else 8) * GIB, enforce=enforce)
    events = node.events()
    said(node.hold("alice"))
    program = stranger(node, 8)
    violation = events.expect("audit.violation", pid=program.pid)
    assert (violation["env"], violation["action"], violation["enforce"]) == (None, "none", "warn")
    assert node.status()["gpus"][0]["memory_unbooked_bytes"] >= 8 * GIB
    (check,) = [each for each in node.call("doctor")["checks"] if each["name"] == "audit"]
    assert "GPU 0 has 8." in check["detail"]
    assert "in use that no grant explains" in check["detail"]
    waiter = node.hold("bob")
    events.expect("task.waiting", env="bob")
    assert program.poll() is None
    finish(program)
    assert said(waiter)["error"] is None, "what it had is there again"


def test_an_idle_node_looks_when_it_is_asked(node: Manager) -> None:
    events = node.events(since=None)
    stranger(node, 8)
    events.expect_nothing(0.5)
    assert node.status()["gpus"][0]["memory_unbooked_bytes"] >= 8 * GIB
    node.quota("bob", 1, memory_bytes=12 * GIB)
    node.hold("bob")
    events.expect("task.waiting", env="bob")


EXPORTER = """
import ctypes, struct, subprocess, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, handle, descriptor = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_int()
properties = struct.pack("4i", 1, 1, 1, 0) + bytes(64)  # pinned, POSIX descriptor, on device 0
size, none, refer = ctypes.c_size_t(2 << 30), ctypes.c_uint64(0), ctypes.byref
print([cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(refer(context), 0),
       cuda.cuCtxSetCurrent(context), cuda.cuMemCreate(refer(handle), size, properties, none),
       cuda.cuMemExportToShareableHandle(refer(descriptor), handle, 1, none)], end=" ")
child = subprocess.Popen(
    [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"], pass_fds=[descriptor.value],
    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(child.pid, flush=True)
"""
"""Ends at once, and leaves a child that has the descriptor and no CUDA, until stdin is closed."""


def test_exported_memory_of_an_ended_process_is_charged_to_its_environment(
    node: Manager,
) -> None:
    """The driver shows no process for it. It bounds the next grants, also after a restart."""
    node.quota("bob", 1, memory_bytes=15 * GIB)
    events = node.events()
    program = node.spawn("alice", [sys.executable, "-S", "-c", EXPORTER])
    assert program.stdout is not None
    codes, child = program.stdout.readline().rsplit(" ", 1)
    assert codes == "[0, 0, 0, 0, 0]"
    its_end = os.pidfd_open(int(child))
    assert program.wait(WAIT_LIMIT_S) == 0
    events.expect("task.ended", env="alice")
    told = events.expect("memory.residue", env="alice")
    assert (told["pid"], told["memory_bytes"] >= 2 * GIB) == (None, True)
    status = node.status()
    (gpu,), (row,) = status["gpus"], status["residues"]
    assert (gpu["memory_granted_bytes"], gpu["memory_unbooked_bytes"]) == (0, 0)
    assert 2 * GIB <= row["memory_bytes"] <= gpu["memory_used_bytes"] < 3 * GIB
    assert (row["env"], row["exported"], row["alive"], row["pid"]) == ("alice", True, False, None)
    again = node.hold("alice", "-b", str(3 * GIB))
    waiting = events.expect("task.waiting", env="alice")
    assert waiting["reason"].endswith("GPU 0 that its ended processes exported")
    node.restart()
    events = node.events()
    assert node.status()["residues"][0]["memory_bytes"] == row["memory_bytes"]
    (check,) = [each for each in node.call("doctor")["checks"] if each["name"] == "audit"]
    assert not check["ok"]
    assert "alice is charged for 2.0 GiB of GPU 0" in check["detail"]
    late = node.hold("bob", "-b", str(14 * GIB))
    events.expect("task.waiting", env="bob")
    assert program.stdin is not None
    program.stdin.close()
    assert select.select([its_end], [], [], WAIT_LIMIT_S)[0] == [its_end]
    os.close(its_end)
    assert said(again)["error"] is None, "the descriptor is closed: the request waits no longer"
    assert node.status()["residues"] == []
    assert finish(again)[0] == 0
    assert said(late)["error"] is None


def test_a_member_beyond_its_quota_is_warned(node: Manager) -> None:
    events = node.events()
    program = member(node, 7)
    violation = events.expect("audit.violation", pid=program.pid)
    assert (violation["offence"], violation["allowed_bytes"], violation["action"]) == (
        "over_quota",
        4 * GIB,
        "warned",
    )
    (task,) = node.status()["tasks"]
    assert task["state"] == "running"
    line = "alice may use 4.0 GiB there"
    code, stderr = finish(program, told=line)
    assert (code, stderr.count(line)) == (0, 1)


def test_a_member_beyond_its_quota_is_fenced_and_its_memory_stays_charged(node: Manager) -> None:
    node.quota("alice", 1, enforce="fence")
    events = node.events()
    program = member(node, 7)
    assert events.expect("audit.violation", pid=program.pid)["action"] == "fenced"
    events.expect("task.ended", env="alice")
    events.expect("memory.residue", pid=program.pid)
    (gpu,) = node.status()["gpus"]
    assert (gpu["tasks"], gpu["memory_residue_bytes"] >= 7 * GIB) == (0, True)
    assert program.poll() is None
    assert finish(program, told="alice may use 4.0 GiB there")[0] == 0


def test_a_member_beyond_its_quota_is_ended(node: Manager) -> None:
    node.quota("alice", 1, enforce="kill")
    events = node.events()
    program = member(node, 7, ends=True)
    events.expect("audit.violation", pid=program.pid)
    assert program.wait(WAIT_LIMIT_S) == -signal.SIGTERM
    events.expect("task.ended", env="alice")


def test_a_member_within_its_quota_is_nobodys_business(node: Manager) -> None:
    events = node.events()
    program = member(node, 3)
    events.expect("task.granted")
    other = node.hold("bob")
    said(other)
    finish(other)
    events.expect("task.ended", env="bob")
    events.expect_nothing(0.3)
    assert violations(node) == []
    finish(program)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a mount namespace")
def test_who_shares_a_container_with_an_environment_belongs_to_it(node: Manager) -> None:
    """It has no ancestor in the env and no variable of ours, but a holder's mount namespace.

    That namespace is not the manager's.
    """
    events = node.events()
    bare = f"env -u LD_PRELOAD -u NODEMGR_ENV_DIR {HOLD} -b {GIB}"
    script = f"exec 3<&0; {HOLD} <&3 & setsid sh -c '{bare} <&3 &'; wait"
    program = node.spawn("alice", ["unshare", "-m", "sh", "-c", script])
    violation = events.expect("audit.violation", env="alice")
    assert violation["offence"] == "no_lease"
    finish(program)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a mount namespace")
def test_the_host_is_no_container_to_a_manager_in_a_namespace_of_its_own(
    make_manager: Make,
) -> None:
    """As a hardened service it has one.

    A process that shares the host with a holder belongs to no env all the same.
    """

    def unshare() -> None:
        assert ctypes.CDLL(None).unshare(CLONE_NEWNS) == 0

    node = make_manager(
        simulate="1x16GiB",
        environment={**ENVIRONMENT, "NODEMGR_ENFORCE": "kill"},
        before_exec=unshare,
    )
    node.quota("alice", 1, memory_bytes=4 * GIB)
    holder = node.hold("alice")
    said(holder)
    events = node.events()
    bystander = stranger(node, 2)
    assert events.expect("audit.violation", pid=bystander.pid)["env"] is None
    finish(bystander)
    finish(holder)


@pytest.mark.parametrize("way", ["dlmopen", "RTLD_DEEPBIND"])
def test_a_library_that_goes_round_the_shim_is_seen_and_counted(node: Manager, way: str) -> None:
    """40 times 64 MiB under 1 GiB: nothing refuses them, but the driver shows them.

    The environment's other programs get less.
    """
    node.quota("alice", 1, memory_bytes=GIB)
    events = node.events()
    behind = compiled(BEHIND, "-shared", "-fPIC", *LINKED_WITH_DRIVER)
    program = node.spawn("alice", [str(compiled(LOADER)), str(behind), way])
    assert program.stdout is not None
    assert program.stdout.readline() == "0 40\n"
    violation = events.expect("audit.violation", pid=program.pid)
    assert (violation["env"], violation["offence"]) == ("alice", "over_quota")
    assert violation["memory_bytes"] >= 40 * 64 * 2**20
    (check,) = [check for check in node.call("doctor")["checks"] if check["name"] == "audit"]
    assert (check["ok"], f"process {program.pid} of alice" in check["detail"]) == (False, True)
    inside = node.spawn("alice", [sys.executable, "-m", "nodemgr", "doctor", "--json"])
    stdout, _ = inside.communicate(timeout=WAIT_LIMIT_S)
    (ledger,) = [check for check in json.loads(stdout)["checks"] if check["name"] == "ledger"]
    assert (ledger["ok"], str(program.pid) in ledger["detail"]) == (
        (False, True) if way == "dlmopen" else (True, False)
    )
    other = node.hold("alice", "-b", str(GIB // 2))
    assert said(other)["error"] == "CUDA_ERROR_OUT_OF_MEMORY"
    finish(other)
    program.communicate("\n", timeout=WAIT_LIMIT_S)
