"""The metrics as Prometheus' text: the manager's values and the page process's own counts.

Knows: prometheus_client, the form of the manager's answer. Must not know: HTTP, the meaning of a
metric. While the manager is away the text has `nodemgr_up 0` and the page's own counts.

prometheus_client is imported with this module: after the fork no file can be read.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import (
    Metric as Family,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from nodemgr.edge.page.channel import Channel, ManagerAway
from nodemgr.edge.page.metric_table import COUNTER, GAUGE, METRICS, Metric
from nodemgr.edge.page.viewers import MAX_VIEWERS, Viewers

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECOND_NS = 1_000_000_000
ANSWER_TIMEOUT_S = 5.0
"""A manager that does not answer for so long is away. A scraper gives up after ten seconds."""
Samples = Mapping[str, Iterable[tuple[list[str], Any]]]
"""By metric: label values and the value; of a histogram, the counts of its buckets and the sum."""


class PageMetrics:
    """The metrics of one page process."""

    def __init__(self, channel: Channel, viewers: Viewers) -> None:
        self._channel = channel
        self._viewers = viewers
        self._requests: Counter[int] = Counter()

    def count(self, status: int) -> None:
        """A request was answered with this HTTP status."""
        self._requests[status] += 1

    async def text(self, token: str | None) -> bytes:
        """The metrics that this token may see; None: those without an env's name.

        Raises RequestRefused if the manager refuses the token.
        """
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                samples: Samples = await self._channel.ask("metrics", token)
            is_up = True
        except (ManagerAway, TimeoutError):
            samples, is_up = {}, False
        return render({**samples, **self._own(is_up)})

    def _own(self, is_up: bool) -> Samples:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "nodemgr_up": [([], int(is_up))],
            "nodemgr_page_viewers": [([], len(self._viewers))],
            "nodemgr_page_viewers_limit": [([], MAX_VIEWERS)],
            "nodemgr_page_viewers_dropped_total": [([], self._viewers.dropped)],
            "nodemgr_page_requests_total": [
                ([str(status)], count) for status, count in sorted(self._requests.items())
            ],
            "nodemgr_page_cpu_seconds_total": [([], used.ru_utime + used.ru_stime)],
        }


def render(samples: Samples) -> bytes:
    """The text. A metric of the table without a sample is left out."""
    registry = CollectorRegistry()
    registry.register(_Collected(samples))
    return generate_latest(registry)


class _Collected(Collector):
    """One set of samples."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Family]:
        for metric in METRICS:
            rows = [(labels, value) for labels, value in self._samples.get(metric.name, ())]
            known = [(labels, value) for labels, value in rows if value is not None]
            if known:
                yield _family(metric, known)


def _family(metric: Metric, rows: list[tuple[list[str], Any]]) -> Family:
    if metric.kind in (GAUGE, COUNTER):
        make = GaugeMetricFamily if metric.kind == GAUGE else CounterMetricFamily
        plain = make(metric.name, metric.help, labels=metric.labels)
        for labels, value in rows:
            plain.add_metric(labels, value)
        return plain
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    bounds = [*map(floatToGoString, metric.bounds_s), "+Inf"]
    for labels, (counts, total_ns) in rows:
        buckets = list(zip(bounds, accumulate(counts), strict=True))
        family.add_metric(labels, buckets, total_ns / SECOND_NS)
    return family
