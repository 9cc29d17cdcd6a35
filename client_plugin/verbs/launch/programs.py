"""Find the file of a command's first word, as a shell does, and check it for preloading.

Knows: PATH, #! lines, the ELF header, the place of a dynamic loader's name. Must not know: which
library is preloaded, or why. (shutil has a search of PATH too, but imports every archive format.)
"""

from __future__ import annotations

import enum
import os
import re
import socket
import stat
import struct

from client_plugin.messages.form import stated
from client_plugin.ways.faults import Exit, Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Sequence


INTERPRETERS = {".sh": "bash", ".py": "python3"}
"""The interpreter that starts a script which the system does not start."""
MAX_INTERPRETERS = 4
"""The kernel follows as many #! lines."""
_PT_INTERP = 3
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")


def which(name: str, path: Optional[str] = None, mode: int = os.F_OK | os.X_OK) -> Optional[str]:
    """The first file of that name in `path` (default: PATH) that allows `mode`."""
    for directory in (os.environ.get("PATH", os.defpath) if path is None else path).split(
        os.pathsep
    ):
        found = os.path.join(directory, name)
        if os.access(found, mode) and not os.path.isdir(found):
            return found
    return None


def program_of(name: str) -> str:
    """Raises Fault."""
    if os.sep in name:
        if not os.path.exists(name):
            raise Fault(f"{name}: not found", "check the path of the command", code=Exit.NOT_FOUND)
        if os.path.isdir(name) or not os.access(name, os.X_OK):
            raise _not_executable(name)
        return name
    found = which(name) if name else None
    if found:
        return found
    if name and which(name, mode=os.F_OK):
        raise _not_executable(name)
    or_by = _or_by(name) if os.path.isfile(name) else ""
    raise Fault(
        f"{name}: not found in PATH", f"install it, or name its path{or_by}", code=Exit.NOT_FOUND
    )


def _not_executable(name: str) -> Fault:
    line = stated(f"{name}: not executable", f"name a program that you may execute{_or_by(name)}")
    return Fault(line, code=Exit.NOT_EXECUTABLE)


def _or_by(name: str) -> str:
    """The command that starts a script in any case; empty: it is no script that is known."""
    interpreter = INTERPRETERS.get(os.path.splitext(name)[1])
    return f", or: {interpreter} {name}" if interpreter else ""


class Preload(enum.Enum):
    """The kind of a program, as a preloaded 64-bit glibc library finds it."""

    WORKS = "works"
    STATIC = "static"
    """No dynamic loader: ignored there, but children may take it."""
    MUSL = "musl"
    """Another C library: its loader does not find the library (places.preload_entry)."""
    FOREIGN = "foreign"
    """Another machine or word size: the loader prints a line and goes on without."""
    PRIVILEGED = "privileged"
    """setuid, setgid: the loader ignores what the caller preloads."""


def preload(program: str, library: str) -> Preload:
    """How `program` (a path that exists) meets `library`.

    WORKS for a program that cannot be read.
    """
    try:
        image = image_of(program, os.environ.get("PATH"))
        status = os.stat(image)
        if _privileged(status):
            return Preload.PRIVILEGED
        return _elf(image, library)
    except (OSError, struct.error):
        return Preload.WORKS


def brings_own_root(command: Sequence[str]) -> bool:
    """Whether the command starts an image that has neither the client nor the environment."""
    return os.path.basename(command[0]) in ("apptainer", "singularity") and not any(
        "client_plugin" in word or "/opt/nodemgr" in word for word in command[1:]
    )


def joins_server(command: Sequence[str]) -> bool:
    """Whether tmux or screen hands the command to a server that runs already."""
    name = os.path.basename(command[0])
    if name == "screen":
        return any(re.match("-[A-Za-z]*[rRxD]", word) for word in command[1:])
    if name != "tmux" or any(word[:2] in ("-L", "-S") for word in command[1:]):
        return False
    path = os.path.join(os.environ.get("TMUX_TMPDIR") or "/tmp", f"tmux-{os.geteuid()}", "default")
    with socket.socket(socket.AF_UNIX) as server:
        server.setblocking(False)  # any user can make that path in /tmp, and accept nothing there
        return server.connect_ex(path) == 0


def image_of(program: str, path: Optional[str]) -> str:
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
            named = next(
                (word for word in words[1:] if not word.startswith("-") and "=" not in word), None
            )
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
            return Preload.WORKS  # no ELF: the kernel or a shell runs it
        if _kind(head) != _kind(_head(library) if os.path.isfile(library) else head):
            return Preload.FOREIGN
        fields = _HEADER.unpack(head)
        start, size, count = fields[5], fields[9], fields[10]
        for index in range(count):
            file.seek(start + index * size)
            kind, _, offset, _, _, length, _, _ = _PROGRAM_HEADER.unpack(
                file.read(_PROGRAM_HEADER.size)
            )
            if kind == _PT_INTERP:
                file.seek(offset)
                return (
                    Preload.MUSL if b"ld-musl" in file.read(min(length, 4_096)) else Preload.WORKS
                )
    return Preload.STATIC


def _head(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(_HEADER.size)


def _kind(head: bytes) -> bytes:
    """Word size, byte order and machine."""
    return head[4:6] + head[18:20]
