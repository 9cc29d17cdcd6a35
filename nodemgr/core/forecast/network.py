"""The learned corrections: small networks that a process of their own has trained.

Knows: the file of weights with its model cards, the arithmetic of a multi-layer perceptron. Must
not know: how it was trained, samples. A file that is damaged, of another form or without sense
gives NetworkError: then the estimate without samples stands.

Each network gives a correction of an estimate: `time` and `memory` a logarithm of the factor,
`compute` percent points of utilisation ([78], [87]). A network is used only while its error on the
newest samples is below that of the estimate, and only near the samples that it was trained with:
a figure may leave their range by a part of it, and the nearest of them may be no further away than
most of them are from their nearest ones (`is_known`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from client_plugin.messages.form import SpokenError
from nodemgr.core.forecast.features import EXECUTION, GRAPH, RICHER, Features, vector
from nodemgr.core.forecast.gpu_models import GpuRates
from nodemgr.core.forecast.roofline import Factors, StepEstimate, fitted_ns
from nodemgr.core.model.values import value

SCHEMA_VERSION = 2
KINDS = ("compute", "memory", "time")
INPUTS = (
    *GRAPH, *EXECUTION, "capability", "memory_gb", "cores", *RICHER, "peak_bytes", "step_ns",
    "utilization_percent",
)  # fmt: skip
"""The inputs by name: the source's sample P, the richer figures, and the estimates."""
LOG_INPUTS = frozenset(INPUTS) - {"capability", "utilization_percent"}
MAX_LAYERS, MAX_UNITS, MAX_ANCHORS, MAX_RESIDUALS = 4, 64, 256, 512
MAX_FILE_BYTES = 4 * 2**20
MAX_CORRECTION = {"compute": 100.0, "memory": math.log(4), "time": math.log(4)}
"""The largest correction of each kind; the factors are those of samples.MAX_FACTOR."""
WAYS = ("network", "nearest", "both")
"""Where a correction comes from: the layers, the nearest anchors, the mean of both."""
NEIGHBOURS, LEAST_DISTANCE = 3, 0.3
MAX_MODELS, MAX_NAME_CHARACTERS = 64, 256
RANGE_MARGIN = 0.1
"""A figure may leave the samples' range by this part of it."""
MAX_SIZE = 1e6
"""The largest weight, and the largest figure of a card."""


class NetworkError(SpokenError):
    """The file of weights is not usable; the message has the reason."""


@value
class Layer:
    """Rows of weights, one for each unit, and the units' biases."""

    weights: tuple[tuple[float, ...], ...]
    biases: tuple[float, ...]


@value
class Card:
    """The model card of one network."""

    samples: int
    newest: int
    """The samples of the newest tenth, which it was not trained with."""
    error: float
    """The mean absolute error of the correction on the newest samples."""
    prior_error: float
    """The same for the estimate without a correction."""
    residuals: tuple[float, ...]
    """Of the newest samples, with the correction; and without:"""
    prior_residuals: tuple[float, ...]

    @property
    def is_better(self) -> bool:
        return self.error < self.prior_error


@value
class Network:
    """One trained network."""

    means: tuple[float, ...]
    scales: tuple[float, ...]
    layers: tuple[Layer, ...]
    lows: tuple[float, ...]
    """The least figure of each input among its samples, standardised; and the greatest:"""
    highs: tuple[float, ...]
    anchors: tuple[tuple[float, ...], ...]
    """Some of its samples' inputs, standardised; and their corrections:"""
    labels: tuple[float, ...]
    way: str
    """One of WAYS: the best of them on the newest samples."""
    reach: float
    """The greatest distance from an anchor at which it is used."""
    card: Card


@value
class Networks:
    """The content of a file of weights; None: not trained yet."""

    compute: Network | None = None
    memory: Network | None = None
    time: Network | None = None
    factors: tuple[tuple[str, Factors], ...] = ()
    """By GPU model: of the estimate that the network of the time corrects."""

    def step_ns(self, features: Features, model: GpuRates, estimate: StepEstimate) -> int:
        """The estimate that the network of the time corrects: fitted, if its model was."""
        for name, factors in self.factors:
            if name == model.name:
                return fitted_ns(features, model, factors)
        return estimate.step_ns


NO_NETWORKS = Networks()


def inputs(features: Features, model: GpuRates, estimate: StepEstimate) -> tuple[float, ...]:
    """The inputs in the order of INPUTS; all but small numbers by their logarithm."""
    plain = (
        *vector(features, model.hardware),
        *features.richer,
        features.peak_bytes,
        estimate.step_ns,
        estimate.utilization_percent,
    )
    return tuple(
        math.log1p(figure) if name in LOG_INPUTS else float(figure)
        for name, figure in zip(INPUTS, plain, strict=True)
    )


def standardised(network: Network, raw: Sequence[float]) -> tuple[float, ...]:
    return tuple(
        (figure - mean) / scale
        for figure, mean, scale in zip(raw, network.means, network.scales, strict=True)
    )


def is_known(network: Network, point: Sequence[float]) -> bool:
    """Whether standardised inputs are near the network's samples."""
    for figure, low, high in zip(point, network.lows, network.highs, strict=True):
        margin = RANGE_MARGIN * (high - low) + 1e-6
        if not low - margin <= figure <= high + margin:
            return False
    return min([math.dist(point, anchor) for anchor in network.anchors]) <= network.reach


def correction(network: Network, point: Sequence[float], kind: str) -> float:
    """The correction for standardised inputs, within its bounds."""
    parts = []
    if network.way != "nearest":
        parts.append(_output(network, point))
    if network.way != "network":
        parts.append(_of_nearest(network, point))
    most = MAX_CORRECTION[kind]
    return min(max(sum(parts) / len(parts), -most), most)


def _output(network: Network, point: Sequence[float]) -> float:
    """Of the layers."""
    signal = list(point)
    for number, layer in enumerate(network.layers):
        signal = [
            math.fsum([weight * figure for weight, figure in zip(row, signal, strict=True)]) + bias
            for row, bias in zip(layer.weights, layer.biases, strict=True)
        ]
        if number + 1 < len(network.layers):
            signal = [math.tanh(figure) for figure in signal]
    return signal[0]


def _of_nearest(network: Network, point: Sequence[float]) -> float:
    """The mean of the nearest anchors, by the inverse of their distance."""
    rows = zip(network.anchors, network.labels, strict=True)
    near = sorted((math.dist(point, anchor), label) for anchor, label in rows)[:NEIGHBOURS]
    weights = [1 / (distance + LEAST_DISTANCE) for distance, _ in near]
    parts = [weight * label for weight, (_, label) in zip(weights, near, strict=True)]
    return math.fsum(parts) / math.fsum(weights)


# -- the file --


def parse(text: str) -> Networks:
    """The networks of a file of weights. Raises NetworkError."""
    try:
        body = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise _wrong("no JSON") from None
    if not isinstance(body, dict) or body.get("schema_version") != SCHEMA_VERSION:
        raise _wrong("schema_version")
    if body.get("inputs") != list(INPUTS):
        raise _wrong("inputs")
    found = body.get("networks")
    if not isinstance(found, dict) or found.keys() - set(KINDS):
        raise _wrong("networks")
    return Networks(
        **{kind: made(row, kind) for kind, row in found.items()}, factors=_factors(body)
    )


def _factors(body: Mapping[str, Any]) -> tuple[tuple[str, Factors], ...]:
    given = body.get("factors")
    if not isinstance(given, dict) or len(given) > MAX_MODELS:
        raise _wrong("factors")
    found = [(name, Factors(*_numbers(row, 3, "factors"))) for name, row in given.items()]
    if any(len(name) > MAX_NAME_CHARACTERS or min(row) <= 0 for name, row in found):
        raise _wrong("factors")
    return tuple(found)


def made(row: Any, kind: str) -> Network:
    """One network of the file. Raises NetworkError."""
    if not isinstance(row, dict):
        raise _wrong(kind)
    wide = len(INPUTS)
    scales = _numbers(row.get("scales"), wide, f"{kind}.scales")
    if min(scales) < 1e-9:
        raise _wrong(f"{kind}.scales")
    anchors = _list(row.get("anchors"), MAX_ANCHORS, f"{kind}.anchors")
    if not anchors:
        raise _wrong(f"{kind}.anchors")
    (reach,) = _numbers([row.get("reach")], 1, f"{kind}.reach")
    if row.get("way") not in WAYS:
        raise _wrong(f"{kind}.way")
    return Network(
        _numbers(row.get("means"), wide, f"{kind}.means"),
        scales,
        _layers(row.get("layers"), kind),
        _numbers(row.get("lows"), wide, f"{kind}.lows"),
        _numbers(row.get("highs"), wide, f"{kind}.highs"),
        tuple(_numbers(anchor, wide, f"{kind}.anchors") for anchor in anchors),
        _numbers(row.get("labels"), len(anchors), f"{kind}.labels"),
        row["way"],
        reach,
        _card(row.get("card"), kind),
    )


def _layers(given: Any, kind: str) -> tuple[Layer, ...]:
    place = f"{kind}.layers"
    found, wide = [], len(INPUTS)
    rows = _list(given, MAX_LAYERS, place)
    for number, layer in enumerate(rows):
        if not isinstance(layer, dict):
            raise _wrong(place)
        weights = _list(layer.get("weights"), MAX_UNITS, place)
        if not weights or (number + 1 == len(rows) and len(weights) != 1):
            raise _wrong(place)
        found.append(
            Layer(
                tuple(_numbers(unit, wide, place) for unit in weights),
                _numbers(layer.get("biases"), len(weights), place),
            )
        )
        wide = len(weights)
    if not found:
        raise _wrong(place)
    return tuple(found)


def _card(given: Any, kind: str) -> Card:
    place = f"{kind}.card"
    if not isinstance(given, dict):
        raise _wrong(place)
    counts = [count for name in ("samples", "newest") if type(count := given.get(name)) is int]
    if len(counts) != 2 or not all(0 < count < 2**40 for count in counts):
        raise _wrong(place)
    error, prior_error = _numbers([given.get("error"), given.get("prior_error")], 2, place)
    return Card(
        counts[0], counts[1], error, prior_error,
        _residuals(given, "residuals", place), _residuals(given, "prior_residuals", place),
    )  # fmt: skip


def _residuals(card: Mapping[str, Any], name: str, place: str) -> tuple[float, ...]:
    rows = _list(card.get(name), MAX_RESIDUALS, f"{place}.{name}")
    return _numbers(rows, len(rows), f"{place}.{name}")


def _list(given: Any, most: int, place: str) -> list[Any]:
    if not isinstance(given, list) or len(given) > most:
        raise _wrong(place)
    return given


def _numbers(given: Any, count: int, place: str) -> tuple[float, ...]:
    if not isinstance(given, (list, tuple)) or len(given) != count:
        raise _wrong(place)
    if not all(type(number) in (int, float) and abs(number) <= MAX_SIZE for number in given):
        raise _wrong(place)
    return tuple(map(float, given))


def _no_number(name: str) -> float:
    raise ValueError(name)


def _wrong(place: str) -> NetworkError:
    return NetworkError(f"the learned weights have no sense at `{place}`")
