"""A private view of the disk and the network for a command that is only watched.

In namespaces of its own the command sees every directory through an overlay whose upper layer is in
memory, no network but a loopback, and no process but its own. All of it ends with the process that
made it. Knows: mounts, namespaces. Must not know: what the command is, why it is watched.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import shutil
import socket
import stat
import struct
from contextlib import suppress
from typing import Iterator, List, Optional, Sequence, Tuple

from . import isolation
from .isolation import MS_BIND, MS_NODEV, MS_NOSUID, MS_PRIVATE, MS_REC, check, mount

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER = 0x00020000, 0x08000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWUTS = 0x20000000, 0x40000000, 0x04000000
PR_SET_PDEATHSIG = 1
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
LEFT_ALONE = ("/proc", "/sys", "/dev", "/run")
"""Directories of the kernel and of services: read-only, without an overlay."""
TEMPORARY = ("/tmp", "/var/tmp")
MAX_OVERLAYS = 200
MAX_TOP_ENTRIES = 2_000
MAX_COPIED_BYTES = 4 << 20
"""Of a file at the top of a directory with mounts below it; a larger one is read-only there."""

_libc = ctypes.CDLL(None, use_errno=True)


def unshare() -> bool:
    """Namespaces of this process's own; its next child is the first process in them.

    Root needs no user namespace; a root without that right tries one. Returns whether one was made:
    other users' files cannot be copied to an upper layer there. Raises OSError.
    """
    flags = CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWUTS
    user, group = os.geteuid(), os.getegid()
    if user == 0 and _libc.unshare(flags) == 0:
        return False
    check(_libc.unshare(flags | CLONE_NEWUSER))
    for name, text in (
        ("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")
    ):  # fmt: skip
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    return True


def end_with_parent(number: int) -> None:
    """This process gets the signal when the process that forked it ends."""
    _libc.prctl(PR_SET_PDEATHSIG, number)


def confine(
    scratch: str, roots: Optional[List[str]], hidden: Sequence[str], needed: Sequence[str]
) -> List[Tuple[str, str]]:
    """Hide the disk behind overlays; (directory, its upper layer) of each. Raises OSError.

    `hidden`: socket files; `needed`: directories that stay in view below /run.

    `roots`: the directories that have one, and the rest of the disk is read-only; None: all. A
    working directory that takes no files has none where the user could not write to it either, and
    `/` has none: a process stays in the root that it was started with.
    `scratch` is an empty directory: a file system in memory stands there, for this process and its
    children alone.
    """
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mounted = mount_points(_read("/proc/self/mountinfo"))
    here = os.getcwd()
    is_written_to = here != "/" and os.access(here, os.W_OK)
    tops = ["/"] if roots is None else roots
    lower = [(path, _opened(path)) for path in _covered(mounted, tops, here)]
    covered = (*LEFT_ALONE, *dict(lower))
    has_mounts_below = is_written_to and not any(_is_below(here, path) for path in covered)
    isolation.set_read_only("/")
    mount("tmpfs", scratch, "tmpfs", MS_NOSUID | MS_NODEV, f"size={_most_bytes()}")
    own = _opened(scratch)
    layers = []
    if has_mounts_below and _overlay_above_mounts(here, mounted, f"/proc/self/fd/{own}/top"):
        layers.append((here, os.path.join(scratch, "top", "upper")))
    for number, (path, directory) in enumerate(lower):
        upper = f"/proc/self/fd/{own}/{number}"
        if _overlay(path, directory, upper):
            layers.append((path, os.path.join(scratch, str(number), "upper")))
        os.close(directory)
    for number, path in enumerate(_socket_directories(hidden, mounted, covered), len(lower)):
        with suppress(OSError):  # out of reach, or gone
            directory = _opened(path)
            if _overlay(path, directory, f"/proc/self/fd/{own}/{number}"):
                isolation.set_read_only(path)
            os.close(directory)
    if is_written_to and not any(_is_below(here, path) for path, _ in layers):
        raise OSError(errno.EINVAL, f"no overlay can stand on {here}")
    isolation.hide_devices()
    isolation.guard_kernel()
    isolation.hide_services(hidden, [here, *needed])
    os.makedirs(scratch, exist_ok=True)
    mount(f"/proc/self/fd/{own}", scratch, None, MS_BIND)
    os.close(own)
    _loopback_up()
    socket.sethostname("localhost")  # torchrun looks its node's name up, which needs a network else
    return layers


def _most_bytes() -> int:
    """The files that the command writes are in memory: at most an eighth of the machine's."""
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8)


def mount_points(mountinfo: str) -> List[str]:
    """The paths of the fifth column of /proc/self/mountinfo; blanks are written in octal there."""
    lines = [line.split() for line in mountinfo.splitlines()]
    return [
        re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), words[4])
        for words in lines
        if len(words) > 4
    ]


def _covered(mounted: Sequence[str], roots: Sequence[str], here: str) -> Iterator[str]:
    """Directories below which nothing is mounted, which together hold the files of the roots.

    An overlay of a directory would hide what is mounted below it, and a user namespace refuses
    such a one. Those above `here` come first: the number is limited.
    """
    pending, count = [*reversed(roots)], 0
    while pending and count < MAX_OVERLAYS:
        path = pending.pop()
        if path in LEFT_ALONE or os.path.islink(path) or not os.path.isdir(path):
            continue
        below = path.rstrip("/") + "/"
        if not any(point.startswith(below) and point != path for point in mounted):
            count += 1
            yield path
            continue
        with suppress(OSError):  # it stays read-only
            found = [below + name for name in os.listdir(path)]
            pending += sorted(found, key=lambda one: _is_below(here, one))


def _socket_directories(
    sockets: Sequence[str], mounted: Sequence[str], covered: Sequence[str]
) -> List[str]:
    """The directories of sockets that have no overlay yet, and no mounts below them.

    The kernel connects no program to a socket below an overlay, also to one that a service binds
    later.
    """
    found = {os.path.dirname(os.path.realpath(path)) for path in sockets}
    return [
        path
        for path in sorted(found)[:MAX_OVERLAYS]
        if not any(_is_below(path, top) for top in covered)
        and not any(_is_below(point, path) and point != path for point in mounted)
    ]


def own_roots(here: str, user: int) -> List[str]:
    """The highest directories of the user's above the working directory and home, and /tmp.

    Asked outside of a user namespace, where every owner is known.
    """
    found: List[str] = []
    for place in (here, os.path.expanduser("~"), *TEMPORARY):
        path = os.path.realpath(place)
        while (above := os.path.dirname(path)) != "/" and _owner(above) == user:
            path = above
        if (
            path != "/"
            and os.access(path, os.W_OK)
            and not any(_is_below(path, one) for one in found)
        ):
            found.append(path)
    return sorted(found, key=len)  # a directory in /tmp is covered after /tmp


def _owner(path: str) -> int:
    return os.stat(path).st_uid


def _is_below(path: str, root: str) -> bool:
    return os.path.join(path, "").startswith(os.path.join(root, ""))


def _overlay(path: str, lower: int, layer: str) -> bool:
    """Whether an overlay stands at `path` now; a file system that allows none stays read-only."""
    os.makedirs(f"{layer}/upper", exist_ok=True)
    os.makedirs(f"{layer}/work", exist_ok=True)
    status = os.fstat(lower)
    os.chmod(f"{layer}/upper", stat.S_IMODE(status.st_mode))
    if os.geteuid() == 0:
        with suppress(OSError):  # an owner that the namespace does not know
            os.chown(f"{layer}/upper", status.st_uid, status.st_gid)
    options = f"lowerdir=/proc/self/fd/{lower},upperdir={layer}/upper,workdir={layer}/work"
    for more in (",userxattr", ""):
        try:
            mount("overlay", path, "overlay", 0, options + more)
        except OSError:
            continue
        return True
    return False


def _overlay_above_mounts(path: str, mounted: Sequence[str], layer: str) -> bool:
    """Whether an overlay stands on a directory with mounts below it. They stay in view, read-only.

    A user namespace allows no overlay of it: a copy of the directory's own files takes its place.
    """
    below = [point for point in mounted if _is_below(point, path) and point != path]
    outer = [one for one in below if not any(_is_below(one, up) and one != up for up in below)]
    held = [(point, os.open(point, os.O_PATH | os.O_NOFOLLOW)) for point in outer]
    directory = _opened(path)
    is_there = _overlay(path, directory, layer)
    if not is_there:
        os.mkdir(f"{layer}/copy")
        held = _copied_top(path, directory, f"{layer}/copy")
        copy = _opened(f"{layer}/copy")
        is_there = _overlay(path, copy, layer)
        os.close(copy)
    os.close(directory)
    for point, source in held:
        if is_there:
            mount(f"/proc/self/fd/{source}", point, None, MS_BIND | MS_REC)
        os.close(source)
    return is_there


def _copied_top(path: str, directory: int, copy: str) -> List[Tuple[str, int]]:
    """Copy the small files of a directory.

    Returns (path, O_PATH descriptor) of all else, to be bound there. Raises OSError where there are
    too many.
    """
    held = []
    with os.scandir(f"/proc/self/fd/{directory}") as entries:
        for count, entry in enumerate(entries):
            if count == MAX_TOP_ENTRIES:
                raise OSError(errno.E2BIG, f"{path} has mounts below it and too many files")
            target, status = os.path.join(copy, entry.name), entry.stat(follow_symlinks=False)
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), target)
                continue
            if stat.S_ISDIR(status.st_mode):
                os.mkdir(target)
            elif status.st_size <= MAX_COPIED_BYTES and os.access(entry.path, os.R_OK):
                shutil.copy2(entry.path, target)
                continue
            else:
                os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
            held.append((os.path.join(path, entry.name), os.open(entry.path, os.O_PATH)))
    return held


def _opened(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_DIRECTORY)


def written(layers: Sequence[Tuple[str, str]]) -> List[str]:
    """The files that were written or deleted, by the path that the command knows."""
    found = []
    for path, upper in layers:
        for folder, _, names in os.walk(upper):
            place = os.path.join(path, os.path.relpath(folder, upper))
            found += [os.path.normpath(os.path.join(place, name)) for name in names]
    return sorted(found)


def _loopback_up() -> None:
    """torchrun and its like speak with themselves."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        request = struct.pack("16sh22x", b"lo", 0)
        flags = struct.unpack("16sh22x", fcntl.ioctl(link, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(link, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | IFF_UP))


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()
