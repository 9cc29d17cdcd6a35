"""Weights of a linear equation that fit best: least squares in plain Python, for a few unknowns."""

from __future__ import annotations

from collections.abc import Sequence

LEAST_PIVOT = 1e-9
"""Of scaled equations: below it, the columns depend on each other."""


def solve(rows: Sequence[Sequence[float]], wanted: Sequence[float]) -> list[float] | None:
    """The weight of each column; None: many weights fit as well."""
    scales = [max(map(abs, column)) or 1.0 for column in zip(*rows, strict=True)]
    scaled = [[part / scale for part, scale in zip(row, scales, strict=True)] for row in rows]
    full = [[*row, value] for row, value in zip(scaled, wanted, strict=True)]
    equations = [
        [sum([row[place] * row[other] for row in full]) for other in range(len(scales) + 1)]
        for place in range(len(scales))
    ]
    for place in range(len(scales)):
        pivot = max(range(place, len(scales)), key=lambda row: abs(equations[row][place]))
        if abs(equations[pivot][place]) < LEAST_PIVOT * len(rows):
            return None
        equations[place], equations[pivot] = equations[pivot], equations[place]
        for row in range(len(scales)):
            if row != place:
                ratio = equations[row][place] / equations[place][place]
                pairs = zip(equations[row], equations[place], strict=True)
                equations[row] = [one - ratio * other for one, other in pairs]
    return [
        equations[place][-1] / equations[place][place] / scale for place, scale in enumerate(scales)
    ]
