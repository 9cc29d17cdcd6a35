"""Failure rates of GPUs, learned from recorded failures: Gamma-Poisson posteriors.

Knows: the time that each GPU was observed, the ages of its failures, its model. Must not know: a
clock, GPUs by name, decisions.

A GPU fails as a Poisson process with a constant rate. The prior of the rate is a Gamma
distribution. With k failures in T hours, Gamma(shape, hours) becomes Gamma(shape + k, hours + T).
Failures and hours age: after HALF_LIFE_HOURS they count half. The ages are differences of times of
one clock that runs while the manager runs (State.service_now), so a wall clock that jumps changes
no rate.

The prior's mean comes from the node's GPUs of the same model, with BASE_RATE where they have no
record. The GPU's own record is part of it: else a GPU that fails would have a better prior than its
neighbours, and with few records a lower rate. The shape is small, because GPUs differ widely: few
GPUs have most failures.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import NamedTuple, TypeVar

from nodemgr.core.model.values import value

HALF_LIFE_HOURS = 90 * 24.0
BASE_RATE = 1.2e-5
"""Failures in an hour: about 246 GPU faults of 16 384 GPUs in 54 days (the Llama 3 report)."""
BASE_FAILURES = 0.1
"""The weight of BASE_RATE in the mean of a model, in failures."""
PRIOR_SHAPE = 0.5
"""The weight of the model's mean in a GPU's estimate, in failures."""
LEVEL = 0.9
"""The probability that the rate lies in the interval."""

_STEPS = 200
_EPSILON = 1e-12
_PRECISION = 1e-7
"""Of a bound, relative to it."""

GpuKey = TypeVar("GpuKey", bound=Hashable)


@value
class Track:
    """The record of one GPU."""

    model: str
    observed_hours: float
    """Since its first sight."""
    failure_ages_hours: tuple[float, ...] = ()
    """Since each of its failures."""


class Rate(NamedTuple):
    """A Gamma distribution of a rate in failures an hour."""

    shape: float
    hours: float

    @property
    def per_hour(self) -> float:
        """The estimate: the mean."""
        return self.shape / self.hours

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """The bounds between which the rate lies with this probability."""
        tail = (1 - level) / 2
        return quantile(self.shape, tail) / self.hours, quantile(self.shape, 1 - tail) / self.hours


@lru_cache(maxsize=4_096)
def quantile(shape: float, probability: float) -> float:
    """By bisection: the rate below which it lies with this probability, where the hours are 1.

    Remembered: all GPUs without a failure have one shape.
    """
    low, high = 0.0, 1.0
    while _gamma_cdf(shape, high) < probability:
        low, high = high, high * 2
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if high - low <= _PRECISION * high:
            break
        if _gamma_cdf(shape, middle) < probability:
            low = middle
        else:
            high = middle
    return high


def aged(age_hours: float) -> float:
    """The weight of an event of this age. An event of the future has the weight of a new one."""
    return float(2 ** (-max(0.0, age_hours) / HALF_LIFE_HOURS))


def aged_hours(observed_hours: float) -> float:
    """The weight of the hours until now: at most HALF_LIFE_HOURS / ln 2."""
    return HALF_LIFE_HOURS / math.log(2) * (1 - aged(observed_hours))


def learned(tracks: Mapping[GpuKey, Track]) -> dict[GpuKey, Rate]:
    """The posterior of each GPU."""
    counts = {key: math.fsum(map(aged, track.failure_ages_hours)) for key, track in tracks.items()}
    hours = {key: aged_hours(track.observed_hours) for key, track in tracks.items()}
    of_model: dict[str, list[GpuKey]] = {}
    for key, track in tracks.items():
        of_model.setdefault(track.model, []).append(key)
    found: dict[GpuKey, Rate] = {}
    for keys in of_model.values():
        failures = math.fsum([counts[key] for key in keys]) + BASE_FAILURES
        mean = failures / (math.fsum([hours[key] for key in keys]) + BASE_FAILURES / BASE_RATE)
        for key in keys:
            found[key] = Rate(PRIOR_SHAPE + counts[key], PRIOR_SHAPE / mean + hours[key])
    return found


def _gamma_cdf(shape: float, x: float) -> float:
    """The regularised lower incomplete gamma function P(shape, x).

    By its series below shape + 1, and by a continued fraction (Lentz) above.
    """
    if x <= 0:
        return 0.0
    scale = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    if x < shape + 1:
        term = total = 1 / shape
        for step in range(1, _STEPS * 10):
            term *= x / (shape + step)
            total += term
            if term < total * _EPSILON:
                break
        return min(1.0, scale * total)
    return max(0.0, 1 - scale * _upper_fraction(shape, x))


def _upper_fraction(shape: float, x: float) -> float:
    """The continued fraction of the upper incomplete gamma function, without its scale."""
    b = x + 1 - shape
    c, d = math.inf, 1 / b
    fraction = d
    for step in range(1, _STEPS * 10):
        a = -step * (step - shape)
        b += 2
        d = 1 / (a * d + b)
        c = b + a / c
        fraction *= c * d
        if abs(c * d - 1) < _EPSILON:
            break
    return fraction
