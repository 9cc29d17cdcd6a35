"""The C units compiled for a test, with the sanitizers that it asks for."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
CLIENT_SOURCES = (
    "prim.c", "wire.c", "mac.c", "ledger.c", "conf.c", "channel.c", "wish.c",
    "session.c", "lease.c", "talk.c", "answers.c", "pump.c", "request.c", "client.c", "waiting.c",
)  # fmt: skip
FLAGS = ("-std=gnu11", "-D_GNU_SOURCE=", "-g", "-O1", "-fno-omit-frame-pointer", "-Wall", "-Wextra", "-Werror", "-Wstrict-prototypes")
SANITIZERS = {
    "plain": (),
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-fsanitize=thread",),
}
ENVIRONMENT = {"ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1", "TSAN_OPTIONS": "halt_on_error=1", "UBSAN_OPTIONS": "print_stacktrace=1"}


def compile_c(output: Path, sources: Iterable[Path | str], *flags: str, sanitizer: str = "plain") -> Path:
    """Compiles sources (names are of csrc) into a program, or with -shared into a library. Skips where a sanitizer is not there."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if SANITIZERS[sanitizer] and not has_sanitizer(compiler, sanitizer):
        pytest.skip(f"the compiler has no {sanitizer} sanitizer")
    paths = [str(source if isinstance(source, Path) else CSRC / source) for source in sources]
    command = [*compiler, *FLAGS, *SANITIZERS[sanitizer], f"-I{CSRC}", *paths, *flags, "-o", str(output), "-lpthread", "-ldl"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return output


def has_sanitizer(compiler: list[str], sanitizer: str) -> bool:
    command = [*compiler, *SANITIZERS[sanitizer], "-x", "c", "-", "-o", os.devnull]
    return subprocess.run(command, input="int main(void) { return 0; }", capture_output=True, text=True, check=False).returncode == 0
