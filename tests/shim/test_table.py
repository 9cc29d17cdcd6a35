"""csrc/hooks.def says what the driver's headers say, and the look-ups answer by it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.shim.world import CSRC, World, hooks
from tests.sim import headers

HEADERS = headers.find("cuda.h")
VERSIONS = (2000, 3010, 3020, 4000, 6050, 7000, 10000, 11000, 11020, 11040, 12000, 12050, 13000, 13050)


def typedefs(header: Path) -> dict[str, int]:
    """Each entry point's type in cudaTypedefs.h (cuMemAlloc_v3020) with the number of its arguments."""
    text = (header.parent / "cudaTypedefs.h").read_text()
    found = re.findall(r"\(CUDAAPI \*PFN_(\w+)\)\(([^;]*)\);", text)
    return {name: 0 if arguments.strip() == "void" else arguments.count(",") + 1 for name, arguments in found}


@pytest.mark.parametrize("header", HEADERS, ids=[str(path.parent.parent.name) for path in HEADERS])
def test_rows_agree_with_the_headers(header: Path) -> None:
    known = typedefs(header)
    version = re.search(r"#define CUDA_VERSION (\d+)", header.read_text())
    assert version is not None
    for hook in hooks().values():
        if hook.library != "CUDA" or hook.since > int(version[1]):
            continue
        suffix = "_ptsz" if hook.stream == "PER_THREAD" else ""
        assert known.get(f"{hook.base}_v{hook.since}{suffix}") == len(hook.types), hook.name


@pytest.mark.skipif(not HEADERS, reason=headers.WHY_SKIPPED.format("cuda.h"))
def test_there_was_a_header_to_compare_with() -> None:
    assert typedefs(HEADERS[0])


def test_names_of_rows_follow_from_their_bases() -> None:
    for hook in hooks().values():
        assert re.fullmatch(rf"{hook.base}(_v\d)?(_ptsz)?", hook.name), hook.name
        assert hook.name.endswith("_ptsz") == (hook.stream == "PER_THREAD")


@pytest.mark.parametrize("get", ["cuGetProcAddress_v2", "cuGetProcAddress"])
def test_every_abi_is_answered_with_its_own_hook(get: str, env: World) -> None:
    """Base name by version by flags: where the driver's own answer is a hooked symbol, ours is that symbol's hook, else its own."""
    with env.probe(started=False, shim=False) as bare, env.probe(started=False) as probe:
        hooked = {name: probe.resolve(name, "dlsym") for name in hooks()}
        assert len(set(hooked.values())) == len(hooked)
        for base in sorted({hook.base for hook in hooks().values() if hook.library == "CUDA"} | {"cuCtxGetCurrent", "cuLaunchKernel"}):
            for version in VERSIONS:
                for flags in (0, 1, 2):
                    expected = bare.tell("name", bare.look_up(get, base, version, flags))
                    answer = probe.look_up(get, base, version, flags)
                    if expected in hooked:
                        assert answer == hooked[expected], (base, version, flags)
                    else:
                        assert probe.tell("name", answer) == expected, (base, version, flags)


# -- what has no row --

SUSPECT = re.compile(
    r"Alloc|Free|MemMap|Unmap|MemRelease|MemRetain|Import|Pool|Ipc|ExternalMemory|Reset|Trim|Detach|CtxCreate|CtxDestroy|Array|"
    r"Module(Load|Unload)|Library(Load|Unload)|SetLimit|GetInfo|TotalMem|Multicast|MemCreate|GraphInst|GraphUpload|GraphLaunch|ExecDestroy"
)
NOT_CHARGED = {
    "host memory": r"cuMem(AllocHost(_v2)?|FreeHost|HostAlloc)",
    "addresses, no memory": r"cuMemAddress(Free|Reserve)",
    "another's memory: its exporter is charged": r"cuIpc\w+|cuImportExternal\w+|cuExternalMemoryGetMapped\w+|cuDestroyExternal\w+|"
    r"cuMemPoolImport\w+|cuLogicalEndpointImport",
    "the manager's correction, from the driver's own figures per process": r"cu(GL|VDPAU|Green)?CtxCreate(_v\d)?|cuCtxFromGreenCtx|"
    r"cuModule(Load\w*|Unload)|cuLibrary(Load\w*|Unload)|cuCtxSetLimit|cuModuleGetLoadingMode|cuGreenCtxDestroy",
    "charged when the graph is launched": r"cuGraph(Add|Mem)(Alloc|Mem(Alloc|Free))\w+|cuGraphMem(Alloc|Free)\w+",
    "a question": r"cu\w*(Get|Export|Query)\w*",
    "a choice that later calls are looked up by": r"cu(DeviceSet|MemSet)MemPool|cuMemPoolSet\w+|cuTensorMapSetAllocationClass",
    "views of arrays": r"cuTexRef\w+|cuSurfRef\w+",
    "copies": r"cuMemcpy\w+",
    "windows on memory that is charged where it was created": r"cuMulticast\w+",
    "deprecated; what it ends stays charged until the process ends": r"cuCtxDetach",
    "caches, not memory": r"cuCtxResetPersistingL2Cache",
    "graphics interoperation, whose memory is the graphics driver's": r"cu(Graphics|GL|VDPAU|EGL)\w+",
}


def test_every_suspect_has_a_row_or_a_reason() -> None:
    """So a new CUDA version shows itself here: the list of names is made from its headers."""
    names = [line.split()[0] for line in (CSRC / "sim" / "driver_names.txt").read_text().splitlines() if not line.startswith("#")]
    for name in names:
        if SUSPECT.search(name) and name not in hooks():
            assert any(re.fullmatch(pattern, name) for pattern in NOT_CHARGED.values()), name


@pytest.mark.parametrize("reason", NOT_CHARGED)
def test_reasons_are_used(reason: str) -> None:
    text = (CSRC / "sim" / "driver_names.txt").read_text()
    assert any(re.fullmatch(NOT_CHARGED[reason], line.split()[0]) for line in text.splitlines())
