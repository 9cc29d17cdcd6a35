"""The step `frameworks`: each framework in an environment of its own, all at once.

Knows: programs/framework.py, programs/runtime.cu, the result that each should have. Must not know:
how a framework allocates.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from machine import GIB, PROGRAMS, Node, ended, node, python

MOST_BYTES = 8 * GIB
ALLOCATORS = "PYTORCH_CUDA_ALLOC_CONF"
RESERVED_S = 10.0
"""Of the step's limit, to end it."""
BARE_S = 40.0
COMPILE_S = 60
WRONG = "WRONG"
REFUSALS = ("out of memory", "out_of_memory", "resource_exhausted", "memoryallocation")
"""In the text of a framework's own error, in lower case."""


class Run(NamedTuple):
    """One framework's program. Its result is right where it is one of `results`."""

    name: str
    module: str
    result: float
    variables: Mapping[str, str] = MappingProxyType({})

    def command(self, memory_bytes: int) -> list[object]:
        return python("framework.py", self.module, memory_bytes)


RUNS = (
    Run("torch", "torch", 512.0),
    Run("torch expandable", "torch", 512.0, {ALLOCATORS: "expandable_segments:True"}),
    Run("torch async", "torch", 512.0, {ALLOCATORS: "backend:cudaMallocAsync"}),
    Run("jax", "jax", 8.0),
    Run("cupy", "cupy", 8.0),
    Run("numba", "numba", 64.0),
    Run("triton", "triton", 64.0),
)
NVCC = Run("nvcc", "nvcc", 7)


class Started(NamedTuple):
    """A run under way in the environment of its name."""

    run: Run
    command: list[object]
    process: subprocess.Popen[str]


def frameworks(out: Path, limit_s: float) -> str:
    """All that each printed in frameworks.txt."""
    end = time.monotonic() + limit_s - RESERVED_S
    with tempfile.TemporaryDirectory(prefix="nmf", dir="/tmp") as folder, node() as running:
        memory_bytes = min(MOST_BYTES, running.total_bytes() // (len(RUNS) + 2))
        present = [run for run in RUNS if importlib.util.find_spec(run.module) is not None]
        absent = sorted({run.module for run in RUNS} - {run.module for run in present})
        said = [f"{name} is not installed" for name in absent]
        commands = [(run, run.command(memory_bytes)) for run in present]
        with (out / "frameworks.txt").open("w") as text:
            try:
                commands.append((NVCC, [compiled(Path(folder)), memory_bytes]))
            except RuntimeError as error:
                said.append(str(error))
            started = [start(running, *each, memory_bytes) for each in commands]
            for each in started:
                said.append(finished(running, each, end, memory_bytes, text.write))
    line = "; ".join(said)
    if WRONG in line:
        raise RuntimeError(line)
    return line


def start(running: Node, run: Run, command: list[object], memory_bytes: int) -> Started:
    env = run.name.replace(" ", "-")
    running.manager.quota(env, 1, memory_bytes=memory_bytes)
    process = running.start(env, command, errors=subprocess.STDOUT, variables=run.variables)
    return Started(run, command, process)


def finished(running: Node, started: Started, end: float, memory_bytes: int, write: Any) -> str:
    """Its line; a run that is not right is repeated bare, while there is time.

    A fault that the bare run has, too, is none of ours.
    """
    try:
        text, _ = started.process.communicate(timeout=max(1.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        started.process.kill()
        text = started.process.communicate()[0] + "\nno end within the step's limit"
    name = started.run.name
    write(f"== {name} ended with {started.process.returncode}\n{text}\n")
    found = answers(text)
    if "lacking" in found:
        return f"{name}: {found['lacking']}"
    wrong = list(faults(found, started.run, memory_bytes))
    if not wrong:
        return f"{name} right ({found.get('seconds', 0)} s, sees {found.get('memory', 'unasked')})"
    if end - time.monotonic() < BARE_S:
        return f"{name} {WRONG}: {', '.join(wrong)}; no time for a bare run"
    bare = ended(started.command, running.around("bare") | started.run.variables, BARE_S)
    write(f"== {name} bare ended with {bare.returncode}\n{bare.stdout}{bare.stderr}\n")
    also = set(faults(answers(bare.stdout), started.run, memory_bytes))
    if also.issuperset(wrong):
        return f"{name} as bare: {', '.join(wrong)}"
    return f"{name} {WRONG}: {', '.join(wrong)}; bare: {', '.join(also) or 'right'}"


def answers(text: str) -> dict[str, Any]:
    """Of the last JSON line; nothing where there is none."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    return {}


def faults(found: Mapping[str, Any], run: Run, memory_bytes: int) -> Iterator[str]:
    """Each answer that is not as it should be, in words."""
    if not found:
        yield "it printed no answer"
        return
    if found.get("result") != run.result:
        yield f"result {found.get('result')} instead of {run.result}"
    refused = str(found.get("refused", REFUSALS[0])).lower()
    if not any(word in refused for word in REFUSALS):
        yield f"beyond the memory: {found['refused']}"
    for name in ("again", "graph", "compile"):
        if isinstance(found.get(name), str) and found[name] != "cudaSuccess":
            yield f"{name}: {found[name]}"
    seen = found.get("memory", memory_bytes)
    if not isinstance(seen, int) or seen > memory_bytes:
        yield f"sees {seen} of {memory_bytes}"


def compiled(folder: Path) -> Path:
    """runtime.cu by nvcc. Raises RuntimeError with the reason."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise RuntimeError("there is no nvcc on PATH")
    output = folder / "runtime"
    made = subprocess.run(
        [nvcc, "-arch=native", str(PROGRAMS / "runtime.cu"), "-o", str(output)],
        capture_output=True, text=True, timeout=COMPILE_S, check=False,
    )  # fmt: skip
    if made.returncode:
        raise RuntimeError(f"nvcc: {(made.stderr.strip().splitlines() or ['no word'])[-1]}")
    return output
