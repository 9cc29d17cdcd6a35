"""The promises of a head, counted again from its rows.

Knows: the rows. Must not know: how they came to be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nodemgr.core.cluster import listing
from nodemgr.core.cluster.entities import AT_A_NODE, FINAL, ClusterStage
from nodemgr.core.cluster.job_orders import OUTSIDE, WAITING
from nodemgr.core.cluster.state import ClusterDraft, ClusterState
from nodemgr.core.model import job_ids


def check(state: ClusterState) -> Iterator[str]:
    """A line for each that is broken."""
    for job in state.jobs.values():
        row = state.assignments.get(job.assigned or 0)
        if (job.assigned is not None) != (job.stage in AT_A_NODE) or job.stage in FINAL:
            yield f"{job.job_id} is {job.stage.value} with the assignment {job.assigned}"
        if job.assigned is not None and (row is None or row.job_id != job.job_id):
            yield f"{job.job_id} has the assignment {row}"
        if (job.then is not None) != (job.stage is ClusterStage.STOPPING):
            yield f"{job.job_id} is {job.stage.value}, then {job.then}"
        if (job.resumes_ns is not None) != (job.stage is ClusterStage.PAUSED):
            yield f"{job.job_id} is {job.stage.value} until {job.resumes_ns}"
        if job.indices and job.stage not in WAITING:
            yield f"{job.job_id} is {job.stage.value} with {job.indices}"
        if job.after and job.stage not in OUTSIDE:
            yield f"{job.job_id} is {job.stage.value} after {job.after}"
        if not all(map(state.living, job.after)):
            yield f"{job.job_id} waits for {job.after}, of which some have ended"
        if (job.job_id in state.queue) != (job.stage is ClusterStage.QUEUED):
            yield f"{job.job_id} is {job.stage.value}, in the queue: {job.job_id in state.queue}"
    for number, row in state.assignments.items():
        held = state.jobs.get(row.job_id)
        if number != row.number or held is None or held.assigned != number:
            yield f"assignment {row} is of {held}"
        if row.number > state.counters[""].number or row.node not in state.nodes:
            yield f"assignment {row}, counted {state.counters['']}"
    yield from _sums(state)


def _jobs(state: ClusterState) -> Counter[str]:
    found = Counter[str]()
    for job in state.jobs.values():
        found[job.env] += job.size
    return found


def _listed(state: ClusterState) -> list[str]:
    """Jobs at nodes, those of the queue in the order of service, and the others."""
    ordered = sorted(state.jobs, key=job_ids.listed)
    at_node = [name for name in ordered if state.jobs[name].assigned is not None]
    queued = [name for name in ordered if state.jobs[name].stage is ClusterStage.QUEUED]
    queued.sort(key=lambda name: state.queue.order(name))
    return [*at_node, *queued, *(one for one in ordered if one not in {*at_node, *queued})]


def _sums(state: ClusterState) -> Iterator[str]:
    gpus, shared = Counter[str](), set[tuple[str, int]]()
    for row in state.assignments.values():
        gpus[row.env] += row.gpus
        shared |= {(row.env, row.number)} if row.shares else set()
    for what, stored, counted in (
        ("GPUs of assignments", state.env_gpus, {env: n for env, n in gpus.items() if n}),
        (
            "assignments of nodes",
            {(node, n) for node, numbers in state.of_node.items() for n in numbers},
            {(row.node, row.number) for row in state.assignments.values()},
        ),
        ("shared", {(env, n) for env, there in state.shared.items() for n in there}, shared),
        ("jobs of environments", {env: n for env, n in state.env_jobs.items() if n}, _jobs(state)),
        ("the list", [job.job_id for _, job in listing.behind(state, None)], _listed(state)),
        (
            "the queue",
            len(state.queue),
            sum(j.stage is ClusterStage.QUEUED for j in state.jobs.values()),
        ),
        (
            "jobs of users",
            {user: count for user, (_, count) in state.users.items()},
            dict(Counter(job.user for job in state.jobs.values())),
        ),
        (
            "pauses",
            state.paused,
            {j.job_id: j.resumes_ns for j in state.jobs.values() if j.resumes_ns is not None},
        ),
        (
            "submitted keys",
            state.submitted,
            {(j.env, j.submit_key): j.array for j in state.jobs.values() if j.submit_key},
        ),
        (
            "elements of arrays",
            {(array, name) for array, there in state.elements.items() for name in there},
            {(j.array, j.job_id) for j in state.jobs.values() if j.indices or j.array != j.job_id},
        ),
        (
            "dependents",
            {(name, job) for name, there in state.awaited.items() for job in there},
            {(name, j.job_id) for j in state.jobs.values() for name in j.after},
        ),
        (
            "keys to confirm",
            state.to_confirm.keys() - {r.key for r in state.assignments.values()},
            set(),
        ),
    ):
        if stored != counted:
            yield f"{what}: {stored}, counted {counted}"


def _used(draft: ClusterDraft, node: str, env: str) -> int:
    """The GPUs of the environment there, as far as the head can know."""
    rows = [row for row in draft.at(node) if row.env == env]
    others = dict(draft.nodes[node].others).get(env, 0)
    shares = draft.shares.get(node)
    said = None if shares is None else shares.gpus
    has_strays = node in {*draft.strays.values(), *draft.unknown.values()}
    if said is None or not (has_strays or any(row.shares for row in rows)):
        return others + sum(row.gpus for row in rows)
    listed = {number for gpu in said for number in gpu.numbers}
    used = sum(env in dict(gpu.envs) for gpu in said)
    new = [row for row in rows if row.number not in listed]
    used += sum(row.gpus for row in new if not row.shares)
    most = max(used, min(draft.envs[env].part, len(said)))
    return min(most, used + sum(row.gpus for row in new if row.shares))


def check_change(draft: ClusterDraft) -> Iterator[str]:
    """Each new assignment leaves its environment within its total, as the head knows it."""
    new = {
        number: row
        for number, before, row in draft.assignments.changes()
        if row is not None
        and before is None
        and row.key.split("/")[1] == str(draft.head.generation)  # not found after a restore
    }
    for env in sorted({row.env for row in new.values() if row.gpus}):
        used, total = sum(_used(draft, node, env) for node in draft.nodes), draft.envs[env].gpus
        if used > total:
            yield f"{env} uses {used} of {total}"
    for number, row in new.items():
        if row.node not in draft.sessions or draft.nodes[row.node].drained:
            yield f"{row} is on a node that does not speak, or is drained"
        head = draft.counters.before("")
        if head is not None and number <= head.number:
            yield f"{number} was given before"
