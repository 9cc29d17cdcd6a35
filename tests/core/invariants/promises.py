"""Invariants: the promises that the state can show, and the sums that decisions rest on.

Knows: every table, and counts them again from the stored rows without the code that keeps them.
Must not know: how they came to be. Tests call both functions at each step. The manager does so,
too, if its settings ask for checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Any

from nodemgr.core.manager import Transition
from nodemgr.core.model.effects import StartJob
from nodemgr.core.model.entities import (
    LEDGER_SLOTS,
    WHOLE_PERCENT,
    JobState,
    Request,
    Suspension,
    Task,
    TaskClass,
    TaskState,
)
from nodemgr.core.model.events import Event
from nodemgr.core.model.schema import PAUSE, RECALL, recall_key
from nodemgr.core.scheduler import admission
from nodemgr.core.state import accounting
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.node_state import State
from tests.core.invariants import (
    elastic_promises,
    gpu_promises,
    grant_promises,
    job_promises,
    transitions_taken,
)


def check(state: State) -> list[str]:
    """Everything that is wrong with a state, a line each; nothing in a right one."""
    checks = (
        _grants,
        _tasks,
        _processes,
        _unreclaimed,
        _requests,
        _inadmissible,
        _sums,
        _compute,
        _indices,
        _times,
        _audit,
        gpu_promises.check,
        job_promises.check,
        elastic_promises.check,
        grant_promises.check,
    )
    return list(chain.from_iterable(part(state) for part in checks))


def check_change(transition: Transition, event: Event) -> list[str]:
    """Promises 1 and 2, of what a transition gives.

    No grant grows beyond its GPU, or takes its env above its quota. (What a lowered quota or a
    smaller node left stays; so this is of the change, before it is applied, and not of the state.)
    No entry starts that no launcher could start, or beyond what the host has for it. Each job and
    task that changed its state did so by the tables (model/transitions.py).
    """
    draft = transition.draft
    starts = [effect.job_id for effect in transition.effects if isinstance(effect, StartJob)]
    wrong = [
        f"{job_id} is started in a place that is down"
        for job_id in starts
        if not draft.is_up(draft.jobs[job_id].run.place)
    ]
    wrong += job_promises.check_change(draft)
    wrong += transitions_taken.check(draft, event)
    wrong += _beside_shares(draft)
    wrong += gpu_promises.check_change(transition)
    wrong += grant_promises.check_change(transition)
    for (env, uuid), before, grant in draft.grants.changes():
        if grant is None or (
            before is not None
            and grant.memory_bytes <= before.memory_bytes
            and accounting.on_gpu(grant) <= accounting.on_gpu(before)
        ):
            continue
        gpu, quota = draft.gpus[uuid], draft.envs[env].quota
        of_gpu = [other for other in draft.grants.values() if other.uuid == uuid]
        of_env = [other for other in draft.grants.values() if other.env == env]
        if sum(map(accounting.on_gpu, of_gpu)) > accounting.capacity(draft, gpu):
            wrong.append(f"the grants on {uuid} exceed its memory")
        may_borrow = elastic_promises.is_borrowing(draft, env, uuid)
        most = quota.gpus + (quota.borrow if may_borrow else 0)
        grows = before is None or grant.memory_bytes > before.memory_bytes
        if (
            grows
            and quota.memory_bytes is not None
            and sum(other.memory_bytes for other in of_env)
            > quota.memory_bytes + (quota.borrowed_bytes if may_borrow else 0)
        ):
            wrong.append(f"the grants of {env} exceed its memory quota")
        used = len(accounting.used_gpus(draft, env))
        held_before = before is not None and accounting.active_tasks(before) > 0
        if not held_before and accounting.active_tasks(grant) > 0 and used > most:
            wrong.append(f"{env} uses {used} GPUs, it may use {most}")
    return wrong


def _beside_shares(draft: Draft) -> Iterator[str]:
    """Check that no task began on a GPU where a task without a share and others with one compute.

    A restart with another setting may leave such a GPU.
    """
    if draft.config.plain_tasks_share:
        return
    for task_id, before, task in draft.tasks.changes():
        if task is None or before is not None:
            continue
        for uuid in task.gpus:
            there = [draft.tasks[other] for other in draft.gpu_tasks.members(uuid)]
            computing = [
                other
                for other in there
                if other.state is TaskState.RUNNING
                and other.suspension is not Suspension.SUSPENDED
                and other.granted_percent != 0
            ]
            if len({other.granted_percent is None for other in computing}) > 1:
                yield f"{task_id} began on {uuid}, which tasks with and without a share use"


def _grants(state: State) -> Iterator[str]:
    tasks: dict[tuple[str, str], list[Task]] = {}
    for task in state.tasks.values():
        for uuid in task.gpus:
            tasks.setdefault((task.env, uuid), []).append(task)
    if tasks.keys() != state.grants.keys():
        yield f"grants {sorted(state.grants)} for tasks on {sorted(tasks)}"
    for (env, uuid), grant in state.grants.items():
        holders = tasks.get((env, uuid), [])
        stalled = sum(task.state is TaskState.STALLED for task in holders)
        suspended = sum(task.suspension is Suspension.SUSPENDED for task in holders)
        stored = sum(task.kept_bytes for task in holders)
        caps = sum(
            state.processes[key].cap_bytes or 0 for task in holders for key in task.processes
        )
        mosts = (task.run.memory_most_bytes for task in holders)
        ranges = [most for most in mosts if most is not None]
        most_bytes = sum(ranges) if ranges else grant.most_bytes
        counted = (len(holders), stalled, suspended, stored, caps, len(ranges), most_bytes)
        if counted != (
            grant.tasks,
            grant.stalled_tasks,
            grant.suspended_tasks,
            grant.kept_bytes,
            grant.caps_bytes,
            grant.elastic_tasks,
            grant.most_bytes,
        ):
            yield f"{grant} of tasks counted {counted}"
        if not 0 <= grant.limit_bytes <= grant.memory_bytes <= state.gpus[uuid].memory_total_bytes:
            yield f"{grant}: limit, memory and the GPU's memory are out of order"
        if grant.limit_bytes > 0 and grant.limit_bytes + caps > accounting.target(state, grant):
            yield f"{grant}: enforced is more than the quota's {accounting.target(state, grant)}"
        if ((env, uuid) in state.unsettled) != (
            grant.memory_bytes != accounting.target(state, grant)
        ):
            yield f"{grant}: settled or not?"


def _tasks(state: State) -> Iterator[str]:
    for task in state.tasks.values():
        if not task.processes and task.job_id is None:
            yield f"{task.task_id} has no process"
        if len(set(task.processes)) != len(task.processes):
            yield f"{task.task_id} has a process twice"
        if (
            not task.gpus
            or len(set(task.gpus)) != len(task.gpus)
            or not set(task.fresh) <= set(task.gpus)
        ):
            yield f"{task.task_id} has GPUs {task.gpus}, fresh {task.fresh}"
        if (task.state is TaskState.STALLED) != (task.stalled_since_ns is not None):
            yield f"{task.task_id} is {task.state.value}, stalled since {task.stalled_since_ns}"
        if task.task_id in state.silent_jobs and not (
            task.job_id is not None and task.processes and task.suspension is Suspension.NONE
        ):
            yield f"{task.task_id} is no job's, has no process or is suspended, and yet stalled"
        if task.suspension is not Suspension.NONE and task.state is not TaskState.RUNNING:
            yield f"{task.task_id} is {task.state} and {task.suspension}"
        if task.env not in state.envs:
            yield f"{task.task_id} is of env {task.env}, which has no quota"
        for key in task.processes:
            process = state.processes.get(key)
            if (
                process is None
                or process.fenced
                or process.task_id != task.task_id
                or process.env != task.env
            ):
                yield f"{task.task_id} has a member {key} which is {process}"
    if state.records.keys() != state.tasks.keys():
        yield f"open records of {sorted(state.records)}, tasks {sorted(state.tasks)}"


def _processes(state: State) -> Iterator[str]:
    slots = Counter(
        (process.env, process.slot)
        for process in state.processes.values()
        if process.slot is not None
    )
    for (env, slot), count in slots.items():
        if count > 1 or not 0 <= (slot or 0) < LEDGER_SLOTS:
            yield f"slot {slot} of {env} belongs to {count} processes"
    for process in state.processes.values():
        task = state.tasks.get(process.task_id)
        if not process.fenced and (task is None or process.key not in task.processes):
            yield f"{process} is no member of its task"
        if (process.slot is None) != (process.pid is None) or (process.cap_bytes is None) != (
            process.slot is not None
        ):
            yield f"{process}: slot, PID and cap do not agree"


def _unreclaimed(state: State) -> Iterator[str]:
    for (key, uuid), unreclaimed in state.unreclaimed.items():
        process = state.processes.get(key)
        if unreclaimed.alive != (process is not None):
            yield f"{unreclaimed} of a process that is {'dead' if process is None else 'alive'}"
        if unreclaimed.memory_bytes <= 0:
            yield f"{unreclaimed} is nothing"
        if process is not None and not process.fenced and uuid in state.tasks[process.task_id].gpus:
            yield f"{unreclaimed} of a process that holds the GPU"


def _requests(state: State) -> Iterator[str]:
    if sorted(state.queue) != sorted(state.requests):
        yield f"{sorted(state.queue)} wait, requested are {sorted(state.requests)}"
    for position in _positions(state):
        yield f"positions in a queue: {position}"
    askers = [asker.process for request in state.requests.values() for asker in request.askers]
    if len(set(askers)) != len(askers):
        yield "a process waits twice"
    for request in state.requests.values():
        if request.resumes is not None:
            yield from _resume(state, request)
        elif bool(request.askers) == (request.job_id is not None):
            yield f"{request.request_id} has no asker"
        if request.env not in state.envs:
            yield f"{request.request_id} has no env"
        if (request.env, request.token) in state.task_of_token:
            yield f"{request.request_id} waits though its task has a lease"
        for asker in request.askers:
            process = state.processes.get(asker.process)
            if process is not None and not process.fenced:
                yield f"{asker.process} waits and holds"


def _resume(state: State, request: Request) -> Iterator[str]:
    task = state.tasks.get(request.resumes or "")
    if (
        task is None
        or (task.env, task.task_id[1:]) != (request.env, request.request_id[1:])
        or task.suspension not in (Suspension.SUSPENDING, Suspension.SUSPENDED)
    ):
        yield f"{request.request_id} waits for the resume of {task}"


def _inadmissible(state: State) -> Iterator[str]:
    """Check that an inadmissible env has no request that could be granted.

    The check holds for any state of other envs.
    """
    for env in state.queue.inadmissible():
        mine = (request for request, _ in state.waiting() if request.owner == env)
        takes_part = (
            request
            for request in mine
            if request.job_id is None
            or (state.is_up(request.run.place) and request.job_id not in state.unconfirmed)
        )
        first = next(
            (
                request
                for request in takes_part
                if admission.fits_quota(state, request) and admission.fits_node(state, request)
            ),
            None,
        )
        if first is None:
            continue
        room = (
            state.envs[env].quota.gpus - len(accounting.used_gpus(state, env))
            if env in state.envs
            else 0
        )
        if first.job_id is None or first.run.memory_bytes is not None or first.run.gpus <= room:
            yield f"{env} sleeps, and {first.request_id} could be served within its quota"


def _positions(state: State) -> Iterator[list[int]]:
    by_queue: dict[str, list[int]] = {}
    for request, position in state.waiting():
        by_queue.setdefault(request.priority, []).extend(range(position, position + request.size))
        if state.queue.position(request.request_id) != position:
            yield [state.queue.position(request.request_id), position]
    yield from (
        positions
        for positions in by_queue.values()
        if positions != list(range(1, len(positions) + 1))
    )


def _sums(state: State) -> Iterator[str]:
    charged: Counter[str] = Counter()
    env_charged: Counter[str] = Counter()
    active: Counter[str] = Counter()
    for env in {env for env, _ in state.grants} | {
        unreclaimed.env for unreclaimed in state.unreclaimed.values()
    }:
        for uuid in state.gpus:
            grant = state.grants.get((env, uuid))
            unreclaimed = [
                unreclaimed
                for unreclaimed in state.unreclaimed.values()
                if (unreclaimed.env, unreclaimed.uuid) == (env, uuid)
            ]
            alive = sum(
                unreclaimed.memory_bytes for unreclaimed in unreclaimed if unreclaimed.alive
            )
            dead = sum(
                unreclaimed.memory_bytes for unreclaimed in unreclaimed if not unreclaimed.alive
            )
            granted = 0 if grant is None else grant.memory_bytes
            env_charged[env] += max(alive, granted) + dead
            parked = grant is not None and grant.tasks == grant.suspended_tasks
            charged[uuid] += max(alive, 0 if parked else granted) + dead
            if grant is not None:
                active[uuid] += grant.tasks - grant.stalled_tasks - grant.suspended_tasks
    slots: Counter[str] = Counter()
    for process in state.processes.values():
        slots[process.env] += 0 if process.slot is None else 1 << process.slot
    yield from _differ("charged", state.charged, +charged)
    yield from _differ("env_charged", state.env_charged, +env_charged)
    yield from _differ("active", state.active, +active)
    yield from _differ("slots", state.slots, +slots)
    yield from _differ(
        "members", state.members, Counter(process.env for process in state.processes.values())
    )


def _compute(state: State) -> Iterator[str]:
    """Promise 1 for compute: the shares on a GPU never exceed 100 %."""
    granted: Counter[str] = Counter()
    for task in state.tasks.values():
        asked, has = task.run.compute_percent, task.granted_percent
        if (asked is None) != (has is None) or (
            asked is None and task.run.task_class is not TaskClass.NORMAL
        ):
            yield f"{task.task_id} asked for {asked} % as {task.run.task_class} and has {has} %"
        if asked is None or has is None:
            continue
        least = 0 if task.run.task_class is TaskClass.BEST_EFFORT else asked
        most = WHOLE_PERCENT if task.run.task_class is TaskClass.LATENCY_SENSITIVE else asked
        if not least <= has <= most or not 0 < asked <= WHOLE_PERCENT:
            yield f"{task.task_id} is {task.run.task_class} and has {has} % of {asked} %"
        if task.state is TaskState.RUNNING and task.suspension is not Suspension.SUSPENDED:
            granted.update(dict.fromkeys(task.gpus, has))
    for uuid, percent in granted.items():
        if percent > WHOLE_PERCENT:
            yield f"the shares on {uuid} add up to {percent} %"
    yield from _differ("compute", state.compute, +granted)
    shrunk = {
        task.task_id: True
        for task in state.tasks.values()
        if (task.granted_percent or 0) < (task.run.compute_percent or 0)
    }
    yield from _differ("shrunk", state.shrunk, shrunk)


def _indices(state: State) -> Iterator[str]:
    requests = state.requests.values()
    yield from _differ(
        "task_of_token",
        state.task_of_token,
        {(t.env, t.token): t.task_id for t in state.tasks.values()},
    )
    yield from _differ(
        "request_of_token",
        state.request_of_token,
        {
            (r.env, r.token): r.request_id
            for r in requests
            if r.job_id is None and r.resumes is None
        },
    )
    yield from _differ(
        "request_of",
        state.request_of,
        {a.process: r.request_id for r in requests for a in r.askers},
    )
    yield from _differ(
        "stalled",
        state.stalled,
        {t.task_id: True for t in state.tasks.values() if t.state is TaskState.STALLED},
    )
    if not state.silent_jobs.keys() <= state.tasks.keys():
        yield f"{sorted(state.silent_jobs)} are stalled, and some have no task"
    udp_askers = {a.process: True for r in requests for a in r.askers if a.pid is None}
    yield from _differ("udp_askers", state.udp_askers, udp_askers)
    by_env: dict[str, set[str]] = {}
    by_gpu: dict[str, set[str]] = {}
    for task in state.tasks.values():
        by_env.setdefault(task.env, set()).add(task.task_id)
        for uuid in task.gpus:
            by_gpu.setdefault(uuid, set()).add(task.task_id)
    for name, stored, counted in (
        ("env_tasks", state.env_tasks, by_env),
        ("gpu_tasks", state.gpu_tasks, by_gpu),
    ):
        yield from _differ(name, {key: set(group) for key, group in stored.items()}, counted)
    yield from _differ(
        "process_of_connection",
        state.process_of_connection,
        {c: p for p, c in state.connections.items()},
    )
    known = state.processes.keys() | state.request_of.keys()
    for name, keys in (
        ("connections", state.connections.keys()),
        ("parted", state.parted.keys()),
        ("process_of_pid", set(state.process_of_pid.values())),
    ):
        if not keys <= known:
            yield f"{name} has unknown processes: {sorted(keys - known)}"
    if len({gpu.index for gpu in state.gpus.values()}) != len(state.gpus):
        yield "two GPUs have one index"


def _times(state: State) -> Iterator[str]:
    if sorted((due_ns, deadline) for deadline, due_ns in state.agenda.items()) != state.deadlines:
        yield f"deadlines {state.deadlines} of agenda {state.agenda}"
    waits = {
        ("wait", request.request_id)
        for request in state.requests.values()
        if request.wait_ms is not None
    }
    aways = {("away", key) for key in state.away}
    kills = {("kill", task_id) for task_id in (*state.stalled, *state.silent_jobs)}
    pauses = {(PAUSE, job.job_id) for job in state.jobs.values() if job.state is JobState.PAUSED}
    recalls = {
        (RECALL, recall_key(lease.task_id, recall.uuid))
        for lease in state.elastics.values()
        for recall in lease.recalls
    }
    due = waits | aways | pauses | recalls
    if not due <= state.agenda.keys() <= due | kills:
        yield f"agenda {sorted(state.agenda)} for {sorted(due)}, {sorted(kills)}"
    over_udp = {process.task_id for process in state.processes.values() if process.pid is None}
    sure = {process.task_id for process in state.processes.values() if process.starts}
    listens = bool(state.udp_askers) or any(
        task.state is TaskState.RUNNING
        and task.suspension is Suspension.NONE
        and ((task.processes and task.task_id not in sure) or task.task_id in over_udp)
        for task in state.tasks.values()
    )
    if listens and "silence" not in state.timers:
        yield "a process could fall silent without a reading of its beats"
    idle = not (state.tasks or state.requests or pauses)
    if idle and state.wake_ns() is not None:
        yield f"nothing holds or waits, and yet there is a time to wake: {state.timers}"


def _audit(state: State) -> Iterator[str]:
    for uuid, unbooked_bytes in state.unbooked.items():
        if unbooked_bytes <= state.config.audit_tolerance_bytes or uuid not in state.gpus:
            yield f"{unbooked_bytes} bytes in no books on {uuid}"
    for key, violation in state.violations.items():
        if key != (violation.process, violation.uuid) or violation.last_ns < violation.since_ns:
            yield f"{violation} under {key}"
        if bool(violation.done) != violation.told or (violation.term_ns is not None) != (
            violation.done == "kill"
        ):
            yield f"{violation}: what was done, and what was told?"
        if violation.killed and violation.term_ns is None:
            yield f"{violation} was not asked first"


def _differ(name: str, stored: Any, counted: Any) -> Iterator[str]:
    if dict(stored) != dict(counted):
        yield f"{name} is {stored}, counted {counted}"
