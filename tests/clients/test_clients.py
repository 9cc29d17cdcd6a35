"""Real clients run unmodified on the simulated node, and see what the books say.

The programs in programs/ know nothing of us; tests of the shim run the same ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodemgr import simulator
from tests.sim import headers
from tests.support.limits import WAIT_LIMIT_S

PROGRAMS = Path(__file__).resolve().parent / "programs"
ROOT = PROGRAMS.parents[2]
GIB, MIB = 1 << 30, 1 << 20
CONTEXT = 64 * MIB
CFLAGS = ["-std=gnu11", "-D_GNU_SOURCE=", "-O1", "-Wall", "-Wextra", "-Werror"]

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[simulator.SimulatedNode]:
    with simulator.create(
        tmp_path / "n", 2, 4 * GIB, "A simulated device", context_bytes=CONTEXT
    ) as made:
        yield made


@pytest.fixture
def run(node: simulator.SimulatedNode) -> Run:
    """run(command...): the line of JSON that the program printed; its exit code must be as said."""

    def run_program(*command: str | Path, exit_code: int = 0) -> dict[str, Any]:
        words = [str(word) for word in command]
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("CUDA_", "NODEMGR_"))
        }
        environment |= node.environment()
        finished = subprocess.run(
            words,
            check=False,
            env=environment,
            capture_output=True,
            text=True,
            timeout=WAIT_LIMIT_S,
        )
        assert finished.returncode == exit_code, finished.stderr
        seen: dict[str, Any] = json.loads(finished.stdout)
        return seen

    return run_program


@pytest.fixture(scope="module")
def hold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """examples/hold.c, which the project builds for the demo too."""
    binary = tmp_path_factory.mktemp("hold") / "hold"
    library = simulator.library_directory() / "libcuda.so.1"
    command = [
        "cc",
        *CFLAGS,
        str(ROOT / "examples" / "hold.c"),
        str(library),
        "-ldl",
        "-o",
        str(binary),
    ]
    subprocess.run(command, check=True, timeout=WAIT_LIMIT_S)
    return binary


@pytest.mark.parametrize("route", ["link", "dlsym", "proc"])
def test_a_program_without_any_header(
    node: simulator.SimulatedNode, run: Run, hold: Path, route: str
) -> None:
    seen = run(hold, "-r", route, "-b", GIB, "-n", 3, "-d", 1, "-s", 0)
    assert (seen["allocations"], seen["allocated_bytes"], seen["error"]) == (3, 3 * GIB, None)
    assert (seen["total_bytes"], seen["free_bytes"]) == (4 * GIB, GIB - CONTEXT)
    assert (seen["devices"], seen["uuid"]) == (2, node.books()[1].uuid)

    seen = run(hold, "-r", route, "-b", GIB, "-n", 9, "-s", 0, exit_code=1)
    assert (seen["allocations"], seen["error"]) == (3, "CUDA_ERROR_OUT_OF_MEMORY")


@pytest.mark.parametrize(
    "words",
    [
        ["-r", "none"],
        ["-b", "1k"],
        ["-b", "0"],
        ["-n", "-1"],
        ["-s", "x"],
        ["-x"],
        ["more"],
        ["-b", "nan"],
    ],
)
def test_a_program_without_any_header_is_told_wrongly(
    node: simulator.SimulatedNode, hold: Path, words: list[str]
) -> None:
    environment = {**os.environ, **node.environment()}
    finished = subprocess.run(
        [str(hold), *words], check=False, env=environment, capture_output=True, timeout=WAIT_LIMIT_S
    )
    assert finished.returncode == 2
    assert b"usage" in finished.stderr


def test_it_holds_until_its_input_closes(node: simulator.SimulatedNode, hold: Path) -> None:
    environment = {**os.environ, **node.environment()}
    command = [str(hold), "-b", str(GIB)]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["pid"] == process.pid
        held = node.books()[0].of(process.pid)
        assert held is not None
        assert held.kind_bytes == {"linear": GIB, "context": CONTEXT}
        process.communicate(timeout=WAIT_LIMIT_S)
    assert process.returncode == 0
    assert node.books()[0].used_bytes == 0


@pytest.mark.frameworks
@pytest.mark.parametrize("header", headers.each("cuda.h"))
def test_a_program_written_against_the_vendors_header(
    node: simulator.SimulatedNode, run: Run, header: Path, tmp_path: Path
) -> None:
    binary = tmp_path / "toolkit"
    library = simulator.library_directory() / "libcuda.so.1"
    command = [
        "cc",
        *CFLAGS,
        f"-I{header.parent}",
        str(PROGRAMS / "toolkit.c"),
        str(library),
        "-o",
        str(binary),
    ]
    subprocess.run(command, check=True, timeout=WAIT_LIMIT_S)

    seen = run(binary, 64 * MIB)
    assert set(seen["refused"].values()) == {None}
    assert seen["free_bytes"] == seen["free_bytes_after"] == 4 * GIB - CONTEXT

    seen = run(binary, 4 * GIB)
    assert set(seen["refused"].values()) == {"CUDA_ERROR_OUT_OF_MEMORY"}
    assert seen["free_bytes"] == seen["free_bytes_after"] == 4 * GIB - CONTEXT
    assert node.books()[0].peak_bytes <= 4 * GIB


@pytest.mark.frameworks
def test_cuda_bindings(node: simulator.SimulatedNode, run: Run) -> None:
    seen = run(sys.executable, PROGRAMS / "bindings.py", GIB)
    assert seen["same_bytes"]
    assert (seen["devices"], seen["name"]) == (2, "A simulated device")
    assert (seen["total_bytes"], seen["device_total_bytes"]) == (4 * GIB, 4 * GIB)
    assert (seen["free_bytes"], seen["free_bytes_after"]) == (3 * GIB - CONTEXT, 4 * GIB - CONTEXT)
    assert seen["refused"] == {"by_pool": None, "by_mapping": None, "by_managing": None}
    assert seen["uuid"] == node.books()[0].uuid.removeprefix("GPU-").replace("-", "")

    seen = run(sys.executable, PROGRAMS / "bindings.py", 3 * GIB)
    assert set(seen["refused"].values()) == {"CUDA_ERROR_OUT_OF_MEMORY"}
    assert node.books()[0].used_bytes == 0


@pytest.mark.frameworks
def test_numba_cuda(node: simulator.SimulatedNode, run: Run) -> None:
    seen = run(sys.executable, PROGRAMS / "numba_arrays.py", GIB)
    assert seen["same_bytes"]
    assert (seen["devices"], seen["name"], seen["total_bytes"]) == (
        2,
        "A simulated device",
        4 * GIB,
    )
    assert (seen["large_bytes"], seen["refused"]) == (GIB, None)
    assert seen["free_bytes"] <= 3 * GIB
    assert seen["kernel"] == "launched" or seen["kernel"].startswith("no compiler")

    seen = run(sys.executable, PROGRAMS / "numba_arrays.py", 4 * GIB)
    assert "CUDA_ERROR_OUT_OF_MEMORY" in seen["refused"]
    assert node.books()[0].used_bytes == 0


@pytest.mark.frameworks
def test_nvidia_ml_py(node: simulator.SimulatedNode, run: Run, hold: Path) -> None:
    environment = {**os.environ, **node.environment()}
    command = [str(hold), "-b", str(GIB), "-d", "1"]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        first, second = run(sys.executable, PROGRAMS / "monitor.py")["devices"]
        process.communicate(timeout=WAIT_LIMIT_S)
    assert (first["used_bytes"], first["processes"]) == (0, {})
    assert (second["used_bytes"], second["processes"]) == (
        GIB + CONTEXT,
        {str(process.pid): GIB + CONTEXT},
    )
    assert (second["total_bytes"], second["free_bytes"]) == (4 * GIB, 3 * GIB - CONTEXT)
