"""The forward passes of a learned placement: scores of GPUs for one job, without torch.

Knows: the features of a GPU, the C functions of csrc/manager/networks.h. Must not know: files,
the policy that falls back.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any, Protocol

from nodemgr._native import ffi, lib
from nodemgr.edge.placement.weights import FEATURES, SCORER, SOURCE, Weights, WeightsError
from nodemgr.messages import placement as messages

UNKNOWN_HOURS = 1.0
"""The time of a job that names none."""
LEAST_RATE = 1e-9
"""Failures an hour: a rate of zero has no logarithm."""
RATE_UNIT = 1e-3
"""One failure in a thousand hours has the log_rate 0."""


HOURS_SCALE, GPUS_SCALE = 24.0, 8.0
"""The units of t and n in the source's state."""


class RatedGpu(Protocol):
    """A candidate with the estimate of its failure rate."""

    @property
    def index(self) -> int: ...
    @property
    def rate_per_hour(self) -> float: ...
    @property
    def age_hours(self) -> float: ...


class PlacedJob(Protocol):
    @property
    def gpus(self) -> int: ...
    @property
    def hours(self) -> float | None: ...


def features(candidates: Sequence[RatedGpu], job: PlacedJob) -> array[float]:
    """A row of FEATURES for each candidate. Raises WeightsError on a rate that is no number."""
    given = [gpu.rate_per_hour for gpu in candidates]
    if not given or not all(map(math.isfinite, given)):
        raise WeightsError(
            "learned placement got a failure rate that is no finite number",
            "the policy reliable chooses instead",
        )
    rates = [max(LEAST_RATE, rate) for rate in given]
    logs = [math.log(rate / RATE_UNIT) for rate in rates]
    mean = sum(logs) / len(logs)
    hours = UNKNOWN_HOURS if job.hours is None else max(0.0, job.hours)
    log_hours, part = math.log1p(hours) / 3, job.gpus / len(rates)
    log_gpus, ranks, rows = math.log(max(1, job.gpus)) / 3, _ranks(rates), array("f")
    for gpu, rate, log, rank in zip(candidates, rates, logs, ranks, strict=True):
        log_age = math.log1p(max(0.0, gpu.age_hours)) / 8
        failure = -math.expm1(-rate * hours)
        rows.extend((log / 4, (log - mean) / 4, failure, rank, log_age, log_hours, part, log_gpus))
    return rows


def _ranks(rates: Sequence[float]) -> list[float]:
    """The part of the others with a lower rate, 0 to 1; equal rates have the same rank."""
    ordered, most = sorted(rates), max(1, len(rates) - 1)
    below: dict[float, int] = {}
    for place, rate in enumerate(ordered):
        below.setdefault(rate, place)
    return [below[rate] / most for rate in rates]


def score(weights: Weights, candidates: Sequence[RatedGpu], job: PlacedJob) -> list[float]:
    """The score of each candidate: the higher the better. Raises WeightsError."""
    if weights.kind == SOURCE:
        return _picked(weights, candidates, job)
    return score_rows(weights, features(candidates, job), len(candidates))


def state_of(wanted: int, hours: float, usable: Sequence[int], gpus: int) -> tuple[float, ...]:
    """The source's <n, t, s> ([23, 60-63]): s is 0 for a usable GPU, 1 if it failed or is taken."""
    s = [1.0] * gpus
    for gpu in usable:
        s[gpu] = 0.0
    return (wanted / GPUS_SCALE, hours / HOURS_SCALE, *s)


def _picked(weights: Weights, candidates: Sequence[RatedGpu], job: PlacedJob) -> list[float]:
    """The GPUs that the source's network picks one by one ([69-71]), the first one highest."""
    place = {gpu.index: at for at, gpu in enumerate(candidates)}
    gpus = weights.widths[-1]
    if max(place, default=0) >= gpus:
        raise WeightsError(
            f"the network of learned placement was trained for a node of {gpus} GPUs, and this one "
            "has more",
            "train one of this size; the policy reliable chooses instead",
        )
    hours = UNKNOWN_HOURS if job.hours is None else max(0.0, job.hours)
    scores, left = [0.0] * len(candidates), dict(place)
    for number in range(min(job.gpus, len(candidates))):
        outputs = dense(weights, state_of(job.gpus, hours, [*left], gpus))
        pick = max(left, key=lambda gpu: outputs[gpu])
        scores[left.pop(pick)] = float(job.gpus - number)
    return scores


def score_rows(weights: Weights, rows: array[float], count: int) -> list[float]:
    if weights.kind != SCORER or len(rows) != count * len(FEATURES):
        raise WeightsError(messages.FORWARD_PASS_FAILED())
    scores = ffi.new("float[]", count)
    given = ffi.from_buffer("float[]", weights.values)
    _check(
        lib.nm_network_score(
            given,
            len(weights.values),
            *weights.widths,
            ffi.from_buffer("float[]", rows),
            count,
            scores,
        )
    )
    return list(scores)


def dense(weights: Weights, inputs: Sequence[float]) -> list[float]:
    """The outputs of dense layers. Raises WeightsError."""
    if len(inputs) != weights.widths[0]:
        raise WeightsError(messages.FORWARD_PASS_FAILED())
    outputs = ffi.new("float[]", weights.widths[-1])
    given: Any = ffi.from_buffer("float[]", weights.values)
    widths = ffi.new("int32_t[]", weights.widths)
    row = ffi.new("float[]", list(inputs))
    layers = len(weights.widths) - 1
    _check(lib.nm_network_dense(given, len(weights.values), widths, layers, row, outputs))
    return list(outputs)


def _check(fault: int) -> None:
    if fault != lib.NM_NETWORK_OK:
        raise WeightsError(messages.FORWARD_PASS_FAILED())
