"""Copies of the installed client, for containers and for programs of this node.

A running container, and a running program with its children, keep the copy that they began with.

Knows: the directories of the client, and that an upgrade removes the installed ones: a mount of
them is empty from then on, and every program of a running container would continue without the
client. Must not know: the places where a copy is mounted or named.

They lie beside the store, not in the run directory: /run may be mounted noexec, and a container
that starts before the manager finds its copy after a boot. An earlier copy for containers is
removed when the kernel shows no mount of it in any process's view of the file system; the copy
before this one never, since a container may be starting with it at this moment. An earlier copy for
programs is removed after a boot: until then a program may name it to its children.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

from client_plugin.ways.locations import NOT_LISTABLE
from client_plugin.ways.locations import renew_client as renew_client
from nodemgr.edge.host import stderr_log
from nodemgr.edge.host.rundir import RunDirError, make_open, own_directory
from nodemgr.edge.kernel.process_locations import container_in
from nodemgr.paths import client_dir, payload_dir

PARTS = ("client_plugin", "sitecustomize")
CLIENT_DIR = "client"
CURRENT = "current"
NAME_DIGITS = 16
_NAME = re.compile(f"[0-9a-f]{{{NAME_DIGITS}}}")
CACHE = "__pycache__"
LOCK = ".lock"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def current(state_dir: Path) -> Path:
    """The path of the client for containers.

    It is always the same, because it stands in the specifications of pods.
    """
    return state_dir / CLIENT_DIR / CURRENT


def place(source: Path, state_dir: Path) -> None:
    """Makes `current` a copy of `source`. Raises OSError."""
    link = current(state_dir)
    make_open(link.parent)
    copy = link.parent / _version(source)
    if not copy.is_dir():
        _copy(source, copy)
    before = link.readlink().name if link.is_symlink() else copy.name
    _point(link, copy.name)
    _remove_unused(link.parent, {copy.name, before})


def for_programs(state_dir: Path) -> Path | None:
    """The copy of the client for this node's programs; None: they load the installed one."""
    directory = client_dir(state_dir)
    try:
        if any(letter in str(directory) for letter in NOT_LISTABLE):
            raise OSError(f"no path with a blank, ':' or '$' can be preloaded: {directory}")
        own_directory(directory, 0o755)
        return place_for_programs(payload_dir(), directory)
    except (OSError, RunDirError) as error:
        stderr_log.say(
            f"programs load the installed client, which an upgrade takes away: {error}",
            "see state_dir in the settings, and run nodemgr setup again",
        )
        return None


def place_for_programs(source: Path, directory: Path) -> Path:
    """Returns the copy of `source` in `directory`, by content. Raises OSError.

    Several managers may have one directory. A copy without a boot file, of a manager that was
    killed, gets one, and is removed after the next boot.
    """
    make_open(directory)
    copy, boot = directory / _version(source), BOOT_ID.read_text()
    with _alone(directory):
        if not copy.is_dir():
            _copy(source, copy)
        _boot_of(copy).write_text(boot)
        for other in directory.iterdir():
            if not _NAME.fullmatch(other.name) or other == copy:
                continue
            if not _boot_of(other).exists():
                _boot_of(other).write_text(boot)
            elif _boot_of(other).read_text() != boot:
                shutil.rmtree(other, ignore_errors=True)
                _boot_of(other).unlink()
    return copy


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """One manager at a time. Only its user can open the file, and hold the others up."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(directory / LOCK, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _boot_of(copy: Path) -> Path:
    """The file with the last boot in which this copy was current."""
    return copy.with_name(f"{copy.name}.boot")


def _files(source: Path) -> list[Path]:
    found = (
        path
        for part in PARTS
        for path in (source / part).rglob("*")
        if path.is_file() and CACHE not in path.parts
    )
    return sorted(found)


def _version(source: Path) -> str:
    """The version by content: two builds of one version differ, too."""
    return _installed() if source == payload_dir() else _digest(source)


@cache
def _installed() -> str:
    """The installed client's version at the start: an upgrade counts for the next manager."""
    return _digest(payload_dir())


def _digest(source: Path) -> str:
    whole = hashlib.sha256()
    for path in _files(source):
        content = path.read_bytes()
        whole.update(f"{path.relative_to(source)}\0{len(content)}\0".encode())
        whole.update(content)
    return whole.hexdigest()[:NAME_DIGITS]


def _copy(source: Path, copy: Path) -> None:
    """Copy all files, or none; Python's compiled files go with it.

    Containers cannot write there. Every user may read it, under any umask of the installation.
    """
    fresh = copy.with_name(f".{copy.name}")
    shutil.rmtree(fresh, ignore_errors=True)  # of a manager that was killed here
    for part in PARTS:
        shutil.copytree(source / part, fresh / part)
    for path in (fresh, *fresh.rglob("*")):
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    fresh.rename(copy)


def _remove_unused(directory: Path, used: Collection[str]) -> None:
    others = [
        path for path in directory.iterdir() if _NAME.fullmatch(path.name) and path.name not in used
    ]
    if others and (mounts := _all_mounts()) is not None:
        for copy in others:
            if f"/{CLIENT_DIR}/{copy.name}" not in mounts:
                shutil.rmtree(copy, ignore_errors=True)


def _all_mounts(proc: Path = Path("/proc")) -> str | None:
    """The mounts that the processes of this node see.

    None if they cannot be read for a process in a container.
    """
    seen: dict[int, str] = {}
    for process in proc.iterdir():
        try:
            if (
                process.name.isdigit()
                and (namespace := (process / "ns" / "mnt").stat().st_ino) not in seen
            ):
                seen[namespace] = (process / "mountinfo").read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except OSError:
            if container_in(_read(process / "cgroup")) is not None:
                return None
    return "".join(seen.values())


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _point(link: Path, name: str) -> None:
    if link.is_symlink() and os.readlink(link) == name:
        return
    fresh = link.with_name(f".{link.name}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(name)
    fresh.rename(link)
