"""A program of the simulated libcudart runs on the simulated driver, also under the shim."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

from nodemgr import simulator
from tests.cudart import build
from tests.sim import headers
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import Manager

PROGRAM = Path(__file__).with_name("programs") / "runtime.c"
GIB, MIB = 1 << 30, 1 << 20
OWN_VERSION = 2  # index 1 is the file itself
# The runtime's neighbours (OpenGL, EGL, VDPAU), in headers of their own, and what is declared
# nowhere.
ELSEWHERE = (
    "cudaGL",
    "cudaEGL",
    "cudaVDPAU",
    "cudaGraphicsGL",
    "cudaGraphicsEGL",
    "cudaGraphicsVDPAU",
    "cudaSubgrid",
)
ELSEWHERE += ("cudaEventCreateFromEGLSync", "cudaGraphicsResourceGetMappedEglFrame", "libcudart.so")
ELSEWHERE += ("__cudaGetProcAddress", "__cudaRegisterHostVar", "__cudaRegisterUnifiedTable")


pytestmark = pytest.mark.frameworks


@pytest.fixture(scope="session")
def include() -> Path:
    """The directory of the public headers."""
    for header in headers.find("cuda_runtime_api.h"):
        if "CUDART_VERSION  13" in header.read_text():
            return header.parent
    pytest.skip(headers.WHY_SKIPPED.format("cuda_runtime_api.h of CUDA 13 or newer"))


@pytest.fixture(scope="session")
def runtime(include: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built library."""
    return build.build(include, tmp_path_factory.mktemp("cudart"))


@pytest.fixture(scope="session")
def program(include: Path, runtime: Path) -> Path:
    binary = runtime.with_name("runtime")
    headers_here = [f"-I{build.HERE}", "-isystem", str(include)]
    warnings = ["-Wall", "-Wextra", "-Werror"]
    command = [
        "cc",
        "-std=gnu11",
        "-D_GNU_SOURCE",
        *warnings,
        *headers_here,
        str(PROGRAM),
        str(runtime),
    ]
    subprocess.run(
        [*command, f"-Wl,-rpath,{runtime.parent}", "-o", str(binary)],
        check=True,
        timeout=WAIT_LIMIT_S,
    )
    return binary


def ask(program: Path, *words: object, **environment: str) -> dict[str, Any]:
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CUDA_", "NODEMGR_", "LD_"))
    }
    command = [str(program), *map(str, words)]
    done = subprocess.run(
        command,
        check=False,
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=WAIT_LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


@pytest.fixture
def node(tmp_path: Path) -> Iterator[simulator.SimulatedNode]:
    with simulator.create(
        tmp_path / "n", 2, 4 * GIB, "A simulated device", context_bytes=64 * MIB
    ) as made:
        yield made


def exports(library: Path) -> set[str]:
    """The names that have the library's own version."""
    with library.open("rb") as file:
        elf = ELFFile(file)
        versions = elf.get_section_by_name(".gnu.version")
        symbols = enumerate(elf.get_section_by_name(".dynsym").iter_symbols())
        return {
            symbol.name
            for number, symbol in symbols
            if versions.get_symbol(number)["ndx"] == OWN_VERSION
        }


def test_the_runtimes_story(node: simulator.SimulatedNode, program: Path) -> None:
    seen = ask(program, "story", **node.environment())
    module_bytes = 2 * MIB
    assert seen == {
        "devices": 2, "name": "A simulated device", "major": 9, "total_bytes": 4 * GIB,
        "used_bytes": 64 * MIB + module_bytes,
    }  # fmt: skip
    assert [device.used_bytes for device in node.books()] == [0, 0]


def test_at_the_capacity_the_runtime_says_memory_allocation(
    node: simulator.SimulatedNode, program: Path
) -> None:
    seen = ask(program, "fill", GIB, **node.environment())
    assert seen == {"blocks": 3, "error": "cudaErrorMemoryAllocation", "total_bytes": 4 * GIB}


def test_the_first_answer_of_cuinit_stays(node: simulator.SimulatedNode, program: Path) -> None:
    seen = ask(program, "twice", CUDA_VISIBLE_DEVICES="", **node.environment())
    assert seen["errors"] == ["cudaErrorNoDevice"] * 2


def test_without_a_driver(program: Path) -> None:
    assert ask(program, "twice")["errors"] == ["cudaErrorInsufficientDriver"] * 2


def test_through_the_shim_the_quota_is_the_memory(manager: Manager, program: Path) -> None:
    manager.quota("alice", 1, memory_bytes=4 * GIB)
    process = manager.spawn("alice", [str(program), "fill", str(GIB)])
    stdout, stderr = process.communicate(timeout=WAIT_LIMIT_S)
    assert json.loads(stdout) == {
        "blocks": 3,
        "error": "cudaErrorMemoryAllocation",
        "total_bytes": 4 * GIB,
    }
    assert stderr.count("nodemgr: ") == 1
    assert "quota" in stderr


def test_headers_of_an_older_runtime_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cuda_runtime_api.h").write_text("#define CUDART_VERSION  12080\n")
    with pytest.raises(SystemExit, match="13 or newer"):
        build.build(tmp_path, tmp_path / "out")


def test_every_symbol_of_the_real_library_is_there_with_its_version(
    include: Path, runtime: Path
) -> None:
    real = include.parent / "lib" / runtime.name
    if not real.exists():
        pytest.skip(f"no {real.name} beside the headers")
    missing = exports(real) - exports(runtime)
    assert "cudaMalloc" in exports(real)
    assert {name for name in missing if not name.startswith(ELSEWHERE)} == set()
