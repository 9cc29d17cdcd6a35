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

from nodemgr.cli.admins.checks import ON_NODE, CheckResult, InstallationCheck, Subject, root
from nodemgr.edge.kernel.cgroups import MOUNTINFO, hierarchies
from nodemgr.edge.kernel.processes import SO_PEERPIDFD
from nodemgr.edge.setup import installation
from nodemgr.paths import container_dir

F_ADD_SEALS, F_SEAL_FUTURE_WRITE = 1033, 0x10
SELINUX_ENFORCE = Path("/sys/fs/selinux/enforce")
CONTAINER_LABEL = "container_file_t"


def kernel(_subject: Subject) -> CheckResult:
    try:
        _seals()
    except OSError as error:
        return CheckResult(False, f"sealed memory (memfd, F_SEAL_FUTURE_WRITE): {error.strerror}")
    try:
        _opens_pidfd()
    except OSError as error:
        return CheckResult(False, f"pidfd_open: {error.strerror}")
    return CheckResult(True, _peer_pidfd())


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
                "sealed memory and pidfds work; a socket does not name its peer by pidfd"
                if error.errno == errno.ENOPROTOOPT
                else f"sealed memory and pidfds work; SO_PEERPIDFD: {error.strerror}"
            )
    return "sealed memory and pidfds work; a socket names its peer by pidfd"


CGROUP_MODES = {
    "v2": "version 2",
    "hybrid": "version 2 beside controllers of version 1",
    "v1": "version 1 alone: no device gate, and the driver cannot limit containers itself",
}


def control_groups(_subject: Subject, mountinfo: Path = MOUNTINFO) -> CheckResult:
    found = hierarchies(mountinfo)
    return CheckResult(
        found.mode in CGROUP_MODES,
        CGROUP_MODES.get(found.mode) or "none is mounted: containers cannot be told apart",
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
    if label is None:
        return CheckResult(False, f"enforcing; {directory} is without a label")
    return CheckResult(CONTAINER_LABEL in label, f"enforcing; {directory} is {label}")


def other_users(_subject: Subject) -> CheckResult:
    """A finding is no failure: a node may be for root alone."""
    hidden = installation.hidden_from_others()
    if hidden is not None:
        return CheckResult(None, hidden)
    return CheckResult(True, "all users can read the interpreter and the packages")


def _label(path: Path) -> str | None:
    try:
        return os.getxattr(path, "security.selinux").rstrip(b"\0").decode("ascii", "replace")
    except OSError:
        return None


NODE_CHECKS = (
    InstallationCheck(
        "kernel",
        "Linux 5.4 or newer is needed, and a seccomp profile that allows these calls",
        ON_NODE,
        kernel,
        root,
    ),
    InstallationCheck(
        "control groups",
        "boot with systemd.unified_cgroup_hierarchy=1, or mount cgroup2",
        ON_NODE,
        control_groups,
        root,
    ),
    InstallationCheck(
        "selinux",
        "start containers with --security-opt label=disable; or label it container_file_t "
        "(semanage fcontext, restorecon) and let container_t connect to the manager's sockets "
        "by a local policy",
        ON_NODE,
        selinux,
        root,
    ),
    InstallationCheck(
        "other users", "install nodemgr where all users can read it", ON_NODE, other_users
    ),
)
