"""The manager's own checks of its surroundings, each with its cure. One row a check.

Knows: the store's disk, descriptors, NVML's last reading. Must not know: the asker.
"""

from __future__ import annotations

import grp
import os
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from client_plugin.verbs.presentation.units import format_size
from nodemgr.edge.clients.client_server import RESERVE_DESCRIPTORS
from nodemgr.edge.gpu.gpu_inventory import DriverReading
from nodemgr.edge.host import privileges
from nodemgr.edge.store.database import Store

MIN_FREE_BYTES = 256 * 2**20
MIN_DESCRIPTORS = 4_096
DESCRIPTORS_PER_QUOTA_GPU = 64
"""A rank and some thirty processes around it use CUDA, each with a connection and a pidfd."""
DESCRIPTORS_PER_ENV = 4
"""Two listeners, two ledger files."""
MAX_AGE_NS = 10_000_000_000


@dataclass(frozen=True, slots=True)
class CheckContext:
    """The facts that the checks look at."""

    store: Store
    store_fault: str | None
    reading: DriverReading
    now_ns: int
    descriptors_used: int
    violations: Sequence[str] = ()
    """The findings of the audit, a line each."""
    driver_limits: str = ""
    """The state of the driver's own memory limits."""
    udp: str | None = None
    """The state of UDP clients; None: UDP is off."""
    cdi_file: str = ""
    cdi_fault: str | None = None
    gate: tuple[bool, str] = (True, "")
    """(Whether the device gate is well, its state in one line)."""
    envs: int = 0
    quota_gpus: int = 0
    """The GPUs of all quotas together."""
    group: str = ""
    """The group of the users that may order the manager."""
    env_faults: Sequence[str] = ()
    """Envs with files, sockets or gates in a wrong state."""
    crowds: Sequence[str] = ()
    """Envs with as many connections as they may have, and the owner of most of them."""
    jobs: tuple[bool, str] = (True, "")
    """Whether batch jobs can be started, and by which launcher."""
    unknown: tuple[bool, str] = (True, "")
    """Does the store know all that runs and has run here, and what not."""


@dataclass(frozen=True, slots=True)
class ManagerCheck:
    """`look` returns (whether it is well, what was found)."""

    name: str
    examine: Callable[[CheckContext], tuple[bool, str]]
    cure: str


def _store(around: CheckContext) -> tuple[bool, str]:
    if around.store_fault is None and around.store.is_late():
        return (
            False,
            (
                f"the disk of {around.store.path} does not keep up: every environment is slowed,"
                " tasks that run go on"
            ),
        )
    return around.store_fault is None, around.store_fault or f"{around.store.path} can be written"


def _free_space(around: CheckContext) -> tuple[bool, str]:
    free_bytes = around.store.free_bytes()
    return (
        free_bytes >= MIN_FREE_BYTES,
        f"{format_size(free_bytes)} free beside {around.store.path}",
    )


def _nvml(around: CheckContext) -> tuple[bool, str]:
    if around.reading.fault is not None:
        return False, around.reading.fault
    age_ns = around.now_ns - around.reading.at_ns
    return age_ns < MAX_AGE_NS, f"last answer {age_ns // 1_000_000} ms ago"


def _gpus(around: CheckContext) -> tuple[bool, str]:
    gpus = around.reading.gpus
    ill = [f"{gpu.index} ({gpu.uuid})" for gpu in gpus if not gpu.healthy]
    return bool(gpus) and not ill, f"ill: GPU {', '.join(ill)}" if ill else f"{len(gpus)} healthy"


def _descriptors(around: CheckContext) -> tuple[bool, str]:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    used = around.descriptors_used
    wanted = (
        around.quota_gpus * DESCRIPTORS_PER_QUOTA_GPU
        + around.envs * DESCRIPTORS_PER_ENV
        + RESERVE_DESCRIPTORS
    )
    detail = (
        f"{used} of {limit} in use; the quotas of {around.envs} environments may come to need"
        f" {wanted}"
    )
    return limit >= max(MIN_DESCRIPTORS, wanted) and used < limit - RESERVE_DESCRIPTORS, detail


def _env_files(around: CheckContext) -> tuple[bool, str]:
    return not around.env_faults, "; ".join(around.env_faults) or "as the quotas are"


def _connections(around: CheckContext) -> tuple[bool, str]:
    return not around.crowds, "; ".join(around.crowds) or "no environment has all that it may"


def _group(around: CheckContext) -> tuple[bool, str]:
    try:
        members = grp.getgrnam(around.group).gr_mem
    except KeyError:
        return (
            True,
            f"there is no group {around.group}: the manager's own user and root alone may order it",
        )
    return True, f"{around.group}: {', '.join(members) or 'no members'}"


def _privileges(_around: CheckContext) -> tuple[bool, str]:
    if os.geteuid() != 0:
        return (
            True,
            f"the manager is uid {os.geteuid()}: it sees, and ends, this user's processes alone",
        )
    held = privileges.held()
    beyond = held & ~sum(1 << row.number for row in privileges.RETAINED)
    if beyond:
        return (
            False,
            f"the manager holds {len(privileges.names(beyond))} capabilities that it does not use",
        )
    return True, ", ".join(privileges.names(held)) or "none"


def _audit(around: CheckContext) -> tuple[bool, str]:
    found = around.violations
    return not found, "; ".join(found) or "the driver shows no memory beyond what was granted"


def _udp(around: CheckContext) -> tuple[bool, str]:
    return (
        True,
        around.udp
        or "off (nodemgr serve --udp HOST:PORT): every client shares a directory with this node",
    )


def _driver_limits(around: CheckContext) -> tuple[bool, str]:
    return True, around.driver_limits


def _containers(around: CheckContext) -> tuple[bool, str]:
    return (
        around.cdi_fault is None,
        around.cdi_fault or f"{around.cdi_file} says what they are shown",
    )


def _gate(around: CheckContext) -> tuple[bool, str]:
    return around.gate


def _jobs(around: CheckContext) -> tuple[bool, str]:
    return around.jobs


def _unknown(around: CheckContext) -> tuple[bool, str]:
    return around.unknown


CHECKS = (
    ManagerCheck(
        "store",
        _store,
        "make room or repair the disk under --state-dir; running tasks go on meanwhile",
    ),
    ManagerCheck(
        "free-space", _free_space, "make room on the disk of --state-dir before grants are refused"
    ),
    ManagerCheck(
        "nvml", _nvml, "see nvidia-smi and dmesg; reload the NVIDIA driver or restart the node"
    ),
    ManagerCheck(
        "gpus",
        _gpus,
        "see dmesg for Xid errors; reset the GPU (nvidia-smi --gpu-reset) or take it out",
    ),
    ManagerCheck(
        "descriptors",
        _descriptors,
        "raise the limit: LimitNOFILE= of the service, ulimit -n before nodemgr serve",
    ),
    ManagerCheck(
        "connections",
        _connections,
        "end the processes that have them, or give each environment more: max_connections_per_env"
        " in the settings",
    ),
    ManagerCheck(
        "environments' files",
        _env_files,
        "mend what it says, then set the quota once more, or restart the manager: no task is lost",
    ),
    ManagerCheck("group", _group, "nothing to do"),
    ManagerCheck(
        "privileges",
        _privileges,
        "see the manager's log for what the kernel refused; start it by its service (nodemgr"
        " setup)",
    ),
    ManagerCheck("driver limits", _driver_limits, "nothing to do: the ledger holds in any case"),
    ManagerCheck(
        "containers",
        _containers,
        "make the directory writable, or name another (cdi_dir) that the container engine reads",
    ),
    ManagerCheck("udp", _udp, "nothing to do"),
    ManagerCheck(
        "device gate",
        _gate,
        "see the manager's log; device_gate in the settings says whether there must be one",
    ),
    ManagerCheck(
        "jobs",
        _jobs,
        "nodemgr setup makes their service, systemctl restart nodemgr-jobs starts it; without"
        " systemd restart the manager: no job is lost",
    ),
    ManagerCheck(
        "known jobs",
        _unknown,
        "look at what it names (nodemgr queue withdraw ends what runs), and move its directory"
        " away; check the disk of --state-dir",
    ),
    ManagerCheck(
        "audit",
        _audit,
        "ask its user to stop it; nodemgr quota set --enforce sets the action against it",
    ),
)


def examine(around: CheckContext) -> list[dict[str, Any]]:
    """All checks; one that cannot look is not well."""
    found = []
    for check in CHECKS:
        try:
            ok, detail = check.examine(around)
        except OSError as error:
            ok, detail = False, str(error)
        found.append({"name": check.name, "ok": ok, "detail": detail, "cure": check.cure})
    return found
