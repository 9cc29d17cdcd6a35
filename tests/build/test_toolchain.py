"""The check that precedes a build, and how the sources are compiled."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path

import pytest

from csrc import build, toolchain
from csrc.sim import build as simulator
from tests.build.test_wheel import copy_source

ROOT = Path(__file__).resolve().parents[2]
PYTHON = sysconfig.get_python_version()
UNSET = "unset it, or name a C compiler in it"


def compiler_without(directory: Path, *headers: str) -> str:
    """A compiler that knows no such headers."""
    program = directory / "cc"
    hide = "".join(f"/__has_include(<{re.escape(name)}>)/ s/.*/#if 1/; " for name in headers)
    program.write_text(f'#!/bin/sh\nsed {shlex.quote(hide)} | cc "$@"\n')
    program.chmod(0o755)
    return str(program)


def line_of(monkeypatch: pytest.MonkeyPatch, cc: str) -> str:
    """The line that the check ends with."""
    monkeypatch.setenv("CC", cc)
    with pytest.raises(SystemExit) as ended:
        toolchain.check()
    return str(ended.value)


def test_all_that_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda _kind: str(tmp_path))
    if not Path("/usr/include/stdio.h").exists():
        pytest.skip("libc's headers are not in /usr/include")
    assert line_of(monkeypatch, "no-such-compiler") == (
        "nodemgr is compiled when it is installed, and this is missing: a C compiler"
        f" ('no-such-compiler'), the headers of Python {PYTHON}; Debian, Ubuntu: apt-get install"
        f" gcc python{PYTHON}-dev; Fedora, RHEL: dnf install gcc python3-devel"
    )


@pytest.mark.parametrize(
    ("headers", "told", "packages"),
    [
        (["stdio.h"], "the headers of libc", "libc6-dev"),
        (["Python.h"], f"the headers of Python {PYTHON}", f"python{PYTHON}-dev"),
        (
            ["stdio.h", "Python.h"],
            f"the headers of libc, the headers of Python {PYTHON}",
            f"libc6-dev python{PYTHON}-dev",
        ),
    ],
)
def test_headers_that_are_missing_are_named(
    headers: list[str], told: str, packages: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    line = line_of(monkeypatch, compiler_without(tmp_path, *headers))
    assert f"and this is missing: {told}; " in line
    assert f"apt-get install {packages}; " in line


def test_the_readme_has_the_line_of_a_bare_debian_13() -> None:
    missing = [toolchain.a_compiler("cc"), *toolchain.headers("3.13")]
    assert toolchain.line_of(missing) in (ROOT / "README.md").read_text().splitlines()


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("", f"the variable CC is set and names no compiler: {UNSET}"),
        ("  ", f"the variable CC is set and names no compiler: {UNSET}"),
        ("cc 'x", f'the variable CC is no command (No closing quotation): "cc \'x"; {UNSET}'),
    ],
)
def test_a_variable_that_names_no_compiler(
    named: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert line_of(monkeypatch, named) == told


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'cc: error: no linker' >&2; exit 1", "cc: error: no linker"),
        ("exit 3", "exit status 3"),
        (
            'sed s/__GLIBC__/__NO_GLIBC__/ | exec cc "$@"',
            "<stdin>:3:2: error: #error nodemgr needs glibc",
        ),
    ],
)
def test_a_compiler_that_builds_nothing(
    script: str, why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "cc"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    assert line_of(monkeypatch, str(program)) == (
        f"'{program}' builds no program: {why}; mend it, or name another in $CC"
    )


@pytest.mark.parametrize("hook", ["wheel", "editable"])
def test_pip_is_told_before_anything_is_compiled(hook: str, tmp_path: Path) -> None:
    """By the hooks that every frontend calls first; a `pip` without isolation may call none."""
    program = f"from csrc import backend; backend.get_requires_for_build_{hook}()"
    command = [sys.executable, "-c", program]
    variables = {**os.environ, "CC": compiler_without(tmp_path, "Python.h")}
    result = subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("nodemgr is compiled when it is installed, and this is missing: ")


NOTES = """#!/bin/sh
echo "$@" >>"$NOTES"
while [ $# -gt 1 ]; do [ "$1" = -o ] && : >"$2"; shift; done
"""


@pytest.fixture(scope="module")
def noted(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """The compiler's command lines of a user's build. It makes empty files."""
    directory = tmp_path_factory.mktemp("noted")
    compiler, notes = directory / "cc", directory / "notes"
    compiler.write_text(NOTES)
    compiler.chmod(0o755)
    variables = {**os.environ, "CC": str(compiler), "NOTES": str(notes)}
    variables.pop(toolchain.MORE_FLAGS, None)
    command = [sys.executable, "-m", "csrc.build"]
    subprocess.run(
        command, cwd=copy_source(directory / "copy"), env=variables, capture_output=True, check=True
    )
    return [line.split() for line in notes.read_text().splitlines()]


def test_each_source_is_compiled_once(noted: list[list[str]]) -> None:
    sources = Counter(
        Path(word).relative_to(directory)
        for words in noted
        if "-m32" not in words
        for word in words
        if word.endswith(".c")
        for directory in Path(word).parents
        if directory.name in ("csrc", "examples")
    )
    expected = {path.relative_to(toolchain.CSRC) for path in toolchain.CSRC.rglob("*.c")}
    assert sources.keys() == expected | {Path("hold.c")}
    # `nodemgr` and the demo's program are no part of that one run
    assert {path: n for path, n in sources.items() if n != 1} == {Path("start/start.c"): 2}


def test_a_warning_fails_no_user_s_build(noted: list[list[str]]) -> None:
    assert not [word for words in noted for word in words if word.startswith("-Werror")]


def test_a_developer_s_flags_come_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = tmp_path / "a.c"
    source.write_text("static int unused;\n")
    unit = toolchain.TranslationUnit(source, ("-Wall",))
    monkeypatch.delenv(toolchain.MORE_FLAGS, raising=False)
    assert toolchain.compile_all([unit], tmp_path).keys() == {source}
    monkeypatch.setenv(toolchain.MORE_FLAGS, "-Werror")
    with pytest.raises(SystemExit, match="failed with 1: its output is above"):
        toolchain.compile_all([unit], tmp_path)


def test_the_checked_sources_are_all(tmp_path: Path) -> None:
    """`python -m csrc.build --check` passes over none."""
    checked = {unit.source for unit in [*build.units(), *simulator.units(tmp_path)]}
    assert checked >= {*toolchain.CSRC.rglob("*.c")} - {Path(build.STUB_FLAGS[-1])}
