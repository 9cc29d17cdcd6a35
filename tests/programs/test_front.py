"""The front of `nodemgr` under the sanitizers, with first lines as installers write them."""

from __future__ import annotations

import bisect
import errno
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from csrc import build
from tests.client_c.compiled import ENVIRONMENT, compile_c
from tests.support.manager import ROOT

SHOWN = "import sys; print(sys.argv[1:])"


def front(directory: Path, head: bytes) -> Path:
    (directory / "nodemgr-python").write_bytes(head)
    return compile_c(directory / "nodemgr", (build.CSRC / "front").glob("*.c"), sanitizer="address")


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


def test_a_python_that_this_user_may_not_execute_is_named(tmp_path: Path) -> None:
    (tmp_path / "closed").touch(0o644)
    done = run(front(tmp_path, f"#!{tmp_path}/closed\n".encode()), "status")
    assert (done.returncode, done.stderr) == (
        127,
        f"nodemgr: {tmp_path}/closed cannot be executed (Permission denied): install nodemgr again,"
        " with a Python that all its users may execute\n",
    )


def test_words_that_leave_no_room_for_its_own_are_named_as_such(tmp_path: Path) -> None:
    """The longest command line that the kernel takes, and the front adds some words."""
    program = front(tmp_path, f"#!{sys.executable}\n".encode())
    stack = resource.getrlimit(resource.RLIMIT_STACK)

    def start(length: int) -> subprocess.CompletedProcess[str] | None:
        try:
            return subprocess.run(
                [program, *["x" * 100_000] * 2, "x" * length],
                env=ENVIRONMENT, capture_output=True, text=True, check=False,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (2**20, stack[1])),
            )  # fmt: skip
        except OSError as error:
            if error.errno != errno.E2BIG:
                raise
            return None

    longest = bisect.bisect_left(range(100_000), True, key=lambda length: start(length) is None) - 1
    done = start(longest)
    assert done is not None
    assert (done.returncode, done.stderr.count("\n")) == (127, 1)
    assert "too long for the kernel" in done.stderr


def test_a_directory_without_code_is_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (ROOT / "csrc" / "front" / "nodemgr-python").read_text()
    scope: dict[str, Any] = {"__file__": "", "__name__": "behind"}
    exec(source.removesuffix("main()\n"), scope)
    (tmp_path / "first" / "wanted").mkdir(parents=True)
    (tmp_path / "second" / "wanted").mkdir(parents=True)
    (tmp_path / "second" / "wanted" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first")])
    assert not scope["is_found"]("wanted")
    sys.path.append(str(tmp_path / "second"))
    assert scope["is_found"]("wanted")


def test_a_path_file_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    source = (ROOT / "csrc" / "front" / "nodemgr-python").read_text()
    (tmp_path / "a.pth").mkdir()
    (tmp_path / "b.pth").symlink_to("gone")
    (tmp_path / "c.pth").write_text("packages\n")
    scope = {"__file__": "", "__name__": "behind"}
    exec(source.removesuffix("main()\n"), scope)
    assert list(scope["named_by_files"]([str(tmp_path)])) == [f"{tmp_path}/packages"]  # type: ignore[operator]
