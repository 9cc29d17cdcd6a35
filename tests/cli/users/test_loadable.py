"""Which programs take a preloaded library, by their file.

The answer is compared with the behaviour of the kernel and its loader.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from client_plugin.verbs.launch.programs import Preload, preload

OWN = Path(sys.executable)
"""A library stands in by any file of this machine's own kind."""
PROGRAM = "int main(void) { return 0; }\n"


def compiled(directory: Path, *flags: str) -> Path:
    source, output = directory / "p.c", directory / "p"
    source.write_text(PROGRAM)
    subprocess.run(["cc", str(source), "-o", str(output), *flags], check=True)
    return output


def patched(program: Path, old: bytes, new: bytes) -> Path:
    image = program.read_bytes()
    assert image.count(old) >= 1
    program.write_bytes(image.replace(old, new.ljust(len(old), b"\0")))
    return program


def test_an_ordinary_program(tmp_path: Path) -> None:
    assert preload(compiled(tmp_path), OWN) is Preload.WORKS
    assert preload(Path("/bin/sh"), OWN) is Preload.WORKS
    assert preload(OWN, OWN) is Preload.WORKS


@pytest.mark.parametrize("flags", [["-static"], ["-static-pie"]])
def test_a_static_one(tmp_path: Path, flags: list[str]) -> None:
    assert preload(compiled(tmp_path, *flags), OWN) is Preload.STATIC


def test_one_for_musl(tmp_path: Path) -> None:
    program = patched(
        compiled(tmp_path), b"/lib64/ld-linux-x86-64.so.2", b"/lib/ld-musl-x86_64.so.1"
    )
    assert preload(program, OWN) is Preload.MUSL


def test_one_for_another_machine(tmp_path: Path) -> None:
    program = compiled(tmp_path)
    image = bytearray(program.read_bytes())
    image[18:20] = (183).to_bytes(2, "little")  # EM_AARCH64
    program.write_bytes(image)
    assert preload(program, OWN) is Preload.FOREIGN


def test_one_for_32_bits(tmp_path: Path) -> None:
    program = compiled(tmp_path)
    image = bytearray(program.read_bytes())
    image[4] = 1
    program.write_bytes(image)
    assert preload(program, OWN) is Preload.FOREIGN


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_setuid_one(tmp_path: Path) -> None:
    program = compiled(tmp_path)
    os.chown(program, 4711, 4711)
    program.chmod(0o4755)
    assert preload(program, OWN) is Preload.PRIVILEGED


def test_a_script_is_its_interpreter(tmp_path: Path) -> None:
    static = compiled(tmp_path, "-static")
    script = tmp_path / "script"
    script.write_text(f"#!{static}\n")
    assert preload(script, OWN) is Preload.STATIC
    script.write_text("#!/bin/sh\n")
    assert preload(script, OWN) is Preload.WORKS


def test_a_script_behind_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    static = compiled(tmp_path, "-static").rename(tmp_path / "tool")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    script = tmp_path / "script"
    env = shutil.which("env")
    for line in (f"#!{env} tool", f"#! {env} -S A=b tool -x", f"#!{env} tool\r"):
        script.write_text(line + "\n")
        assert preload(script, OWN) is Preload.STATIC, line
    assert static.exists()


def test_a_file_that_ends_within_its_header(tmp_path: Path) -> None:
    program = compiled(tmp_path)
    image = program.read_bytes()
    for length in (20, 63, 64, 100):
        program.write_bytes(image[:length])
        assert preload(program, OWN) in (Preload.WORKS, Preload.STATIC)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"#!",
        b"#!\n",
        b"\x7fELF",
        b"\x7fELF" + b"\xff" * 200,
        b"just text",
        b"#!/does/not/exist\n",
    ],
)
def test_what_it_does_not_understand_it_leaves_to_the_kernel(
    tmp_path: Path, content: bytes
) -> None:
    program = tmp_path / "p"
    program.write_bytes(content)
    assert preload(program, OWN) in (Preload.WORKS, Preload.FOREIGN)


def test_a_circle_of_scripts_ends(tmp_path: Path) -> None:
    script = tmp_path / "p"
    script.write_text(f"#!{script}\n")
    assert preload(script, OWN) is Preload.WORKS
