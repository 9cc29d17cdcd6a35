"""cuGetProcAddress by name, version and stream flavour, and other questions to a driver."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from csrc.sim.names import read_driver_names
from nodemgr import simulator
from tests.shim.world import PROGRAMS, compiled
from tests.sim.client import Client
from tests.sim.conftest import GIB
from tests.support.limits import WAIT_LIMIT_S
from tests.support.ordinary import UID

SUCCESS, NOT_FOUND, INVALID_VALUE = 0, 500, 1
NEWEST = -1  # a version without its sign
FOUND, UNKNOWN, TOO_OLD = 0, 1, 2
DEFAULT, LEGACY, PER_THREAD = 0, 1, 2

# (name, version, flags) -> the symbol at that address.
MATRIX = {
    ("cuMemAlloc", 2000, DEFAULT): "cuMemAlloc",
    ("cuMemAlloc", 3010, DEFAULT): "cuMemAlloc",
    ("cuMemAlloc", 3020, DEFAULT): "cuMemAlloc_v2",
    ("cuMemAlloc", 13000, DEFAULT): "cuMemAlloc_v2",
    ("cuMemAlloc", 12000, PER_THREAD): "cuMemAlloc_v2",
    ("cuMemAllocManaged", 6000, DEFAULT): "cuMemAllocManaged",
    ("cuMemAllocAsync", 11020, DEFAULT): "cuMemAllocAsync",
    ("cuMemAllocAsync", 11020, LEGACY): "cuMemAllocAsync",
    ("cuMemAllocAsync", 11020, PER_THREAD): "cuMemAllocAsync_ptsz",
    ("cuMemFreeAsync", 12030, PER_THREAD): "cuMemFreeAsync_ptsz",
    ("cuMemAllocFromPoolAsync", 13000, PER_THREAD): "cuMemAllocFromPoolAsync_ptsz",
    ("cuMemcpyHtoD", 7000, PER_THREAD): "cuMemcpyHtoD_v2_ptds",
    ("cuMemcpyHtoD", 7000, DEFAULT): "cuMemcpyHtoD_v2",
    ("cuLaunchKernel", 4000, DEFAULT): "cuLaunchKernel",
    ("cuLaunchKernel", 7000, PER_THREAD): "cuLaunchKernel_ptsz",
    ("cuLaunchKernelEx", 11060, DEFAULT): "cuLaunchKernelEx",
    ("cuMemcpyHtoD", NEWEST, DEFAULT): "cuMemcpyHtoD_v2",
    ("cuMemcpyHtoD", 99000, LEGACY | PER_THREAD): "cuMemcpyHtoD_v2_ptds",
    ("cuCtxCreate", 2000, DEFAULT): "cuCtxCreate",
    ("cuCtxCreate", 11030, DEFAULT): "cuCtxCreate_v2",
    ("cuCtxCreate", 12000, DEFAULT): "cuCtxCreate_v3",
    ("cuCtxCreate", 13000, DEFAULT): "cuCtxCreate_v4",
    ("cuStreamGetCaptureInfo", 12000, DEFAULT): "cuStreamGetCaptureInfo_v2",
    ("cuStreamGetCaptureInfo", 12030, PER_THREAD): "cuStreamGetCaptureInfo_v3_ptsz",
    ("cuGetProcAddress", 11030, DEFAULT): "cuGetProcAddress",
    ("cuGetProcAddress", 12000, DEFAULT): "cuGetProcAddress_v2",
    ("cuMemCreate", 12000, DEFAULT): "cuMemCreate",
    ("cuMemMapArrayAsync", 11010, PER_THREAD): "cuMemMapArrayAsync_ptsz",
    ("cuGraphAddNode", 12030, DEFAULT): "cuGraphAddNode_v2",
    ("cuTexRefCreate", 2000, DEFAULT): "cuTexRefCreate",  # a stub is found like any other
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with (
        simulator.create(tmp_path_factory.mktemp("n"), 1, GIB) as node,
        Client(node.environment()) as started,
    ):
        yield started


@pytest.mark.parametrize(
    ("asked", "symbol"), MATRIX.items(), ids=[f"{n}-{v}-{f}" for n, v, f in MATRIX]
)
def test_the_right_abi_is_found(client: Client, asked: tuple[str, int, int], symbol: str) -> None:
    assert client.look_up(*asked) == [SUCCESS, FOUND, client.symbol(symbol)]
    assert client.look_up(*asked, "cuGetProcAddress") == [SUCCESS, -1, client.symbol(symbol)]


def test_flavours_have_addresses_of_their_own(client: Client) -> None:
    names = [
        "cuMemAllocAsync",
        "cuMemAllocAsync_ptsz",
        "cuMemAlloc",
        "cuMemAlloc_v2",
        "cuMemcpyHtoD_v2",
        "cuMemcpyHtoD_v2_ptds",
    ]
    assert len({client.symbol(name) for name in names}) == len(names)


@pytest.mark.parametrize(
    ("name", "version", "flags", "status"),
    [
        ("cuNoSuchThing", 12000, DEFAULT, UNKNOWN),
        ("", 12000, DEFAULT, UNKNOWN),
        ("cuMemAlloc_v2", 12000, DEFAULT, UNKNOWN),
        ("curl_easy_init", 12000, DEFAULT, UNKNOWN),
        ("cuEventCreateFromEGLSync", 12000, DEFAULT, UNKNOWN),
        ("cuMemAllocAsync", 11010, DEFAULT, TOO_OLD),
        ("cuMemCreate", 9000, DEFAULT, TOO_OLD),
        ("cuInit", 0, DEFAULT, TOO_OLD),
        ("cuMemcpyHtoD", 3020, PER_THREAD, TOO_OLD),
    ],
)
def test_what_is_not_there_is_a_success_without_a_function(
    client: Client, name: str, version: int, flags: int, status: int
) -> None:
    assert client.look_up(name, version, flags) == [SUCCESS, status, None]
    assert client.look_up(name, version, flags, "cuGetProcAddress") == [NOT_FOUND, -1, 7]


def test_wrong_questions(client: Client) -> None:
    for entry in ("cuGetProcAddress_v2", "cuGetProcAddress"):
        assert client.look_up("cuInit", 12000, 4, entry) == [INVALID_VALUE, -1, 7]


def test_the_undocumented_tables_are_not_there(client: Client) -> None:
    assert client.export_table() == [NOT_FOUND, None]


def test_errors_have_names_and_words(client: Client) -> None:
    assert client.error_text(2) == ["CUDA_ERROR_OUT_OF_MEMORY", "out of memory"]
    assert client.error_text(0) == ["CUDA_SUCCESS", "no error"]
    assert client.error_text(999) == ["CUDA_ERROR_UNKNOWN", "unknown"]
    with pytest.raises(Exception, match="INVALID_VALUE"):
        client.error_text(12345)


def test_a_stub_says_that_it_is_one(client: Client) -> None:
    with pytest.raises(Exception, match="NOT_SUPPORTED"):
        client.do("cuTexRefCreate", 0)


def test_a_preloaded_library_does_not_get_between_the_driver_and_itself(tmp_path: Path) -> None:
    """A shim exports the driver's names. The driver's own references to them must stay its own."""
    source, library = tmp_path / "shim.c", tmp_path / "shim.so"
    hooked = ("cuMemAlloc_v2", "cuMemAllocAsync", "cuMemcpyHtoD_v2", "cuStreamQuery")
    source.write_text("".join(f"int {name}(void) {{ return 77; }}\n" for name in hooked))
    subprocess.run(
        ["cc", "-shared", "-fPIC", str(source), "-o", str(library)],
        check=True,
        timeout=WAIT_LIMIT_S,
    )
    with (
        simulator.create(tmp_path / "n", 1, GIB) as node,
        Client(node.environment() | {"LD_PRELOAD": str(library)}) as client,
    ):
        client.ready()
        for name in hooked[:2]:
            base = name.removesuffix("_v2")
            assert client.look_up(base, 12000) == [SUCCESS, FOUND, client.symbol(name)]
        client.alloc_async(1, 0, "_ptsz")
        client.put(client.alloc(16), "x")
        client.do("cuStreamSynchronize", 0)


# -- beside NVIDIA's drivers --

VARIABLE = "NODEMGR_REAL_DRIVERS"
"""A folder with one folder for each driver, in which libcuda.so.1 lies; no GPU is needed.

They are not ours to distribute. They run as an ordinary user: as root they make /dev/nvidiactl,
which then looks like a driver.
"""
SOURCE = PROGRAMS.parents[1] / "sim" / "programs" / "look_ups.c"
NAMES = read_driver_names()
ASKED = [*sorted({name.symbol for name in NAMES} | {name.base for name in NAMES}), "cuNoSuchThing"]
VERSIONS = [-1, 0, *sorted({name.version for name in NAMES}), 99000]


def drivers() -> list[object]:
    folder = os.environ.get(VARIABLE)
    found = sorted(Path(folder).glob("*/libcuda.so.1")) if folder else []
    why = f"{VARIABLE} names no folder with folders of NVIDIA's libcuda.so.1"
    return [pytest.param(path.parent, id=path.parent.name) for path in found] or [
        pytest.param(None, id="none", marks=pytest.mark.skip(reason=why))
    ]


def answers(entry: str, environ: dict[str, str], *, after_init: bool) -> list[str]:
    as_root = {"user": UID, "group": UID, "extra_groups": []} if os.geteuid() == 0 else {}
    ran = subprocess.run(
        [compiled(SOURCE.read_text()), str(int(after_init)), entry, *map(str, VERSIONS)],
        input="\n".join(ASKED), env=environ, cwd="/", capture_output=True, text=True, check=False,
        timeout=WAIT_LIMIT_S, **({} if after_init else as_root),
    )  # type: ignore[call-overload]  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


@pytest.mark.parametrize("entry", ["cuGetProcAddress_v2", "cuGetProcAddress"])
@pytest.mark.parametrize("folder", drivers())
def test_each_answer_is_that_of_the_driver(folder: Path, entry: str, tmp_path: Path) -> None:
    version, *real = answers(entry, {"LD_LIBRARY_PATH": str(folder)}, after_init=False)
    if version == "absent":
        pytest.skip(f"{folder.name} has no {entry}")
    with simulator.create(tmp_path / "n", 1, GIB, driver_version=int(version)) as node:
        same, *simulated = answers(entry, node.environment(), after_init=True)
    assert (same, len(simulated)) == (version, len(real))
    differing = []
    for one, other in zip(real, simulated, strict=True):
        (asked, answer), (asked_too, said) = one.split(": "), other.split(": ")
        result, status, *places = answer.split()
        assert asked == asked_too
        if said.split()[:2] != [result, status] or not set(said.split()[2:]) & set(places):
            differing.append(f"{one}, the simulator {said}")
    assert differing == []
