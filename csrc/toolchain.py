"""The C compiler: what is missing here, and the packages that bring it; its runs, side by side.

Knows: how a compiler is called, what the packages are called that bring one. Must not know: the
project's sources and outputs.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from client_plugin.messages.form import stated

CSRC = Path(__file__).resolve().parent
FROM_STDIN = ("-x", "c", "-")
# Debug information has lines, which a backtrace needs, and no variables: these cost a fifth of the
# compiler's time. A warning is an error where MORE_FLAGS says so: never in a user's build.
FLAGS = (
    *("-std=gnu11", "-D_GNU_SOURCE=", "-g1", "-fPIC", "-fvisibility=hidden"),
    *("-Wall", "-Wextra", "-Wstrict-prototypes", f"-ffile-prefix-map={CSRC.parent}=."),
    *("-include", str(CSRC / "base" / "old_libc.h")),
)
MORE_FLAGS = "NODEMGR_CFLAGS"
"""The variable with a developer's own flags, at the end of all others: -Werror, -O0 -g3."""


class Need(NamedTuple):
    """A part of a build: its name in a sentence, and the packages that bring it."""

    name: str
    debian: str
    fedora: str


def compiler() -> list[str]:
    """The words of $CC, by default `cc`. Raises SystemExit with one line where it has none."""
    named, why = os.environ.get("CC", "cc"), "is set and names no compiler"
    try:
        words = shlex.split(named)
    except ValueError as error:
        words, why = [], f"is no command ({error}): {named!r}"
    if not words:
        raise SystemExit(stated(f"the variable CC {why}", "unset it, or name a C compiler in it"))
    return words


def check() -> None:
    """Raises SystemExit with one line that names all that is missing here."""
    cc = compiler()
    if missing := _missing(cc, headers(sysconfig.get_python_version())):
        raise SystemExit(line_of(missing))
    if fault := _fault(cc):
        line = stated(f"{cc[0]!r} builds no program: {fault}", "mend it, or name another in $CC")
        raise SystemExit(line)


def line_of(missing: list[Need]) -> str:
    """The remedy: one command for each family of distributions."""
    debian = " ".join(need.debian for need in missing)
    fedora = " ".join(dict.fromkeys(need.fedora for need in missing))
    return stated(
        "nodemgr is compiled when it is installed, and this is missing:"
        f" {', '.join(need.name for need in missing)}",
        f"Debian, Ubuntu: apt-get install {debian}; Fedora, RHEL: dnf install {fedora}",
    )


def a_compiler(program: str) -> Need:
    return Need(f"a C compiler ({program!r})", "gcc", "gcc")


def headers(python: str) -> dict[Need, Path]:
    """A header of each, and the place where it is looked for without a compiler."""
    libc = Need("the headers of libc", "libc6-dev", "glibc-devel")
    of_python = Need(f"the headers of Python {python}", f"python{python}-dev", "python3-devel")
    return {
        libc: Path("/usr/include/stdio.h"),
        of_python: Path(sysconfig.get_path("include"), "Python.h"),
    }


def _missing(cc: list[str], headers: dict[Need, Path]) -> list[Need]:
    """A compiler that compiles nothing is there: its fault is another line."""
    if shutil.which(cc[0]) is None:
        return [a_compiler(cc[0]), *(need for need, path in headers.items() if not path.exists())]

    def has(name: str, *flags: str) -> bool:
        text = f"#if !__has_include(<{name}>)\n#error\n#endif\n"
        return _run([*cc, *FROM_STDIN, "-fsyntax-only", *flags], text).returncode == 0

    works = has("stddef.h")  # the compiler's own
    return [
        need for need, path in headers.items() if works and not has(path.name, f"-I{path.parent}")
    ]


def _fault(cc: list[str]) -> str:
    """Why no program can be built; empty where one can."""
    text = "#include <stdio.h>\n#ifndef __GLIBC__\n#error nodemgr needs glibc\n#endif\n"
    with tempfile.TemporaryDirectory() as directory:
        command = [*cc, *FROM_STDIN, "-o", str(Path(directory, "program"))]
        tried = _run(command, f"{text}int main(void) {{ return 0; }}\n")
    lines = [line for line in tried.stdout.splitlines() if "error" in line]
    return "" if tried.returncode == 0 else next(iter(lines), f"exit status {tried.returncode}")


def is_elf(path: Path) -> bool:
    """Whether it is a program or a library."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def newest_glibc(files: list[Path]) -> tuple[int, int] | None:
    """The newest version of glibc that the files need; None: without readelf it is not known."""
    if not files or shutil.which("readelf") is None:
        return None
    said = _run(["readelf", "--version-info", "--wide", *map(str, files)]).stdout
    found = re.findall(r"Name: GLIBC_(\d+)\.(\d+)", said)
    return max(((int(major), int(minor)) for major, minor in found), default=None)


def _run(command: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def run(command: list[str]) -> None:
    """Prints its output to stderr: a compiler that has nothing to warn of prints nothing."""
    result = _run(command)
    if result.stdout:
        sys.stderr.write(f"{shlex.join(command)}\n{result.stdout}")
    if result.returncode != 0:
        raise SystemExit(
            stated(
                f"{command[0]} failed with {result.returncode}",
                "its output is above; mend that, or report it with that output",
            )
        )


class TranslationUnit(NamedTuple):
    """One file of C and its flags."""

    source: Path
    flags: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.source.parent.name}-{self.source.stem}.o"


def compile_all(units: list[TranslationUnit], objects: Path, *flags: str) -> dict[Path, str]:
    """Source -> object in the directory `objects`, by as many compilers as there are processors."""

    def compile_one(unit: TranslationUnit) -> str:
        output = str(objects / unit.name)
        more = shlex.split(os.environ.get(MORE_FLAGS, ""))
        run([*compiler(), *unit.flags, *flags, *more, "-c", str(unit.source), "-o", output])
        return output

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return dict(zip((unit.source for unit in units), pool.map(compile_one, units), strict=True))


def link(words: list[str], output: Path) -> None:
    """Links into a new file and renames.

    A library that running processes have mapped is never written to.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    fresh = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        run([*compiler(), *words, "-o", str(fresh)])
        fresh.replace(output)
    finally:
        fresh.unlink(missing_ok=True)
