"""How good forecasts were: predicted figures of finished tasks against measured ones.

Knows: samples with a forecast. Must not know: the reader of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from nodemgr.core.forecast.samples import Sample


class Compared(NamedTuple):
    """A predicted figure, the measured one, and whether their difference counts in points."""

    figure: str
    predicted: str
    actual: str
    in_points: bool = False


FIGURES = (
    Compared("memory", "memory_bytes", "peak_bytes"),
    Compared("utilization", "utilization_percent", "utilization_percent", in_points=True),
    Compared("step time", "step_ns", "step_ns"),
    Compared("run time", "run_ms", "run_ms"),
)


def rows(known: Iterable[Sample], since_wall_ns: int) -> list[dict[str, Any]]:
    """A row for each GPU model and figure with a forecast, of tasks that ended since then.

    Errors are in percent of the measured figure, those of utilisation in percent points.
    """
    by_model: dict[str, list[Sample]] = {}
    for sample in known:
        if sample.wall_ns >= since_wall_ns:
            by_model.setdefault(sample.gpu_model, []).append(sample)
    found = []
    for name, ended in sorted(by_model.items()):
        for figure in FIGURES:
            pairs = _pairs(ended, figure)
            if pairs:
                found.append({"gpu_model": name, "figure": figure.figure, **_errors(pairs, figure)})
    return found


def _pairs(ended: Sequence[Sample], figure: Compared) -> list[tuple[int, int]]:
    pairs = [
        (getattr(sample.predicted, figure.predicted), getattr(sample, figure.actual))
        for sample in ended
    ]
    return [
        (predicted, actual)
        for predicted, actual in pairs
        if predicted is not None and actual is not None and (actual > 0 or figure.in_points)
    ]


def _errors(pairs: Sequence[tuple[int, int]], figure: Compared) -> dict[str, Any]:
    errors = sorted(
        abs(predicted - actual) * (1 if figure.in_points else 100 / actual)
        for predicted, actual in pairs
    )
    return {
        "tasks": len(pairs),
        "median_error": round(errors[(len(errors) - 1) // 2], 1),
        "p90_error": round(errors[(len(errors) * 9 + 9) // 10 - 1], 1),
        "underestimated": sum(predicted < actual for predicted, actual in pairs),
        "unit": "points" if figure.in_points else "percent",
    }
