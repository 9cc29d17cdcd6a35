"""The state as one object for `nodemgr status --json`.

Knows: the keys that people and scripts read (issue 2; further ones stand beside them). Must not
know: clocks, drivers and beats: what is measured is handed in. Bytes and seconds are integers; GPUs
are UUIDs, with their indices beside them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from nodemgr.core.model.entities import (
    WHOLE_PERCENT,
    Env,
    Gpu,
    Grant,
    Job,
    Process,
    ProcessKey,
    Quota,
    Suspension,
    Task,
    UnreclaimedMemory,
    Uuid,
    Violation,
)
from nodemgr.core.scheduler import reasons
from nodemgr.core.state import accounting, compute, elastic_leases, host_use
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.node_state import State
from nodemgr.core.views import figures, gpu_health, job_rows
from nodemgr.core.views.figures import UNKNOWN, Readings

SCHEMA_VERSION = 1
SECOND_NS = 1_000_000_000
SHOWN_JOBS = 200
"""The most rows of waiting and of running jobs in a snapshot.

The queue's length stands beside the rows, and `nodemgr queue` lists all jobs.
"""

StatusRow = dict[str, Any]


class LastBeats(Protocol):
    """When each process was last heard, in ns of the monotonic clock. A dictionary is one."""

    def get(self, key: ProcessKey, default: int, /) -> int: ...


def status(
    state: Draft,
    now_ns: int,
    *,
    used_bytes: Mapping[Uuid, int],
    last_beat_ns: LastBeats,
    env: str | None = None,
    readings: Readings = UNKNOWN,
) -> StatusRow:
    """The node, or with `env` that environment's part of it.

    The part has all GPUs, and the environment's own row, tasks and requests.
    """
    number = waiting(state)
    return {
        **frame(state, now_ns, used_bytes=used_bytes, waiting=number, env=env, readings=readings),
        "envs": envs(state, sorted(state.envs) if env is None else [env], number),
        "tasks": [
            {
                **task_facts(state, task, is_paused=task.task_id in readings.paused),
                **task_changes(state, task, now_ns, last_beat_ns, readings),
            }
            for task in tasks(state, env)
        ],
    }


def frame(
    state: Draft,
    now_ns: int,
    *,
    used_bytes: Mapping[Uuid, int],
    waiting: Mapping[str, int],
    env: str | None = None,
    readings: Readings = UNKNOWN,
) -> StatusRow:
    """The status without its environments and tasks, which may be thousands."""
    gpus = sorted(state.gpus.values(), key=lambda gpu: gpu.index)
    grants: dict[Uuid, list[Grant]] = {gpu.uuid: [] for gpu in gpus}
    for grant in state.grants.values():
        grants[grant.uuid].append(grant)
    return {
        "schema_version": SCHEMA_VERSION,
        "placement": gpu_health.placement(state),
        "gpus": [
            {
                **_gpu(state, gpu, grants[gpu.uuid], used_bytes.get(gpu.uuid), env),
                **figures.gpu_row(gpu, readings),
            }
            for gpu in gpus
        ],
        "queue": job_rows.queue(state, now_ns, env=env, limit=SHOWN_JOBS),
        "queue_length": sum(waiting.values()) if env is None else waiting.get(env, 0),
        "jobs": [
            {**row, **figures.job_row(row["id"], readings)}
            for row in job_rows.under_way(state, env, SHOWN_JOBS)
        ],
        "set_aside": set_aside(state, env),
        "suspended_bytes": state.host_bytes.get(host_use.NODE, 0),
        "violations": [_violation(state, row, now_ns) for row in violations(state, env)],
        "residues": [_unreclaimed(state, row) for row in unreclaimed(state, env)],
    }


def waiting(state: State) -> Mapping[str, int]:
    """How many requests and jobs of each environment wait; one that is absent has none."""
    found: Counter[str] = Counter()
    for request in state.requests.values():
        found[request.env] += request.size
    return found


def envs(state: State, names: Iterable[str], waiting: Mapping[str, int]) -> list[StatusRow]:
    """The rows of these environments, as far as there are such."""
    gpus = sorted(state.gpus.values(), key=lambda gpu: gpu.index)
    return [
        _env(state, state.envs[name], gpus, waiting.get(name, 0))
        for name in names
        if name in state.envs
    ]


def quota(env: str, quota: Quota) -> StatusRow:
    """One env's quota, as `quota show` and `status` carry it."""
    return {"env": env, "gpus": quota.gpus, **quota.terms()}


def _in_order(tasks: Iterable[Task]) -> list[Task]:
    return sorted(tasks, key=lambda task: int(task.task_id[1:]))


def _indices(state: State, uuids: Iterable[Uuid]) -> list[int]:
    return [state.gpus[uuid].index for uuid in uuids]


def _gpu(
    state: State, gpu: Gpu, grants: list[Grant], used_bytes: int | None, env: str | None
) -> StatusRow:
    tasks = [state.tasks[task_id] for task_id in state.gpu_tasks.get(gpu.uuid, ())]
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "memory_total_bytes": gpu.memory_total_bytes,
        "memory_granted_bytes": sum(accounting.on_gpu(grant) for grant in grants),
        "memory_used_bytes": used_bytes,
        "compute_granted_percent": compute.granted_percent(state, gpu.uuid),
        "memory_remaining_bytes": accounting.gpu_remaining(state, gpu),
        "memory_residue_bytes": sum(
            unreclaimed.memory_bytes
            for unreclaimed in state.unreclaimed.values()
            if unreclaimed.uuid == gpu.uuid
        ),
        "memory_unbooked_bytes": state.unbooked.get(gpu.uuid, 0),
        "tasks": len(tasks),
        "task_ids": [task.task_id for task in _in_order(tasks) if env in (None, task.env)],
        "envs": sorted(grant.env for grant in grants),
        "state": "healthy" if gpu.healthy else "lost",
        **gpu_health.row(state, gpu, env),
    }


def _env(state: State, env: Env, gpus: list[Gpu], waiting: int) -> StatusRow:
    grants, used = [], []
    for gpu in gpus if env.name in state.env_tasks else ():
        grant = state.grants.get((env.name, gpu.uuid))
        if grant is not None:
            grants.append(grant)
            if gpu.healthy and accounting.active_tasks(grant) > 0:
                used.append(gpu)
    return {
        "name": env.name,
        "quota": quota(env.name, env.quota),
        "gpus": [gpu.uuid for gpu in used],
        "gpu_indices": [gpu.index for gpu in used],
        "memory_remaining_bytes": accounting.env_remaining(state, env.name),
        "memory_granted_bytes": sum(grant.memory_bytes for grant in grants),
        "memory_capped_bytes": sum(grant.caps_bytes for grant in grants),
        "memory_pending_bytes": sum(
            max(0, accounting.target(state, grant) - grant.memory_bytes) for grant in grants
        ),
        "tasks": len(state.env_tasks.get(env.name, ())),
        "waiting": waiting,
        "jobs": state.env_jobs.get(env.name, 0),
    }


def tasks(state: State, env: str | None = None) -> list[Task]:
    """The tasks in the order of their ids."""
    return _in_order(task for task in state.tasks.values() if env in (None, task.env))


def task_changes(
    state: State, task: Task, now_ns: int, last_beat_ns: LastBeats, readings: Readings
) -> StatusRow:
    """The part of a task's row that changes while the Task stays."""
    return {
        **task_now(state, task, now_ns, last_beat_ns)._asdict(),
        "memory_limit_bytes": limits_bytes(state, task),
        **figures.of_task(state, task, readings)._asdict(),
    }


def task_facts(state: State, task: Task, *, is_paused: bool) -> StatusRow:
    """The facts of a task's row that stay the same while the Task itself and its pause do."""
    members = [state.processes[key] for key in task.processes]
    shown, reason = gate(task, members, is_paused=is_paused)
    job = None if task.job_id is None else state.jobs[task.job_id]
    lease = state.elastics.get(task.task_id)
    return {
        "id": task.task_id,
        "job": task.job_id,
        "env": task.env,
        "state": job_rows.task_state(state, task),
        "gpus": list(task.gpus),
        "gpu_indices": _indices(state, task.gpus),
        "gpus_min": None if lease is None else lease.least,
        "gpus_max": None if lease is None else lease.most,
        "pids": _pids(members),
        "command": task.run.command,
        "since": task.since_wall_ns // SECOND_NS,
        "class": task.run.task_class.value,
        "compute_percent": task.run.compute_percent,
        "compute_granted_percent": task.granted_percent,
        "predicted": None if job is None else _predicted(state, task, job),
        "memory_named_bytes": task.run.memory_bytes,
        "memory_min_bytes": None if task.run.memory_most_bytes is None else task.run.memory_bytes,
        "memory_max_bytes": task.run.memory_most_bytes,
        "users": sorted(
            {member.user for member in members} | ({job.user} if job is not None else set())
        ),
        "gate": shown,
        "gate_reason": reason,
        "suspended": task.suspension is Suspension.SUSPENDED,
        "suspended_bytes": task.suspended_bytes,
        "processes": len(members),
        "transports": sorted({member.transport.value for member in members}),
    }


def _predicted(state: State, task: Task, job: Job) -> StatusRow | None:
    """The forecast of its job on the model of its GPUs; None: there is none."""
    names = {state.gpus[uuid].name for uuid in task.gpus} if job.run.predicted else ()
    rows = [row for row in job.run.predicted if row.gpu_model in names]
    return job_rows.predicted(rows)[0] if len(names) == len(rows) == 1 else None


def gate(task: Task, members: Iterable[Process], *, is_paused: bool) -> tuple[str, str | None]:
    """The launch gate of a task: none, closed, limited to its share, or open; why it is closed.

    None: a process of it passes no gate. The reasons are those of the line that a waiting launch
    prints (csrc/launch/gate_wait.c).
    """
    gated = [member.gated for member in members]
    if not gated or not all(gated):
        return "none", None
    if task.suspension is not Suspension.NONE:
        return "closed", task.suspension.value
    if not compute.computes(task):
        return "closed", task.state.value
    if task.granted_percent == 0:
        return "closed", "no_share"
    if is_paused:
        return "closed", "paused"
    return "open" if task.granted_percent in (None, WHOLE_PERCENT) else "limited", None


def limits_bytes(state: State, task: Task) -> list[int]:
    """The limit on each GPU: the fixed caps of its processes over UDP.

    The limit of the env's ledger comes on top where a process is in it.
    """
    members = [state.processes[key] for key in task.processes]
    caps_bytes = sum(member.cap_bytes or 0 for member in members)
    in_ledger = any(member.slot is not None for member in members)
    return [
        caps_bytes + (state.grants[task.env, uuid].limit_bytes if in_ledger else 0)
        for uuid in task.gpus
    ]


class Now(NamedTuple):
    """The part of a task's row that passes with time."""

    duration_seconds: int
    last_beat_age_seconds: int | None
    connected: int
    progress: dict[str, int | None] | None
    borrowed: int | None
    """Its GPUs beyond the quota of its env; None: it is not elastic."""


def task_now(state: State, task: Task, now_ns: int, last_beat_ns: LastBeats) -> Now:
    """Asked for every task at every status: one pass, no more."""
    connections = state.connections
    heard_ns, connected = 0, 0
    for key in task.processes:
        beat_ns = last_beat_ns.get(key, 0)
        if beat_ns > heard_ns:
            heard_ns = beat_ns
        if key in connections:
            connected += 1
    report = state.progress.get(task.task_id)
    # after a boot the clock begins anew
    since_ns = task.since_ns if task.since_ns < now_ns else now_ns
    return Now(
        (now_ns - since_ns) // SECOND_NS,
        (now_ns - heard_ns) // SECOND_NS if heard_ns else None,
        connected,
        None if report is None else {"done": report.done, "total": report.total},
        _borrowed(state, task) if task.task_id in state.elastics else None,
    )


def _borrowed(state: State, task: Task) -> int:
    held = elastic_leases.borrowed(state, task.env)
    return sum(gpu.task_id == task.task_id for gpu in held)


def set_aside(state: State, env: str | None = None) -> list[StatusRow]:
    """The entries that passes leave out after a fault of the manager."""
    found = []
    for row in state.set_aside.values():
        request = state.requests.get(row.entry)
        if env is None or (request is not None and request.env == env):
            job = None if request is None else request.job_id
            found.append({"entry": job or row.entry, "reason": row.why})
    return found


def violations(state: State, env: str | None = None) -> list[Violation]:
    """The confirmed violations, the oldest first."""
    sure = [row for row in state.violations.values() if row.told and env in (None, row.env)]
    return sorted(sure, key=lambda row: (row.since_ns, row.pid))


def _violation(state: State, row: Violation, now_ns: int) -> StatusRow:
    return {
        "env": row.env,
        "task": row.task_id,
        "pid": row.pid,
        "offence": row.offence.value,
        "gpu": row.uuid,
        "gpu_index": state.gpus[row.uuid].index,
        "memory_bytes": row.memory_bytes,
        "allowed_bytes": row.allowed_bytes,
        "used_percent": row.used_percent,
        "allowed_percent": row.allowed_percent,
        "enforce": row.done,
        "command": row.command,
        "text": reasons.violation(state.gpus[row.uuid], row),
        "duration_seconds": max(0, now_ns - row.since_ns) // SECOND_NS,
    }


def unreclaimed(state: State, env: str | None = None) -> list[UnreclaimedMemory]:
    """The memory that is charged to a GPU for processes without a lease, GPU by GPU."""
    found = [row for row in state.unreclaimed.values() if env in (None, row.env)]
    return sorted(found, key=lambda row: (state.gpus[row.uuid].index, row.env, row.pid))


def _unreclaimed(state: State, row: UnreclaimedMemory) -> StatusRow:
    return {
        "env": row.env,
        "pid": None if row.is_exported else row.pid,
        "alive": row.alive,
        "exported": row.is_exported,
        "gpu": row.uuid,
        "gpu_index": state.gpus[row.uuid].index,
        "memory_bytes": row.memory_bytes,
        "at_most": not row.told,
    }


def _pids(members: Iterable[Process]) -> list[int]:
    return [member.pid for member in members if member.pid is not None]
