"""The table of metrics follows Prometheus' conventions, and its labels are bounded."""

from __future__ import annotations

import re

from nodemgr.edge.page.metric_table import BY_NAME, COUNTER, GAUGE, HISTOGRAM, METRICS, Metric
from tests.each import each

UNITS = {"bytes", "seconds", "ratio"}
"""Base units that a name ends with."""
DCGM = {
    "DCGM_FI_DEV_GPU_UTIL": "percent",
    "DCGM_FI_DEV_GPU_TEMP": "degrees Celsius",
    "DCGM_FI_DEV_POWER_USAGE": "watts",
    "DCGM_FI_DEV_FB_USED": "MiB",
    "DCGM_FI_DEV_FB_FREE": "MiB",
}
"""Names and units of dcgm-exporter's default counters."""
FORBIDDEN = {"user", "command", "task", "job", "pid", "token", "host", "path", "address"}
RESERVED = {"le", "quantile", "instance"}
OURS = [metric for metric in METRICS if metric.name not in DCGM]


def test_no_name_is_twice() -> None:
    assert len(BY_NAME) == len(METRICS)


@each(OURS, lambda metric: metric.name)
def test_a_name_follows_the_conventions(metric: Metric) -> None:
    assert re.fullmatch(r"nodemgr(_[a-z0-9]+)+", metric.name)
    assert metric.kind in (GAUGE, COUNTER, HISTOGRAM)
    assert metric.name.endswith("_total") is (metric.kind == COUNTER)
    assert not metric.name.endswith(("_count", "_sum", "_bucket", "_created"))
    bare = metric.name.removesuffix("_total")
    assert metric.unit in {"", *UNITS}
    if metric.unit:
        assert bare.endswith(f"_{metric.unit}")
    else:
        assert bare.rpartition("_")[2] not in UNITS
    assert metric.help[0].isupper() or metric.help[0].isdigit()
    assert metric.help.endswith(".")


@each(METRICS, lambda metric: metric.name)
def test_a_label_is_bounded(metric: Metric) -> None:
    assert not {*metric.labels} & (FORBIDDEN | RESERVED)
    assert len(set(metric.labels)) == len(metric.labels)
    assert all(re.fullmatch(r"[a-z]+|UUID", label) for label in metric.labels)


@each(METRICS, lambda metric: metric.name)
def test_a_histogram_alone_has_bounds_and_they_rise(metric: Metric) -> None:
    assert bool(metric.bounds_s) is (metric.kind == HISTOGRAM)
    assert list(metric.bounds_s) == sorted(set(metric.bounds_s))
    assert metric.kind != HISTOGRAM or metric.unit == "seconds"


def test_the_names_of_dcgm_exporter_have_its_units() -> None:
    found = {metric.name: metric.unit for metric in METRICS if metric.name.startswith("DCGM_")}
    assert found == DCGM


def test_an_env_is_a_label_of_the_metrics_of_envs_alone() -> None:
    for metric in METRICS:
        assert ("env" in metric.labels) is metric.name.startswith("nodemgr_env_")
