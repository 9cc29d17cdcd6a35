"""The record of a GPU for readers: its drain, its failures, its estimated rate with an interval.

Knows: the tables of the records. Must not know: how they came to be, how they are printed.
"""

from __future__ import annotations

from typing import Any

from nodemgr.core.lifecycle import failure_rows
from nodemgr.core.model.entities import BY_MANAGER, Gpu
from nodemgr.core.scheduler import preference, reasons
from nodemgr.core.state.node_state import State

SHOWN_HOURS = 1_000
"""Rates are reported as failures in so many hours."""
SECOND_NS = 1_000_000_000


def row(state: State, gpu: Gpu, env: str | None = None) -> dict[str, Any]:
    """The keys of a GPU that `status` and `report` have. Rates are None without any failure.

    With `env`: as far as they are open to that environment.
    """
    record, known = state.gpu_records.get(gpu.uuid), state.outlook.get(gpu.uuid)
    failures = [failure for failure in state.failures.values() if failure.uuid == gpu.uuid]
    last = max(failures, key=lambda failure: failure.last_service_ns, default=None)
    return {
        "drained": gpu.drained,
        "drained_by": record.drained_by if record is not None else "",
        "warning": reasons.gpu_warning(gpu, record),
        "note": record.why if record is not None else "",
        "failures": len(failures),
        "last_failure": None if last is None else last.wall_ns // SECOND_NS,
        "last_failure_evidence": (
            [] if last is None else failure_rows.evidence_for(state, last, env)
        ),
        "failures_per_1000_hours": None if known is None else known.rate_per_hour * SHOWN_HOURS,
        "failures_per_1000_hours_low": None if known is None else known.low_per_hour * SHOWN_HOURS,
        "failures_per_1000_hours_high": (
            None if known is None else known.high_per_hour * SHOWN_HOURS
        ),
    }


def rows(state: State, env: str | None = None) -> list[dict[str, Any]]:
    """All GPUs, by index, as far as they are open to `env`; None: to an administrator."""
    gpus = sorted(state.gpus.values(), key=lambda gpu: gpu.index)
    return [
        {"index": gpu.index, "uuid": gpu.uuid, "name": gpu.name, **row(state, gpu, env)}
        for gpu in gpus
    ]


def warnings(state: State, *, by_order: bool) -> list[str]:
    """A line for each healthy GPU that is drained by order, or that failed again and again."""
    return [
        reasons.gpu_warning(gpu, record)
        for gpu in sorted(state.gpus.values(), key=lambda gpu: gpu.index)
        if (record := state.gpu_records.get(gpu.uuid)) is not None
        and gpu.healthy
        and (gpu.drained or record.flapped)
        and (record.drained_by not in ("", BY_MANAGER)) is by_order
    ]


def placement(state: State) -> dict[str, str | None]:
    """The node's order of fresh GPUs: the setting, what it means now, and why `learned` fails."""
    setting = state.config.placement
    return {
        "setting": setting,
        "in_force": (name := preference.in_force(state, setting)),
        "meaning": preference.meaning(name),
        "fault": _fault(state, setting) or None,
    }


def _fault(state: State, setting: str) -> str:
    """Why `learned` gives no scores, where the node, a quota or a queue names it."""
    if state.learned is None:
        return ""
    named = {setting, *(env.quota.placement for env in state.envs.values())}
    named |= {row.placement for row in state.queues.values()}
    return state.learned.fault if preference.LEARNED in named else ""
