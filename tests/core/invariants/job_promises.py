"""Invariants of jobs: a part of promises.py, counted again from the rows alone.

Knows: jobs, their requests, leases and specs. Must not know: how they came to be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from nodemgr.core.model.array_rows import element
from nodemgr.core.model.entities import (
    FINAL,
    HELD_OR_DEPENDENT,
    RETAINED_ATTEMPTS,
    RETAINED_HISTORY_ENTRIES,
    UNDER_WAY,
    Job,
    JobState,
    RunSpec,
)
from nodemgr.core.model.job_ids import array_of
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.node_state import State

HOLDING = frozenset((JobState.STARTING, JobState.RUNNING))
WAITING_ROWS = HELD_OR_DEPENDENT - {JobState.PAUSED} | {JobState.QUEUED}


def check(state: State) -> Iterator[str]:
    queued = Counter[str]()
    for request in state.requests.values():
        queued[request.priority] += request.size
    if state.queued != queued:
        yield f"queued are {state.queued}, counted {queued}"
    tables = (
        state.jobs,
        state.specs,
        state.spec_jobs,
        state.env_jobs,
        state.job_of_key,
        state.elements,
        state.dependents,
        state.assignments,
    )
    named = any(request.job_id for request in state.requests.values()) or any(
        task.job_id for task in state.tasks.values()
    )
    if not named and not any(tables):
        return  # as on most nodes that tests make
    for job in state.jobs.values():
        for wrong in (*_state(job), *_rows(state, job)):
            yield f"{job.job_id}, {job.state.value}: {wrong}"
    yield from _named_once(state)
    yield from _assigned(state)


def check_change(draft: Draft) -> Iterator[str]:
    """No job starts beyond the CPUs or the host memory of its quota or of the node."""
    rows = [row for row in draft.jobs.values() if row.state in UNDER_WAY]
    config = draft.config
    for job_id, before, job in draft.jobs.changes():
        is_new = before is None or before.state not in UNDER_WAY
        if job is None or job.state not in UNDER_WAY or not is_new:
            continue
        quota = draft.envs[job.env].quota
        for what, asked, sums, of_quota, of_node in (
            ("CPUs", job.run.cpus, _sums(rows, lambda run: run.cpus), quota.cpus, config.node_cpus),
            ("bytes", job.run.host_memory_bytes, _host_bytes(draft, rows),
             quota.host_memory_bytes, config.node_memory_bytes),
        ):  # fmt: skip
            if asked and of_quota is not None and sums[job.env] > of_quota:
                yield f"{job_id} starts with {sums[job.env]} {what} of its quota's {of_quota}"
            if asked and of_node and sums.total() > of_node:
                yield f"{job_id} starts with {sums.total()} {what} of the node's {of_node}"


def _assigned(state: State) -> Iterator[str]:
    """Each key has one answer, and a job under it at most one attempt."""
    jobs = {job.assigned: job for job in state.jobs.values() if job.assigned}
    named = [job.assigned for job in state.jobs.values() if job.assigned]
    open_keys = {row.key for row in state.assignments.values() if not row.is_over}
    if len(named) != len(jobs) or jobs.keys() != open_keys:
        yield f"assigned are {sorted(named)}, without an end are {sorted(open_keys)}"
    for key, row in state.assignments.items():
        job = jobs.get(key)
        if key != row.key or (job is not None and (job.job_id, job.env) != (row.job_id, row.env)):
            yield f"{key} is {row}, and its job {job}"
    for job in jobs.values():
        begun = [each for each in job.attempts if each.number < job.attempt]
        if begun or job.after or job.indices or job.restarts or job.interruptions:
            yield f"{job.job_id} is assigned, and {job}"
        if job.state in (JobState.HELD, JobState.DEPENDENCY):
            yield f"{job.job_id} is assigned and {job.state.value}"
    lost = state.unconfirmed.keys() - {job.job_id for job in jobs.values()}
    if lost:
        yield f"unconfirmed are {lost}"


def _state(job: Job) -> Iterator[str]:
    if job.state in FINAL:
        yield "has ended, and is still there"
    if (job.then is not None) != (job.state is JobState.STOPPING) or job.then in HOLDING:
        yield f"then {job.then}"
    if (job.request_id is not None) != (job.state is JobState.QUEUED):
        yield f"request {job.request_id}"
    if (job.task_id is not None) != (
        job.state in HOLDING and job.run.gpus > 0
    ) and job.state is not JobState.STOPPING:
        yield f"lease {job.task_id} for {job.run.gpus} GPUs"
    if (job.resumes_wall_ns is not None) != (job.state is JobState.PAUSED):
        yield f"resumes at {job.resumes_wall_ns}"
    if bool(job.after) != (job.state is JobState.DEPENDENCY) and job.state is not JobState.HELD:
        yield f"waits for {job.after}"
    under_way = job.state in HOLDING or job.state is JobState.STOPPING
    numbers = [attempt.number for attempt in job.attempts]  # without the unstarted ones
    if (
        numbers != sorted({*numbers})
        or len(numbers) > RETAINED_ATTEMPTS
        or max(numbers, default=0) > job.attempt
    ):
        yield f"attempt {job.attempt}, known are {numbers}"
    if under_way and job.attempt not in numbers:
        yield f"attempt {job.attempt} is under way, known are {numbers}"
    if job.attempts and (job.attempts[-1].ended_wall_ns is None) != under_way:
        yield f"its last attempt is {job.attempts[-1]}"
    if not job.deeds or len(job.deeds) > RETAINED_HISTORY_ENTRIES:
        yield f"{len(job.deeds)} history entries"


def _rows(state: State, job: Job) -> Iterator[str]:
    request = None if job.request_id is None else state.requests.get(job.request_id)
    if job.request_id is not None and (
        request is None
        or request.job_id != job.job_id
        or (request.priority, request.size, request.queued_ns)
        != (job.priority, job.size, job.queued_ns)
    ):
        yield f"its request is {request}"
    row = state.jobs.get(array_of(job.job_id) or "")
    if row is not None and element(row, job.job_id) is not None:
        yield f"it waits in {row} too"
    if job.indices and (job.state not in WAITING_ROWS or job.attempt):
        yield "is a row"
    task = None if job.task_id is None else state.tasks.get(job.task_id)
    if job.task_id is not None and (
        task is None or task.job_id != job.job_id or task.gpus != job.attempts[-1].gpus
    ):
        yield f"its lease is {task}"
    if job.env not in state.envs and job.state is not JobState.STOPPING:
        yield f"{job.env} has no quota"
    lost = [name for name in job.after if not _lives(state, job.env, name)]
    if lost:
        yield f"waits for {lost}, which are not there"


def _lives(state: State, env: str, name: str) -> bool:
    row = state.jobs.get(array_of(name) or "")
    rows = [state.jobs.get(name), None if row is None else element(row, name)]
    rows += [state.jobs.get(each) for each in state.elements.get(name, ())]
    return any(row is not None and row.env == env for row in rows)


def _by_env(state: State, named: list[Job]) -> tuple[Counter[str], Counter[str]]:
    """The bytes and the number of each env's jobs, with those that wait as one row."""
    sizes, counts = Counter[str](), Counter[str]()
    for env, spec_id in {(job.env, job.spec_id) for job in named}:
        sizes[env] += state.specs[spec_id].payload_bytes
    for job in state.jobs.values():
        sizes[job.env] += job.row_bytes
        counts[job.env] += job.size
    return sizes, counts


def _sums(jobs: Iterable[Job], amount: Callable[[RunSpec], int | None]) -> Counter[str]:
    """By env, what its jobs under way reserve."""
    sums: Counter[str] = Counter()
    for job in jobs:
        if job.state in UNDER_WAY and (reserved := amount(job.run)):
            sums[job.env] += reserved
    return sums


def _host_bytes(state: State, jobs: Iterable[Job]) -> Counter[str]:
    """The host memory that jobs reserve, and under "" that of suspensions."""
    sums = _sums(jobs, lambda run: run.host_memory_bytes)
    if moved_bytes := sum(task.suspended_bytes or 0 for task in state.tasks.values()):
        sums[""] = moved_bytes
    return sums


def _pairs(groups: Mapping[str, Iterable[str]]) -> set[tuple[str, str]]:
    """Each key with each of its members."""
    return {(key, member) for key, members in groups.items() for member in members}


def _named_once(state: State) -> Iterator[str]:
    jobs = state.jobs.values()
    sizes, counts = _by_env(state, list(jobs))
    requests = {r.request_id for r in state.requests.values() if r.job_id}
    leases = {t.task_id for t in state.tasks.values() if t.job_id}
    for what, stored, counted in (
        ("requests of jobs", requests, {j.request_id for j in jobs if j.request_id}),
        ("leases of jobs", leases, {j.task_id for j in jobs if j.task_id}),
        (
            "specs",
            {(key, spec.spec_id) for key, spec in state.specs.items()},
            {(j.spec_id, j.spec_id) for j in jobs},
        ),
        ("spec_jobs", state.spec_jobs, Counter(j.spec_id for j in jobs)),
        ("job_bytes", state.job_bytes, sizes),
        ("living", sorted(state.living), sorted(state.jobs)),
        ("the number of living", state.living.size, sum(j.size for j in jobs)),
        ("env_jobs", state.env_jobs, counts),
        (
            "cpu_jobs",
            state.cpu_jobs,
            Counter(j.env for j in jobs if j.run.gpus == 0 and j.state in UNDER_WAY),
        ),
        ("host_cpus", state.host_cpus, _sums(jobs, lambda run: run.cpus)),
        ("host_bytes", state.host_bytes, _host_bytes(state, jobs)),
        (
            "held_or_dependent",
            sorted(state.held_or_dependent),
            sorted(j.job_id for j in jobs if j.state in HELD_OR_DEPENDENT),
        ),
        (
            "under_way",
            sorted(state.under_way),
            sorted(j.job_id for j in jobs if j.state in UNDER_WAY),
        ),
        (
            "job_of_key",
            state.job_of_key,
            {(j.env, j.key): array_of(j.job_id) or j.job_id for j in jobs if j.key},
        ),
        (
            "elements",
            _pairs(state.elements),
            {(a, j.job_id) for j in jobs if (a := array_of(j.job_id))}
            | {(j.job_id, j.job_id) for j in jobs if j.indices},
        ),
        ("dependents", _pairs(state.dependents), {(a, j.job_id) for j in jobs for a in j.after}),
        (
            "awaited",
            _pairs(state.awaited),
            {(b, a) for j in jobs for a in j.after if (b := array_of(a))},
        ),
        ("queues", state.queues.keys(), {row.name for row in state.queues.values()}),
    ):
        if stored != counted:
            yield f"{what} are {stored}, counted {counted}"
