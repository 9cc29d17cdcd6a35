"""The promises of a head, counted again from its rows.

Knows: the rows. Must not know: how they came to be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nodemgr.core.cluster.entities import FINAL, ClusterStage
from nodemgr.core.cluster.state import ClusterDraft, ClusterState, at_a_node


def check(state: ClusterState) -> Iterator[str]:
    """A line for each that is broken."""
    for job in state.jobs.values():
        row = state.assignments.get(job.assigned or 0)
        if (job.assigned is not None) != at_a_node(job) or job.stage in FINAL:
            yield f"{job.job_id} is {job.stage.value} with the assignment {job.assigned}"
        if job.assigned is not None and (row is None or row.job_id != job.job_id):
            yield f"{job.job_id} has the assignment {row}"
        if (job.then is not None) != (job.stage is ClusterStage.STOPPING):
            yield f"{job.job_id} is {job.stage.value}, then {job.then}"
        if (job.resumes_ns is not None) != (job.stage is ClusterStage.PAUSED):
            yield f"{job.job_id} is {job.stage.value} until {job.resumes_ns}"
        if (job.job_id in state.queue) != (job.stage is ClusterStage.QUEUED):
            yield f"{job.job_id} is {job.stage.value}, in the queue: {job.job_id in state.queue}"
    for number, row in state.assignments.items():
        held = state.jobs.get(row.job_id)
        if number != row.number or held is None or held.assigned != number:
            yield f"assignment {row} is of {held}"
        if row.number > state.counters[""].number or row.node not in state.nodes:
            yield f"assignment {row}, counted {state.counters['']}"
    yield from _sums(state)


def _sums(state: ClusterState) -> Iterator[str]:
    gpus = Counter[str]()
    for row in state.assignments.values():
        gpus[row.env] += row.gpus
    for what, stored, counted in (
        ("GPUs of assignments", state.env_gpus, {env: n for env, n in gpus.items() if n}),
        (
            "assignments of nodes",
            {(node, n) for node, numbers in state.of_node.items() for n in numbers},
            {(row.node, row.number) for row in state.assignments.values()},
        ),
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
            {(j.env, j.submit_key): j.job_id for j in state.jobs.values() if j.submit_key},
        ),
        (
            "keys to confirm",
            state.to_confirm.keys() - {r.key for r in state.assignments.values()},
            set(),
        ),
    ):
        if stored != counted:
            yield f"{what}: {stored}, counted {counted}"


def check_change(draft: ClusterDraft) -> Iterator[str]:
    """Each new assignment leaves its environment within its total, as the head knows it."""
    new = {
        number: row
        for number, row in draft.assignments.changes.items()
        if row is not None
        and number not in draft.state.assignments
        and row.key.split("/")[1] == str(draft.head.generation)  # not found after a restore
    }
    for env in sorted({row.env for row in new.values() if row.gpus}):
        others = sum(
            gpus for node in draft.nodes.values() for name, gpus in node.others if name == env
        )
        used, total = others + (draft.env_gpus.get(env) or 0), draft.envs[env].gpus
        if used > total:
            yield f"{env} uses {used} of {total}"
    for number, row in new.items():
        if row.node not in draft.sessions or draft.nodes[row.node].drained:
            yield f"{row} is on a node that does not speak, or is drained"
        if number <= draft.state.counters[""].number:
            yield f"{number} was given before"
