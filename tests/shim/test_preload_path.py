"""One value of LD_PRELOAD serves every program: 64-bit glibc loads the shim.

Other programs start as if it did not exist.
"""

from __future__ import annotations

import filecmp
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from client_plugin.ways import locations
from csrc import build
from tests.shim.world import LIBRARY

PROGRAM = '#include <stdio.h>\nint main(void) { puts("started"); return 0; }\n'


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs the command in an environment, from a shell that has the shim preloaded."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LD_")}
    environ = {**kept, "LD_PRELOAD": locations.preload_entry()}
    return subprocess.run(
        [str(word) for word in command], env=environ, capture_output=True, text=True, check=False
    )


def program(directory: Path, *compiler: str) -> Path:
    output = directory / "program"
    made = subprocess.run(
        [*compiler, "-x", "c", "-", "-o", str(output)],
        input=PROGRAM,
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip(f"{compiler[0]} makes no such programs here")
    return output


def shims_in(maps: str) -> set[str]:
    return set(re.findall(r"/\S*/libnodemgr\.so", maps))


def test_each_directory_has_the_same_library() -> None:
    for directory in build.SHIM_DIRS:
        assert filecmp.cmp(LIBRARY, LIBRARY.parent / directory / LIBRARY.name, shallow=False)


def test_the_linker_of_this_system_finds_it() -> None:
    ran = run("cat", "/proc/self/maps")
    assert shims_in(ran.stdout) <= {
        str(LIBRARY.parent / directory / LIBRARY.name) for directory in build.SHIM_DIRS
    }
    assert len(shims_in(ran.stdout)) == 1
    assert ran.stderr == ""


@pytest.mark.parametrize("directory", build.SHIM_DIRS)
def test_the_linkers_of_other_systems_find_it(directory: str, tmp_path: Path) -> None:
    """A copy of this one, in which another text stands for $LIB."""
    linker = tmp_path / "ld.so"
    shutil.copy(
        next(
            path
            for path in ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")
            if os.path.exists(path)
        ),
        linker,
    )
    image = linker.read_bytes()
    text = next(
        text for name in build.SHIM_DIRS if (text := b"\0" + name.encode() + b"\0") in image
    )
    if len(directory) + 2 > len(text):
        pytest.skip("its text is longer than the one in this system's linker")
    assert image.count(text) == 1
    linker.write_bytes(
        image.replace(text, (b"\0" + directory.encode() + b"\0").ljust(len(text), b"\0"))
    )
    ran = run(linker, shutil.which("cat") or "cat", "/proc/self/maps")
    assert shims_in(ran.stdout) == {str(LIBRARY.parent / directory / LIBRARY.name)}
    assert ran.stderr == ""


def test_a_musl_program_starts_from_a_shell(tmp_path: Path) -> None:
    if shutil.which("musl-gcc") is None:
        pytest.skip("musl-gcc is not installed (apt-get install musl-tools)")
    ran = run("sh", "-c", program(tmp_path, "musl-gcc"))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "started\n", "")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="no other word size here")
def test_a_32_bit_program_starts_without_a_word(tmp_path: Path) -> None:
    ran = run("sh", "-c", program(tmp_path, "cc", "-m32"))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "started\n", "")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="no other word size here")
def test_a_32_bit_program_with_address_sanitizer_starts(tmp_path: Path) -> None:
    """Its runtime is not the first library; the 32-bit library allows that, as the other does."""
    ran = run("sh", "-c", program(tmp_path, "cc", "-m32", "-fsanitize=address"))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "started\n", "")


def test_python_finds_the_hook_and_one_library(tmp_path: Path) -> None:
    """The hook lies where the library lies, at any depth.

    The Python part uses the library that is in the process.
    """
    ask = (
        "from client_plugin import native; native.load(); import sys; print(sys.path);"
        " print(open('/proc/self/maps').read())"
    )
    (tmp_path / "client.conf").write_text("env=alice\naddress=unix:socket\n")
    ran = run(
        "env",
        f"NODEMGR_ENV_DIR={tmp_path}",
        f"PYTHONPATH={locations.payload_dir()}",
        shutil.which("python3") or "python3",
        "-c",
        ask,
    )
    assert ran.returncode == 0, ran.stderr
    assert f"'{locations.payload_dir()}/sitecustomize'" in ran.stdout
    assert len(shims_in(ran.stdout)) == 1
