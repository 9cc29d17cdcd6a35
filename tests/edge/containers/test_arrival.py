"""The message to a container as it starts; it starts in any case."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nodemgr import arrival
from tests.support.limits import WAIT_LIMIT_S


def image(root: Path, *files: str) -> Path:
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    return root


@pytest.mark.parametrize(
    ("files", "foreign"),
    [
        (("lib/ld-musl-x86_64.so.1",), True),
        # a glibc layer over musl: its programs are musl's
        (
            ("lib/ld-musl-aarch64.so.1", "lib/ld-linux-aarch64.so.1"),
            True,
        ),
        (("lib/x86_64-linux-gnu/libc.so.6",), False),
        (("lib64/libc.so.6",), False),
        (("lib/ld-musl-x86_64.so.1", "usr/lib/x86_64-linux-gnu/libc.so.6"), False),
        (("bin/static",), False),
    ],
)
def test_an_image_is_foreign_that_has_musl_and_no_glibc(
    tmp_path: Path, files: tuple[str, ...], foreign: bool
) -> None:
    assert arrival.is_foreign(image(tmp_path, *files)) is foreign


def arrive(text: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", arrival.__file__]
    return subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False
    )


def state(tmp_path: Path, pid: int, terminal: bool = False) -> str:
    (tmp_path / "config.json").write_text(
        json.dumps({"root": {"path": "rootfs"}, "process": {"terminal": terminal}})
    )
    return json.dumps({"pid": pid, "bundle": str(tmp_path)})


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"bundle": "/nonexistent", "pid": 1}', '{"bundle": 5}', "\x00"]
)
def test_whatever_the_runtime_says_the_container_starts(text: str) -> None:
    assert arrive(text).returncode == 0


def test_what_starts_hears_it_on_its_own_stderr(tmp_path: Path) -> None:
    """Once it runs its program: a shell stands for the runtime that is about to."""
    image(tmp_path / "rootfs", "lib/ld-musl-x86_64.so.1")
    with subprocess.Popen(
        ["/bin/sh", "-c", "read go; exec cat"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert arrive(state(tmp_path, program.pid)).stderr == ""
        assert program.stdin is not None
        assert program.stderr is not None
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stderr.readline() == arrival.musl_line() + "\n"
        program.stdin.close()


def test_no_file_is_ever_written_to(tmp_path: Path) -> None:
    image(tmp_path / "rootfs", "lib/ld-musl-x86_64.so.1")
    with (
        (tmp_path / "precious").open("w") as file,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE, stderr=file) as program,
    ):
        assert "is no pipe" in arrive(state(tmp_path, program.pid)).stderr
        assert arrive(state(tmp_path, program.pid, terminal=True)).returncode == 0
        program.communicate()
    assert (tmp_path / "precious").read_text() == ""
