"""The GPUs of one task in a line, from the status of its environment. Pure.

Knows: the fields of the status. Must not know: where the status comes from, who shows the line.
Fields that an older manager does not have, and those that are null, are left out.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    Row = Dict[str, Any]

NONE = "GPU \N{EN DASH}"
GIB = 1 << 30


def row_of(rows: List[Row], pid: int, inside: bool) -> Optional[Row]:
    """The task or request among `rows` that this process belongs to.

    `inside`: `pid` is the number that the process has in its container.
    """
    for row in rows:
        for place in row.get("places") or ():
            number = (place.get("pid_inside") if inside else None) or place.get("pid")
            if number == pid:
                return row
    return None


def held(task: Row, status: Row) -> str:
    """`GPU 3 · 12.4/80 GiB · 71 %`: GPUs, memory in use of the granted, utilization.

    A task that does not run has its state behind its GPUs: `GPU 3 · suspended`.
    """
    state = task.get("state")
    parts = [named(task, status), state if state != "running" else None, memory(task, status)]
    percent = task.get("utilization_percent")
    if percent is None:
        percent = _mean([gpu.get("utilization_percent") for gpu in gpus_of(task, status)])
    parts.append(None if percent is None else f"{round(percent)} %")
    return " · ".join(part for part in parts if part)


def named(task: Row, status: Row) -> str:
    """`GPU 0,3`, by the node's indices."""
    indices = task.get("gpu_indices") or [gpu["index"] for gpu in gpus_of(task, status)]
    return f"GPU {','.join(map(str, indices))}" if indices else NONE


def gpus_of(task: Row, status: Row) -> List[Row]:
    return [gpu for gpu in status.get("gpus", ()) if gpu["uuid"] in task.get("gpus", ())]


def memory(task: Row, status: Row) -> Optional[str]:
    """`12.4/80 GiB`; without the task's own figure the limit alone."""
    limits = task.get("memory_limit_bytes") or ()
    own_bytes = task.get("memory_max_bytes") or task.get("memory_named_bytes")
    if own_bytes and "udp" not in task.get("transports", ()):
        limits = [min(own_bytes, limit_bytes) for limit_bytes in limits]
    limit_bytes = sum(limits) or sum(gpu["memory_total_bytes"] for gpu in gpus_of(task, status))
    used_bytes = task.get("memory_bytes")
    if not limit_bytes:
        return None
    used = "" if used_bytes is None else f"{gib(used_bytes)}/"
    return f"{used}{gib(limit_bytes)} GiB"


def waiting(request: Row, queue_length: Optional[int] = None) -> str:
    """`GPU waiting: place 2 of 3`."""
    place = request.get("position")
    if place is None:
        return "GPU waiting"
    total = f" of {queue_length}" if queue_length and queue_length >= place else ""
    return f"GPU waiting: place {place}{total}"


def reason(request: Row) -> str:
    """Why it waits."""
    return str(request.get("reason") or "its turn comes next")


def gib(size_bytes: int) -> str:
    """13314398618 -> 12.4, without the unit."""
    text = f"{size_bytes / GIB:.1f}"
    return text[:-2] if text.endswith(".0") else text


def _mean(values: List[Any]) -> Optional[float]:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
