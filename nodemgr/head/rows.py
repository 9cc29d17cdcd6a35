"""The head's rows as answers: jobs that live and that have ended, nodes, environments.

Knows: the keys of a node's rows (core/views/job_rows), so that one face shows both; `node` is
added. Must not know: the asker, and the asker's rights.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from client_plugin.units import format_size
from nodemgr.core.cluster.entities import (
    ClusterJob,
    ClusterNode,
    ClusterStage,
    EndedJob,
    PastStart,
)
from nodemgr.core.cluster.gpu_shares import above_quota, used_of
from nodemgr.core.cluster.state import QUEUE, ClusterState
from nodemgr.core.model import array_rows, job_ids
from nodemgr.core.model.entities import MS
from nodemgr.core.views.job_rows import exit_of, held, unplaced_for

S = 1_000_000_000
SHOWN_STATES = {ClusterStage.ASSIGNED: "queued"}
"""A job that its node has not begun stands in a queue there."""


def living(
    state: ClusterState, job: ClusterJob, now_ns: int, wall_ns: int, silent_s: int | None
) -> Any:
    """`silent_s`: of its node; None: it speaks, or there is none."""
    row = state.assignments.get(job.assigned or 0)
    waits = job.stage in (ClusterStage.QUEUED, ClusterStage.ASSIGNED)
    began_ns, starts = None if row is None else row.began_ns, list(map(_start, job.past))
    ran_ns = None if began_ns is None else max(0, now_ns - began_ns)
    if row is not None and ran_ns is not None:
        began = (wall_ns - ran_ns) // S
        present = PastStart(row.node, row.node_job, ran_ms=ran_ns // MS, number=job.starts + 1)
        runs = _start(present)
        starts.append(runs | {"started": began})
    return {
        **_spec(job),
        "id": array_rows.waiting(job),
        "request": None,
        **unplaced_for(why(state, job, silent_s)),
        "position": state.queue.position(job.job_id) if job.job_id in state.queue else None,
        "state": state_of(job),
        "node": None if row is None else row.node,
        "pids": [],
        "users": [job.user],
        "submitted": job.submitted_wall_ns // S,
        "started": starts[-1]["started"] if ran_ns is not None else None,
        "why": "",
        "since": job.submitted_wall_ns // S,
        "waited_seconds": max(0, now_ns - job.queued_ns) // S if waits else None,
        "duration_seconds": None if ran_ns is None else ran_ns // S,
        "after": list(job.after),
        "resumes": None,
        "receives": [],
        "attempts": starts,
        "starts": starts[-1]["number"] if starts else 0,
        "ended": None,
    }


def _start(row: PastStart) -> dict[str, Any]:
    """As a node's row of an attempt, with the node."""
    ended_ns, ran_ms = row.ended_wall_ns, row.ran_ms
    is_known = ended_ns and ran_ms is not None
    return {
        "number": row.number,
        "node": row.node,
        "started": (ended_ns - (ran_ms or 0) * MS) // S if is_known else None,
        "ended": ended_ns // S or None,
        "exit_code": row.exit_code,
        "signal": row.signal,
        "cause": None if row.cause is None else row.cause.value,
        "why": row.why,
        "gpus": [],
        "gpu_indices": [],
        "log_tail": "",
        **_times(ran_ms),
    }


def _times(ran_ms: int | None) -> dict[str, Any]:
    ran_s = None if ran_ms is None else ran_ms / 1_000
    return {"ran_seconds": ran_s, "ran_at_least": False, "waited_seconds": None}


def state_of(job: ClusterJob) -> str:
    return SHOWN_STATES.get(job.stage, job.stage.value)


def _spec(job: ClusterJob) -> dict[str, Any]:
    limit_ms = job.time_limit_ms
    unset = dict.fromkeys(
        (
            "gpus_min", "gpus_max", "memory_min_bytes", "memory_max_bytes", "cpus",
            "host_memory_bytes", "predicted", "place", "peak_bytes",
            "utilization_percent", "expected_start", "expected_start_low", "expected_start_high",
            "expected_spread_seconds", "expected_by",
        )
    )  # fmt: skip
    return {
        **unset,
        "job": job.job_id,
        "jobs": job.size,
        "indices": array_rows.shown(job.indices) or None,
        "env": job.env,
        "user": job.user,
        "name": job.name,
        "command": job.command,
        "gpus": job.gpus,
        "elastic": False,
        "class": job.task_class.value,
        "compute_percent": job.compute_percent,
        "memory_named_bytes": job.memory_bytes,
        "time_limit_seconds": None if limit_ms is None else limit_ms // 1_000,
        "priority": QUEUE,
        "restarts": job.restarts,
        "interruptions": job.interruptions,
        "attempt": job.attempt,
        "deeds": [],
    }


def why(state: ClusterState, job: ClusterJob, silent_s: int | None) -> str:
    """Why it stands where it stands; of a job that runs on a node that speaks, nothing."""
    row = state.assignments.get(job.assigned or 0)
    if row is not None and silent_s is not None:
        return (
            f"{row.node} has not spoken for {silent_s} s: wait for it, or, if nothing runs there "
            f"any more, nodemgr node lost {row.node}"
        )
    if row is not None:
        return f"{row.node} has it, and begins it there" if row.began_ns is None else ""
    if job.stage is ClusterStage.HELD:
        return held(job.array, f"held by {job.held_by}")
    if job.stage is ClusterStage.DEPENDENCY:
        return f"waits for {', '.join(job.after[:5])} to end well"
    head = state.counters[""]
    if head.is_copy:
        return "the head's store is an older copy: nodemgr head restore"
    if head.is_restoring:
        names = [
            n.name for n in state.nodes.values() if not n.lost and n.name not in state.sessions
        ]
        return f"the head was restored, and waits to hear {', '.join(names[:5])}"
    env = state.envs.get(job.env)
    if env is None:
        return f"environment {job.env} is gone"
    if job.stage is not ClusterStage.QUEUED:
        is_paused = job.stage is ClusterStage.PAUSED
        times = f"interrupted {job.interruptions} times" if job.interruptions > 1 else "interrupted"
        return f"{times}: waits again after a pause" if is_paused else ""
    if (above := above_quota(state, job)) is not None:
        return _above(job, *above)
    used = used_of(state, job.env)
    if used + (0 if job.shares else job.gpus) > env.gpus:
        return f"environment {job.env} uses {used} of its {env.gpus} GPUs in the cluster"
    if not job.shares:
        most = "" if env.per_node is None else f", or {job.env} has its {env.per_node} there"
        return f"no node has the GPUs free{most}"
    earlier = sorted(state.sessions.keys() - state.shares.keys())[:5]
    alone = f" ({', '.join(earlier)} of whole GPUs alone: upgrade)" if earlier else ""
    return f"no node has the share of its GPUs free{alone}"


def _above(job: ClusterJob, field: str, most: Any) -> str:
    """As on a node (core/scheduler/reasons.py, above_quota)."""
    needs, option = {
        "gpus": (f"{job.gpus} GPUs on one node", "--gpus or --per-node"),
        "task_class": (f"class {job.task_class}", "--class"),
        "compute_percent": (f"{job.compute_percent}% of each GPU", "--compute"),
        "memory_bytes": (f"{format_size(job.memory_bytes or 0)} on each GPU", "--memory"),
    }[field]
    limit = {"memory_bytes": format_size, "compute_percent": "{}%".format}.get(field, str)(most)
    return (
        f"needs {needs}, but {job.env} may have at most {limit} now: waits until an admin raises "
        f"its quota (nodemgr quota set {job.env} --cluster {option})"
    )


def ended(row: EndedJob) -> dict[str, Any]:
    job = row.job
    began = None if row.ran_ms is None else (row.ended_wall_ns - row.ran_ms * MS) // S
    return {
        **_spec(job),
        **_times(row.ran_ms),
        "waited_at_least": False,
        "state": job.stage.value,
        "node": row.node or None,
        "submitted": job.submitted_wall_ns // S,
        "started": began,
        "ended": row.ended_wall_ns // S,
        "exit_code": row.exit_code,
        "signal": row.signal,
        "cause": None if row.cause is None else row.cause.value,
        "why": row.why,
        "attempts": list(map(_start, job.past)),
        "starts": job.starts,
    }


def outcome(name: str, past: Sequence[EndedJob]) -> dict[str, Any]:
    """As a row of job_wait: of an array the first that did not end well."""
    codes = [exit_of(row.job.stage.value, row.exit_code, row.signal) for row in past]
    at = next((at for at, code in enumerate(codes) if code != 0), 0)
    row, job = past[at], past[at].job
    return {
        "job": name, "of": job.job_id, "state": job.stage.value, "exit": codes[at],
        "why": row.why,
    }  # fmt: skip


def node(state: ClusterState, row: ClusterNode, silent_s: int | None) -> dict[str, Any]:
    rows = [state.assignments[number] for number in state.of_node.get(row.name, ())]
    strays = [key for key, holder in state.strays.items() if holder == row.name]
    unknown = [key for key, holder in state.unknown.items() if holder == row.name]
    up = row.name in state.sessions
    return {
        "node": row.name,
        "state": _node_state(row, up),
        "up": up,
        "drained": row.drained,
        "why": row.why,
        "user": row.user or None,
        "silent_seconds": silent_s,
        "gpus": row.gpus,
        "models": list(row.models),
        "gpus_of_jobs": sum(one.gpus for one in rows if one.began_ns is not None),
        "gpus_of_others": sum(gpus for _, gpus in row.others),
        "jobs": sorted((one.job_id for one in rows), key=job_ids.listed),
        "given_up": sorted(strays),
        "unknown": sorted(unknown),
    }


def _node_state(row: ClusterNode, up: bool) -> str:
    if row.pool is not None and not row.pool.pilot and not row.lost:
        return "slurm"  # Slurm has it
    return "lost" if row.lost else "drained" if row.drained else "up" if up else "silent"


def env(state: ClusterState, name: str) -> dict[str, Any]:
    row = state.envs[name]
    return {
        "env": name,
        **json.loads(row.quota),
        "gpus": row.gpus,
        "per_node": row.per_node,
        "gpus_used": used_of(state, name),
    }
