"""Whether a program can take a preloaded library, from its file alone.

Knows: #! lines, the ELF header, where a dynamic loader's name stands. Must not know: what is preloaded, or why.
"""

from __future__ import annotations

import enum
import os
import stat
import struct

from client_plugin.verbs.programs import which

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

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
    """Another C library: its loader does not find the library (places.preload_entry)."""
    FOREIGN = "foreign"
    """Another machine or word size: the loader says so and goes on without."""
    PRIVILEGED = "privileged"
    """setuid, setgid: the loader ignores what the caller preloads."""


def preload(program: str, library: str) -> Preload:
    """How `program` (a path that exists) meets `library`. What cannot be read is believed to work."""
    try:
        image = _image(program, os.environ.get("PATH"))
        status = os.stat(image)
        if _privileged(status):
            return Preload.PRIVILEGED
        return _elf(image, library)
    except (OSError, struct.error):
        return Preload.WORKS


def _image(program: str, path: Optional[str]) -> str:
    """The ELF file that the kernel will start: behind #! lines, and behind `env` in one."""
    for _ in range(MAX_INTERPRETERS):
        with open(program, "rb") as file:
            line = file.readline(256)
        if not line.startswith(b"#!"):
            break
        words = line[2:].decode(errors="replace").split()
        if not words:
            break
        program = words[0]
        if os.path.basename(program) == "env":
            named = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), None)
            found = which(named, path) if named else None
            program = found or program
    return program


def _privileged(status: os.stat_result) -> bool:
    return bool(
        (status.st_mode & stat.S_ISUID and status.st_uid != os.geteuid())
        or (status.st_mode & stat.S_ISGID and status.st_gid != os.getegid())
    )


def _elf(image: str, library: str) -> Preload:
    with open(image, "rb") as file:
        head = file.read(_HEADER.size)
        if head[:4] != b"\x7fELF":
            return Preload.WORKS  # no ELF: the kernel or a shell knows what to do with it
        if _kind(head) != _kind(_head(library) if os.path.isfile(library) else head):
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


def _head(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(_HEADER.size)


def _kind(head: bytes) -> bytes:
    """Word size, byte order and machine."""
    return head[4:6] + head[18:20]
