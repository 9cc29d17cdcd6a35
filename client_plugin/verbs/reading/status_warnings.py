"""The warnings below a status, a queue or a wait: each names what keeps requests waiting.

Knows: the views that have a cause. Must not know: the tables above the warnings.
"""

from __future__ import annotations

from client_plugin.messages.form import stated
from client_plugin.ways.faults import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, List, Optional

    from client_plugin.verbs.presentation.tables import TableRow


MOST_GPUS = 8
"""The GPUs with a line of their own: a driver that ends loses all of them."""


def of_status(status: TableRow) -> List[str]:
    """The lines that belong below the tables."""
    found = _of_gpus(status["gpus"])
    if fault := (status.get("placement") or {}).get("fault"):
        found.append((f"learned placement: {fault}"))
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
        found += [
            f"{task['id']} is paused: it used more than its share, "
            f"{task['compute_granted_percent']} % of the GPU, while another task waited; it "
            "goes on when the excess is paid back"
            for task in paused
        ]
    if crowds := status.get("crowds"):
        return [(f"warning: {crowd['text']}") for crowd in crowds] + found
    return found


def _of_gpus(gpus: Iterable[TableRow]) -> List[str]:
    """The drained and the lost ones, with the remedy."""
    warnings = [gpu["warning"] for gpu in gpus if gpu.get("warning")]
    if not warnings:
        return []

    found = [(f"warning: {warning}") for warning in warnings[:MOST_GPUS]]
    if len(warnings) > MOST_GPUS:
        found.append(
            f"warning: {len(warnings) - MOST_GPUS} more GPUs are drained or lost (the table "
            "has their states)"
        )
    return found


def say_failures(
    store: Optional[TableRow], launcher: Optional[TableRow], queue: Iterable[TableRow]
) -> None:
    """Print the causes that keep all waiting requests of the view waiting."""
    for line in failures(store, launcher, queue):
        say(line)


def failures(
    store: Optional[TableRow], launcher: Optional[TableRow], queue: Iterable[TableRow]
) -> List[str]:
    """These causes, one line each."""
    found: List[str] = []
    if (
        launcher is not None
        and launcher["state"] != "ok"
        and any(row["state"] == "queued" and not row.get("place") for row in queue)
    ):
        found.append(
            stated(
                f"warning: {launcher['error']}",
                "(nodemgr doctor says what to do; the jobs keep their places)",
            )
        )
    if store is not None and store["state"] != "ok":
        found.append(
            stated(
                "warning: nothing new is granted or started, since the manager cannot store it: "
                f"{store['error']}",
                "nodemgr doctor says what to do",
            )
        )
    return found
