"""The table of how good forecasts were."""

from __future__ import annotations

from nodemgr.core.forecast import quality
from nodemgr.core.forecast.samples import Predicted
from tests.core.forecast.trainings import A100, GIB, sample


def test_each_figure_with_a_forecast_has_a_row() -> None:
    known = [
        sample(predicted=Predicted(4 * GIB, 70, 15_000_000, 60_000)),
        sample(predicted=Predicted(5 * GIB, 80, 30_000_000, None)),
        sample(),
    ]
    found = {row["figure"]: row for row in quality.rows(known, 0)}
    assert {row["gpu_model"] for row in found.values()} == {A100}
    assert found["memory"] == {
        "gpu_model": A100, "figure": "memory", "tasks": 2, "median_error": 0.0, "p90_error": 20.0,
        "underestimated": 1, "unit": "percent",
    }  # fmt: skip
    assert (found["utilization"]["p90_error"], found["utilization"]["unit"]) == (10, "points")
    assert found["step time"]["p90_error"] == 50.0
    assert (found["run time"]["tasks"], found["run time"]["median_error"]) == (1, 100.0)


def test_older_tasks_and_tasks_without_a_forecast_have_none() -> None:
    known = [sample(), sample(predicted=Predicted(memory_bytes=1))]
    assert quality.rows(known, 2) == []
    assert [row["figure"] for row in quality.rows(known, 1)] == ["memory"]
    assert quality.rows([], 0) == []
