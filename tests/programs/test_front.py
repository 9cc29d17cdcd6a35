"""The front of `nodemgr` under the sanitizers, with first lines as installers write them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from csrc import build
from tests.client_c.compiled import ENVIRONMENT, compile_c
from tests.support.manager import ROOT

SHOWN = "import sys; print(sys.argv[1:])"


def front(directory: Path, head: bytes) -> Path:
    (directory / "nodemgr-python").write_bytes(head)
    return compile_c(directory / "nodemgr", build.sources_of("nodemgr"), sanitizer="address")


def run(program: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *words], env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "head", ["#!{}\n", "#!/bin/sh\n'''exec' \"{}\" \"$0\" \"$@\"\n' '''\n"]
)  # fmt: skip
def test_the_named_interpreter_gets_the_words(tmp_path: Path, head: str) -> None:
    program = front(tmp_path, f"{head.format(sys.executable)}{SHOWN}\n".encode())
    done = run(program, "one", "two words", "")
    assert (done.returncode, done.stdout) == (0, "['one', 'two words', '']\n"), done.stderr


@pytest.mark.parametrize(
    "head",
    [
        b"", b"#", b"#!", b"#!\n", b"#!/", b"\0" * 20_000, b"#!" + b"/x" * 10_000,
        b"#!/bin/sh\n'''exec' ", b"#!/bin/sh\n'''exec' \"",
        b"#!/bin/sh\n'''exec' \"" + b"/x" * 9_000,
        b"#!relative/python\n",
    ],
)  # fmt: skip
def test_a_first_line_that_names_none_is_one_line_on_stderr(tmp_path: Path, head: bytes) -> None:
    done = run(front(tmp_path, head), "status")
    assert done.returncode == 127
    assert done.stderr.startswith("nodemgr: ")
    assert done.stderr.count("\n") == 1
    assert "install nodemgr again" in done.stderr


def test_a_path_file_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    source = (ROOT / "csrc" / "front" / "nodemgr-python").read_text()
    (tmp_path / "a.pth").mkdir()
    (tmp_path / "b.pth").symlink_to("gone")
    (tmp_path / "c.pth").write_text("packages\n")
    scope = {"__file__": "", "__name__": "behind"}
    exec(source.removesuffix("main()\n"), scope)
    assert list(scope["named_by_files"]([str(tmp_path)])) == [f"{tmp_path}/packages"]  # type: ignore[operator]
