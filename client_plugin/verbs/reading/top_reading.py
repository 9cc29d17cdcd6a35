"""Reads the views that `top` shows.

Knows: which views the picture needs. Must not know: how it is drawn, when it is read again.
"""

from __future__ import annotations

import time

from client_plugin.messages.form import stated
from client_plugin.verbs.picture.rows import NodeView
from client_plugin.verbs.presentation import cells, tables
from client_plugin.verbs.reading import cluster_reading, status_warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

    from client_plugin.ways.choice import Way

SHOWN_QUEUE = 200


def read(way: Way) -> NodeView:
    """All that the picture shows. Raises Fault."""
    status = way.status()
    queue = way.ask("queue", limit=SHOWN_QUEUE)["queue"] if status["queue"] else []
    waiting = [row for row in queue if row["state"] not in cells.RUNS]
    return NodeView(status, waiting, _warnings(status), time.time())


def read_cluster(way: Way) -> NodeView:
    """The same of all nodes of a cluster, as its head knows them. Raises Fault."""
    return NodeView(*cluster_reading.status(way, SHOWN_QUEUE), time.time())


def _warnings(status: Dict[str, Any]) -> List[str]:
    found: List[str] = [*status_warnings.of_status(status)]
    if violations := len(status.get("violations", ())):
        counted = "1 violation" if violations == 1 else f"{violations} violations"
        found.append(stated(f"warning: {counted} of a lease or quota", "(nodemgr status)"))
    if unleased_bytes := sum(row["memory_bytes"] for row in status.get("residues", ())):
        size = tables.size(unleased_bytes)
        found.append(stated(f"warning: {size} is in use without a lease", "(nodemgr status)"))
    return found
