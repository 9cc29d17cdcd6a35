"""The library itself under the sanitizers, preloaded into racing programs.

Without the part that answers dlsym: a sanitizer's runtime calls that before it can watch anything.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from csrc import build
from tests.client_c.compiled import ENVIRONMENT, HIDDEN, compile_c, compiled
from tests.shim.world import MIB, PROGRAMS, World
from tests.support.limits import WAIT_LIMIT_S

RUNTIMES = {"address": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",)}


EARLY = [build.CSRC / "hooks" / name for name in ("interpose.c", "linker.c")]


def sanitized_library(directory: Path, sanitizer: str) -> Path:
    objects = [compiled(source, (HIDDEN,), "plain") for source in EARLY]
    sources = [source for source in build.sources_of("libnodemgr.so") if source not in EARLY]
    return compile_c(
        directory / "libnodemgr.so",
        sources,
        "-shared",
        HIDDEN,
        "-Wl,-Bsymbolic",
        *map(str, objects),
        sanitizer=sanitizer,
    )


def runtime(name: str) -> str:
    path = subprocess.run(
        ["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return str(Path(path).resolve())


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_racing_threads_and_processes(
    sanitizer: str, make_world: Callable[..., World], tmp_path: Path
) -> None:
    library = sanitized_library(tmp_path, sanitizer)
    racers = compile_c(tmp_path / "racers", [PROGRAMS / "race_threads.c"], sanitizer=sanitizer)
    env = make_world(limit=256 * MIB)
    preload = ":".join([*map(runtime, RUNTIMES[sanitizer]), str(library)])
    environ = {**env.environment(), **ENVIRONMENT, "LD_PRELOAD": preload}
    running = [
        subprocess.Popen(
            [racers, "3", "400", str(seed)], env=environ, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for seed in range(2)
    ]  # fmt: skip
    for process in running:
        stdout, stderr = process.communicate(timeout=WAIT_LIMIT_S)
        assert process.returncode == 0, stderr
        assert int(stdout.split()[0]) > 0
        assert [
            line
            for line in stderr.splitlines()
            if not line.startswith("nodemgr: out of GPU memory")
        ] == []
    assert 0 < env.peak() <= 256 * MIB
    env.manager.await_no_seats()
    env.agree(0)
