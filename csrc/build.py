"""The build: one compiler run over csrc, five outputs, and the simulator beside them.

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
- nodemgr: the command in PATH, which starts Python for the rest. libc alone. Beside it lies
  nodemgr-python, whose first line pip writes.
- nodemgr/_sim/: the simulated driver and NVML, and a small CUDA program for the demo.

Before these it writes the messages of the C programs as macros, from their tables in
client_plugin/messages: MESSAGES; and the fields of a request, from client_plugin/fields.py.

Each source is compiled once. `python -m csrc.build` builds in place; `pip install .` and `pip
install -e .` come through csrc/backend.py and BuildExt (both named in pyproject.toml). An
installation has client_plugin/ and sitecustomize/ in nodemgr/_client/. `python -m csrc.build
--check CC...` lets compilers check all sources by -fsyntax-only, where a warning is an error.
"""

from __future__ import annotations

import importlib
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
from pathlib import Path
from string import Formatter
from typing import Any, NamedTuple

from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

from client_plugin import fields
from client_plugin.messages.form import Message
from csrc import toolchain
from csrc.sim import build as simulator
from csrc.toolchain import CSRC, TranslationUnit, compiler

ROOT = CSRC.parent

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
    "nodemgr-supervisor": ("start", "jobs", "supervisor"),
    "nodemgr-runner": ("start", "base", "conf", "wire", "jobs", "runner"),
    "nodemgr": ("start", "front"),
    "_native": ("base", "wire", "ledger", "gate", "manager"),
}
CLIENT = ("client_plugin", "sitecustomize")

# Most of the objects are part of the preloaded library: old symbols of glibc, none bound late.
CFLAGS = (*toolchain.FLAGS, "-O2", "-DNM_OLD_GLIBC", "-fno-plt")
# What programs of root are made of.
HARDENED_ROOMS = ("start", "base", "conf", "wire", "jobs", "supervisor", "runner")
HARDENING = ("-D_FORTIFY_SOURCE=2", "-fstack-protector-strong")
NATIVE_FLAGS = (
    *CFLAGS,
    "-w",  # cffi's text
    "-DPy_LIMITED_API=0x030b0000",
    f"-I{CSRC}",
    *(f"-I{sysconfig.get_path(kind)}" for kind in ("include", "platinclude")),
)
# Preloadable into anything: all symbols bound at load, DT_NEEDED for what old glibcs keep outside
# libc.so.6, our own calls never taken by somebody else's symbol, and never unloaded (a thread of
# ours may be running in it).
LIBRARIES = ["-Wl,--no-as-needed", "-l:libpthread.so.0", "-l:libdl.so.2"]
SHIM_LDFLAGS = [
    "-shared",
    "-Wl,-soname,libnodemgr.so",
    "-Wl,-Bsymbolic",
    "-Wl,-z,now,-z,nodelete,-z,defs",
    *LIBRARIES,
]
# They run as root: after the start, no writable table of addresses is left. csrc/start has their
# first instructions.
PROGRAM_LDFLAGS = ["-pie", "-nostartfiles", "-Wl,-z,now,-z,relro", *LIBRARIES]
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
NATIVE_HEADERS = [
    "wire/wire.h",
    "ledger/ledger.h",
    "gate/gate.h",
    *(
        f"manager/{name}.h"
        for name in ("beats", "gate", "huge", "networks", "peer", "sift", "turns")
    ),
]


def sources_of(artifact: str, csrc: Path = CSRC) -> list[Path]:
    return [path for room in ROOMS[artifact] for path in sorted((csrc / room).glob("*.c"))]


def units(csrc: Path = CSRC) -> list[TranslationUnit]:
    """All sources of ROOMS, each once. An include names its room: "room/file.h"."""
    sources = dict.fromkeys(path for artifact in ROOMS for path in sources_of(artifact, csrc))
    flags = (*CFLAGS, f"-I{csrc}")
    return [
        TranslationUnit(path, (*flags, *HARDENING) if path.parent.name in HARDENED_ROOMS else flags)
        for path in sources
    ]


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
WISHES = CSRC / "wire" / "wishes.def"
WISHES_TOP = """/* wishes.def: the numbers of a request that a variable each names.
 *
 * Made by csrc/build.py from client_plugin/fields.py. Not to be edited.
 */
"""


def format_of(template: str, number: str = "d") -> str:
    """A message's template as a format of printf; one without fields is a text as it stands.

    Raises ValueError where C has no such field.
    """
    if "{" not in template:
        return template  # printed without printf; the compiler warns of `%` in a format
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
    for header in MESSAGES:
        rows_of = importlib.import_module(f"client_plugin.messages.{header.table}")
        rows = [
            f"#define NM_{key}"
            f" {json.dumps(format_of(row.template, header.number), ensure_ascii=False)}\n"
            for key, row in vars(rows_of).items()
            if isinstance(row, Message)
        ]
        top = MESSAGES_TOP.format(table=header.table, room=header.room.upper())
        _write(header.path, f"{top}{''.join(rows)}\n#endif\n")


def wishes() -> str:
    """The text of wire/wishes.def, which stands in the repository (wire/wire.def has its form)."""
    rows = [
        f"NM_WISH({row.wire}, {ord('%') if row.kind == fields.PERCENT else 0}, "
        f'"{row.variable}", {row.per_variable}, {row.least_on_wire}, {row.most_on_wire})\n'
        for row in fields.RUN
        if row.is_plain_wish
    ]
    return WISHES_TOP + "".join(rows)


def _write(path: Path, text: str) -> None:
    """Leaves a file alone that is the same already."""
    if not path.exists() or path.read_text() != text:
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        fresh.write_text(text)
        fresh.replace(path)


def build_client(objects: list[str], output: Path) -> None:
    """libnodemgr.so, and its copies for the dynamic linkers' $LIB."""
    toolchain.link([*objects, *SHIM_LDFLAGS], output)
    lay_out(output, output.parent, SHIM_DIRS)
    with tempfile.TemporaryDirectory() as directory:
        stub = Path(directory, "stub.so")
        command = [*compiler(), *STUB_FLAGS, "-o", str(stub)]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            lay_out(stub, output.parent, STUB_DIRS)


def lay_out(library: Path, parent: Path, directories: tuple[str, ...]) -> None:
    """A copy of the library as libnodemgr.so in each of these directories."""
    for directory in directories:
        place = parent / directory / "libnodemgr.so"
        place.parent.mkdir(parents=True, exist_ok=True)
        fresh = place.with_name(f".{place.name}.{os.getpid()}")
        shutil.copy(library, fresh)
        fresh.replace(place)


def build_front(output_directory: Path) -> Path:
    output = output_directory / "nodemgr"
    sources = map(str, sources_of(output.name))
    toolchain.link([*CFLAGS, f"-I{CSRC}", *HARDENING, *sources, *PROGRAM_LDFLAGS], output)
    return output


def build_simulator(output_directory: Path) -> None:
    """The simulated libraries, and examples/hold.c as the demo's CUDA program."""
    cuda, *_ = simulator.build(output_directory)
    sources = [str(ROOT / "examples" / "hold.c"), str(CSRC / "start" / "start.c")]
    flags = [*CFLAGS, f"-I{CSRC}", "-include", str(CSRC / "base" / "prim.h")]
    words = [*flags, *sources, str(cuda), *PROGRAM_LDFLAGS]
    toolchain.link(words, output_directory / "hold")


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
        extension.extra_link_args = LIBRARIES
        self.force = True  # its objects are new

    def run(self) -> None:
        toolchain.check()
        # for the extension too: setuptools would take the one that built this Python
        os.environ["CC"] = shlex.join(compiler())
        write_messages()
        _write(WISHES, wishes())
        with tempfile.TemporaryDirectory() as directory:
            native = Path(directory, "_native.c")
            write_native(native)
            compiled = toolchain.compile_all(
                [TranslationUnit(native, NATIVE_FLAGS), *units()], native.parent
            )
            objects = {
                artifact: [compiled[source] for source in sources_of(artifact)]
                for artifact in ROOMS
            }
            self.native().extra_objects = [compiled[native], *objects["_native"]]
            super().run()
            self.build_others(objects)

    def build_others(self, objects: dict[str, list[str]]) -> None:
        package, client = ROOT / "nodemgr", ROOT
        if not (self.inplace or self.editable_mode):
            package = Path(self.build_lib) / "nodemgr"
            client = package / "_client"
            copy_client(client)
            copy_examples(package / "_examples")
        build_client(objects["libnodemgr.so"], client / "client_plugin" / "_lib" / "libnodemgr.so")
        for name, directory in (
            ("nodemgr-supervisor", package),
            ("nodemgr-runner", client / "client_plugin"),
        ):
            toolchain.link([*objects[name], *PROGRAM_LDFLAGS], directory / "_bin" / name)
        build_simulator(package / "_sim")


bdist_wheel: Any = Distribution().get_command_class("bdist_wheel")


class BdistWheel(bdist_wheel):
    """bdist_wheel, whose platform names the oldest glibc that loads all that the wheel brings."""

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, system = super().get_tag()
        packed = [path for path in Path(self.bdist_dir or "").rglob("*") if toolchain.is_elf(path)]
        needed = toolchain.newest_glibc(packed) if system.startswith("linux_") else None
        if needed is not None:
            system = system.replace("linux", f"manylinux_{needed[0]}_{needed[1]}", 1)
        return python, abi, system


build_scripts: Any = Distribution().get_command_class("build_scripts")


class BuildScripts(build_scripts):
    """build_scripts, and the command itself, which is no text."""

    def run(self) -> None:
        super().run()
        build_front(Path(self.build_dir).absolute())


def build_in_place() -> None:
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


def check_sources(compilers: list[str]) -> None:
    """Raises SystemExit where a compiler warns."""
    write_messages()
    _write(WISHES, wishes())
    with tempfile.TemporaryDirectory() as directory:
        checked = [*units(), *simulator.units(Path(directory))]
        for os.environ["CC"] in compilers:
            toolchain.compile_all(checked, Path(directory), "-fsyntax-only", "-Werror")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        check_sources(sys.argv[2:])
    else:
        build_in_place()
