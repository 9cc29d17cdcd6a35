"""A head's own state: rows for `nodemgr head doctor`, and metrics in the text form of Prometheus.

Knows: the rows of core/cluster. Must not know: sockets, the asker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from nodemgr.core.cluster.entities import ClusterStage
from nodemgr.core.cluster.pilots import PilotStage
from nodemgr.core.cluster.state import ClusterState
from nodemgr.edge.host.measures import Histogram
from nodemgr.head import rows

S = 1_000_000_000
OVER = (ClusterStage.DONE, ClusterStage.FAILED, ClusterStage.WITHDRAWN)
MAX_SKEW_S = 60
"""Wall times of a job are of its node, and are shown beside those of others."""


class HeadFacts(NamedTuple):
    """Of the program, beside its rows."""

    store_fault: str
    address: str
    """On which it listens; empty: on none."""
    behind_s: int
    """The wall time at its start before that of the store's last change."""
    ahead_s: Mapping[str, int]
    """By node, its wall time before or after the head's when it said hello."""
    silent_s: Mapping[str, int | None]
    """By node, for how long it has not spoken; None: it speaks."""


def _of_clock(facts: HeadFacts) -> dict[str, Any]:
    far = {node: s for node, s in sorted(facts.ahead_s.items()) if abs(s) > MAX_SKEW_S}
    named = ", ".join(f"{node} by {s} s" for node, s in list(far.items())[:5])
    what = f"nodes' clocks differ from the head's: {named}" if far else "as those of the nodes"
    if facts.behind_s > MAX_SKEW_S:
        what = f"the head began {facts.behind_s} s before the last change of its store"
    is_well = not far and facts.behind_s <= MAX_SKEW_S
    return _check("clock", is_well, what, "let chrony or another service set the clocks")


def checks(state: ClusterState, facts: HeadFacts) -> list[dict[str, Any]]:
    head, store_fault = state.counters[""], facts.store_fault
    found = [
        _check("store", not store_fault, store_fault or "each step is stored", "free the disk"),
        _check("port", bool(facts.address), facts.address or "no node can reach the head",
               "nodemgr head setup --address HOST:PORT, then start it anew"),
        _of_clock(facts),
        _check(
            "generation", not head.is_copy, f"{head.name}, generation {head.generation}"
            + (": its store is an older copy" if head.is_copy else ""),
            "stop the head, run nodemgr head restore, and start it again",
        ),
    ]  # fmt: skip
    if head.is_restoring:
        found.append(
            _check("restore", False, "no job is given until each node is heard",
                   "start the nodes, or nodemgr node lost NODE")
        )  # fmt: skip
    if state.pilots or state.pool.fault:
        held = sum(pilot.stage is PilotStage.HELD for pilot in state.pilots.values())
        what = state.pool.fault or f"{held} nodes are held, of {len(state.pilots)} pilots"
        found.append(_check("pool", not state.pool.fault, what, "see what sbatch or the node says"))
    for name in sorted(state.nodes):
        node, silent_s = state.nodes[name], facts.silent_s[name]
        is_well = silent_s is None and not node.drained
        what = f"{node.gpus} GPUs" if silent_s is None else f"has not spoken for {silent_s} s"
        if node.drained:
            what += f", drained ({node.why or 'by an order'})"
        cure = f"see nodemgr doctor on {name}"
        if silent_s is None:
            cure = f"nodemgr node resume {name}"
        found.append(_check(f"node {name}", is_well or node.lost, what, cure))
    if not state.nodes:
        found.append(_check("nodes", False, "no node has joined", "nodemgr head word NODE"))
    return found


def _check(name: str, ok: bool, detail: str, cure: str) -> dict[str, Any]:
    return {"name": name, "ok": ok, "detail": detail, "cure": "" if ok else cure}


class HeadMetric(NamedTuple):
    """A gauge of the head. deploy/make_dashboard.py names some."""

    help: str
    label: str = ""


METRICS: Mapping[str, HeadMetric] = {
    "nodemgr_node_up": HeadMetric("1 if the node speaks with the head.", "node"),
    "nodemgr_node_drained": HeadMetric("1 if the node gets no job.", "node"),
    "nodemgr_node_gpus": HeadMetric("GPUs in service.", "node"),
    "nodemgr_node_gpus_of_jobs": HeadMetric("GPUs that jobs of the cluster hold.", "node"),
    "nodemgr_node_gpus_of_others": HeadMetric("GPUs that other tasks hold.", "node"),
    "nodemgr_cluster_env_gpus": HeadMetric("The total of an environment.", "env"),
    "nodemgr_cluster_env_gpus_used": HeadMetric(
        "GPUs of its jobs and of its interactive tasks.", "env"
    ),
    "nodemgr_cluster_jobs": HeadMetric("Jobs that have not ended.", "state"),
    "nodemgr_cluster_first_wait_seconds": HeadMetric(
        "How long the first job of the queue has waited; 0 where none waits."
    ),
    "nodemgr_pool_pilots": HeadMetric("Pilots of the pool on Slurm.", "state"),
    "nodemgr_pool_failures": HeadMetric("Pilots in a row that Slurm refused or that failed."),
}  # fmt: skip


def metrics(
    state: ClusterState, spans: Mapping[str, Histogram], frames: Mapping[str, int], now_ns: int
) -> str:
    """`spans`: the times of passes and steps. `frames`: the counts of the links."""
    stages = Counter({stage.value: 0 for stage in ClusterStage if stage not in OVER})
    for job in state.jobs.values():
        stages[job.stage.value] += job.size
    pilots = Counter({stage.value: 0 for stage in PilotStage if stage is not PilotStage.GONE})
    pilots.update(pilot.stage.value for pilot in state.pilots.values())
    first = next(iter(state.queue.walk()), None)
    wait_s = 0 if first is None else max(0, now_ns - state.jobs[first].queued_ns) // S
    values: dict[str, list[tuple[str, int]]] = {
        "nodemgr_cluster_jobs": sorted(stages.items()),
        "nodemgr_cluster_first_wait_seconds": [("", wait_s)],
        "nodemgr_pool_pilots": sorted(pilots.items()),
        "nodemgr_pool_failures": [("", state.pool.failures)],
    }
    nodes = [rows.node(state, row, None) for _, row in sorted(state.nodes.items())]
    for key in ("up", "drained", "gpus", "gpus_of_jobs", "gpus_of_others"):
        values[f"nodemgr_node_{key}"] = [(row["node"], int(row[key])) for row in nodes]
    envs = [rows.env(state, name) for name in sorted(state.envs)]
    for key in ("gpus", "gpus_used"):
        values[f"nodemgr_cluster_env_{key}"] = [(row["env"], row[key]) for row in envs]
    lines = []
    for name, metric in METRICS.items():
        lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} gauge"]
        for label, value in values[name]:
            selector = f'{{{metric.label}="{label}"}}' if metric.label else ""
            lines.append(f"{name}{selector} {value}")
    for name, span in spans.items():
        lines += [
            f"# HELP nodemgr_head_{name}_seconds The time of a {name} of the head.",
            f"# TYPE nodemgr_head_{name}_seconds summary",
            f"nodemgr_head_{name}_seconds_sum {span.total_ns / 1e9:.6f}",
            f"nodemgr_head_{name}_seconds_count {sum(span.counts)}",
        ]
    name = "nodemgr_head_frames_total"
    lines += [f"# HELP {name} Frames to and from nodes, and faults.", f"# TYPE {name} counter"]
    lines += [f'{name}{{what="{what}"}} {count}' for what, count in sorted(frames.items())]
    return "\n".join(lines) + "\n"
