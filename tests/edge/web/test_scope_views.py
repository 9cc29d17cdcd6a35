"""The totals of a node. The views of each scope: test_web_page.py."""

from __future__ import annotations

from typing import Any

import pytest

from nodemgr.edge.web.scope_views import totals

SUMS = ("memory_total_bytes", "memory_granted_bytes", "memory_used_bytes", "power_w")


def gpu(state: str = "healthy", **figures: Any) -> dict[str, Any]:
    known = {**dict.fromkeys(SUMS, 10), "utilization_percent": 40}
    return {"state": state, "tasks": 1, **known, **figures}


def test_figures_are_added_up() -> None:
    found = totals([gpu(), gpu(power_w=5.5, utilization_percent=60)], 2, 3)
    assert {name: found[name] for name in SUMS} == {**dict.fromkeys(SUMS, 20), "power_w": 15.5}
    assert found["utilization_percent"] == 50
    assert (found["tasks"], found["waiting"], found["gpus_held"]) == (2, 3, 2)


@pytest.mark.parametrize("field", ["memory_used_bytes", "power_w", "utilization_percent"])
def test_no_total_where_the_figure_of_a_healthy_gpu_is_unknown(field: str) -> None:
    found = totals([gpu(), gpu(**{field: None})], 0, 0)
    assert [name for name, value in found.items() if value is None] == [field]


def test_a_lost_gpu_without_figures_is_left_out() -> None:
    lost = gpu("lost", memory_used_bytes=None, power_w=None, utilization_percent=None)
    found = totals([gpu(), lost], 0, 0)
    assert (found["gpus"], found["gpus_healthy"]) == (2, 1)
    assert (found["power_w"], found["utilization_percent"]) == (10, 40)


def test_no_gpu_has_no_figure() -> None:
    found = totals([], 0, 0)
    assert (found["gpus"], found["power_w"], found["utilization_percent"]) == (0, None, None)
