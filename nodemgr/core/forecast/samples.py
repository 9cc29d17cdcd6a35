"""Samples: the figures of finished tasks with features, and how much each owner's samples weigh.

Knows: the form of a sample in the store, its weight beside those of others. Must not know: where
samples are kept, how they were measured.

A user can report nonsense as the progress of a task, and root of a container can do so as any
number of users. So an environment's samples together weigh at most as much as MAX_PART_PER_MILLE of
all, and within it each user's as much of that; where a bounded number of samples is used, each
environment has its part of the places; and figures of others stay within bounds (`time_within`,
`memory_within`, `percent_within`) of the figures that need no samples.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nodemgr.core.forecast import features as feature_form
from nodemgr.core.forecast.features import Features, FeaturesError
from nodemgr.core.model.values import replace, value

MAX_PART_PER_MILLE = 333
"""The greatest weight of one environment's samples together, while there are three or more.

Within an environment: of one user's.
"""
MAX_FACTOR = 4
MAX_MEMORY_FACTOR = 2
MAX_CONSTANT_BYTES = 2 << 30
"""Of the context and of libraries, beside the memory of a model."""
LEAST_STEPS = 20
"""A pace of fewer steps is no measurement: the first steps compile and fill caches."""
MAX_NAME_CHARACTERS = 256


class SampleOwner(NamedTuple):
    """The environment of a task, and its user as the kernel names it."""

    env: str
    user: str


@value
class Predicted:
    """The figures that were predicted before a task began; None: none was."""

    memory_bytes: int | None = None
    utilization_percent: int | None = None
    step_ns: int | None = None
    run_ms: int | None = None


NOTHING_PREDICTED = Predicted()


@value
class Sample:
    """One finished task with features."""

    wall_ns: int
    """The time it ended."""
    env: str
    user: str
    gpu_model: str
    driver: str
    """Its version; empty: unknown."""
    features: Features
    run_ms: int
    peak_bytes: int | None
    """The most that the ledger showed for it on one GPU."""
    utilization_percent: int | None
    """The median of its GPUs."""
    step_ns: int | None
    steps: int
    """The steps that the pace was measured over."""
    predicted: Predicted = NOTHING_PREDICTED

    @property
    def owner(self) -> SampleOwner:
        return SampleOwner(self.env, self.user)


FIGURES = ("run_ms", "peak_bytes", "utilization_percent", "step_ns", "steps")


@value
class Announced:
    """Features of an interactive task, with its forecast on each GPU model of the node."""

    owner: SampleOwner
    token: str
    """The task's, as its processes have it in NODEMGR_TASK."""
    features: Features
    predicted: tuple[tuple[str, Predicted], ...]

    def predicted_on(self, gpu_model: str) -> Predicted:
        """Without a run time: an interactive task has pauses, and no end of its own."""
        for name, row in self.predicted:
            if name == gpu_model:
                return replace(row, run_ms=None)
        return NOTHING_PREDICTED


NAMES = ("env", "user", "gpu_model", "driver")
FORECASTS = ("memory_bytes", "utilization_percent", "step_ns", "run_ms")
COLUMNS = (
    "ended_wall_ns", "gpu_model", "driver", "framework", *feature_form.GRAPH,
    *feature_form.EXECUTION, *feature_form.RICHER, "predicted_reserved_bytes", *FIGURES,
    *(f"forecast_{name}" for name in FORECASTS),
)  # fmt: skip
"""The columns of `report --samples`: without the user, the environment and the command."""


def csv_row(sample: Sample) -> tuple[object, ...]:
    """The cells of COLUMNS; None: an empty cell."""
    features = sample.features
    return (
        sample.wall_ns, sample.gpu_model, sample.driver, features.framework, *features.graph,
        *features.execution, *features.richer, features.peak_bytes,
        *(getattr(sample, name) for name in FIGURES),
        *(getattr(sample.predicted, name) for name in FORECASTS),
    )  # fmt: skip


def packed(sample: Sample) -> str:
    """The JSON text of a sample in the store."""
    return json.dumps(
        {
            "wall_ns": sample.wall_ns,
            **{name: getattr(sample, name) for name in NAMES},
            "features": feature_form.packed(sample.features),
            **{name: getattr(sample, name) for name in FIGURES},
            "predicted": {name: getattr(sample.predicted, name) for name in FORECASTS},
        },
        separators=(",", ":"),
    )


def parse(text: str) -> Sample | None:
    """The sample that `packed` was given; None: the text is no sample, and no forecast uses it."""
    try:
        body = json.loads(text)
        named = {name: body[name] for name in NAMES}
        figures = {name: body[name] for name in FIGURES}
        predicted = {name: body["predicted"][name] for name in FORECASTS}
        features = feature_form.parse(body["features"])
        wall_ns = body["wall_ns"]
    except (ValueError, KeyError, TypeError, RecursionError, FeaturesError):
        return None
    required = (wall_ns, figures["run_ms"], figures["steps"])
    if not all(map(_is_name, named.values())) or not all(map(_is_figure, required)):
        return None
    if not all(
        _is_figure(found) or found is None for found in (*figures.values(), *predicted.values())
    ):
        return None
    return Sample(
        wall_ns=wall_ns, features=features, **named, **figures, predicted=Predicted(**predicted)
    )


def _is_name(given: Any) -> bool:
    return isinstance(given, str) and len(given) <= MAX_NAME_CHARACTERS


def _is_figure(given: Any) -> bool:
    return type(given) is int and 0 <= given <= feature_form.MAX_FIGURE


def weights(owners: Sequence[SampleOwner]) -> list[float]:
    """The weight of each sample, by the owner of each.

    The weights sum to 1. While there are enough environments, none has more than
    MAX_PART_PER_MILLE, and no user has more of an environment's weight.
    """
    envs = _parts(Counter([owner.env for owner in owners]))
    counts = Counter(owners)
    by_env: dict[str, Counter[str]] = {}
    for owner, count in counts.items():
        by_env.setdefault(owner.env, Counter())[owner.user] += count
    users = {env: _parts(found) for env, found in by_env.items()}
    return [envs[owner.env] * users[owner.env][owner.user] / counts[owner] for owner in owners]


def _parts(counts: Counter[str]) -> dict[str, float]:
    """The weight of each name by the number of its samples, within the bound.

    The rest of a capped weight goes to the others, in proportion to their samples.
    """
    limit = max(MAX_PART_PER_MILLE / 1000, 1 / len(counts)) if counts else 1.0
    capped: set[str] = set()
    while True:
        rest = 1 - limit * len(capped)
        free = sum([count for name, count in counts.items() if name not in capped])
        above = {
            name
            for name, count in counts.items()
            if name not in capped and rest * count > limit * free * (1 + 1e-9)
        }
        if not above:
            break
        capped |= above
    return {
        name: limit if name in capped else rest * count / free for name, count in counts.items()
    }


def fair_counts(counts: Mapping[str, int], most: int) -> dict[str, int]:
    """How many of `most` samples each name gets that has so many.

    A name with few keeps all of them; the others share the rest evenly.
    """
    left, found = most, {}
    for rank, (name, count) in enumerate(sorted(counts.items(), key=lambda row: row[::-1])):
        found[name] = min(count, left // (len(counts) - rank))
        left -= found[name]
    return found


def newest_of_each(envs: Sequence[str], counts: Mapping[str, int]) -> list[int]:
    """The places of so many newest samples of each environment, in the order of the samples.

    `envs`: the environment of each sample, the oldest first.
    """
    left, found = dict(counts), []
    for index in range(len(envs) - 1, -1, -1):
        if left.get(envs[index], 0) > 0:
            left[envs[index]] -= 1
            found.append(index)
    return found[::-1]


def median(rows: Iterable[tuple[float, float]]) -> float | None:
    """The weighted median of (figure, weight); None: there is none."""
    ordered = sorted(rows)
    half, found = sum([weight for _, weight in ordered]) / 2, 0.0
    for figure, weight in ordered:
        found += weight
        if found >= half:
            return figure
    return None


def time_within(figure_ns: float, estimate_ns: float) -> float:
    """A time of others, at most MAX_FACTOR away from the estimate."""
    return min(max(figure_ns, estimate_ns / MAX_FACTOR), estimate_ns * MAX_FACTOR)


def memory_within(figure_bytes: float, reserved_bytes: int) -> float:
    """Memory of others: not below the figure of the client, whose task would end by it.

    Above it by MAX_MEMORY_FACTOR, or by the most that a context takes.
    """
    most = max(MAX_MEMORY_FACTOR * reserved_bytes, reserved_bytes + MAX_CONSTANT_BYTES)
    return min(max(figure_bytes, reserved_bytes), most)


def percent_within(figure: float, estimate_percent: float) -> float:
    """A utilisation of others: a share that is filled in with it is no less than this."""
    return min(max(figure, 1.0, estimate_percent / MAX_FACTOR), 100.0)
