"""Intervals from held-out residuals: split-conformal prediction.

Knows: residuals. Must not know: what they are residuals of. If a new task is exchangeable with the
tasks of the residuals, its figure lies in the interval with at least the given coverage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

COVERAGE_PER_MILLE = 900
MAX_RATIO = 3
"""Of the ends of an interval. A wider one says nothing, and there is none."""


def reach(residuals: Sequence[float], coverage_per_mille: int = COVERAGE_PER_MILLE) -> float | None:
    """The size of a residual that this part of new ones does not exceed.

    None: too few residuals for such a statement (below 9 for 90 %).
    """
    rank = -(-(len(residuals) + 1) * coverage_per_mille // 1000)
    if rank > len(residuals):
        return None
    return sorted(map(abs, residuals))[rank - 1]


def around_factor(middle: float, log_reach: float | None) -> tuple[float, float] | None:
    """The interval of a figure with residuals of its logarithm."""
    if log_reach is None or 2 * log_reach > math.log(MAX_RATIO):
        return None
    factor = math.exp(log_reach)
    return middle / factor, middle * factor


def around_points(
    middle: float, reach_points: float | None, low: float, high: float
) -> tuple[float, float] | None:
    """The interval of a figure with residuals in points, within its bounds."""
    if reach_points is None:
        return None
    return max(low, middle - reach_points), min(high, middle + reach_points)
