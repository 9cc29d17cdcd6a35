"""docs/metrics.md is made from the table, and explains each label."""

from __future__ import annotations

from pathlib import Path

from nodemgr.core.model.causes import LEASE_ENDS, WAIT_CAUSES
from nodemgr.edge.page.metric_table import METRICS
from nodemgr.edge.web import metrics_reference

PAGE = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"


def test_the_page_is_the_one_that_the_table_makes() -> None:
    """python -m nodemgr.edge.web.metrics_reference > docs/metrics.md"""
    assert PAGE.read_text() == metrics_reference.page()


def test_each_label_is_explained_and_no_other() -> None:
    used = {label for metric in METRICS for label in metric.labels}
    assert set(metrics_reference.LABELS) == used


def test_each_code_is_explained() -> None:
    page = metrics_reference.page()
    for code in (*LEASE_ENDS, *WAIT_CAUSES):
        assert f"| `{code.value}` | " in page
