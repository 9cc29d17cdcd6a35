"""The dashboard and the alerts of deploy/: each metric and each label in them exists."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodemgr.edge.page.metric_table import BY_NAME, HISTOGRAM
from nodemgr.head import health
from tests.support.promtool import needs_promtool, promtool

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
DOCS = (ROOT / "docs" / "admins" / "reference.md", ROOT / "docs" / "metrics.md", ROOT / "README.md")
OF_PROMETHEUS = {"instance", "job"}
"""Labels that Prometheus adds to each series."""
NAME = re.compile(r"\b(?:nodemgr|DCGM)_[A-Za-z][A-Za-z0-9_]+\b")
SELECTOR = re.compile(r"\b([A-Za-z_:][A-Za-z0-9_:]*)\{([^}]*)\}")
MATCHER = re.compile(r"\s*([A-Za-z_]+)\s*(?:=~|!~|!=|=)")
GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")


def labels_of(name: str) -> set[str]:
    """Of a metric, or of a series of a histogram. Fails where the table lacks it."""
    if name == "up":
        return OF_PROMETHEUS
    if name in health.METRICS:
        return {health.METRICS[name].label, *OF_PROMETHEUS} - {""}
    if re.fullmatch("nodemgr_head_(pass|step)_seconds_(sum|count)", name):
        return OF_PROMETHEUS
    if name in BY_NAME and BY_NAME[name].kind != HISTOGRAM:
        return {*BY_NAME[name].labels, *OF_PROMETHEUS}
    bare, suffix = re.fullmatch(r"(.*?)(_bucket|_sum|_count)?", name).groups()  # type: ignore[union-attr]
    assert bare in BY_NAME, f"there is no metric {name}"
    assert BY_NAME[bare].kind == HISTOGRAM, f"{bare} is no histogram"
    assert suffix, f"{name} is a histogram: its _bucket, _sum or _count is meant"
    return {*BY_NAME[bare].labels, *OF_PROMETHEUS, *({"le"} if suffix == "_bucket" else ())}


def check(query: str) -> set[str]:
    """The labels that the query's result can have. Fails on an unknown metric or label."""
    names = NAME.findall(query) + re.findall(r"\bup\b", query)
    assert names, f"no metric in {query}"
    known = set().union(*(labels_of(name) for name in names))
    for name, matchers in SELECTOR.findall(query):
        for label in MATCHER.findall(matchers):
            assert label in labels_of(name), f"{name} has no label {label}"
    groups = GROUPING.findall(query)
    for group in groups:
        for label in filter(None, map(str.strip, group.split(","))):
            assert label in known, f"{query}: there is no label {label}"
    if groups:
        return {label.strip() for label in groups[0].split(",")}
    return known


# -- the checks themselves --


@pytest.mark.parametrize(
    "query",
    [
        "nodemgr_nosuch > 0",
        "nodemgr_queue_length{env='a'}",
        "sum by (user) (nodemgr_tasks)",
        "nodemgr_lease_wait_seconds",
        "nodemgr_tasks_bucket",
        "rate(nodemgr_lease_wait_seconds_bucket{cause='x'}[5m])",
        "1 + 1",
    ],
)
def test_a_wrong_query_is_found(query: str) -> None:
    with pytest.raises(AssertionError):
        check(query)


# -- the dashboard --


KINDS = {"": "grafana.json", "cluster": "grafana-cluster.json"}


@pytest.fixture(scope="module", params=KINDS)
def dashboard(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / KINDS[request.param]).read_text())
    return found


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", ())


def test_the_dashboard_is_the_one_that_the_program_makes(dashboard: dict[str, Any]) -> None:
    """python deploy/make_dashboard.py > deploy/grafana.json"""
    made = runpy.run_path(str(DEPLOY / "make_dashboard.py"))["dashboard"]
    assert dashboard in map(made, KINDS)


def test_each_query_names_metrics_and_labels_that_there_are(dashboard: dict[str, Any]) -> None:
    for panel in panels(dashboard):
        for target in panel.get("targets", ()):
            there = check(target["expr"])
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= there
            for name, matchers in SELECTOR.findall(target["expr"]):
                assert 'instance=~"$instance"' in matchers, f"{name}: of the chosen nodes alone"


def test_the_dashboard_has_the_structure_that_grafana_expects(dashboard: dict[str, Any]) -> None:
    assert dashboard["schemaVersion"] >= 36
    assert "id" not in dashboard, "Grafana gives it one"
    every = list(panels(dashboard))
    assert len({panel["id"] for panel in every}) == len(every)
    source, instance = dashboard["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == (
        "datasource",
        "datasource",
        "prometheus",
    )
    assert instance["name"] == "instance"
    assert check(instance["query"]["query"].removeprefix("label_values(").rstrip(")"))
    for panel in every:
        place = panel["gridPos"]
        assert 0 <= place["x"] <= place["x"] + place["w"] <= 24
        if panel["type"] == "row":
            continue
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0
        assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])


def test_no_panel_covers_another(dashboard: dict[str, Any]) -> None:
    cells: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        mine = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not mine & cells, panel["title"]
        cells |= mine


# -- the alerts --

ALERTS = DEPLOY / "alerts.yml"
RULE = re.compile(
    r"- alert: (?P<name>\w+)\n +expr: (?:>-\n(?P<folded>(?: {10,}.*\n)+)|(?P<plain>.*)\n)"
    r"(?P<rest>(?:(?! +- alert:).*\n)*)"
)


def rules() -> dict[str, tuple[str, str]]:
    """By name: the query, and the rest of the rule."""
    return {
        found["name"]: (" ".join((found["folded"] or found["plain"]).split()), found["rest"])
        for found in RULE.finditer(ALERTS.read_text())
    }


def test_each_rule_is_read() -> None:
    assert len(rules()) == ALERTS.read_text().count("alert:") > 10


@pytest.mark.parametrize("name", rules())
def test_an_alert_names_metrics_and_labels_that_there_are(name: str) -> None:
    query, rest = rules()[name]
    there = check(query)
    assert set(re.findall(r"\$labels\.(\w+)", rest)) <= there
    assert "severity: " in rest
    assert "summary: " in rest
    assert "description: " in rest


def test_each_alert_has_a_test() -> None:
    tests = (DEPLOY / "alerts_test.yml").read_text()
    for name in rules():
        assert f'alertname="{name}"' in tests
    for name in NAME.findall(tests):
        labels_of(name)


@needs_promtool
def test_promtool_finds_no_fault_in_the_rules() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", ALERTS)


@needs_promtool
def test_the_alerts_fire_and_do_not_fire_as_their_tests_say() -> None:
    assert "SUCCESS" in promtool("test", "rules", DEPLOY / "alerts_test.yml")


# -- the docs --


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_the_docs_name_metrics_that_there_are(path: Path) -> None:
    for name in NAME.findall(path.read_text()):
        assert name in BY_NAME or labels_of(name), name
