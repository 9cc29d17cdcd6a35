"""docs/metrics.md: the metrics, their labels, and the values that a label can have.

    python -m nodemgr.edge.web.metrics_reference > docs/metrics.md

Knows: the table of metrics, the codes that are labels, Markdown. Must not know: values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nodemgr.core.model.causes import LEASE_ENDS, WAIT_CAUSES
from nodemgr.edge.page.metric_table import METRICS, Metric
from nodemgr.edge.web.metric_values import JUDGED, MAX_ENVS, MAX_QUEUES, NOT_JUDGED, OTHERS

LABELS = {
    "gpu": "The index of the GPU, as `nvidia-smi` and `nodemgr status` count.",
    "uuid": "The UUID of the GPU.",
    "UUID": "The same, under the name that dcgm-exporter uses.",
    "name": "The name of the GPU's model.",
    "env": (
        "The name of an environment. Only for a scraper with a token. The first"
        f" {MAX_ENVS} environments in the order of their names have series of their own; further"
        f" ones are summed under `{OTHERS}`."
    ),
    "queue": (
        f"The name of a queue. The first {MAX_QUEUES} by rank have series of their own; further"
        f" ones are summed under `{OTHERS}`."
    ),
    "reason": (
        f"Why a request waits, see below. The reasons of the first {JUDGED:,} waiting requests are"
        f" known; the others count as `{NOT_JUDGED}`."
    ),
    "cause": "Why a lease ended, see below.",
    "kind": (
        "Of a wait: `interactive` or `job`. Of a client's fault: a name that `nodemgr status"
        " --json` has under `counters`."
    ),
    "state": "Of GPUs: `healthy`, `lost`. Of tasks: `running`, `stalled`, `suspended`.",
    "stage": "`queued`, `held_or_dependent`, `under_way`.",
    "event": "The name of an event, as `nodemgr events` prints it.",
    "code": "The HTTP status.",
    "version": "The version of the manager.",
}
"""Each label of the table, with its values and what bounds them."""
HEAD = """# Metrics for Prometheus

`nodemgr serve --web HOST:PORT` serves `/metrics` on the same port, in Prometheus' text format.
[admins/reference.md](admins/reference.md#prometheus) has the configuration of a scraper, the
dashboard and the alerts.

- Without a token, the metrics name no environment, user, command, task or job.
- An administrator's token adds the metrics with the label `env`. An environment's token adds those
  of that environment.
- Counters and histograms begin at zero when the manager starts (`nodemgr_start_time_seconds`).
- While the manager is away, the answer has `nodemgr_up 0` and the metrics of the page process, with
  status 200.
- The values are at most half a second old. The driver's are those of its last reading, at most a
  second older while it answers.
- Names that begin with `DCGM_` are those of dcgm-exporter, with its units. A metric that the driver
  does not report is absent.
- The alert `NodemgrGpuDrained` fires five minutes after `nodemgr_gpu_drained` became 1. The alert
  `NodemgrGpuFails` fires while `nodemgr_gpu_recorded_failures` has grown within an hour.

This page is made from the table in `nodemgr/edge/page/metric_table.py`
(`python -m nodemgr.edge.web.metrics_reference`).
"""


def page() -> str:
    """docs/metrics.md."""
    metrics = _table(("metric", "type", "labels", "unit", "meaning"), map(_row, METRICS))
    labels = _table(("label", "values"), ((f"`{name}`", text) for name, text in LABELS.items()))
    waits = _table(("reason", "meaning"), _codes(WAIT_CAUSES))
    ends = _table(("cause", "meaning"), _codes(LEASE_ENDS))
    return (
        f"{HEAD}\n## Metrics\n\n{metrics}\n## Labels\n\n{labels}"
        f"\n## Reasons of a wait\n\n{waits}\n## Causes of the end of a lease\n\n{ends}"
    )


def _codes(meanings: Mapping[Any, str]) -> Iterable[tuple[str, str]]:
    return ((f"`{code}`", text) for code, text in meanings.items())


def _row(metric: Metric) -> tuple[str, ...]:
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "none"
    unit = metric.unit or "number"
    return f"`{metric.name}`", metric.kind, labels, unit, metric.help


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    print(page(), end="")
