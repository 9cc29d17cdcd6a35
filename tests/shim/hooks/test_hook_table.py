"""csrc/hooks/hooks.def says what the driver's headers say, and the reading-ups answer by it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.shim.world import World, every_row, hooks
from tests.sim import headers

HEADERS = headers.find("cuda.h")
VERSIONS = (
    -1,  # the newest: drivers read it without its sign
    2000,
    3010,
    3020,
    4000,
    6050,
    7000,
    10000,
    11000,
    11020,
    11040,
    12000,
    12050,
    13000,
    13050,
)


def typedefs(header: Path) -> dict[str, int]:
    """Each entry point's type in cudaTypedefs.h (cuMemAlloc_v3020), with its argument count.

    Also in the headers beside it.
    """
    text = "".join(path.read_text() for path in sorted(header.parent.glob("cuda*Typedefs.h")))
    found = re.findall(r"\(CUDAAPI \*PFN_(\w+)\)\(([^;]*)\);", text)
    return {
        name: 0 if arguments.strip() == "void" else arguments.count(",") + 1
        for name, arguments in found
    }


@pytest.mark.frameworks
@pytest.mark.parametrize("header", HEADERS, ids=[str(path.parent.parent.name) for path in HEADERS])
def test_rows_agree_with_the_headers(header: Path) -> None:
    known = typedefs(header)
    version = re.search(r"#define CUDA_VERSION (\d+)", header.read_text())
    assert version is not None
    for hook in every_row():
        if hook.library != "CUDA" or hook.since > int(version[1]):
            continue
        suffix = hook.name[-5:] if hook.stream == "PER_THREAD" else ""
        assert known.get(f"{hook.base}_v{hook.since}{suffix}") == len(hook.types), hook.name


@pytest.mark.frameworks
@pytest.mark.skipif(not HEADERS, reason=headers.WHY_SKIPPED.format("cuda.h"))
def test_there_was_a_header_to_compare_with() -> None:
    assert typedefs(HEADERS[0])


def test_names_of_rows_follow_from_their_bases() -> None:
    for hook in hooks().values():
        assert re.fullmatch(rf"{hook.base}(_v\d)?(_ptsz)?", hook.name), hook.name
        assert hook.name.endswith("_ptsz") == (hook.stream == "PER_THREAD")


@pytest.mark.parametrize("get", ["cuGetProcAddress_v2", "cuGetProcAddress"])
def test_every_abi_is_answered_with_its_own_hook(get: str, env: World) -> None:
    """By name, version and flags: a hooked symbol of the driver gets its hook, others their own."""
    with env.probe(started=False, shim=False) as bare, env.probe(started=False) as probe:
        rows = every_row()
        found = {row.name: probe.resolve(row.name, "dlsym") for row in rows}
        hooked = {name: address for name, address in found.items() if address}
        assert len(set(hooked.values())) == len(hooked)
        bases = {row.base for row in hooks().values() if row.library == "CUDA"}
        for base in sorted(bases | {"cuCtxGetCurrent", "cuLaunchKernel"}):
            for version in VERSIONS:
                for flags in (0, 1, 2):
                    expected = bare.tell("name", bare.look_up(get, base, version, flags))
                    answer = probe.look_up(get, base, version, flags)
                    if expected in hooked:
                        assert answer == hooked[expected], (base, version, flags)
                    else:
                        assert probe.tell("name", answer) == expected, (base, version, flags)
