"""Whether a program can take a preloaded library, from its file alone.

Knows: #! lines, the ELF header, where a dynamic loader's name stands. Must not know: what is preloaded, or why.
"""

from __future__ import annotations

import enum
import os
import shutil
import stat
import struct
from pathlib import Path

MAX_INTERPRETERS = 4
"""The kernel follows as many #! lines."""
_PT_INTERP = 3
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")


class Preload(enum.Enum):
    """What a preloaded 64-bit glibc library meets in a program."""

    WORKS = "works"
    STATIC = "static"
    """No dynamic loader: ignored there, but children may take it."""
    MUSL = "musl"
    """Another C library: its loader would try, and end the program."""
    FOREIGN = "foreign"
    """Another machine or word size: the loader says so and goes on without."""
    PRIVILEGED = "privileged"
    """setuid, setgid: the loader ignores what the caller preloads."""


def preload(program: Path, library: Path) -> Preload:
    """How `program` (a path that exists) meets `library`. What cannot be read is believed to work."""
    try:
        image = _image(program, os.environ.get("PATH"))
        status = image.stat()
        if _privileged(status):
            return Preload.PRIVILEGED
        return _elf(image, library)
    except (OSError, struct.error):
        return Preload.WORKS


def _image(program: Path, path: str | None) -> Path:
    """The ELF file that the kernel will start: behind #! lines, and behind `env` in one."""
    for _ in range(MAX_INTERPRETERS):
        with program.open("rb") as file:
            line = file.readline(256)
        if not line.startswith(b"#!"):
            break
        words = line[2:].decode(errors="replace").split()
        if not words:
            break
        program = Path(words[0])
        if program.name == "env":
            named = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), None)
            found = shutil.which(named, path=path) if named else None
            program = Path(found) if found else program
    return program


def _privileged(status: os.stat_result) -> bool:
    return bool(
        (status.st_mode & stat.S_ISUID and status.st_uid != os.geteuid())
        or (status.st_mode & stat.S_ISGID and status.st_gid != os.getegid())
    )


def _elf(image: Path, library: Path) -> Preload:
    with image.open("rb") as file:
        head = file.read(_HEADER.size)
        if head[:4] != b"\x7fELF":
            return Preload.WORKS  # no ELF: the kernel or a shell knows what to do with it
        if _kind(head) != _kind(library.read_bytes()[: _HEADER.size] if library.is_file() else head):
            return Preload.FOREIGN
        fields = _HEADER.unpack(head)
        start, size, count = fields[5], fields[9], fields[10]
        for index in range(count):
            file.seek(start + index * size)
            kind, _, offset, _, _, length, _, _ = _PROGRAM_HEADER.unpack(file.read(_PROGRAM_HEADER.size))
            if kind == _PT_INTERP:
                file.seek(offset)
                return Preload.MUSL if b"ld-musl" in file.read(min(length, 4_096)) else Preload.WORKS
    return Preload.STATIC


def _kind(head: bytes) -> bytes:
    """Word size, byte order and machine."""
    return head[4:6] + head[18:20]
