"""The C units compiled for a test, with the sanitizers that it asks for."""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
CLIENT_ROOMS = ("base", "conf", "wire", "ledger", "gate", "client")
CLIENT_SOURCES = [path for room in CLIENT_ROOMS for path in sorted((CSRC / room).glob("*.c"))]
COMPILER = shlex.split(os.environ.get("CC", "cc"))
FLAGS = (
    "-std=gnu11", "-D_GNU_SOURCE=", "-g", "-O1", "-fPIC", "-fno-omit-frame-pointer", "-Wall",
    "-Wextra", "-Werror", "-Wstrict-prototypes", "-DNM_LOG_PERIOD_S=1", "-DNM_WORD_S=60",
)  # fmt: skip
HIDDEN = "-fvisibility=hidden"
"""As the library is built: programs of the same units share what is compiled of them."""
SANITIZERS = {
    "plain": (),
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-fsanitize=thread",),
}
ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
    "TSAN_OPTIONS": "halt_on_error=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}
OBJECTS = "TESTS_OBJECTS_DIRECTORY"
"""Names the directory that all workers of a test run share."""


def compile_c(
    output: Path, sources: Iterable[Path | str], *flags: str, sanitizer: str = "plain"
) -> Path:
    """Compiles sources (names are of csrc) into a program, or with -shared into a library.

    Skips where a sanitizer is not there. Each source is compiled once for all that are made of it
    with the same flags.
    """
    if SANITIZERS[sanitizer] and not has_sanitizer(sanitizer):
        pytest.skip(f"the compiler has no {sanitizer} sanitizer")
    compiling = tuple(flag for flag in flags if flag.startswith("-f"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        paths = [source if isinstance(source, Path) else CSRC / source for source in sources]
        objects = list(pool.map(lambda path: compiled(path, compiling, sanitizer), paths))
    run_compiler(
        *SANITIZERS[sanitizer], *map(str, objects), *flags, "-o", str(output), "-lpthread", "-ldl"
    )
    return output


@cache
def compiled(source: Path, flags: tuple[str, ...], sanitizer: str) -> Path:
    """The object file; one worker compiles it, and the others wait for it."""
    name = hashlib.sha256("\0".join((str(source), *flags, sanitizer)).encode()).hexdigest()
    output = objects_dir() / f"{name}.o"
    with output.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not output.exists():
            fresh = output.with_suffix(".new")
            options = (*FLAGS, *SANITIZERS[sanitizer], f"-I{CSRC}", *flags)
            run_compiler(*options, "-c", str(source), "-o", str(fresh))
            fresh.rename(output)
    return output


@cache
def objects_dir() -> Path:
    """The directory of this test run (tests/conftest.py); outside of one, of this process."""
    if OBJECTS in os.environ:
        return Path(os.environ[OBJECTS])
    directory = Path(tempfile.mkdtemp(prefix="nmo"))
    atexit.register(shutil.rmtree, directory)
    return directory


def run_compiler(*arguments: str) -> None:
    result = subprocess.run([*COMPILER, *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@cache
def has_sanitizer(sanitizer: str) -> bool:
    command = [*COMPILER, *SANITIZERS[sanitizer], "-x", "c", "-", "-o", os.devnull]
    return (
        subprocess.run(
            command,
            input="int main(void) { return 0; }",
            capture_output=True,
            text=True,
            check=False,
        ).returncode
        == 0
    )
