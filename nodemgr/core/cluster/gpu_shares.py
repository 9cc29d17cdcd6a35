"""The GPUs of a node with all that is assigned there, where jobs share them; and their count.

Knows: a head's rows, the last report of each node. Must not know: the order of jobs, the rules of a
GPU (gpu_rooms.py).

A job with a task on a GPU of the report is part of the report's figures. Any other assignment is
placed here as the node would place it. A wrong guess costs a wait at the node. The GPUs of an
environment are counted as at most as many as the node can give them, so that no total is exceeded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache

from nodemgr.core.cluster.entities import (
    ClusterEnv,
    ClusterJob,
    ClusterNode,
    GivenJob,
    NodeGpu,
    NodeShares,
)
from nodemgr.core.cluster.gpu_rooms import Held, Want, more_gpus
from nodemgr.core.cluster.state import ClusterState
from nodemgr.core.model.entities import CLASS_ORDER, Quota, TaskClass
from nodemgr.core.scheduler import shares


def want(state: ClusterState, job: ClusterJob | GivenJob) -> Want:
    env, task_class = state.envs[job.env], state.jobs[job.job_id].task_class
    return Want(
        job.env, job.gpus, job.compute_percent, job.memory_bytes,
        task_class is TaskClass.LATENCY_SENSITIVE, env.part, env.memory_bytes,
    )  # fmt: skip


def class_and_share(
    env: ClusterEnv, task_class: TaskClass | None, percent: int | None
) -> tuple[TaskClass, int | None]:
    """Those of a job that names these, as its node gives them to it."""
    return shares.asked(_quota(env.quota), task_class, percent)


@lru_cache
def _quota(text: str) -> Quota:
    row = json.loads(text)
    highest = TaskClass(row.get("task_class") or TaskClass.NORMAL)
    return Quota(0, task_class=highest, compute_percent=row.get("compute_percent"))


Above = tuple[str, TaskClass | int]
"""The field of a quota, and the most that it gives."""


def above_share(env: ClusterEnv, job: ClusterJob) -> Above | None:
    """The limit that its class or its share exceeds."""
    return above(env, job.task_class, job.compute_percent) if job.gpus else None


def above(env: ClusterEnv, task_class: TaskClass | None, percent: int | None) -> Above | None:
    """The same of a class and a share that a submission names."""
    quota = _quota(env.quota)
    if task_class is not None and CLASS_ORDER[task_class] < CLASS_ORDER[quota.task_class]:
        return "task_class", quota.task_class
    most = quota.compute_percent
    return None if percent is None or most is None or percent <= most else ("compute_percent", most)


def above_quota(state: ClusterState, job: ClusterJob) -> Above | None:
    """The limit that the job exceeds since it was lowered: its nodes would refuse it.

    Memory: of the nodes that are known; a job of none waits for one.
    """
    env = state.envs[job.env]
    if not job.gpus:
        return None
    if job.gpus > env.part:
        return "gpus", env.part
    if (found := above_share(env, job)) is not None:
        return found
    if job.memory_bytes is None or env.memory_bytes is None:
        return None
    counts = [min(env.part, node.gpus) for node in state.nodes.values() if node.gpus]
    most_bytes = env.memory_bytes // min(counts, default=1)
    return ("memory_bytes", most_bytes) if job.memory_bytes > most_bytes else None


def most_bytes(gpus: Sequence[NodeGpu], env: ClusterEnv) -> int:
    """The largest grant of the environment on one of a node's GPUs."""
    asked = Want(env.name, 1, None, None, False, env.part, env.memory_bytes)
    return max([asked.grant_bytes(gpu.memory_bytes, len(gpus)) for gpu in gpus], default=0)


def held(state: ClusterState, node: str, rows: Iterable[GivenJob]) -> Held | None:
    """`rows`: its assignments, in the order in which they hold GPUs. None: it reports no shares."""
    said = state.shares.get(node)
    if said is None:
        return None
    made = Held(said)
    for row in rows:
        if row.number in said.listed:
            continue
        if not row.shares or row.env not in state.envs:
            made.use(row.env, row.gpus)
            if row.began_ns is None and row.gpus > made.left.empty:
                made.ahead.append(row)
            else:
                made.take_whole(row.gpus, row.env)
            continue
        asked = want(state, row)
        made.use(row.env, more_gpus(made.used.get(row.env, 0), asked, made.count))
        found = made.find(asked)
        if found is not None:
            made.take(found, asked)
        elif row.began_ns is None:
            made.ahead.append(row)
    return made


def by_start(rows: Iterable[GivenJob]) -> list[GivenJob]:
    """Those that have begun, then in the order of assignment."""
    return sorted(rows, key=lambda row: (row.began_ns is None, row.number))


def unassigned(state: ClusterState) -> set[str]:
    """The nodes whose report of each GPU counts, and not their numbers of GPUs (`others`).

    Those numbers leave out tasks of jobs without an assignment, and programs on a GPU that is out
    of service or that another environment uses, too.
    """
    strays = {*state.strays.values(), *state.unknown.values()}
    return {
        name
        for name, said in state.shares.items()
        if is_unassigned(state.nodes[name], said, is_stray=name in strays)
    }


def is_unassigned(node: ClusterNode, said: NodeShares | None, *, is_stray: bool) -> bool:
    """Whether it is one of them; `is_stray`: jobs without an assignment run there."""
    if said is None:
        return False
    return is_stray or said.others != sum([gpus for _, gpus in node.others])


def used_of(state: ClusterState, env: str) -> int:
    """The GPUs of the environment's assignments and of its interactive tasks, on all nodes."""
    others = sum([n for node in state.nodes.values() for name, n in node.others if name == env])
    total = others + state.env_gpus.get(env, 0)
    numbers = state.shared.get(env, ())
    for name in sorted({state.assignments[number].node for number in numbers} | unassigned(state)):
        rows = [state.assignments[number] for number in state.of_node.get(name, ())]
        found = held(state, name, by_start(rows))
        if found is not None:
            total -= saved(state.nodes[name], rows, found, env)
    return total


def alone(node: ClusterNode, rows: Iterable[GivenJob], env: str) -> int:
    """The GPUs of the environment there if each job had its own."""
    others = sum([gpus for name, gpus in node.others if name == env])
    return others + sum([row.gpus for row in rows if row.env == env])


def saved(node: ClusterNode, rows: Iterable[GivenJob], found: Held, env: str) -> int:
    """By so many GPUs they are fewer."""
    return alone(node, rows, env) - found.used.get(env, 0)
