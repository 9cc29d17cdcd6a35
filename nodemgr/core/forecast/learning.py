"""Trains the networks of corrections on samples: plain arithmetic, the same result each time.

Knows: samples, the form of the file of weights (network.py). Must not know: files, processes.

First the estimate's factors are fitted to the step times of each GPU model (fitting.py). A network
learns the rest; the nearest earlier samples, and the mean of both, compete with it. All use the
older nine tenths of the samples; the newest tenth, at least ten, chooses among the three, and gives
the error and the residuals of the intervals. Each owner's samples weigh a bounded part in all of
it, each environment has its places among those held out and among the nearest, and a sample pulls
by a bounded part of its distance. The source's models ([24-27, 78, 87]):
multi-layer perceptrons, backpropagation. They begin at a correction of zero, so they start as the
estimate without samples.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import add, mul
from typing import Any, NamedTuple

from nodemgr.core.forecast import fitting, gpu_models, network, roofline, samples
from nodemgr.core.forecast.network import (
    INPUTS,
    KINDS,
    MAX_ANCHORS,
    MAX_CORRECTION,
    SCHEMA_VERSION,
    WAYS,
)
from nodemgr.core.forecast.roofline import Factors
from nodemgr.core.forecast.samples import Sample, SampleOwner

LEAST_SAMPLES = 30
LEAST_NEWEST = 10
UNITS = 16
MAX_PASSES = 150
MAX_VISITS = 60_000
"""Of samples, in all passes together: some seconds in plain Python."""
BATCH = 16
RATE, DECAY = 0.01, 1e-3
SPREAD = 25.0
"""Percent points of utilisation count in units of this; a logarithm as it is."""
MAX_ERROR = 1.0
"""A sample further away than this pulls no harder."""
FARTHEST = {"compute": 100.0, "memory": math.log(32), "time": math.log(32)}
"""An error on a held-out sample counts as no more, with and without the network."""
REACH_PART = 0.95
REACH_FACTOR = 1.5
LEAST_REACH = 0.5

Vector = tuple[float, ...]


class Example(NamedTuple):
    """One sample as a network sees it."""

    inputs: Vector
    label: float
    """The correction of the estimate with the factors of the node, within its bounds."""
    exact: float
    """The same without bounds."""
    prior: float
    """The correction of the plain estimate, without bounds."""
    owner: SampleOwner


def examples(
    known: Sequence[Sample], kind: str, factors: Mapping[str, Factors] | None = None
) -> list[Example]:
    """Those of the samples that have the figure, the oldest first."""
    found = []
    for sample in sorted(known, key=lambda sample: sample.wall_ns):
        model = gpu_models.find(sample.gpu_model)
        estimate = None if model is None else roofline.estimate(sample.features, model)
        if model is None or estimate is None:
            continue
        prior = _label(sample, estimate, kind)
        if prior is not None:
            fitted = None if factors is None else factors.get(model.name)
            label = prior
            if kind == "time" and fitted is not None:
                fitted_ns = roofline.fitted_ns(sample.features, model, fitted)
                label += math.log(estimate.step_ns / fitted_ns)
            most = MAX_CORRECTION[kind]
            inputs = network.inputs(sample.features, model, estimate)
            bounded = min(max(label, -most), most)
            found.append(Example(inputs, bounded, label, prior, sample.owner))
    return found


def _label(sample: Sample, estimate: roofline.StepEstimate, kind: str) -> float | None:
    if kind == "compute":
        if sample.utilization_percent is None:
            return None
        return float(min(100, sample.utilization_percent) - estimate.utilization_percent)
    actual, expected = {
        "memory": (sample.peak_bytes, sample.features.peak_bytes),
        "time": (sample.step_ns, estimate.step_ns),
    }[kind]
    return math.log(actual / expected) if actual and expected else None


def train(known: Sequence[Sample]) -> dict[str, Any]:
    """The content of the file of weights; networks with too few samples are absent."""
    timed = [
        sample for sample in sorted(known, key=lambda sample: sample.wall_ns) if sample.step_ns
    ]
    factors: dict[str, Factors] = {}
    if len(timed) >= LEAST_SAMPLES:
        held_out = _held_out([sample.env for sample in timed])
        factors = fitting.fit([row for index, row in enumerate(timed) if index not in held_out])
    trained = {kind: _trained(examples(known, kind, factors), kind) for kind in KINDS}
    return {
        "schema_version": SCHEMA_VERSION,
        "inputs": list(INPUTS),
        "factors": {name: list(row) for name, row in factors.items()},
        "networks": {kind: found for kind, found in trained.items() if found is not None},
    }


def _held_out(envs: Sequence[str]) -> set[int]:
    """The places of the samples that are held out: the newest of each environment."""
    halves = {env: (count + 1) // 2 for env, count in Counter(envs).items()}
    counts = samples.fair_counts(halves, max(LEAST_NEWEST, len(envs) // 10))
    return set(samples.newest_of_each(envs, counts))


def _trained(found: list[Example], kind: str) -> dict[str, Any] | None:
    if len(found) < LEAST_SAMPLES:
        return None
    newest = _held_out([example.owner.env for example in found])
    older = [example for index, example in enumerate(found) if index not in newest]
    held_out = [example for index, example in enumerate(found) if index in newest]
    weights = samples.weights([example.owner for example in older])
    columns = list(zip(*[example.inputs for example in older], strict=True))
    means = [math.fsum(map(mul, column, weights)) for column in columns]
    scales = [_scale(column, mean, weights) for column, mean in zip(columns, means, strict=True)]
    points = [_standardised(example.inputs, means, scales) for example in older]
    spread = SPREAD if kind == "compute" else 1.0
    layers = _Perceptron(len(INPUTS)).fit(
        points, [example.label / spread for example in older], weights, spread
    )
    chosen = _anchors([example.owner.env for example in older])
    anchors = [points[index] for index in chosen]
    body: dict[str, Any] = {
        "means": means,
        "scales": scales,
        "layers": layers,
        "lows": [min(column) for column in zip(*points, strict=True)],
        "highs": [max(column) for column in zip(*points, strict=True)],
        "anchors": anchors,
        "labels": [older[index].label for index in chosen],
        "reach": _reach(anchors),
    }
    rows = [{**body, "way": way} for way in WAYS]
    for row in rows:
        row["card"] = _card(row, held_out, len(found), kind)
    return min(rows, key=lambda row: float(row["card"]["error"]))


def _scale(column: Sequence[float], mean: float, weights: Sequence[float]) -> float:
    """The standard deviation; 1 for a figure that is always the same."""
    squares = [(figure - mean) ** 2 for figure in column]
    deviation = math.sqrt(math.fsum(map(mul, squares, weights)))
    return deviation if deviation > 1e-6 else 1.0


def _standardised(inputs: Vector, means: Sequence[float], scales: Sequence[float]) -> Vector:
    return tuple(
        (figure - mean) / scale for figure, mean, scale in zip(inputs, means, scales, strict=True)
    )


def _anchors(envs: Sequence[str]) -> list[int]:
    """The places of at most MAX_ANCHORS samples: of each environment's evenly from all of them."""
    counts = samples.fair_counts(Counter(envs), MAX_ANCHORS)
    chosen = []
    for env, count in counts.items():
        own = [index for index, name in enumerate(envs) if name == env]
        chosen += [own[rank * len(own) // count] for rank in range(count)]
    return sorted(chosen)


def _reach(anchors: Sequence[Vector]) -> float:
    """A distance within which most anchors have another one, and half as much more."""
    nearest = sorted(
        min([math.dist(anchor, other) for other in anchors if other is not anchor], default=0.0)
        for anchor in anchors
    )
    part = nearest[min(len(nearest) - 1, int(REACH_PART * len(nearest)))]
    return max(LEAST_REACH, REACH_FACTOR * part)


def _card(body: dict[str, Any], held_out: list[Example], count: int, kind: str) -> dict[str, Any]:
    """The model card. Where the network abstains, its error is that of the plain estimate."""
    blank = {"samples": count, "newest": len(held_out), "error": 0.0, "prior_error": 0.0,
             "residuals": [], "prior_residuals": []}  # fmt: skip
    net = network.made({**body, "card": blank}, kind)
    residuals, errors = [], []
    for example in held_out:
        point = network.standardised(net, example.inputs)
        if network.is_known(net, point):
            residuals.append(example.label - network.correction(net, point, kind))
            errors.append(abs(example.exact - network.correction(net, point, kind)))
        else:
            errors.append(abs(example.prior))
    errors = [min(error, FARTHEST[kind]) for error in errors]
    weights = samples.weights([example.owner for example in held_out])
    priors = [example.prior for example in held_out]
    prior_errors = [min(abs(prior), FARTHEST[kind]) for prior in priors]
    return {
        **blank,
        "error": math.fsum(map(mul, weights, errors)),
        "prior_error": math.fsum(map(mul, weights, prior_errors)),
        "residuals": residuals[-network.MAX_RESIDUALS :],
        "prior_residuals": priors[-network.MAX_RESIDUALS :],
    }


class _Perceptron:
    """One hidden layer, trained by Adam on batches; every number follows from the samples."""

    def __init__(self, wide: int) -> None:
        self._wide = wide
        bound = math.sqrt(1 / wide)
        self._numbers = [bound * _spread_out(index) for index in range(UNITS * wide)]
        self._numbers += [0.0] * (2 * UNITS + 1)
        """Hidden weights by unit, hidden biases, output weights, the output's bias."""
        self._first = [0.0] * len(self._numbers)
        self._second = [0.0] * len(self._numbers)
        self._steps = 0

    def fit(
        self,
        points: Sequence[Vector],
        labels: Sequence[float],
        weights: Sequence[float],
        spread: float,
    ) -> list[dict[str, Any]]:
        """The layers as the file has them, with outputs times `spread`."""
        count = len(points)
        for turn in range(min(MAX_PASSES, max(1, MAX_VISITS // count))):
            step = 1 + turn % 7
            order = [(index * step + turn) % count for index in range(count)]
            for start in range(0, count, BATCH):
                batch = order[start : start + BATCH]
                gradient = [0.0] * len(self._numbers)
                for index in batch:
                    pull = weights[index] * count / len(batch)
                    self._add(gradient, points[index], labels[index], pull)
                self._step(gradient)
        wide, cut = self._wide, UNITS * self._wide
        rows = [self._numbers[unit * wide : (unit + 1) * wide] for unit in range(UNITS)]
        outputs = [spread * number for number in self._numbers[cut + UNITS : cut + 2 * UNITS]]
        return [
            {"weights": rows, "biases": self._numbers[cut : cut + UNITS]},
            {"weights": [outputs], "biases": [spread * self._numbers[-1]]},
        ]

    def _add(self, gradient: list[float], point: Vector, label: float, pull: float) -> None:
        """Adds one sample's part of the gradient: squared errors, far ones linear."""
        numbers, wide, cut = self._numbers, self._wide, UNITS * self._wide
        hidden = [
            math.tanh(
                sum(map(mul, numbers[unit * wide : (unit + 1) * wide], point)) + numbers[cut + unit]
            )
            for unit in range(UNITS)
        ]
        outputs = numbers[cut + UNITS : cut + 2 * UNITS]
        away = sum(map(mul, outputs, hidden)) + numbers[-1] - label
        error = pull * min(max(away, -MAX_ERROR), MAX_ERROR)
        gradient[-1] += error
        for unit, signal in enumerate(hidden):
            gradient[cut + UNITS + unit] += error * signal
            back = error * outputs[unit] * (1 - signal * signal)
            if back:
                gradient[cut + unit] += back
                part = slice(unit * wide, (unit + 1) * wide)
                scaled = [back * figure for figure in point]
                gradient[part] = map(add, gradient[part], scaled)

    def _step(self, gradient: list[float]) -> None:
        """Adam, with a decay of the weights."""
        self._steps += 1
        rate = RATE * math.sqrt(1 - 0.999**self._steps) / (1 - 0.9**self._steps)
        slopes = [
            slope + DECAY * number for slope, number in zip(gradient, self._numbers, strict=True)
        ]
        self._first = [
            0.9 * mean + 0.1 * slope for mean, slope in zip(self._first, slopes, strict=True)
        ]
        self._second = [
            0.999 * mean + 0.001 * slope * slope
            for mean, slope in zip(self._second, slopes, strict=True)
        ]
        self._numbers = [
            number - rate * mean / (math.sqrt(square) + 1e-8)
            for number, mean, square in zip(self._numbers, self._first, self._second, strict=True)
        ]


def _spread_out(index: int) -> float:
    """A number from -1 to 1, unlike its neighbours: the start of a weight."""
    return 2 * ((index + 1) * 0.618_033_988_749_895 % 1) - 1
