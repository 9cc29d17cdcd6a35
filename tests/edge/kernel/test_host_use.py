"""CPU and memory of process trees: of real processes, by their own times."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from nodemgr.edge.kernel import host_use as module
from nodemgr.edge.kernel.host_use import HostReader
from tests.support.programs import Program

S = 1_000_000_000
BURNING = """
import json, os, sys, time
def burn():
    until = time.process_time() + 0.3
    while time.process_time() < until: pass
if sys.argv[1] == "below":
    pid = os.fork()
    if pid == 0:
        held = b"x" * (64 << 20)
        print(json.dumps({"child": os.getpid()}), flush=True)
        sys.stdin.readline(); burn(); print(json.dumps({}), flush=True)
        sys.stdin.readline(); os._exit(0)
    os.waitpid(pid, 0)
else:
    print(json.dumps({}), flush=True)
    sys.stdin.readline(); burn(); print(json.dumps({}), flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def start() -> Iterator[Callable[[str], Program]]:
    programs = []

    def begin(how: str) -> Program:
        process = subprocess.Popen(
            [sys.executable, "-c", BURNING, how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        programs.append(process)
        return Program(process)

    yield begin
    for process in programs:
        process.kill()
        process.communicate()


def test_the_first_reading_has_memory_and_no_cpu(start: Callable[[str], Program]) -> None:
    program = start("alone")
    program.line()
    found = HostReader().read([program.pid], 10 * S)
    assert found[program.pid].cpu_percent is None
    assert found[program.pid].memory_bytes > 1 << 20


@pytest.mark.parametrize("how", ["alone", "below"])
def test_cpu_of_a_tree_between_two_readings(start: Callable[[str], Program], how: str) -> None:
    program = start(how)
    program.line()
    reader = HostReader()
    before = reader.read([program.pid], 10 * S)[program.pid]
    program.step()
    after = reader.read([program.pid], 11 * S)[program.pid]
    assert before.cpu_percent is None
    assert after.cpu_percent is not None
    assert 28 <= after.cpu_percent < 100, "0.3 s of CPU in what is said to be one second"
    if how == "below":
        assert after.memory_bytes > 64 << 20


def test_a_member_below_another_counts_once(start: Callable[[str], Program]) -> None:
    program = start("below")
    child = program.line()["child"]
    found = HostReader().read([program.pid, child], 10 * S)
    assert found[child].memory_bytes > 64 << 20 > found[program.pid].memory_bytes


def test_after_a_pause_there_is_no_difference(start: Callable[[str], Program]) -> None:
    program = start("alone")
    program.line()
    reader = HostReader()
    reader.read([program.pid], 10 * S)
    assert reader.read([program.pid], 60 * S)[program.pid].cpu_percent is None


def test_a_process_that_is_gone_is_absent(start: Callable[[str], Program]) -> None:
    program = start("alone")
    program.line()
    reader = HostReader()
    reader.read([program.pid, os.getpid()], 10 * S)
    program.kill()
    assert list(reader.read([program.pid, os.getpid()], 11 * S)) == [os.getpid()]
    assert reader.read([], 12 * S) == {}


def test_a_line_of_proc_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for fields in (None, [], [b"S"], [b"x"] * 30):
        monkeypatch.setattr(module, "stat_fields", lambda pid, fields=fields: fields)
        monkeypatch.setattr(module, "_children", dict)
        assert HostReader().read([1, 2], 10 * S) == {}


def test_a_child_that_is_new_counts_with_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of two seconds that took one of CPU: in the last second, half of that."""
    ticks = os.sysconf("SC_CLK_TCK")
    now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    monkeypatch.setattr(time, "clock_gettime_ns", lambda _clock: now_ns)  # it stands still
    boot_ticks = now_ns * ticks // S
    table = {1: (0, 0, boot_ticks - 100 * ticks), 2: (1, ticks, boot_ticks - 2 * ticks)}

    def fields(pid: int) -> list[bytes]:
        parent, cpu, start = table[pid]
        words = [b"0"] * 30
        words[1], words[11], words[19] = (str(word).encode() for word in (parent, cpu, start))
        return words

    monkeypatch.setattr(module, "stat_fields", fields)
    monkeypatch.setattr(module, "_children", lambda: {1: []})
    reader = HostReader()
    reader.read([1], 10 * S)
    monkeypatch.setattr(module, "_children", lambda: {1: [2]})
    reader._tree_ns = None
    found = reader.read([1], 11 * S)[1].cpu_percent
    assert found is not None
    assert 40 <= found <= 50


def test_the_most_trees_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ROOTS", 1)
    assert list(HostReader().read([os.getpid(), os.getppid()], 10 * S)) == [os.getpid()]
