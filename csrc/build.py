"""The build: one compiler run over csrc, four outputs, and the simulator beside them.

Knows: which sources and flags make what, and where each output lies in the tree.
Must not know: what the sources say. (The simulator builds itself: csrc/sim/build.py.)

- client_plugin/_lib/libnodemgr.so: plain C for every process of an environment. libc alone, old
  glibc symbols, no Python. Copies for the dynamic linkers' $LIB lie beside it (SHIM_DIRS).
- nodemgr/_native: the cffi extension for the manager, of the same wire, MAC and ledger and of the
  device gate. One file for all Pythons from 3.11 (abi3).
- nodemgr/_bin/nodemgr-supervisor: what starts batch jobs and keeps their ends, a program of its
  own. libc alone.
- client_plugin/_bin/nodemgr-runner: what starts batch jobs inside containers. libc alone, old glibc
  symbols.
- nodemgr/_sim/: the simulated driver and NVML, and a small CUDA program for the demo.

Before these it writes the messages of the C programs as macros, from their tables in
client_plugin/messages: MESSAGES.

`python -m csrc.build` builds in place; `pip install .` and `pip install -e .` come through BuildExt
(named in pyproject.toml). An installation has client_plugin/ and sitecustomize/ in
nodemgr/_client/.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from string import Formatter
from types import ModuleType
from typing import Any, NamedTuple

from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"

# Artifact -> the rooms (folders) with its sources. csrc/README.md says what lives in each.
ROOMS = {
    "libnodemgr.so": (
        "base",
        "conf",
        "wire",
        "ledger",
        "gate",
        "client",
        "hooks",
        "account",
        "launch",
        "memory",
        "shim",
    ),
    "nodemgr-supervisor": ("jobs", "supervisor"),
    "nodemgr-runner": ("base", "conf", "wire", "jobs", "runner"),
    "_native": ("base", "wire", "ledger", "gate", "manager"),
}
CLIENT = ("client_plugin", "sitecustomize")
INCLUDES = [f"-I{CSRC}"]  # every include names its room: "room/file.h"

WARNINGS = ["-Wall", "-Wextra", "-Werror", "-Wstrict-prototypes"]
CFLAGS = [
    "-std=gnu11",
    "-D_GNU_SOURCE=",
    "-O2",
    "-g",
    f"-ffile-prefix-map={ROOT}=.",
    "-fPIC",
    "-fvisibility=hidden",
    *WARNINGS,
]
# Preloadable into anything: all symbols bound at load, DT_NEEDED for what old glibcs keep outside
# libc.so.6, our own calls never taken by somebody else's symbol, and never unloaded (a thread of
# ours may be running in it).
SHIM_CFLAGS = ["-DNM_OLD_GLIBC", "-fno-plt"]
SHIM_LDFLAGS = [
    "-shared",
    "-Wl,-soname,libnodemgr.so",
    "-Wl,-Bsymbolic",
    "-Wl,-z,now,-z,nodelete,-z,defs",
    "-Wl,--no-as-needed",
]
# The dynamic linkers' values of $LIB in a path: Debian's kind, Red Hat's, Arch's.
# Each finds the shim under its own name, and musl's linker, which knows no $LIB, finds nothing.
# 32-bit programs find a library of one file where the compiler can make one: without it their
# linker complains in each.
SHIM_DIRS = (f"lib/{platform.machine()}-linux-gnu", "lib64", "lib")
STUB_DIRS = ("lib/i386-linux-gnu", "lib32")
STUB_FLAGS = [
    "-m32",
    "-shared",
    "-nostdlib",
    "-fPIC",
    "-O2",
    "-Wl,-soname,libnodemgr.so",
    str(CSRC / "shim" / "defaults.c"),
]
SHIM_LIBRARIES = ["-l:libpthread.so.0", "-l:libdl.so.2"]
# It runs as root: after the start, no writable table of addresses is left.
SUPERVISOR_FLAGS = [
    "-fPIE",
    "-pie",
    "-Wl,-z,now,-z,relro",
    "-D_FORTIFY_SOURCE=2",
    "-fstack-protector-strong",
]
RUNNER_FLAGS = ["-nostartfiles", *SUPERVISOR_FLAGS, "-Wl,--no-as-needed"]
NATIVE_HEADERS = [
    "wire/wire.h",
    "ledger/ledger.h",
    "gate/gate.h",
    *(
        f"manager/{name}.h"
        for name in ("beats", "gate", "huge", "networks", "peer", "sift", "turns")
    ),
]


def load(path: Path, name: str) -> ModuleType:
    """A module by its file: a build has the project's root on no path."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def table(name: str) -> ModuleType:
    """A table of client_plugin/messages, as a module of its own package `table`."""
    folder = ROOT / "client_plugin" / "messages"
    if "table.form" not in sys.modules:
        form = load(folder / "form.py", "table.form")
        sys.modules |= {"table": ModuleType("table"), "table.form": form}  # for `from .form`
    return load(folder / f"{name}.py", f"table.{name}")


messages = table("build")


def compiler() -> list[str]:
    """Raises SystemExit with one line where $CC names none."""
    named = os.environ.get("CC", "cc")
    try:
        words = shlex.split(named)
    except ValueError as error:
        raise SystemExit(messages.CC_NOT_SPLIT(error=error, text=named)) from None
    if not words:
        raise SystemExit(messages.CC_EMPTY())
    return words


def check_compiler() -> None:
    """Before anything is built.

    Raises SystemExit with one line: what is missing, and how to install it.
    """
    cc, python = compiler(), f"{sys.version_info.major}.{sys.version_info.minor}"
    headers = sysconfig.get_path("include")
    if shutil.which(cc[0]) is None:
        raise SystemExit(messages.NO_COMPILER(compiler=cc[0]))
    if not _compiles("stdio.h", cc):
        raise SystemExit(messages.COMPILER_BUILDS_NOTHING(compiler=cc[0]))
    if not _compiles("Python.h", [*cc, "-c", f"-I{headers}"]):
        raise SystemExit(messages.NO_PYTHON_HEADERS(python=python, directory=headers))


def _compiles(header: str, command: list[str]) -> bool:
    with tempfile.TemporaryDirectory() as directory:
        source = f"#include <{header}>\nint main(void) {{ return 0; }}\n"
        command = [*command, "-x", "c", "-", "-o", str(Path(directory, "output"))]
        return (
            subprocess.run(
                command, input=source, text=True, capture_output=True, check=False
            ).returncode
            == 0
        )


def run(command: list[str]) -> None:
    result = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if result.returncode != 0:
        sys.stderr.write(f"{shlex.join(command)}\n{result.stdout}")
        line = messages.COMMAND_FAILED_IN_BUILD(command=command[0], code=result.returncode)
        raise SystemExit(line)


def sources_of(artifact: str, csrc: Path = CSRC) -> list[Path]:
    return [path for room in ROOMS[artifact] for path in sorted((csrc / room).glob("*.c"))]


def compile_objects(sources: list[Path], flags: list[str], objects: Path) -> list[Path]:
    """As many at a time as there are processors."""

    def compile_one(source: Path) -> Path:
        output = objects / f"{source.parent.name}-{source.stem}.o"
        run([*compiler(), *CFLAGS, *flags, *INCLUDES, "-c", str(source), "-o", str(output)])
        return output

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile_one, sources))


def replace_linked(command: list[str], output: Path) -> None:
    """Links into a new file and renames.

    A library that running processes have mapped is never written to.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    fresh = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        run([*command, "-o", str(fresh)])
        fresh.replace(output)
    finally:
        fresh.unlink(missing_ok=True)


class MessageHeader(NamedTuple):
    """A table of messages, and the room whose messages.h is made from it."""

    table: str
    room: str
    number: str
    """The conversion of a whole number."""

    @property
    def path(self) -> Path:
        return CSRC / self.room / "messages.h"


MESSAGES = (MessageHeader("shim", "client", "d"), MessageHeader("attempts", "jobs", "lld"))
MESSAGES_TOP = """/* messages.h: a format for each row of a table of messages.
 *
 * Made by csrc/build.py from client_plugin/messages/{table}.py. Not to be edited.
 */
#ifndef NM_{room}_MESSAGES_H
#define NM_{room}_MESSAGES_H

"""


def format_of(template: str, number: str = "d") -> str:
    """A message's template as a format of printf. Raises ValueError where C has no such field."""
    parts = []
    for text, name, spec, conversion in Formatter().parse(template):
        parts.append(text.replace("%", "%%"))
        if name is not None:
            if conversion or (spec and not re.fullmatch(r"d|\.\d+", spec)):
                raise ValueError(f"{{{name}!{conversion}:{spec}}} of {template!r} is none of C")
            parts.append(f"%{number if spec == 'd' else f'{spec}s'}")
    return "".join(parts)


def write_messages() -> None:
    """The headers of MESSAGES that are not the same already."""
    form = sys.modules["table.form"]
    for header in MESSAGES:
        rows_of = table(header.table)
        rows = [
            f"#define NM_{key}"
            f" {json.dumps(format_of(row.template, header.number), ensure_ascii=False)}\n"
            for key, row in vars(rows_of).items()
            if isinstance(row, form.Message)
        ]
        top = MESSAGES_TOP.format(table=header.table, room=header.room.upper())
        text, path = f"{top}{''.join(rows)}\n#endif\n", header.path
        if not path.exists() or path.read_text() != text:
            fresh = path.with_name(f".{path.name}.{os.getpid()}")
            fresh.write_text(text)
            fresh.replace(path)


def build_client(output_directory: Path) -> Path:
    """libnodemgr.so, and its copies for the dynamic linkers' $LIB."""
    output = output_directory / "libnodemgr.so"
    with tempfile.TemporaryDirectory() as objects:
        files = compile_objects(sources_of("libnodemgr.so"), SHIM_CFLAGS, Path(objects))
        replace_linked([*compiler(), *map(str, files), *SHIM_LDFLAGS, *SHIM_LIBRARIES], output)
        lay_out(output, output_directory, SHIM_DIRS)
        stub = Path(objects) / "stub.so"
        if (
            subprocess.run(
                [*compiler(), *STUB_FLAGS, "-o", str(stub)], capture_output=True, check=False
            ).returncode
            == 0
        ):
            lay_out(stub, output_directory, STUB_DIRS)
    return output


def lay_out(library: Path, parent: Path, directories: tuple[str, ...]) -> None:
    """A copy of the library as libnodemgr.so in each of these directories."""
    for directory in directories:
        place = parent / directory / "libnodemgr.so"
        place.parent.mkdir(parents=True, exist_ok=True)
        fresh = place.with_name(f".{place.name}.{os.getpid()}")
        shutil.copy(library, fresh)
        fresh.replace(place)


def build_supervisor(output_directory: Path) -> Path:
    output = output_directory / "nodemgr-supervisor"
    sources = map(str, sources_of(output.name))
    replace_linked([*compiler(), *CFLAGS, *INCLUDES, *SUPERVISOR_FLAGS, *sources, "-ldl"], output)
    return output


def build_runner(output_directory: Path) -> Path:
    output = output_directory / "nodemgr-runner"
    sources = map(str, sources_of(output.name))
    replace_linked(
        [*compiler(), *CFLAGS, *INCLUDES, *SHIM_CFLAGS, *RUNNER_FLAGS, *sources, *SHIM_LIBRARIES],
        output,
    )
    return output


def build_simulator(output_directory: Path) -> list[Path]:
    """The simulated libraries, and examples/hold.c as the demo's CUDA program."""
    output_directory.mkdir(parents=True, exist_ok=True)
    outputs: list[Path] = []
    if (CSRC / "sim" / "build.py").exists():
        outputs += load(CSRC / "sim" / "build.py", "csrc.sim.build").build(
            output_directory, shlex.join(compiler())
        )
    hold = ROOT / "examples" / "hold.c"
    if hold.exists():
        outputs.append(output_directory / "hold")
        libraries = [str(output_directory / "libcuda.so.1")] if outputs[:-1] else []
        replace_linked([*compiler(), *CFLAGS, str(hold), *libraries, "-ldl"], outputs[-1])
    return outputs


def copy_client(output_directory: Path) -> None:
    """The client's two folders, which an installation has inside the package."""
    for name in CLIENT:
        shutil.copytree(
            ROOT / name,
            output_directory / name,
            ignore=shutil.ignore_patterns("__pycache__", "_lib", "_bin"),
        )


def copy_examples(output_directory: Path) -> None:
    """The demo's Python programs: data to an installation, which has no examples/ beside it."""
    shutil.copytree(
        ROOT / "examples",
        output_directory,
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("__pycache__", "*.c"),
    )


def cffi_declarations() -> str:
    """The declarations of the headers between their marks.

    Each declaration stands once, in its header.
    """
    parts = []
    for header in NATIVE_HEADERS:
        text = (CSRC / header).read_text()
        parts += [
            piece.split("/* cffi: end */")[0] for piece in text.split("/* cffi: begin */")[1:]
        ]
    opaque = [f"struct {name};" for name in ("nm_limits", "nm_usage", "nm_shares", "nm_turns")]
    return "\n".join([*opaque, *parts])


def write_native(path: Path) -> None:
    """The extension's C source."""
    from cffi import FFI

    ffi = FFI()
    ffi.cdef(cffi_declarations())
    includes = "".join(f'#include "{header}"\n' for header in NATIVE_HEADERS)
    ffi.set_source("nodemgr._native", includes)
    ffi.emit_c_code(str(path))


class BuildPy(build_py):
    """build_py into an empty folder: build/ of an earlier build has modules that are no more."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class BuildExt(build_ext):
    """build_ext, and the outputs that no Python imports."""

    def native(self) -> Extension:
        (extension,) = self.extensions
        return extension

    def finalize_options(self) -> None:
        super().finalize_options()
        extension = self.native()
        extension.py_limited_api = True
        extension.sources = [str(path.relative_to(ROOT)) for path in sources_of("_native")]
        extension.include_dirs = ["csrc"]
        extension.define_macros = [("_GNU_SOURCE", ""), ("Py_LIMITED_API", "0x030b0000")]
        extension.extra_compile_args = ["-std=gnu11", "-O2", "-fvisibility=hidden"]

    def build_extension(self, ext: Any) -> None:
        temporary = Path(self.build_temp)
        temporary.mkdir(parents=True, exist_ok=True)
        source = temporary / "_native.c"
        write_native(source)
        ext.sources = [*ext.sources, str(source)]
        super().build_extension(ext)

    def run(self) -> None:
        check_compiler()
        # for the extension too: setuptools would take the one that built this Python
        os.environ["CC"] = shlex.join(compiler())
        write_messages()
        super().run()
        package, client = ROOT / "nodemgr", ROOT
        if not (self.inplace or self.editable_mode):
            package = Path(self.build_lib) / "nodemgr"
            client = package / "_client"
            copy_client(client)
            copy_examples(package / "_examples")
        build_client(client / "client_plugin" / "_lib")
        build_supervisor(package / "_bin")
        build_runner(client / "client_plugin" / "_bin")
        build_simulator(package / "_sim")


def main() -> None:
    os.chdir(ROOT)
    distribution = Distribution(
        {"name": "nodemgr", "ext_modules": [Extension("nodemgr._native", [])]}
    )
    with tempfile.TemporaryDirectory() as temporary:
        command = BuildExt(distribution)
        command.inplace = True
        command.build_temp = temporary
        command.ensure_finalized()
        command.run()


if __name__ == "__main__":
    main()
