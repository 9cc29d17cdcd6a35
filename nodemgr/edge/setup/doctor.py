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

from client_plugin.messages import doctor as findings
from client_plugin.messages.form import relayed
from client_plugin.units import format_size
from nodemgr.edge.clients.client_server import RESERVE_DESCRIPTORS
from nodemgr.edge.gpu.gpu_inventory import DriverReading
from nodemgr.edge.host import privileges
from nodemgr.edge.store.database import Store
from nodemgr.messages import doctor as messages

MIN_FREE_BYTES = 256 * 2**20
MIN_DESCRIPTORS = 4_096
DESCRIPTORS_PER_QUOTA_GPU = 64
"""A rank and some thirty processes around it use CUDA, each with a connection and a pidfd."""
DESCRIPTORS_PER_ENV = 4
"""Two listeners, two ledger files."""
MAX_AGE_NS = 10_000_000_000
NO_LIMITS, NO_GATE = messages.DRIVER_KEEPS_NO_LIMITS(), messages.GATE_OFF_BY_SETTING()
NO_NODE_GATE = messages.NODE_GATE_OFF()
BY_TURNS = messages.SHARES_BY_TURNS()
SUSPENSION_WORKS = messages.SUSPENSION_WORKS()
OWN_LAUNCHER = messages.JOBS_BY_OWN_LAUNCHER(limits=messages.JOBS_IN_CGROUPS())
ALL_KNOWN = messages.ALL_JOBS_KNOWN()


@dataclass(frozen=True, slots=True)
class CheckContext:
    """The facts that the checks look at."""

    store: Store
    store_fault: str | None
    reading: DriverReading
    now_ns: int
    descriptors_used: int
    set_aside: Sequence[str] = ()
    """The waiting entries that passes leave out after a fault, a line each."""
    violations: Sequence[str] = ()
    """The findings of the audit, a line each."""
    driver_limits: str = NO_LIMITS
    """The state of the driver's own memory limits."""
    udp: str | None = None
    """The state of UDP clients; None: UDP is off."""
    cdi_file: str = ""
    cdi_fault: str | None = None
    gate: tuple[bool, str] = (True, NO_GATE)
    """(Whether the device gate is well, its state in one line)."""
    node_gate: tuple[bool, str] = (True, NO_NODE_GATE)
    envs: int = 0
    quota_gpus: int = 0
    """The GPUs of all quotas together."""
    group: str = ""
    """The group of the users that may order the manager."""
    env_faults: Sequence[str] = ()
    """Envs with files, sockets or gates in a wrong state."""
    crowds: Sequence[str] = ()
    """Envs with as many connections as they may have, and the owner of most of them."""
    jobs: tuple[bool, str] = (True, OWN_LAUNCHER)
    """Whether batch jobs can be started, and by which launcher."""
    unknown: tuple[bool, str] = (True, ALL_KNOWN)
    """Does the store know all that runs and has run here, and what not."""
    shares: str = BY_TURNS
    """How compute shares are kept."""
    suspension: tuple[bool, str] = (True, SUSPENSION_WORKS)
    """Whether tasks can be suspended; where the driver has no means for it, that is no fault."""
    gpu_faults: Sequence[str] = ()
    """A line for each GPU that failed again and again."""
    gpu_drains: Sequence[str] = ()
    """A line for each GPU that is drained by order of an administrator."""


@dataclass(frozen=True, slots=True)
class ManagerCheck:
    """`examine` returns (whether it is well, the finding); None: neither well nor a fault."""

    name: str
    cure: str
    examine: Callable[[CheckContext], tuple[bool | None, str]]


def _store(around: CheckContext) -> tuple[bool, str]:
    if around.store_fault is None and around.store.is_late():
        return (
            False,
            f"the disk of {around.store.path} does not keep up: every environment is slowed, tasks "
            "that run go on",
        )
    if around.store_fault is not None:
        return False, relayed(around.store_fault)
    return True, f"{around.store.path} can be written"


def _free_space(around: CheckContext) -> tuple[bool, str]:
    free_bytes = around.store.free_bytes()
    return (
        free_bytes >= MIN_FREE_BYTES,
        f"{format_size(free_bytes)} free beside {around.store.path}",
    )


def _nvml(around: CheckContext) -> tuple[bool, str]:
    if around.reading.fault is not None:
        return False, relayed(around.reading.fault)
    age_ns = around.now_ns - around.reading.at_ns
    return age_ns < MAX_AGE_NS, f"last answer {age_ns // 1000000} ms ago"


def _gpus(around: CheckContext) -> tuple[bool, str]:
    gpus = around.reading.gpus
    ill = [f"{gpu.index} ({gpu.uuid})" for gpu in gpus if not gpu.healthy]
    if ill:
        return False, f"ill: GPU {', '.join(ill)}"
    if around.gpu_faults:
        return False, relayed("; ".join([*around.gpu_faults, *around.gpu_drains]))
    well = f"{len(gpus)} healthy"
    return bool(gpus), relayed("; ".join([well, *around.gpu_drains]))


def _descriptors(around: CheckContext) -> tuple[bool, str]:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    used = around.descriptors_used
    wanted = (
        around.quota_gpus * DESCRIPTORS_PER_QUOTA_GPU
        + around.envs * DESCRIPTORS_PER_ENV
        + RESERVE_DESCRIPTORS
    )
    detail = f"{used} of {limit} in use; quotas (of {around.envs} in all) may come to need {wanted}"
    return limit >= max(MIN_DESCRIPTORS, wanted) and used < limit - RESERVE_DESCRIPTORS, detail


def _env_files(around: CheckContext) -> tuple[bool, str]:
    return _unless(around.env_faults, "as the quotas are")


def _connections(around: CheckContext) -> tuple[bool, str]:
    return _unless(around.crowds, "no environment has all that it may")


def _unless(faults: Sequence[str], well: str) -> tuple[bool, str]:
    """The faults, lines of other tables, or `well` where there is none."""
    return not faults, relayed("; ".join(faults)) if faults else well


def _group(around: CheckContext) -> tuple[bool, str]:
    try:
        members = grp.getgrnam(around.group).gr_mem
    except KeyError:
        return (
            True,
            f"there is no group {around.group}: the manager's own user and root alone may order it",
        )
    if not members:
        return True, f"{around.group}: no members"
    return True, f"{around.group}: {', '.join(members)}"


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
    names = privileges.names(held)
    return True, f"the manager holds {', '.join(names)}" if names else "the manager holds none"


def _scheduler(around: CheckContext) -> tuple[bool, str]:
    return _unless(around.set_aside, "no waiting entry is set aside after a fault")


def _audit(around: CheckContext) -> tuple[bool, str]:
    return _unless(around.violations, "the driver shows no memory beyond what was granted")


def _udp(around: CheckContext) -> tuple[bool, str]:
    return (
        True,
        around.udp
        or "off (nodemgr serve --udp HOST:PORT): every client shares a directory with this node",
    )


def _driver_limits(around: CheckContext) -> tuple[bool, str]:
    return True, around.driver_limits


def _shares(around: CheckContext) -> tuple[bool, str]:
    return True, around.shares


def _suspension(around: CheckContext) -> tuple[bool, str]:
    return around.suspension


def _containers(around: CheckContext) -> tuple[bool | None, str]:
    """None: a simulated node cannot be shared here, which is no fault of the installation."""
    if around.cdi_fault is None:
        return True, f"{around.cdi_file} names all that they get"
    return None if getattr(around.cdi_fault, "code", "") == "host" else False, around.cdi_fault


def _gate(around: CheckContext) -> tuple[bool, str]:
    return around.gate


def _node_gate(around: CheckContext) -> tuple[bool, str]:
    return around.node_gate


def _jobs(around: CheckContext) -> tuple[bool, str]:
    return around.jobs


def _unknown(around: CheckContext) -> tuple[bool, str]:
    return around.unknown


CHECKS = (
    ManagerCheck(
        "store",
        "make room or repair the disk under --state-dir; running tasks go on meanwhile",
        _store,
    ),
    ManagerCheck(
        "free-space", "make room on the disk of --state-dir before grants are refused", _free_space
    ),
    ManagerCheck(
        "nvml", "see nvidia-smi and dmesg; reload the NVIDIA driver or restart the node", _nvml
    ),
    ManagerCheck(
        "gpus",
        "see dmesg for Xid errors; reset the GPU (nvidia-smi --gpu-reset) or take it out",
        _gpus,
    ),
    ManagerCheck(
        "descriptors",
        "raise the limit: LimitNOFILE= of the service, ulimit -n before nodemgr serve",
        _descriptors,
    ),
    ManagerCheck(
        "connections",
        "end the processes that have them, or give each environment more: "
        "max_connections_per_env in the settings",
        _connections,
    ),
    ManagerCheck(
        "environments' files",
        "mend what it says, then set the quota once more, or restart the manager: no task is lost",
        _env_files,
    ),
    ManagerCheck("group", "nothing to do", _group),
    ManagerCheck(
        "privileges",
        "see the manager's log for what the kernel refused; start it by its service (nodemgr "
        "setup)",
        _privileges,
    ),
    ManagerCheck("driver limits", "nothing to do: the ledger holds in any case", _driver_limits),
    ManagerCheck("compute shares", "nothing to do", _shares),
    ManagerCheck("suspension", "nothing to do", _suspension),
    ManagerCheck(
        "containers",
        "make the directory writable, or name another (cdi_dir) that the container engine reads",
        _containers,
    ),
    ManagerCheck("udp", "nothing to do", _udp),
    ManagerCheck(
        "device gate",
        "see the manager's log; device_gate in the settings says whether there must be one",
        _gate,
    ),
    ManagerCheck(
        "device gate of the node",
        "see the manager's log; gate_node in the settings turns it on",
        _node_gate,
    ),
    ManagerCheck(
        "jobs",
        "nodemgr setup makes their service, systemctl restart nodemgr-jobs starts it; without "
        "systemd restart the manager: no job is lost",
        _jobs,
    ),
    ManagerCheck(
        "known jobs",
        "look at what it names (nodemgr queue withdraw ends what runs), and move its directory "
        "away; check the disk of --state-dir",
        _unknown,
    ),
    ManagerCheck(
        "scheduler",
        "report the fault with the manager's log; all other entries go on without these",
        _scheduler,
    ),
    ManagerCheck(
        "audit",
        "ask its user to stop it; nodemgr quota set --enforce sets the action against it",
        _audit,
    ),
)


def examine(around: CheckContext) -> list[dict[str, Any]]:
    """All checks; one that cannot look is not well."""
    found = []
    for check in CHECKS:
        ok: bool | None
        try:
            ok, detail = check.examine(around)
        except OSError as error:
            ok, detail = False, findings.CHECK_FAILED(error=error)
        found.append(row_of(check.name, check.cure, ok, detail))
    return found


def row_of(name: str, cure: str, ok: bool | None, detail: str) -> dict[str, Any]:
    """A result with its cure: the verb leaves the cure out where all is well."""
    return {"name": name, "ok": ok, "detail": detail, "cure": cure}
