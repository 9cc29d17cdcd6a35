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
from client_plugin.messages.form import Check, MessageLine, relayed
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
    driver_limits: MessageLine = NO_LIMITS
    """The state of the driver's own memory limits."""
    udp: MessageLine | None = None
    """The state of UDP clients; None: UDP is off."""
    cdi_file: str = ""
    cdi_fault: MessageLine | None = None
    gate: tuple[bool, MessageLine] = (True, NO_GATE)
    """(Whether the device gate is well, its state in one line)."""
    node_gate: tuple[bool, MessageLine] = (True, NO_NODE_GATE)
    envs: int = 0
    quota_gpus: int = 0
    """The GPUs of all quotas together."""
    group: str = ""
    """The group of the users that may order the manager."""
    env_faults: Sequence[str] = ()
    """Envs with files, sockets or gates in a wrong state."""
    crowds: Sequence[str] = ()
    """Envs with as many connections as they may have, and the owner of most of them."""
    jobs: tuple[bool, MessageLine] = (True, OWN_LAUNCHER)
    """Whether batch jobs can be started, and by which launcher."""
    unknown: tuple[bool, MessageLine] = (True, ALL_KNOWN)
    """Does the store know all that runs and has run here, and what not."""
    shares: MessageLine = BY_TURNS
    """How compute shares are kept."""
    suspension: tuple[bool, MessageLine] = (True, SUSPENSION_WORKS)
    """Whether tasks can be suspended; where the driver has no means for it, that is no fault."""
    gpu_faults: Sequence[str] = ()
    """A line for each GPU that failed again and again."""
    gpu_drains: Sequence[str] = ()
    """A line for each GPU that is drained by order of an administrator."""


@dataclass(frozen=True, slots=True)
class ManagerCheck:
    """`examine` returns (whether it is well, the finding); None: neither well nor a fault."""

    row: Check
    examine: Callable[[CheckContext], tuple[bool | None, MessageLine]]


def _store(around: CheckContext) -> tuple[bool, MessageLine]:
    if around.store_fault is None and around.store.is_late():
        return False, messages.STORE_IS_LATE(path=around.store.path)
    if around.store_fault is not None:
        return False, relayed(around.store_fault)
    return True, messages.STORE_IS_WRITTEN(path=around.store.path)


def _free_space(around: CheckContext) -> tuple[bool, MessageLine]:
    free_bytes = around.store.free_bytes()
    return (
        free_bytes >= MIN_FREE_BYTES,
        messages.FREE_BESIDE_STORE(size=format_size(free_bytes), path=around.store.path),
    )


def _nvml(around: CheckContext) -> tuple[bool, MessageLine]:
    if around.reading.fault is not None:
        return False, relayed(around.reading.fault)
    age_ns = around.now_ns - around.reading.at_ns
    return age_ns < MAX_AGE_NS, messages.DRIVER_ANSWERED(age=age_ns // 1_000_000)


def _gpus(around: CheckContext) -> tuple[bool, MessageLine]:
    gpus = around.reading.gpus
    ill = [f"{gpu.index} ({gpu.uuid})" for gpu in gpus if not gpu.healthy]
    if ill:
        return False, messages.GPUS_ILL(gpus=", ".join(ill))
    if around.gpu_faults:
        return False, relayed("; ".join([*around.gpu_faults, *around.gpu_drains]))
    well = messages.GPUS_HEALTHY(count=len(gpus))
    return bool(gpus), relayed("; ".join([well, *around.gpu_drains]))


def _descriptors(around: CheckContext) -> tuple[bool, MessageLine]:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    used = around.descriptors_used
    wanted = (
        around.quota_gpus * DESCRIPTORS_PER_QUOTA_GPU
        + around.envs * DESCRIPTORS_PER_ENV
        + RESERVE_DESCRIPTORS
    )
    detail = messages.DESCRIPTORS_IN_USE(used=used, limit=limit, envs=around.envs, wanted=wanted)
    return limit >= max(MIN_DESCRIPTORS, wanted) and used < limit - RESERVE_DESCRIPTORS, detail


def _env_files(around: CheckContext) -> tuple[bool, MessageLine]:
    return _unless(around.env_faults, messages.AS_THE_QUOTAS_ARE())


def _connections(around: CheckContext) -> tuple[bool, MessageLine]:
    return _unless(around.crowds, messages.NO_CROWD())


def _unless(faults: Sequence[str], well: MessageLine) -> tuple[bool, MessageLine]:
    """The faults, lines of other tables, or `well` where there is none."""
    return not faults, relayed("; ".join(faults)) if faults else well


def _group(around: CheckContext) -> tuple[bool, MessageLine]:
    try:
        members = grp.getgrnam(around.group).gr_mem
    except KeyError:
        return True, messages.NO_GROUP(group=around.group)
    if not members:
        return True, messages.GROUP_EMPTY(group=around.group)
    return True, messages.GROUP_MEMBERS(group=around.group, members=", ".join(members))


def _privileges(_around: CheckContext) -> tuple[bool, MessageLine]:
    if os.geteuid() != 0:
        return True, messages.MANAGER_OF_USER(uid=os.geteuid())
    held = privileges.held()
    beyond = held & ~sum(1 << row.number for row in privileges.RETAINED)
    if beyond:
        return False, messages.UNUSED_RIGHTS(count=len(privileges.names(beyond)))
    names = privileges.names(held)
    return True, messages.RIGHTS_HELD(names=", ".join(names)) if names else messages.RIGHTS_NONE()


def _scheduler(around: CheckContext) -> tuple[bool, MessageLine]:
    return _unless(around.set_aside, messages.NOTHING_SET_ASIDE())


def _audit(around: CheckContext) -> tuple[bool, MessageLine]:
    return _unless(around.violations, messages.NO_VIOLATION())


def _udp(around: CheckContext) -> tuple[bool, MessageLine]:
    return True, around.udp or messages.UDP_OFF()


def _driver_limits(around: CheckContext) -> tuple[bool, MessageLine]:
    return True, around.driver_limits


def _shares(around: CheckContext) -> tuple[bool, MessageLine]:
    return True, around.shares


def _suspension(around: CheckContext) -> tuple[bool, MessageLine]:
    return around.suspension


def _containers(around: CheckContext) -> tuple[bool | None, MessageLine]:
    """None: a simulated node cannot be shared here, which is no fault of the installation."""
    if around.cdi_fault is None:
        return True, messages.CDI_FILE(path=around.cdi_file)
    return None if around.cdi_fault.code == "host" else False, around.cdi_fault


def _gate(around: CheckContext) -> tuple[bool, MessageLine]:
    return around.gate


def _node_gate(around: CheckContext) -> tuple[bool, MessageLine]:
    return around.node_gate


def _jobs(around: CheckContext) -> tuple[bool, MessageLine]:
    return around.jobs


def _unknown(around: CheckContext) -> tuple[bool, MessageLine]:
    return around.unknown


CHECKS = (
    ManagerCheck(messages.CHECK_STORE, _store),
    ManagerCheck(messages.CHECK_FREE_SPACE, _free_space),
    ManagerCheck(messages.CHECK_NVML, _nvml),
    ManagerCheck(messages.CHECK_GPUS, _gpus),
    ManagerCheck(messages.CHECK_DESCRIPTORS, _descriptors),
    ManagerCheck(messages.CHECK_CONNECTIONS, _connections),
    ManagerCheck(messages.CHECK_ENV_FILES, _env_files),
    ManagerCheck(messages.CHECK_GROUP, _group),
    ManagerCheck(messages.CHECK_PRIVILEGES, _privileges),
    ManagerCheck(messages.CHECK_DRIVER_LIMITS, _driver_limits),
    ManagerCheck(messages.CHECK_SHARES, _shares),
    ManagerCheck(messages.CHECK_SUSPENSION, _suspension),
    ManagerCheck(messages.CHECK_CONTAINERS, _containers),
    ManagerCheck(messages.CHECK_UDP, _udp),
    ManagerCheck(messages.CHECK_GATE, _gate),
    ManagerCheck(messages.CHECK_NODE_GATE, _node_gate),
    ManagerCheck(messages.CHECK_JOBS, _jobs),
    ManagerCheck(messages.CHECK_KNOWN_JOBS, _unknown),
    ManagerCheck(messages.CHECK_SCHEDULER, _scheduler),
    ManagerCheck(messages.CHECK_AUDIT, _audit),
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
        found.append(row_of(check.row, ok, detail))
    return found


def row_of(row: Check, ok: bool | None, detail: MessageLine) -> dict[str, Any]:
    """A result with its cure: the verb leaves the cure out where all is well."""
    return {"name": row.what, "ok": ok, "detail": detail, "cure": row.next}
