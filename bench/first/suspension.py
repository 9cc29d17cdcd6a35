"""The step `suspend`: the driver's calls singly, then suspensions by the manager.

Knows: cuCheckpointProcess* by ctypes, the keeper of bytes. Must not know: the manager's order of
calls.
"""

from __future__ import annotations

import ctypes
import json
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lacking import Lacking, needs_cuda_torch
from machine import GIB, MIB, Node, node, python

from tests.gpu.keeper import KEEPER, answer, ask
from tests.support.programs import Program

STATES = {0: "running", 1: "locked", 2: "checkpointed", 3: "failed"}
LOCK_MS = 5_000
SIZE_BYTES = GIB
KINDS_OF_MEMORY = {"managed": "cuMemAllocManaged", "exported by IPC": "cuMemShared_v2"}
TRAIN_S = 0.3
ANSWER_S = 5
FAILED = "FAILED"


class SingleCalls:
    """The driver's calls on one process, each with its code and milliseconds."""

    def __init__(self, pid: int) -> None:
        """Raises Lacking where the driver is too old."""
        self._cuda, self._pid = ctypes.CDLL("libcuda.so.1"), pid
        if not hasattr(self._cuda, "cuCheckpointProcessLock"):
            raise Lacking("this driver has no cuCheckpointProcessLock (it came with 570)")
        self._cuda.cuInit(0)

    def call(self, name: str) -> str:
        arguments = (ctypes.c_uint64 * 8)(LOCK_MS) if name == "Lock" else None
        print(f"process {self._pid}: {name} ...", flush=True)
        began_s = time.perf_counter()
        code = getattr(self._cuda, f"cuCheckpointProcess{name}")(self._pid, arguments)
        line = f"{name} {code} in {1e3 * (time.perf_counter() - began_s):.0f} ms"
        print(line, flush=True)  # the next call may never return
        return line

    def state(self) -> str:
        state = ctypes.c_int(-1)
        code = self._cuda.cuCheckpointProcessGetState(self._pid, ctypes.byref(state))
        return STATES.get(state.value, f"unknown ({code})")


def suspend(out: Path, limit_s: float) -> str:
    with node(bare_suffices=True) as running:
        running.envs(20 * GIB)
        parts: tuple[Callable[[Node], str], ...] = (singly, by_order, other_memory, of_torch)
        line = "; ".join(part_of(part, running) for part in parts)
    if FAILED in line:
        raise RuntimeError(line)
    return line


def part_of(part: Callable[[Node], str], running: Node) -> str:
    """One part of the step; a fault in it is its line, and the next part goes on."""
    try:
        return part(running)
    except Lacking as lacking:
        return f"{part.__name__}: {lacking}"
    except Exception as error:
        return f"{part.__name__} {FAILED}: {type(error).__name__}: {error}"


def keeper(running: Node, kind: str, memory: str, size_bytes: int) -> subprocess.Popen[str]:
    """It holds bytes of its own. Raises RuntimeError with its codes."""
    process = running.start(kind, [sys.executable, "-S", "-c", KEEPER, size_bytes, memory])
    if (codes := answer(process)) != "0 0 0 0 0":
        process.kill()
        raise RuntimeError(f"the keeper of {memory} has {codes or 'no word'}")
    return process


def shown(pid: int) -> str:
    """NVML's bytes of a process."""
    try:
        from tests.gpu.nvml import driver_bytes

        return f"NVML {driver_bytes(pid)}"
    except ModuleNotFoundError:
        return "NVML not asked"


def bytes_of(process: subprocess.Popen[str]) -> str:
    """Whether its bytes are the same; a process that the driver holds does not answer."""
    ask(process)
    if not select.select([process.stdout], [], [], ANSWER_S)[0]:
        return f"silent for {ANSWER_S} s"
    return answer(process) or "it has ended"


def singly(running: Node) -> str:
    """On a bare process."""
    process = keeper(running, "bare", "cuMemAlloc_v2", SIZE_BYTES)
    try:
        calls, before = SingleCalls(process.pid), shown(process.pid)
        said = [f"1 GiB, {calls.state()}", calls.call("Lock"), calls.call("Checkpoint")]
        said += [f"{calls.state()}, {shown(process.pid)}, before {before}"]
        said += [calls.call("Restore"), calls.call("Unlock"), calls.state()]
        return ", ".join([*said, f"bytes {bytes_of(process)}"])
    finally:
        process.kill()


def by_order(running: Node) -> str:
    """Of an environment's process, twice."""
    process = keeper(running, "shim", "cuMemAlloc_v2", SIZE_BYTES)
    try:
        before = shown(process.pid)
        said = [order(running, verb, process.pid) for verb in ("task_suspend", "task_resume") * 2]
        after = shown(process.pid)
        return f"by the manager {', '.join(said)}, bytes {bytes_of(process)}, {before} to {after}"
    finally:
        process.kill()
        process.wait()


def order(running: Node, verb: str, pid: int) -> str:
    """Its time, or the refusal's words."""
    from client_plugin.ways.faults import Fault

    (task,) = (row["id"] for row in running.manager.status()["tasks"] if pid in row["pids"])
    began_s = time.perf_counter()
    try:
        running.manager.call(verb, task=task)
    except Fault as error:
        return f"{verb} refused: {error}"
    ms = 1e3 * (time.perf_counter() - began_s)
    return f"{verb} {ms:.0f} ms, {shown(pid)}"


def other_memory(running: Node) -> str:
    """Memory that the driver may not suspend: its answers, and the state that it leaves."""
    return "; ".join(
        f"{title}: {refused(running, memory)}" for title, memory in KINDS_OF_MEMORY.items()
    )


def refused(running: Node, memory: str) -> str:
    process = keeper(running, "bare", memory, 64 * MIB)
    try:
        calls = SingleCalls(process.pid)
        said = [calls.call("Lock"), calls.call("Checkpoint"), state := calls.state()]
        if state == "checkpointed":
            said.append(calls.call("Restore"))
        said += [calls.call("Unlock"), calls.state()]
        if said[-1] == "running":
            said.append(f"bytes {bytes_of(process)}")
        return ", ".join(said)
    finally:
        process.kill()


def of_torch(running: Node) -> str:
    """A training goes on after it."""
    needs_cuda_torch()
    training = Program(running.start("shim", python("transformer.py")))
    try:
        training.line()
        said = [order(running, verb, training.pid) for verb in ("task_suspend", "task_resume")]
        assert training.process.stdin is not None
        training.process.stdin.write(f"{TRAIN_S}\n")
        training.process.stdin.flush()
        return f"torch {', '.join(said)}, then {json.dumps(training.line())}"
    finally:
        training.kill()
