"""Pictures of a learning curve and of a table of policies, by matplotlib (the extra `plots`).

Knows: matplotlib. Must not know: how figures were found.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from nodemgr.placement.scorer import Round

SMOOTHED = 25
"""Rounds in each mean of a curve."""


class Bar(NamedTuple):
    name: str
    percent: float
    half: float
    """Of the 95 % interval."""


def can_draw() -> bool:
    return find_spec("matplotlib") is not None


def learning_curve(path: Path, curve: Sequence[Round]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    rewards = [row.reward * 100 for row in curve]
    numbers = range(1, len(rewards) + 1)
    axes.plot(numbers, rewards, color="0.8", linewidth=0.8, label="a round")
    means = _means(rewards)
    axes.plot(range(len(rewards) - len(means) + 1, len(rewards) + 1), means, label="mean")
    axes.set_xlabel("round")
    axes.set_ylabel("reward, %")
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=90)


def _means(values: Sequence[float]) -> list[float]:
    sums = [0.0, *accumulate(values)]
    width = min(SMOOTHED, len(values))
    return [(sums[end] - sums[end - width]) / width for end in range(width, len(sums))]


def bars(path: Path, title: str, rows: Sequence[Bar]) -> None:
    """The difference of each policy, with its interval."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 0.32 * len(rows) + 1), layout="constrained")
    axes = figure.subplots()
    heights = range(len(rows), 0, -1)
    axes.barh(heights, [row.percent for row in rows], xerr=[row.half for row in rows], capsize=2)
    axes.set_yticks(list(heights), [row.name for row in rows])
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel(title)
    figure.savefig(path, dpi=90)
