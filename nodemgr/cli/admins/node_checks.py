"""The doctor's checks of the node's kernel, and of barriers between a container and the manager.

Knows: /proc, /sys and a few system calls. Must not know: the manager, the client, the form of
results.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from pathlib import Path

from nodemgr.cli.admins.checks import ON_NODE, CheckResult, InstallationCheck, Subject
from nodemgr.edge.kernel.cgroups import MOUNTINFO, hierarchies
from nodemgr.edge.kernel.processes import SO_PEERPIDFD
from nodemgr.paths import container_dir

F_ADD_SEALS, F_SEAL_FUTURE_WRITE = 1033, 0x10
SELINUX_ENFORCE = Path("/sys/fs/selinux/enforce")
CONTAINER_LABEL = "container_file_t"


def kernel(_subject: Subject) -> CheckResult:
    for name, tried in (
        ("sealed memory (memfd, F_SEAL_FUTURE_WRITE)", _seals),
        ("pidfd_open", _opens_pidfd),
    ):
        try:
            tried()
        except OSError as error:
            return CheckResult(False, f"{name}: {error.strerror}")
    return CheckResult(True, f"sealed memory and pidfds work; {_peer_pidfd()}")


def _seals() -> None:
    fd = os.memfd_create("nodemgr-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE)
    finally:
        os.close(fd)


def _opens_pidfd() -> None:
    os.close(os.pidfd_open(os.getpid()))


def _peer_pidfd() -> str:
    """Whether the kernel has SO_PEERPIDFD, which is optional.

    Without it the manager looks the peer up by its PID, and then checks that the PID still means
    the same process.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        try:
            os.close(ours.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD))
        except OSError as error:
            return (
                "a socket does not name its peer by pidfd"
                if error.errno == errno.ENOPROTOOPT
                else f"SO_PEERPIDFD: {error.strerror}"
            )
    return "a socket names its peer by pidfd"


CGROUP_WORDS = {
    "v2": "version 2",
    "hybrid": "version 2 beside controllers of version 1",
    "v1": "version 1 alone: no device gate, and the driver cannot limit containers itself",
}


def control_groups(_subject: Subject, mountinfo: Path = MOUNTINFO) -> CheckResult:
    found = hierarchies(mountinfo)
    return CheckResult(
        found.mode in CGROUP_WORDS,
        CGROUP_WORDS.get(found.mode, "none is mounted: containers cannot be told apart"),
    )


def selinux(subject: Subject, enforce: Path = SELINUX_ENFORCE) -> CheckResult:
    """Enforcing, it lets a container open only what is labelled for containers."""
    try:
        is_enforcing = enforce.read_text().strip() == "1"
    except OSError:
        return CheckResult(True, "not here")
    if not is_enforcing:
        return CheckResult(True, "permissive")
    directory = container_dir(subject.run_dir, "any").parent
    label = _label(directory)
    return CheckResult(
        label is not None and CONTAINER_LABEL in label,
        f"enforcing; {directory} is {label or 'without a label'}",
    )


def _label(path: Path) -> str | None:
    try:
        return os.getxattr(path, "security.selinux").rstrip(b"\0").decode("ascii", "replace")
    except OSError:
        return None


NODE_CHECKS = (
    InstallationCheck(
        "kernel",
        ON_NODE,
        kernel,
        "Linux 5.4 or newer is needed, and a seccomp profile that allows these calls",
    ),
    InstallationCheck(
        "control groups",
        ON_NODE,
        control_groups,
        "boot with systemd.unified_cgroup_hierarchy=1, or mount cgroup2",
    ),
    InstallationCheck(
        "selinux",
        ON_NODE,
        selinux,
        "start containers with --security-opt label=disable; or label it for them "
        "(semanage fcontext -t container_file_t, restorecon) "
        "and let container_t connect to the manager's sockets by a local policy module",
    ),
)
