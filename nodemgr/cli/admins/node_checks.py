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

from client_plugin.messages.form import MessageLine
from nodemgr.cli.admins.checks import ON_NODE, CheckResult, InstallationCheck, Subject, root
from nodemgr.edge.kernel.cgroups import MOUNTINFO, hierarchies
from nodemgr.edge.kernel.processes import SO_PEERPIDFD
from nodemgr.edge.setup import installation
from nodemgr.messages import doctor as messages
from nodemgr.paths import container_dir

F_ADD_SEALS, F_SEAL_FUTURE_WRITE = 1033, 0x10
SELINUX_ENFORCE = Path("/sys/fs/selinux/enforce")
CONTAINER_LABEL = "container_file_t"


def kernel(_subject: Subject) -> CheckResult:
    try:
        _seals()
    except OSError as error:
        return CheckResult(False, messages.SEALS_FAIL(error=error.strerror))
    try:
        _opens_pidfd()
    except OSError as error:
        return CheckResult(False, messages.PIDFD_FAILS(error=error.strerror))
    return CheckResult(True, _peer_pidfd())


def _seals() -> None:
    fd = os.memfd_create("nodemgr-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE)
    finally:
        os.close(fd)


def _opens_pidfd() -> None:
    os.close(os.pidfd_open(os.getpid()))


def _peer_pidfd() -> MessageLine:
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
                messages.KERNEL_NAMES_NO_PEERS()
                if error.errno == errno.ENOPROTOOPT
                else messages.KERNEL_PEER_FAULT(error=error.strerror)
            )
    return messages.KERNEL_NAMES_PEERS()


CGROUP_MODES = {
    "v2": messages.CGROUP_V2(),
    "hybrid": messages.CGROUP_HYBRID(),
    "v1": messages.CGROUP_V1(),
}


def control_groups(_subject: Subject, mountinfo: Path = MOUNTINFO) -> CheckResult:
    found = hierarchies(mountinfo)
    return CheckResult(
        found.mode in CGROUP_MODES, CGROUP_MODES.get(found.mode) or messages.NO_CGROUP()
    )


def selinux(subject: Subject, enforce: Path = SELINUX_ENFORCE) -> CheckResult:
    """Enforcing, it lets a container open only what is labelled for containers."""
    try:
        is_enforcing = enforce.read_text().strip() == "1"
    except OSError:
        return CheckResult(True, messages.SELINUX_ABSENT())
    if not is_enforcing:
        return CheckResult(True, messages.SELINUX_PERMISSIVE())
    directory = container_dir(subject.run_dir, "any").parent
    label = _label(directory)
    if label is None:
        return CheckResult(False, messages.SELINUX_WITHOUT_LABEL(directory=directory))
    return CheckResult(
        CONTAINER_LABEL in label, messages.SELINUX_ENFORCING(directory=directory, label=label)
    )


def other_users(_subject: Subject) -> CheckResult:
    """A finding is no failure: a node may be for root alone."""
    hidden = installation.hidden_from_others()
    if hidden is not None:
        return CheckResult(None, hidden)
    return CheckResult(True, messages.OTHERS_CAN_READ())


def _label(path: Path) -> str | None:
    try:
        return os.getxattr(path, "security.selinux").rstrip(b"\0").decode("ascii", "replace")
    except OSError:
        return None


NODE_CHECKS = (
    InstallationCheck(messages.CHECK_KERNEL, ON_NODE, kernel, root),
    InstallationCheck(messages.CHECK_CONTROL_GROUPS, ON_NODE, control_groups, root),
    InstallationCheck(messages.CHECK_SELINUX, ON_NODE, selinux, root),
    InstallationCheck(messages.CHECK_OTHER_USERS, ON_NODE, other_users),
)
