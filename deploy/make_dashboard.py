"""Prints the Grafana dashboard: deploy/grafana.json.

    python deploy/make_dashboard.py > deploy/grafana.json
    python deploy/make_dashboard.py cluster > deploy/grafana-cluster.json

The second one is of a cluster's head (`nodemgr head metrics`).

Standard library only. A test compares the file with this output, and each query with the table of
metrics (nodemgr/edge/page/metric_table.py, nodemgr/head/health.py).
"""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

SCHEMA_VERSION = 39
WIDTH, HEIGHT = 24, 8
HERE = 'instance=~"$instance"'
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


class Panel(NamedTuple):
    """A graph, or with kind `stat` one number. Queries are pairs of expression and legend."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    width: int = 12
    is_stacked: bool = False
    description: str = ""
    minimum: float | None = 0


def series(name: str, *matchers: str) -> str:
    """The metric on the chosen instances."""
    return f"{name}{{{', '.join((HERE, *matchers))}}}"


def rate(name: str, by: str = "") -> str:
    return f"sum by (instance{by}) (rate({series(name)}[$__rate_interval]))"


def quantile(share: float, name: str, by: str = "") -> tuple[str, str]:
    """The query and its legend."""
    buckets = f"rate({series(f'{name}_bucket')}[$__rate_interval])"
    label = f" {{{{{by.strip(', ')}}}}}" if by else ""
    text = f"histogram_quantile({share}, sum by (instance, le{by}) ({buckets}))"
    return text, f"{{{{instance}}}}{label} p{share * 100:.0f}"


def stat(title: str, query: str, unit: str = "short") -> Panel:
    return Panel(title, unit, ((query, "{{instance}}"),), "stat", 4)


GPU = "{{instance}} GPU {{gpu}}"
ENV = "{{instance}} {{env}}"
TOKEN = "Needs the token of an administrator, or of an environment, in the scraper."
ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Node",
        (
            stat("Manager", series("nodemgr_up")),
            stat("GPUs", f"sum by (instance) ({series('nodemgr_gpus')})"),
            stat("GPUs held", series("nodemgr_gpus_held")),
            stat("GPUs lost", series("nodemgr_gpus", 'state="lost"')),
            stat("Tasks", f"sum by (instance) ({series('nodemgr_tasks')})"),
            stat("Waiting", f"sum by (instance) ({series('nodemgr_queue_length')})"),
        ),
    ),
    (
        "Use",
        (
            Panel("Utilization", "percent", ((series("DCGM_FI_DEV_GPU_UTIL"), GPU),)),
            Panel(
                "Memory: granted and used",
                "bytes",
                (
                    (
                        f"sum by (instance) ({series('nodemgr_gpu_memory_capacity_bytes')})",
                        "{{instance}} capacity",
                    ),
                    (
                        f"sum by (instance) ({series('nodemgr_gpu_memory_granted_bytes')})",
                        "{{instance}} granted",
                    ),
                    (
                        f"sum by (instance) ({series('nodemgr_gpu_memory_used_bytes')})",
                        "{{instance}} used",
                    ),
                ),
            ),
            Panel("Power", "watt", ((series("DCGM_FI_DEV_POWER_USAGE"), GPU),), width=8),
            Panel("Temperature", "celsius", ((series("DCGM_FI_DEV_GPU_TEMP"), GPU),), width=8),
            Panel("Tasks on each GPU", "short", ((series("nodemgr_gpu_tasks"), GPU),), width=8),
        ),
    ),
    (
        "Grants and queues",
        (
            Panel(
                "Waiting, by reason",
                "short",
                (
                    (
                        f"sum by (instance, reason) ({series('nodemgr_queue_length')})",
                        "{{instance}} {{reason}}",
                    ),
                ),
                is_stacked=True,
            ),
            Panel(
                "Wait of the first in each queue",
                "s",
                ((series("nodemgr_queue_first_wait_seconds"), "{{instance}} {{queue}}"),),
            ),
            Panel(
                "Wait of granted requests",
                "s",
                (
                    quantile(0.5, "nodemgr_lease_wait_seconds", ", kind"),
                    quantile(0.95, "nodemgr_lease_wait_seconds", ", kind"),
                ),
            ),
            Panel(
                "Duration of leases",
                "s",
                (
                    quantile(0.5, "nodemgr_lease_hold_seconds"),
                    quantile(0.95, "nodemgr_lease_hold_seconds"),
                ),
            ),
            Panel(
                "Ended leases per second, by cause",
                "short",
                ((rate("nodemgr_leases_ended_total", ", cause"), "{{instance}} {{cause}}"),),
                is_stacked=True,
            ),
            Panel(
                "Jobs",
                "short",
                ((series("nodemgr_jobs"), "{{instance}} {{stage}}"),),
                is_stacked=True,
            ),
        ),
    ),
    (
        "Ledger and driver",
        (
            Panel(
                "Driver less ledger",
                "bytes",
                ((series("nodemgr_gpu_audit_difference_bytes"), GPU),),
                minimum=None,
            ),
            Panel(
                "Memory without a lease",
                "bytes",
                (
                    (series("nodemgr_gpu_memory_unbooked_bytes"), f"{GPU} unbooked"),
                    (series("nodemgr_gpu_memory_unreclaimed_bytes"), f"{GPU} unreclaimed"),
                ),
            ),
        ),
    ),
    (
        "Environments",
        (
            Panel(
                "GPUs of each environment",
                "short",
                ((series("nodemgr_env_gpus"), ENV),),
                is_stacked=True,
                description=TOKEN,
            ),
            Panel(
                "Memory of each environment: granted, allocated",
                "bytes",
                (
                    (series("nodemgr_env_memory_granted_bytes"), f"{ENV} granted"),
                    (series("nodemgr_env_memory_charged_bytes"), f"{ENV} allocated"),
                ),
                description=TOKEN,
            ),
        ),
    ),
    (
        "Health of the manager",
        (
            Panel("Time of a step", "s", (quantile(0.99, "nodemgr_step_duration_seconds"),)),
            Panel(
                "Time of a commit", "s", (quantile(0.99, "nodemgr_store_commit_duration_seconds"),)
            ),
            Panel(
                "Events per second",
                "short",
                ((rate("nodemgr_events_total", ", event"), "{{instance}} {{event}}"),),
                is_stacked=True,
            ),
            Panel(
                "Processor",
                "percentunit",
                (
                    (rate("nodemgr_manager_cpu_seconds_total"), "{{instance}} manager"),
                    (rate("nodemgr_page_cpu_seconds_total"), "{{instance}} page"),
                ),
            ),
            Panel(
                "Resident memory",
                "bytes",
                ((series("nodemgr_manager_resident_memory_bytes"), "{{instance}}"),),
            ),
            Panel(
                "Open pages",
                "short",
                (
                    (series("nodemgr_page_viewers"), "{{instance}} open"),
                    (series("nodemgr_page_viewers_limit"), "{{instance}} limit"),
                ),
            ),
        ),
    ),
)

NODE, PASS = "{{node}}", "nodemgr_head_pass_seconds"
CLUSTER: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Cluster",
        (
            stat("Nodes that speak", f"sum by (instance) ({series('nodemgr_node_up')})"),
            stat("GPUs", f"sum by (instance) ({series('nodemgr_node_gpus')})"),
            stat("GPUs of jobs", f"sum by (instance) ({series('nodemgr_node_gpus_of_jobs')})"),
            stat(
                "GPUs of other tasks",
                f"sum by (instance) ({series('nodemgr_node_gpus_of_others')})",
            ),
            stat("Nodes of Slurm", series("nodemgr_pool_pilots", 'state="held"')),
            stat("First waits", series("nodemgr_cluster_first_wait_seconds"), "s"),
        ),
    ),
    (
        "Jobs and nodes",
        (
            Panel(
                "Jobs, by state",
                "short",
                ((series("nodemgr_cluster_jobs"), "{{state}}"),),
                is_stacked=True,
            ),
            Panel(
                "Wait of the first job",
                "s",
                ((series("nodemgr_cluster_first_wait_seconds"), "{{instance}}"),),
            ),
            Panel(
                "GPUs that jobs hold, by node",
                "short",
                ((series("nodemgr_node_gpus_of_jobs"), NODE),),
                is_stacked=True,
            ),
            Panel("Nodes: 1 speaks", "short", ((series("nodemgr_node_up"), NODE),)),
            Panel(
                "GPUs of each environment",
                "short",
                (
                    (series("nodemgr_cluster_env_gpus_used"), "{{env}}"),
                    (series("nodemgr_cluster_env_gpus"), "{{env}} total"),
                ),
            ),
            Panel(
                "Pilots of the pool, by state",
                "short",
                ((series("nodemgr_pool_pilots"), "{{state}}"),),
                is_stacked=True,
            ),
            Panel(
                "Mean time of a pass",
                "s",
                ((f"{rate(f'{PASS}_sum')} / {rate(f'{PASS}_count')}", "{{instance}}"),),
            ),
        ),
    ),
)


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    is_stat = panel.kind == "stat"
    custom = {"stacking": {"mode": "normal" if panel.is_stacked else "none"}, "fillOpacity": 10}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": HEIGHT // 2 if is_stat else HEIGHT},
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "min": panel.minimum,
                **({} if is_stat else {"custom": custom}),
            },
            "overrides": [],
        },
        "options": {},
        "targets": [
            {"refId": chr(ord("A") + at), "expr": query, "legendFormat": legend,
             "datasource": DATASOURCE}
            for at, (query, legend) in enumerate(panel.queries)
        ],
    }  # fmt: skip


def panels(rows: tuple[tuple[str, tuple[Panel, ...]], ...]) -> list[dict[str, Any]]:
    """Rows and panels, from left to right and down."""
    found: list[dict[str, Any]] = []
    y = 0
    for title, row in rows:
        place = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        found.append(
            {"id": len(found) + 1, "type": "row", "title": title, "collapsed": False,
             "gridPos": place, "panels": []}
        )  # fmt: skip
        x, y = 0, y + 1
        for panel in row:
            if x + panel.width > WIDTH:
                x, y = 0, y + HEIGHT
            found.append(_panel(panel, len(found) + 1, x, y))
            x += panel.width
        y += found[-1]["gridPos"]["h"]
    return found


def dashboard(kind: str = "") -> dict[str, Any]:
    """Of a node, or of a `cluster`."""
    up = f"nodemgr_{kind}_jobs" if kind else "nodemgr_up"
    instance = {
        "name": "instance",
        "label": "Head" if kind else "Node",
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": f"label_values({up}, instance)", "refId": "instance"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }
    source = {"name": "datasource", "label": "Data source", "type": "datasource"}
    return {
        "uid": f"nodemgr-{kind}" if kind else "nodemgr",
        "title": f"nodemgr {kind}".strip(),
        "description": "GPUs on demand: capacity, grants, use, waits, queues, health.",
        "tags": ["nodemgr", "gpu"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [{**source, "query": "prometheus"}, instance]},
        "panels": panels(CLUSTER if kind else ROWS),
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(*sys.argv[1:]), indent=1))
