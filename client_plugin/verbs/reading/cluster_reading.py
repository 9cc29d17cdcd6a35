"""Merges the answers of a cluster's nodes: rows under names such as `gn1:0` and `gn1:t3`.

Knows: the fields of `cluster_status`. Must not know: how rows are shown.
"""

from __future__ import annotations

from client_plugin.messages.form import stated
from client_plugin.verbs.presentation import cells

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Tuple

    from client_plugin.ways.choice import Way

    AnyRow = Dict[str, Any]

QUEUE_OF_CLUSTER = "cluster:"
"""The cursor behind the node's own rows of a queue."""


def merged(told: Mapping[str, Any]) -> Tuple[List[AnyRow], List[AnyRow]]:
    """The GPUs and the tasks of all nodes. A job of the cluster has its name there."""
    gpus: List[AnyRow] = []
    tasks: List[AnyRow] = []
    for node, snapshot in sorted(told["snapshots"].items()):
        status, names = snapshot or {}, told.get("jobs", {}).get(node, {})
        for gpu in status.get("gpus", ()):
            own = {"index": f"{node}:{gpu['index']}", "uuid": f"{node}:{gpu['uuid']}"}
            gpus.append({**gpu, **own})
        for task in status.get("tasks", ()):
            job = task.get("job")
            of_task: AnyRow = {
                "id": f"{node}:{task['id']}",
                "job": names.get(job, f"{node}:{job}") if job else None,
                "gpus": [f"{node}:{uuid}" for uuid in task["gpus"]],
            }
            tasks.append({**task, **of_task})
    return gpus, tasks


def status(way: Way, limit: int) -> Tuple[AnyRow, List[AnyRow], List[str]]:
    """As of one node: a status, what waits, and a line for each node that is not well."""
    told = way.ask("cluster_status")
    queue: List[AnyRow] = []
    if told["waiting"]:
        queue = way.ask("queue", limit=limit, after=QUEUE_OF_CLUSTER)["queue"]
    gpus, tasks = merged(told)
    view = {
        "gpus": gpus,
        "tasks": tasks,
        "envs": [{"name": env["env"]} for env in told["envs"]],
        "queue_length": told["waiting"],
    }
    lines: List[str] = [
        stated(
            f"warning: {node['node']} is {node['state']}{node['why'] and ': ' + node['why']}",
            "(nodemgr node list)",
        )
        for node in told["nodes"]
        if node["state"] not in ("up", "slurm")
    ]
    return view, [row for row in queue if row["state"] not in cells.RUNS], lines
