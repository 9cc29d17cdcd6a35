"""Keeps a watched command from services, devices, settings of the kernel, and rights.

Called by the first process of the command's namespaces, after its mounts are its own. Knows:
mounts, capabilities. Must not know: the command, overlays.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from contextlib import suppress
from typing import List, Sequence

MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4_096, 16_384, 1 << 18
MOUNT_SETATTR, AT_RECURSIVE, READ_ONLY = 442, 0x8000, 1
RUN_DIRECTORIES = ("/run", "/var/run")
ENVIRONMENTS = ("NODEMGR_ENV_DIR", "NODEMGR_RUN_DIR")
"""Variables that name directories with sockets of the manager, perhaps those of another network."""
DEVICES = ("full", "null", "random", "tty", "urandom", "zero")
"""All of /dev that a command sees. The rest leads to disks, GPUs and terminals of others."""
LINKS = {"fd": "/proc/self/fd", "ptmx": "pts/ptmx"}
STREAMS = ("stdin", "stdout", "stderr")
KERNEL_SETTINGS = ("bus", "fs", "irq", "sys", "sysrq-trigger")
"""Below /proc: root writes there whatever its capabilities are."""
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
CAP_DAC_OVERRIDE = 1
"""Root keeps this one: a project in a container often belongs to another user."""
CAPABILITY_VERSION = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def sockets() -> List[str]:
    """The socket files of the network namespace that other programs listen on or read from."""
    found = []
    with open("/proc/self/net/unix", "rb") as table:
        for line in table:
            words = line.rstrip(b"\n").split(None, 7)
            if len(words) == 8 and words[7].startswith(b"/"):
                found.append(os.fsdecode(words[7]))
    return sorted(set(found))


def hide_services(found: Sequence[str], needed: Sequence[str]) -> None:
    """No socket of a service is in view: of the manager, an engine of containers, a bus, an agent.

    In /run stay its links and the `needed` directories below it. `found`: sockets elsewhere.
    """
    for directory in {os.path.realpath(path) for path in RUN_DIRECTORIES if os.path.isdir(path)}:
        below = [path for path in map(os.path.realpath, needed) if path.startswith(directory + "/")]
        with os.scandir(directory) as entries:
            links = {each.name: os.readlink(each.path) for each in entries if each.is_symlink()}
        held = [(path, os.open(path, os.O_PATH)) for path in below if os.path.isdir(path)]
        mount("tmpfs", directory, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")
        for name, target in links.items():
            os.symlink(target, os.path.join(directory, name))
        for path, descriptor in held:
            os.makedirs(path, exist_ok=True)
            mount(f"/proc/self/fd/{descriptor}", path, None, MS_BIND | MS_REC)
            os.close(descriptor)
    for path in filter(None, map(os.environ.get, ENVIRONMENTS)):
        with suppress(FileNotFoundError):  # it was below /run, or is gone
            mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, "size=4k")
    for path in found:
        try:
            if stat.S_ISSOCK(os.stat(path).st_mode):
                mount("/dev/null", path, None, MS_BIND)
        except OSError as error:  # out of reach of this user, or gone
            if error.errno not in (errno.EACCES, errno.ENOENT, errno.ENOTDIR):
                raise


def hide_devices() -> None:
    """A /dev with the harmless devices alone, and with terminals and shared memory of its own."""
    held = [
        (name, os.open(f"/dev/{name}", os.O_PATH))
        for name in DEVICES
        if os.path.exists(f"/dev/{name}")
    ]
    mount("tmpfs", "/dev", "tmpfs", MS_NOSUID, "mode=755,size=1m")
    for name, descriptor in held:
        os.close(os.open(f"/dev/{name}", os.O_CREAT | os.O_WRONLY))
        mount(f"/proc/self/fd/{descriptor}", f"/dev/{name}", None, MS_BIND)
        os.close(descriptor)
    for number, name in enumerate(STREAMS):
        os.symlink(f"/proc/self/fd/{number}", f"/dev/{name}")
    for name, target in LINKS.items():
        os.symlink(target, f"/dev/{name}")
    os.mkdir("/dev/shm")
    mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV)
    os.mkdir("/dev/pts")
    with suppress(OSError):  # a container may allow no terminals
        mount("devpts", "/dev/pts", "devpts", MS_NOSUID, "newinstance,ptmxmode=0666,mode=620")


def guard_kernel() -> None:
    """A /proc with the processes of the namespace alone; the kernel's settings are read-only."""
    with suppress(OSError):  # a kernel that hides parts of /proc allows no second one
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV)
    for name in KERNEL_SETTINGS:
        path = f"/proc/{name}"
        if os.path.exists(path):
            mount(path, path, None, MS_BIND | MS_REC)
            set_read_only(path)
    if os.path.exists("/proc/kcore"):
        mount("/dev/null", "/proc/kcore", None, MS_BIND)


def give_up_rights() -> None:
    """The program that this process becomes has no capability but CAP_DAC_OVERRIDE of root.

    Nor has a setuid program that it starts. Raises OSError.
    """
    for number in range(64):
        if number != CAP_DAC_OVERRIDE and _libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
            if ctypes.get_errno() == errno.EINVAL:  # the kernel has no further one
                break
            check(-1)
    check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()
    check(_libc.capget(header, sets))
    right = 1 << CAP_DAC_OVERRIDE
    effective, permitted = sets[0] & right, sets[1] & right
    check(_libc.capset(header, (ctypes.c_uint32 * 6)(effective, permitted, 0, 0, 0, 0)))


def set_read_only(path: str) -> None:
    """The mount at `path` and all below it. Raises OSError."""
    attributes = struct.pack("=QQQQ", READ_ONLY, 0, 0, 0)
    size = ctypes.c_size_t(len(attributes))
    check(_libc.syscall(MOUNT_SETATTR, -1, os.fsencode(path), AT_RECURSIVE, attributes, size))


def mount(source: str, target: str, kind: object, flags: int, options: str = "") -> None:
    """Raises OSError."""
    check(
        _libc.mount(
            os.fsencode(source), os.fsencode(target), os.fsencode(kind or "none"),  # type: ignore[arg-type]
            ctypes.c_ulong(flags), os.fsencode(options) or None,
        )
    )  # fmt: skip


def check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno() or errno.EPERM
        raise OSError(number, os.strerror(number))
