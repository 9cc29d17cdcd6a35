"""The rights that a manager keeps of root's: tried in a process that gives up the rest."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from nodemgr.edge.host import privileges
from nodemgr.edge.host.privileges import (
    DEVICE_GATE,
    DRIVER_LIMITS,
    RETAINED,
    retained,
)

NET_ADMIN, SYS_ADMIN, BPF = 12, 21, 39
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="another user than root has nothing to give up"
)

BEFORE = """
import os, sys, threading
from pathlib import Path
from nodemgr.edge.host import privileges
def said(of="self"):
    status = Path(f"/proc/{of}/status").read_text()
    lines = dict(line.split(":\\t") for line in status.splitlines() if ":\\t" in line)
    return [int(lines[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd",
        "CapAmb")] + [int(lines["NoNewPrivs"])]
"""


def child(program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", BEFORE + program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def bits(numbers: frozenset[int]) -> int:
    return sum(1 << number for number in numbers)


def test_sys_admin_is_kept_only_where_something_needs_it() -> None:
    assert SYS_ADMIN not in retained(())
    assert retained((DRIVER_LIMITS,)) == retained(()) | {SYS_ADMIN}


def test_the_device_gates_rights_are_kept_where_there_is_one() -> None:
    assert retained((DEVICE_GATE,)) == retained(()) | {NET_ADMIN, BPF}


def test_a_kernel_that_lacks_the_finer_capabilities_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert privileges.surroundings(driver_limits=False, device_gate=False) == frozenset()
    monkeypatch.setattr(privileges, "_last", lambda: 37)
    here = privileges.surroundings(driver_limits=True, device_gate=False)
    assert here == {privileges.OLD_KERNEL, DRIVER_LIMITS}


def test_every_row_gives_its_reason() -> None:
    assert (
        len({row.number for row in RETAINED})
        == len({row.name for row in RETAINED})
        == len(RETAINED)
    )
    assert all(row.why for row in RETAINED)


@needs_root
def test_the_rest_is_given_up_for_good() -> None:
    """In every set, for threads and programs that come later too."""
    program = """
privileges.give_up_the_rest(())
print(said())
thread = threading.Thread(target=lambda: print(said(f"self/task/{threading.get_native_id()}")))
thread.start(); thread.join()
print(os.popen("grep CapEff /proc/self/status").read().split()[1])
"""
    wanted = bits(retained(()))
    own, thread, program_said = child(program).splitlines()
    assert own == thread == str([0, wanted, wanted, wanted, 0, 1])
    assert int(program_said, 16) & ~wanted == 0


@needs_root
def test_what_is_given_up_is_gone_and_what_is_kept_works() -> None:
    program = """
privileges.give_up_the_rest(())
for name, act in (
    ("chown", lambda: os.chown("/proc/self/root/nothing", 1, 1)),
    ("mknod", lambda: os.mknod("/tmp/nodemgr-test-node", 0o20600, os.makedev(1, 3))),
    ("setuid", lambda: os.setuid(65534)),
    ("environ", lambda: open(f"/proc/{sys.argv[1]}/environ").close()),
    ("kill", lambda: os.kill(int(sys.argv[1]), 0)),
):
    try:
        act()
        print(name, "works")
    except OSError as error:
        print(name, type(error).__name__)
"""
    stranger = subprocess.Popen(["sleep", "60"], user=65_534, group=65_534)
    try:
        said = child(program, str(stranger.pid)).splitlines()
    finally:
        stranger.kill()
        stranger.wait()
    assert said == [
        "chown FileNotFoundError",
        "mknod PermissionError",
        "setuid PermissionError",
        "environ works",
        "kill works",
    ]


@needs_root
def test_its_memory_is_roots_alone_and_in_no_core_dump() -> None:
    program = """
import ctypes
privileges.give_up_the_rest(())
print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))  # PR_GET_DUMPABLE
"""
    assert child(program) == "0\n"


@needs_root
def test_what_was_not_held_is_not_asked_for() -> None:
    """In a container that gave little: the manager goes on with what there is."""
    program = """
privileges._set(1 << 5)
privileges.give_up_the_rest(())
print(said()[1:3])
"""
    assert child(program) == f"{[1 << 5, 1 << 5]}\n"


@needs_root
def test_another_users_manager_gives_up_nothing_and_gains_nothing() -> None:
    program = """
os.setresuid(65534, 65534, 65534)
privileges.give_up_the_rest(())
print(said()[2], said()[5])
"""
    assert child(program) == "0 1\n"


def test_a_kernel_that_refuses_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privileges, "PR_SET_NO_NEW_PRIVS", 9_999)
    with pytest.raises(privileges.PrivilegesNotDropped, match="prctl: Invalid argument"):
        privileges.give_up_the_rest(())


def test_names_for_people() -> None:
    assert privileges.names(1 << 5 | 1 << 13) == ["CAP_KILL", "capability 13"]
