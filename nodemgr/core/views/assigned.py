"""The answers to a head about the jobs that it has assigned to this node, as rows.

Knows: the keys that a head reads. Must not know: the head, how a row reaches it.
"""

from __future__ import annotations

from typing import Any

from nodemgr.core.model.entities import UNDER_WAY, Assignment
from nodemgr.core.state.node_state import State


def row(state: State, answer: Assignment) -> dict[str, Any]:
    """`began`: of a job that lives, whether a process of it runs or may run now."""
    job, last = state.jobs.get(answer.job_id), answer.attempt
    lives = job is not None and job.assigned == answer.key
    return {
        "key": answer.key,
        "number": answer.number,
        "env": answer.env,
        "job": answer.job_id or None,
        "state": job.state.value if job is not None and lives else answer.state.value,
        "over": answer.is_over,
        "began": answer.began or (job is not None and lives and job.state in UNDER_WAY),
        "confirmed": answer.job_id not in state.unconfirmed,
        "acknowledged": answer.is_acknowledged,
        "reason": answer.why,
        "cause": None if last is None else last.cause.value,
        "exit_code": None if last is None else last.exit_code,
        "signal": None if last is None else last.signal,
        "gpus": [] if last is None else list(last.gpus),
        "started_wall_ns": None if last is None else last.started_wall_ns,
        "ended_wall_ns": None if last is None else last.ended_wall_ns,
        "log_tail": "" if last is None else last.log_tail,
    }
