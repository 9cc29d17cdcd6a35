"""The figures of a view that pass: sensors of the GPUs; memory, use and idle time of the tasks.

Knows: the rules that turn readings of processes into a task's figures. Must not know: NVML, /proc,
clocks. None is a figure that is not known; it never stands for zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nodemgr.core.model.entities import Gpu, Process, ProcessKey, Task, Uuid
from nodemgr.core.state.node_state import State

SCHEMA_VERSION = 1
SECOND_NS = 1_000_000_000
Idle = tuple[int | None, str | None]
"""(seconds, `idle_source`)."""
SAMPLED = "nvml"
"""`idle_source`: the time since NVML last showed a use of the task."""
SAMPLED_AT_LEAST = "nvml_at_least"
"""`idle_source`: NVML has shown no use of the task since readings began; it may be idle longer."""

LAUNCHES = "launches"
"""`idle_source`: the time since the last launch or hooked copy of the task's gated processes."""


class GpuSensors(NamedTuple):
    """The readings of one GPU's sensors."""

    utilization_percent: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None


NO_SENSORS = GpuSensors()


class HostUse(NamedTuple):
    """Use of the host by one process and those of its descendants that hold no lease."""

    cpu_percent: int | None
    """Of one core, since the last reading; None: this is the first."""
    memory_bytes: int
    """Resident memory. Pages that several processes share count several times."""


class CgroupUse(NamedTuple):
    """Use of the host by all processes of a job, as its cgroup counts it."""

    cpu_ms: int
    memory_bytes: int
    """Now, with the page cache."""
    peak_bytes: int | None
    """The most that it was; None: the kernel does not tell."""
    read_bytes: int
    written_bytes: int


class GpuUse(NamedTuple):
    """The use of one GPU by processes, from samples without a gap since `since_ns`."""

    since_ns: int
    percent: Mapping[int, int]
    """By PID, of the last reading; a PID without a sample did not use the GPU."""
    used_ns: Mapping[int, int]
    """By PID: the last reading that showed a use."""


class GateUse(NamedTuple):
    """The figures of one process in the launch gate of one GPU."""

    used_percent: int
    """Of the GPU's time, since the reading before."""
    active_ns: int
    """Its last launch or hooked copy, or the time that the gate has known it, if that is later."""


def _no_charge(_process: Process, _uuid: Uuid) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Readings:
    """All measured input of a view, by GPU and by PID. Times are of the monotonic clock."""

    at_ns: int = 0
    """When sensors, use and hosts were read."""
    sensors: Mapping[Uuid, GpuSensors] = field(default_factory=dict)
    use: Mapping[Uuid, GpuUse] = field(default_factory=dict)
    """A GPU that is absent has no samples per process."""
    hosts: Mapping[int, HostUse] = field(default_factory=dict)
    jobs: Mapping[str, CgroupUse] = field(default_factory=dict)
    """By job; one without a cgroup is absent."""
    memory: Mapping[Uuid, Mapping[int, int]] = field(default_factory=dict)
    """Bytes by PID, as the driver lists them; a GPU that is absent was not read."""
    unmeasured: frozenset[tuple[Uuid, int]] = frozenset()
    """Processes in `memory` for which the driver has no figure."""
    charged: Callable[[Process, Uuid], int] = _no_charge
    """Bytes that the ledger has for a process: above zero, the process has a context."""
    gates: Mapping[tuple[ProcessKey, Uuid], GateUse] = field(default_factory=dict)
    """A process that is absent passes no gate on this GPU."""
    paused: frozenset[str] = frozenset()
    """Tasks whose gate is closed until the excess that they used is paid back."""


UNKNOWN = Readings()


class TaskFigures(NamedTuple):
    """The measured part of a task's row. The names are those of the JSON fields."""

    memory_bytes: int | None
    gpu_memory_bytes: list[int | None]
    """In the order of the task's GPUs, as is the next list."""
    utilization_percent: int | None
    """The mean of its GPUs."""
    gpu_utilization_percent: list[int | None]
    idle_seconds: int | None
    idle_source: str | None
    compute_used_percent: int | None
    """By the launch gates, the mean of its GPUs; None: a process of it passes no gate."""
    host_cpu_percent: int | None
    host_memory_bytes: int | None


def of_task(state: State, task: Task, readings: Readings) -> TaskFigures:
    """Asked for every task at every status: one pass over its processes on each GPU.

    A client over UDP has no PID, so nothing of its task is known.
    """
    processes = state.processes
    members = [processes[key] for key in task.processes]
    if readings is UNKNOWN or not members or any(process.pid is None for process in members):
        return unknown(len(task.gpus))
    memory: list[int | None] = []
    percent: list[int | None] = []
    used_ns = 0
    since_ns = task.since_ns
    for uuid in task.gpus:
        part_bytes = _memory_on(uuid, members, state, readings)
        memory.append(part_bytes)
        use = readings.use.get(uuid)
        if use is None or task.since_ns > readings.at_ns:  # it is younger than the samples
            percent.append(None)
            continue
        part = 0
        for process in members:
            pid: Any = process.pid
            part += use.percent.get(pid, 0)
            used_ns = max(used_ns, use.used_ns.get(pid, 0))
        percent.append(None if part_bytes is None else min(100, part))
        since_ns = max(since_ns, use.since_ns)
    gates = _gates(task, readings)
    idle = _idle(used_ns, since_ns, None in percent, readings.at_ns)
    return TaskFigures(
        _sum(memory),
        memory,
        None if (total := _sum(percent)) is None else round(total / len(percent)),
        percent,
        *(_idle_in_gates(gates, idle, task.gpus, readings) if gates else idle),
        round(sum(use.used_percent for use in gates) / len(task.gpus)) if gates else None,
        *_host(members, readings),
    )


def _gates(task: Task, readings: Readings) -> list[GateUse]:
    """Of all its processes on all its GPUs; empty if one of them is unknown."""
    found = [readings.gates.get((key, uuid)) for key in task.processes for uuid in task.gpus]
    known = [use for use in found if use is not None]
    return known if len(known) == len(found) else []


def _idle_in_gates(
    gates: list[GateUse], sampled: Idle, gpus: Iterable[Uuid], readings: Readings
) -> Idle:
    """The shorter time of the gates and of NVML: a neighbour can write into the gates.

    Where NVML has no samples of processes, a use of the GPU may be this task's.
    """
    active_ns = max(use.active_ns for use in gates)
    seconds = max(0, readings.at_ns - active_ns) // SECOND_NS
    if sampled[0] is None:
        whole = [readings.sensors.get(uuid, NO_SENSORS).utilization_percent for uuid in gpus]
        if None in whole:
            return None, None
        if any(whole):
            return 0, SAMPLED
    elif sampled[1] == SAMPLED and sampled[0] < seconds:
        return sampled
    return seconds, LAUNCHES


def unknown(gpus: int) -> TaskFigures:
    nothing: list[int | None] = [None] * gpus
    return TaskFigures(None, nothing, None, nothing, None, None, None, None, None)


def _sum(parts: list[int | None]) -> int | None:
    """None where a part is unknown, and where there is none."""
    return None if not parts or None in parts else sum(part for part in parts if part)


def _memory_on(uuid: Uuid, members: list[Process], state: State, readings: Readings) -> int | None:
    """The bytes of the processes on a GPU; None where one of them is unknown.

    A process that the driver does not list has nothing there, unless the ledger differs: then its
    PID cannot be seen, or the reading is too old.
    """
    by_pid = readings.memory.get(uuid)
    if by_pid is None:
        return None
    total_bytes = state.gpus[uuid].memory_total_bytes
    sum_bytes = 0
    for process in members:
        pid: Any = process.pid
        memory_bytes = by_pid.get(pid)
        if memory_bytes is None:
            if readings.charged(process, uuid) > 0:
                return None
        elif not 0 <= memory_bytes <= total_bytes or (uuid, pid) in readings.unmeasured:
            return None
        else:
            sum_bytes += memory_bytes
    return min(total_bytes, sum_bytes)


def _idle(used_ns: int, since_ns: int, is_part_unknown: bool, at_ns: int) -> Idle:
    """With a part unknown, only a use in the last reading is certain."""
    if used_ns and (not is_part_unknown or used_ns >= at_ns):
        return max(0, at_ns - used_ns) // SECOND_NS, SAMPLED
    if is_part_unknown:
        return None, None
    return max(0, at_ns - since_ns) // SECOND_NS, SAMPLED_AT_LEAST


def _host(members: list[Process], readings: Readings) -> tuple[int | None, int | None]:
    """(CPU, memory) of its processes together."""
    found = [readings.hosts.get(process.pid or 0) for process in members]
    known = [use for use in found if use is not None]
    if len(known) < len(found):
        return None, None
    return _sum([use.cpu_percent for use in known]), sum(use.memory_bytes for use in known)


def frame(
    state: State, readings: Readings, used_bytes: Mapping[Uuid, int], env: str | None = None
) -> dict[str, Any]:
    """The figures without the tasks, which may be many. `env`: with its jobs alone."""
    jobs = (job for job_id in readings.jobs if (job := state.jobs.get(job_id)) is not None)
    gpus = sorted(state.gpus.values(), key=lambda gpu: gpu.index)
    return {
        "schema_version": SCHEMA_VERSION,
        "gpus": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "memory_used_bytes": used_bytes.get(gpu.uuid),
                **gpu_row(gpu, readings),
            }
            for gpu in gpus
        ],
        "jobs": [
            {"job": job.job_id, **job_row(job.job_id, readings)}
            for job in jobs
            if env in (None, job.env)
        ],
    }


def job_row(job_id: str, readings: Readings) -> dict[str, Any]:
    """Of a job under way; null where it is not known."""
    use = readings.jobs.get(job_id)
    return {
        "cpu_seconds": None if use is None else use.cpu_ms / 1_000,
        "host_memory_bytes": None if use is None else use.memory_bytes,
        "host_peak_bytes": None if use is None else use.peak_bytes,
        "read_bytes": None if use is None else use.read_bytes,
        "written_bytes": None if use is None else use.written_bytes,
    }


def gpu_row(gpu: Gpu, readings: Readings) -> dict[str, Any]:
    """A lost GPU has none, whatever the last reading had."""
    sensors = readings.sensors.get(gpu.uuid, NO_SENSORS) if gpu.healthy else NO_SENSORS
    return sensors._asdict()
