"""A node is made, opened, refused, replaced; the lists of names of its libraries."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from csrc.sim import build, names
from nodemgr import simulator
from nodemgr.simulator import NodeInUse, SimulatorError
from tests.sim import headers
from tests.sim.conftest import GIB, MIB, StartClient
from tests.support.limits import WAIT_LIMIT_S

ROOT = Path(__file__).resolve().parents[2]


def test_a_node_is_what_was_asked_for(tmp_path: Path, start: StartClient) -> None:
    with simulator.create(tmp_path, 3, 80 * GIB, "A device with a name") as node:
        client = start(node)
        client.init()
        assert client.count() == node.count == 3
        assert client.total() == node.gpus[0].memory_bytes == 80 * GIB
        assert [books.index for books in node.books()] == [0, 1, 2]
        assert all(
            re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", b.uuid)
            for b in node.books()
        )
        assert len({books.uuid for books in node.books()}) == 3


@pytest.mark.parametrize(
    ("count", "memory"),
    [(0, GIB), (17, GIB), (-1, GIB), (1, 0), (1, -1), (1, 1 << 40)],
)
def test_impossible_nodes_are_refused(tmp_path: Path, count: int, memory: int) -> None:
    with pytest.raises(SimulatorError, match="a simulated"):
        simulator.create(tmp_path, count, memory)
    assert list(tmp_path.iterdir()) == []


def test_more_reserved_than_there_is(tmp_path: Path) -> None:
    with pytest.raises(SimulatorError, match="Invalid argument"):
        simulator.create(tmp_path, 1, GIB, reserved_bytes=GIB)


def test_a_node_in_use_is_not_replaced(tmp_path: Path, ready: StartClient) -> None:
    node = simulator.create(tmp_path, 2, GIB)
    with pytest.raises(NodeInUse, match="in use"):
        simulator.create(tmp_path, 2, GIB)

    client = ready(node)
    client.alloc(MIB)
    node.close()
    with pytest.raises(NodeInUse, match="in use"):
        simulator.create(tmp_path, 2, GIB)
    with simulator.SimulatedNode.open(tmp_path) as again:
        assert again.books()[0].of(client.pid) is not None

    client.kill()
    simulator.create(tmp_path, 2, GIB).close()


def test_a_node_whose_keeper_was_killed_is_found_again(tmp_path: Path, ready: StartClient) -> None:
    program = (
        "from pathlib import Path; from nodemgr import simulator; n ="
        f" simulator.create(Path({str(tmp_path)!r}), 2, {GIB})\n"
    )
    program += "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    keeper = subprocess.run(
        [sys.executable, "-c", program], check=False, cwd=ROOT, timeout=WAIT_LIMIT_S
    )
    assert keeper.returncode == -9

    with simulator.SimulatedNode.open(tmp_path) as node:
        client = ready(node)
        client.alloc(MIB)
    with simulator.open_or_create(tmp_path, [simulator.SimulatedGpu(GIB)] * 2) as node:
        assert node.books()[0].of(client.pid) is not None
        with pytest.raises(
            SimulatorError, match=r"still use a node of 2 devices of 1073741824 bytes"
        ):
            simulator.open_or_create(tmp_path, [simulator.SimulatedGpu(GIB)] * 3)
    client.kill()
    with simulator.open_or_create(tmp_path, [simulator.SimulatedGpu(GIB)] * 3) as node:
        assert node.count == 3


def test_devices_keep_their_uuids_when_a_node_is_made_anew(tmp_path: Path) -> None:
    with simulator.create(tmp_path / "a", 2, GIB) as node:
        before = [books.uuid for books in node.books()]
    with simulator.create(tmp_path / "a", 4, 2 * GIB) as node:
        assert [books.uuid for books in node.books()][:2] == before
    with simulator.create(tmp_path / "b", 2, GIB) as node:
        assert not {books.uuid for books in node.books()} & set(before)


def test_garbage_in_the_place_of_a_node_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "node.state").write_bytes(b"\xff" * 100)
    with pytest.raises(SimulatorError, match="Invalid argument"):
        simulator.SimulatedNode.open(tmp_path)
    with simulator.create(tmp_path, 1, GIB) as node:
        assert node.count == 1


def test_there_is_no_node_where_none_was_made(tmp_path: Path) -> None:
    with pytest.raises(SimulatorError, match="no simulated node"):
        simulator.SimulatedNode.open(tmp_path)
    with pytest.raises(SimulatorError, match="no simulated node"):
        simulator.SimulatedNode.open(tmp_path / "not" / "there")


def test_a_closed_handle_says_so(tmp_path: Path) -> None:
    node = simulator.create(tmp_path, 1, GIB)
    node.close()
    node.close()
    with pytest.raises(SimulatorError, match="closed"):
        node.books()


def test_a_handle_works_in_a_forked_child(tmp_path: Path, ready: StartClient) -> None:
    with simulator.create(tmp_path, 1, GIB, context_bytes=0) as node:
        client = ready(node)
        client.alloc(MIB)
        client.kill()
        if (child := os.fork()) == 0:
            os._exit(0 if node.books()[0].used_bytes == 0 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert node.books()[0].used_bytes == 0


def test_a_state_file_can_be_named(tmp_path: Path, start: StartClient) -> None:
    with (
        simulator.create(tmp_path / "a", 1, GIB) as one,
        simulator.create(tmp_path / "b", 3, GIB) as other,
    ):
        client = start(one, NODEMGR_SIM_STATE=str(other.directory / simulator.STATE_FILE))
        client.init()
        assert client.count() == 3


def test_a_relative_library_path_is_found_from_anywhere(tmp_path: Path) -> None:
    with simulator.create(tmp_path / "n", 2, GIB):
        program = (
            "import ctypes, os; cuda = ctypes.CDLL('libcuda.so.1'); os.chdir('/'); raise"
            " SystemExit(cuda.cuInit(0))"
        )
        environment = {**os.environ, "LD_LIBRARY_PATH": "n"}
        finished = subprocess.run(
            [sys.executable, "-c", program],
            check=False,
            env=environment,
            cwd=tmp_path,
            timeout=WAIT_LIMIT_S,
        )
        assert finished.returncode == 0


# -- the lists of names --


def exported(library: str) -> set[str]:
    path = simulator.library_directory() / library
    output = subprocess.run(
        ["nm", "-D", "--defined-only", str(path)],
        check=True,
        capture_output=True,
        text=True,
        timeout=WAIT_LIMIT_S,
    )
    return {line.split()[-1] for line in output.stdout.splitlines()}


def test_the_driver_exports_its_list_and_nothing_else() -> None:
    assert exported("libcuda.so.1") == {name.symbol for name in names.read_driver_names()}


def test_nvml_exports_its_list_and_nothing_else() -> None:
    assert exported("libnvidia-ml.so.1") == set(names.read_nvml_names())


def test_the_libraries_need_libc_alone() -> None:
    for library in build.ROOMS:
        path = simulator.library_directory() / library
        output = subprocess.run(
            ["readelf", "-d", str(path)],
            check=True,
            capture_output=True,
            text=True,
            timeout=WAIT_LIMIT_S,
        )
        needed = set(re.findall(r"NEEDED.*\[(.+?)\]", output.stdout))
        assert {name.split(".")[0] for name in needed} <= {
            "libc",
            "libpthread",
            "libdl",
            "ld-linux-x86-64",
            "ld-linux-aarch64",
        }
        assert re.findall(r"SONAME.*\[(.+?)\]", output.stdout) == [library]


def test_every_stub_can_be_called() -> None:
    """In a child: a wrong one would take the test along."""
    program = (
        "import ctypes, sys; [getattr(ctypes.CDLL(sys.argv[1]), name)() for name in sys.argv[2:]]"
    )
    implemented = {
        match
        for path in build.HERE.rglob("*.c")
        for match in re.findall(r"\b(cu[A-Z]\w+)\(", path.read_text())
    }
    stubs = [name.symbol for name in names.read_driver_names() if name.symbol not in implemented]
    stubs = [
        name
        for name in stubs
        if not name.endswith(("_ptsz", "_ptds")) and not name.startswith("cuMemsetD")
    ]
    assert len(stubs) > 100
    command = [
        sys.executable,
        "-c",
        program,
        str(simulator.library_directory() / "libcuda.so.1"),
        *stubs,
    ]
    assert subprocess.run(command, check=False, timeout=WAIT_LIMIT_S).returncode == 0


@pytest.mark.frameworks
@pytest.mark.parametrize("header", headers.each("cuda.h"))
def test_the_list_has_every_function_of_the_vendors_driver_header(header: Path) -> None:
    text = header.read_text()
    declared = set(re.findall(r"CUresult\s+CUDAAPI\s+(cu\w+)\s*\(", text))
    renamed = set(re.findall(r"\b(cu[A-Z]\w*_v\d+)\b", text))
    assert len(declared) > 300
    assert declared | renamed - {"cuGetProcAddress_v2_ptsz"} <= {
        name.symbol for name in names.read_driver_names()
    }


@pytest.mark.frameworks
@pytest.mark.parametrize("header", headers.each("nvml.h"))
def test_the_list_has_every_function_of_the_vendors_nvml_header(header: Path) -> None:
    declared = set(re.findall(r"nvmlReturn_t\s+DECLDIR\s+(nvml\w+)\s*\(", header.read_text()))
    assert len(declared) > 200
    assert declared <= set(names.read_nvml_names())


@pytest.mark.frameworks
@pytest.mark.parametrize("header", headers.each("cuda.h"))
def test_attributes_have_the_vendors_numbers(header: Path) -> None:
    rows = re.findall(
        r"X\((\w+), (\d+), -?\d+\)", (build.HERE / "driver" / "attributes.def").read_text()
    )
    assert len(rows) > 50
    theirs = dict(re.findall(r"\b(CU_DEVICE_ATTRIBUTE_\w+)\s*=\s*(\d+)", header.read_text()))
    assert {name: number for name, number in rows if theirs.get(name) != number} == {}


def test_structures_are_as_long_here_as_there(tmp_path: Path) -> None:
    """Python lays the structure out, C fills it: a longer C structure would write beyond ours."""
    pairs = {
        "nm_sim_shape": simulator._Shape,
        "nm_sim_device_books": simulator._SimulatedDevice,
        "nm_sim_process_books": simulator._Process,
    }
    source = tmp_path / "sizes.c"
    asserts = [
        f'_Static_assert(sizeof({c}) == {ctypes.sizeof(python)}, "{c}");'
        for c, python in pairs.items()
    ]
    source.write_text("\n".join(['#include "sim/control/control.h"', *asserts, ""]))
    command = ["cc", "-std=gnu11", "-D_GNU_SOURCE", f"-I{build.CSRC}", "-fsyntax-only", str(source)]
    assert subprocess.run(command, check=False, timeout=WAIT_LIMIT_S).returncode == 0
