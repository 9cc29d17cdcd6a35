"""The warnings below a status, a queue or a wait: each names what keeps requests waiting.

Knows: the views that have a cause. Must not know: the tables above the warnings.
"""

from __future__ import annotations

from client_plugin.ways.faults import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, List, Optional

    from client_plugin.messages.form import MessageLine
    from client_plugin.verbs.presentation.tables import TableRow


MOST_GPUS = 8
"""The GPUs with a line of their own: a driver that ends loses all of them."""


def of_status(status: TableRow) -> List[MessageLine]:
    """The lines that belong below the tables."""
    found = _of_gpus(status["gpus"])
    if fault := (status.get("placement") or {}).get("fault"):
        from client_plugin.messages import status as messages

        found.append(messages.LEARNED_PLACEMENT_FAILS(fault=fault))
    if aside := status.get("set_aside"):
        from client_plugin.messages.form import stated

        found += [
            stated(
                f"warning: {row['entry']} is set aside after a fault of the manager:"
                f" {row['reason']}",
                "(nodemgr doctor)",
            )
            for row in aside
        ]
    found += failures(status.get("store"), status.get("launcher"), status["queue"])
    paused = [task for task in status["tasks"] if task.get("gate_reason") == "paused"]
    if paused:
        from client_plugin.messages import status as messages

        found += [
            messages.TASK_IS_PAUSED(task=task["id"], share=task["compute_granted_percent"])
            for task in paused
        ]
    if crowds := status.get("crowds"):
        from client_plugin.messages import status as messages

        return [messages.CROWDED(crowd=crowd["text"]) for crowd in crowds] + found
    return found


def _of_gpus(gpus: Iterable[TableRow]) -> List[MessageLine]:
    """The drained and the lost ones, with the remedy."""
    warnings = [gpu["warning"] for gpu in gpus if gpu.get("warning")]
    if not warnings:
        return []
    from client_plugin.messages import status as messages

    found = [messages.GPU_IN_QUESTION(warning=warning) for warning in warnings[:MOST_GPUS]]
    if len(warnings) > MOST_GPUS:
        found.append(messages.MORE_GPUS_IN_QUESTION(more=len(warnings) - MOST_GPUS))
    return found


def say_failures(
    store: Optional[TableRow], launcher: Optional[TableRow], queue: Iterable[TableRow]
) -> None:
    """Print the causes that keep all waiting requests of the view waiting."""
    for line in failures(store, launcher, queue):
        say(line)


def failures(
    store: Optional[TableRow], launcher: Optional[TableRow], queue: Iterable[TableRow]
) -> List[MessageLine]:
    """These causes, one line each."""
    found = []
    if (
        launcher is not None
        and launcher["state"] != "ok"
        and any(row["state"] == "queued" and not row.get("place") for row in queue)
    ):
        from client_plugin.messages import status as messages

        found.append(messages.NO_JOB_STARTS(error=launcher["error"]))
    if store is not None and store["state"] != "ok":
        from client_plugin.messages import status as messages

        found.append(messages.NOTHING_IS_STORED(error=store["error"]))
    return found
