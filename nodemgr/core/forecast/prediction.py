"""The forecast of a training for each GPU model: memory, utilisation, time of a step and of a run.

Knows: the order of the sources, and when a source abstains. Must not know: the node's GPUs, files.

Measured runs with the same step come first. Then the networks, near their samples and while they
are better than the estimate. Then the roofline estimate. Far from the samples of a network of
utilisation no utilisation is predicted at all: it was seen to be worth nothing there.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Any

from nodemgr.core.forecast import (
    conformal,
    features,
    gpu_models,
    margins,
    measured,
    network,
    roofline,
    samples,
)
from nodemgr.core.forecast.features import Features
from nodemgr.core.forecast.gpu_models import GpuRates
from nodemgr.core.forecast.measured import Measured
from nodemgr.core.forecast.network import NO_NETWORKS, Network, Networks
from nodemgr.core.forecast.roofline import StepEstimate
from nodemgr.core.forecast.samples import Predicted, Sample, SampleOwner
from nodemgr.core.model.entities import WHOLE_PERCENT, PredictedRun, Quota
from nodemgr.core.model.values import replace, value

SCHEMA_VERSION = 1
NS = 1_000_000_000
MAX_RUN_MS = 365 * 24 * 3_600_000
"""A longer run is predicted as this one."""
LEAST_CONSTANT_SAMPLES = 3
DEFAULT_CONSTANT_BYTES = 3 << 29
"""Until tasks have shown it. Too little ends a task; too much lets it wait.

PyTorch's context takes 0.3 GiB where kernels are loaded at their first use, and 0.6 GiB where all
are loaded (its pull request 86509); published trainings on an A100 took 1.4 to 1.8 GiB beside their
tensors (GPUMemNet, docs/forecast.md).
"""
MAX_TIME_FACTOR = 32
"""Between a learned time of a step and the roofline's."""
LOG_FARTHEST = math.log(MAX_TIME_FACTOR)


class Source(enum.StrEnum):
    """The origin of a figure, the best first."""

    MEASURED = "measured"
    LEARNED = "learned"
    CARRIED = "carried"
    ROOFLINE = "roofline"
    NONE = "none"


Interval = tuple[float, float]


@value
class PredictedFigure:
    """A predicted figure with its origin."""

    number: float
    interval: Interval | None
    source: Source
    error_percent: int | None = None
    """Of a learned time: the median error on the newest samples; None: not learned."""


@value
class ModelForecast:
    """The forecast for one GPU model. None: not predicted."""

    name: str
    memory_bytes: int | None
    memory_margin_bytes: int | None
    utilization: PredictedFigure | None
    """Percent."""
    step_ns: PredictedFigure | None
    iterations: int
    reason: str | None = None
    """Why a figure or an interval is missing."""

    @property
    def run_ms(self) -> int | None:
        if self.step_ns is None or not self.iterations:
            return None
        return min(MAX_RUN_MS, round(self.step_ns.number * self.iterations / 1e6))

    @property
    def most_ms(self) -> int | None:
        """The upper end of the run's time, of one that runs have shown."""
        if self.source not in (Source.MEASURED, Source.LEARNED) or not self.iterations:
            return None
        if self.step_ns is None or self.step_ns.interval is None:
            return None
        return min(MAX_RUN_MS, math.ceil(self.step_ns.interval[1] * self.iterations / 1e6))

    @property
    def needed_bytes(self) -> int | None:
        """The memory with its margin."""
        if self.memory_bytes is None:
            return None
        return self.memory_bytes + (self.memory_margin_bytes or 0)

    @property
    def source(self) -> Source:
        """Of the time of a step."""
        return Source.NONE if self.step_ns is None else self.step_ns.source

    @property
    def predicted(self) -> Predicted:
        """The figures that a sample keeps."""
        return Predicted(
            self.memory_bytes,
            None if self.utilization is None else round(self.utilization.number),
            None if self.step_ns is None else round(self.step_ns.number),
            self.run_ms,
        )


@value
class Known:
    """The knowledge of the node: its samples, and the networks that they trained."""

    samples: tuple[Sample, ...] = ()
    networks: Networks = NO_NETWORKS
    driver: str = ""
    """Its version now; empty: unknown."""


NOTHING_KNOWN = Known()


def predict(
    found: Features, models: Sequence[GpuRates], owner: SampleOwner, known: Known = NOTHING_KNOWN
) -> tuple[ModelForecast, ...]:
    """The prediction set: a forecast for every model ([77]).

    Requests compare the times of models. A measured or learned one is never beside an estimate: an
    estimate gets the factor that the nearest of those models has over its own.
    """
    pairs = margins.memory_pairs(known.samples, found.framework)
    rows = [(model, _for_model(found, model, owner, known, pairs)) for model in models]
    better = [pair for pair in rows if pair[1].source in (Source.MEASURED, Source.LEARNED)]
    return tuple(
        _carried(found, model, row, better) if better and row.source is Source.ROOFLINE else row
        for model, row in rows
    )


def _carried(
    found: Features,
    model: GpuRates,
    row: ModelForecast,
    better: Sequence[tuple[GpuRates, ModelForecast]],
) -> ModelForecast:
    """The estimate for a model with the factor of the nearest model, and its relative interval."""
    near, known = min(better, key=lambda pair: _distance(model, pair[0]))
    estimate = roofline.estimate(found, near)
    if estimate is None or row.step_ns is None or known.step_ns is None:
        return row
    factor, by = row.step_ns.number / estimate.step_ns, known.step_ns
    low, high = by.interval or (0.0, 0.0)
    interval = None if by.interval is None else (low * factor, high * factor)
    step_ns = PredictedFigure(by.number * factor, interval, Source.CARRIED)
    return replace(row, step_ns=step_ns, reason=None)


def _distance(one: GpuRates, other: GpuRates) -> float:
    """Between the peaks of two models, in logarithms."""
    return abs(math.log(one.float32_gflops / other.float32_gflops)) + abs(
        math.log(one.bandwidth_gb_per_s / other.bandwidth_gb_per_s)
    )


def predict_memory(
    found: Features, name: str, owner: SampleOwner, known: Known = NOTHING_KNOWN
) -> ModelForecast:
    """The forecast for a model without known rates: its memory alone."""
    same = measured.of_same_step(found, name, owner, known.samples, None)
    memory_bytes = _memory(found, name, owner, known, None, same)
    pairs = margins.memory_pairs(known.samples, found.framework)
    return ModelForecast(
        name,
        memory_bytes,
        None
        if memory_bytes is None
        else margins.of_features(found, memory_bytes, pairs, owner.env),
        None,
        None,
        found.iterations,
        f"the peak rates of {name} are not known here{_meant(name)}: name them as `--gpu "
        "NAME:TFLOPS:GBPS:GIB`",
    )


def _meant(name: str) -> str:
    words = gpu_models.like(name)
    return f" (did you mean {' or '.join(words)}?)" if words else ""


def _for_model(
    found: Features, model: GpuRates, owner: SampleOwner, known: Known, pairs: list[margins.Pair]
) -> ModelForecast:
    estimate = roofline.estimate(found, model)
    same = measured.of_same_step(found, model.name, owner, known.samples, estimate)
    by = _learned(found, model, known.networks.memory, estimate, "memory")
    memory_bytes = _memory(found, model.name, owner, known, by, same)
    step_ns = _step(found, model, known, estimate, same)
    utilization = _utilization(found, model, known, estimate, same)
    return ModelForecast(
        model.name,
        memory_bytes,
        None
        if memory_bytes is None
        else margins.of_features(found, memory_bytes, pairs, owner.env),
        utilization,
        step_ns,
        found.iterations,
        _reason(estimate, step_ns, known),
    )


def _reason(
    estimate: StepEstimate | None, step_ns: PredictedFigure | None, known: Known
) -> str | None:
    if step_ns is None:
        return "no operations of a step were counted"
    if step_ns.source is not Source.ROOFLINE:
        return None
    if known.networks.time is None:
        return "nothing was learned yet: too few tasks with a known time of a step have ended"
    if not known.networks.time.card.is_better:
        return "what was learned is no better than the estimate"
    return "no task like this one has ended on the node: only an estimate"


def _learned(
    found: Features, model: GpuRates, net: Network | None, estimate: StepEstimate | None, kind: str
) -> float | None:
    """The correction of a network; None: it abstains."""
    if net is None or estimate is None or not net.card.is_better:
        return None
    point = network.standardised(net, network.inputs(found, model, estimate))
    return network.correction(net, point, kind) if network.is_known(net, point) else None


def _step(
    found: Features,
    model: GpuRates,
    known: Known,
    estimate: StepEstimate | None,
    same: Measured | None,
) -> PredictedFigure | None:
    if same is not None and same.step_ns:
        reach = conformal.reach(same.log_residuals)
        interval = conformal.around_factor(same.step_ns, reach)
        return PredictedFigure(same.step_ns, interval, Source.MEASURED)
    if estimate is None:
        return None
    net = known.networks.time
    by = _learned(found, model, net, estimate, "time")
    if by is not None and net is not None:
        step_ns = known.networks.step_ns(found, model, estimate) * math.exp(by)
        least_ns, most_ns = estimate.step_ns / MAX_TIME_FACTOR, estimate.step_ns * MAX_TIME_FACTOR
        step_ns = min(max(step_ns, least_ns), most_ns)
        reach = conformal.reach(net.card.residuals)
        interval = conformal.around_factor(step_ns, reach)
        return PredictedFigure(step_ns, interval, Source.LEARNED, _percent(net.card.residuals))
    return PredictedFigure(
        estimate.step_ns, _prior_interval(estimate.step_ns, net), Source.ROOFLINE
    )


def _percent(residuals: Sequence[float]) -> int | None:
    """The median error of the newest samples for which the network did not abstain."""
    bounded = [min(max(one, -LOG_FARTHEST), LOG_FARTHEST) for one in residuals]
    errors = sorted(abs(math.expm1(-one)) for one in bounded)
    return round(100 * errors[(len(errors) - 1) // 2]) if errors else None


def _prior_interval(step_ns: float, net: Network | None) -> Interval | None:
    if net is None or net.card.is_better:
        return None  # the residuals are those of tasks near the samples; this one is not
    return conformal.around_factor(step_ns, conformal.reach(net.card.prior_residuals))


def _utilization(
    found: Features,
    model: GpuRates,
    known: Known,
    estimate: StepEstimate | None,
    same: Measured | None,
) -> PredictedFigure | None:
    if same is not None and same.utilization_percent is not None:
        return PredictedFigure(max(1, same.utilization_percent), None, Source.MEASURED)
    if estimate is None:
        return None
    net, percent = known.networks.compute, float(estimate.utilization_percent)
    if net is None or not net.card.is_better:
        reach = None if net is None else conformal.reach(net.card.prior_residuals)
        return PredictedFigure(
            percent, conformal.around_points(percent, reach, 1, 100), Source.ROOFLINE
        )
    by = _learned(found, model, net, estimate, "compute")
    if by is None:
        return None
    percent = samples.percent_within(percent + by, percent)
    reach = conformal.reach(net.card.residuals)
    return PredictedFigure(percent, conformal.around_points(percent, reach, 1, 100), Source.LEARNED)


def _memory(
    found: Features,
    name: str,
    owner: SampleOwner,
    known: Known,
    by: float | None,
    same: Measured | None,
) -> int | None:
    """`by`: the correction of the network; None: it abstains.

    Samples of others only add to the client's figure: a task with too little memory ends.
    """
    if not found.peak_bytes:
        return None
    theirs = 0.0 if by is None else found.peak_bytes * math.exp(by)
    if same is not None and same.peak_bytes:
        if same.is_own:
            return same.peak_bytes
        theirs = same.peak_bytes
    least = found.peak_bytes + _constant_bytes(found, name, owner.env, known)
    return round(samples.memory_within(max(theirs, least), found.peak_bytes))


def _constant_bytes(found: Features, name: str, env: str, known: Known) -> int:
    """The memory beside the model's: of the context and of libraries.

    A median of the tasks on this GPU model, with this driver and this version of the framework: of
    the environment's own where there are enough. Those of fewer than LEAST_ENVS environments do not
    make it smaller than the default.
    """
    rows = [
        (sample.peak_bytes - sample.features.peak_bytes, sample.owner)
        for sample in known.samples
        if sample.peak_bytes
        and sample.features.peak_bytes
        and (sample.gpu_model, sample.driver) == (name, known.driver)
        and sample.features.framework == found.framework
    ]
    own = [row for row in rows if row[1].env == env]
    if len(own) >= LEAST_CONSTANT_SAMPLES:
        return _median_constant(own)
    if len(rows) < LEAST_CONSTANT_SAMPLES:
        return DEFAULT_CONSTANT_BYTES
    is_bounded = len({owner.env for _, owner in rows}) < margins.LEAST_ENVS
    return max(_median_constant(rows), DEFAULT_CONSTANT_BYTES if is_bounded else 0)


def _median_constant(rows: list[tuple[int, SampleOwner]]) -> int:
    weights = samples.weights([owner for _, owner in rows])
    middle = samples.median((row[0], weight) for row, weight in zip(rows, weights, strict=True))
    assert middle is not None
    return round(min(max(middle, 0), samples.MAX_CONSTANT_BYTES))


# -- a submission --


def runs(
    forecasts: Sequence[ModelForecast], known: Known, env: str, quota: Quota | None = None
) -> tuple[PredictedRun, ...]:
    """The forecasts as a job of this environment keeps them, with the margin of past run times.

    `quota`: that of its env, which has a share to fill in; None: the user has named the share.
    """
    percents = None if quota is None else shares(forecasts, quota)
    per_mille = margins.run_per_mille(margins.run_pairs(known.samples), env)
    return tuple(
        PredictedRun(
            row.name,
            row.predicted.memory_bytes,
            row.predicted.utilization_percent,
            row.predicted.step_ns,
            row.run_ms,
            None if row.run_ms is None else max(1, row.run_ms * per_mille // 1000),
            None if percents is None else percents[index],
            row.most_ms,
        )
        for index, row in enumerate(forecasts)
    )


def needed_bytes(
    found: Features, forecasts: Sequence[ModelForecast], most_bytes: int
) -> int | None:
    """The memory that a request needs, wherever it starts; None: not predicted well enough.

    At most `most_bytes`, if the model's own memory is no more: the rest is an estimate.
    """
    needed = max([row.needed_bytes or 0 for row in forecasts], default=0) or None
    if any(
        margins.is_too_wide(found, row.memory_bytes, row.memory_margin_bytes or 0)
        for row in forecasts
        if row.memory_bytes is not None
    ):
        return None
    if needed is None or found.peak_bytes > most_bytes:
        return needed
    return min(needed, most_bytes)


def shares(forecasts: Sequence[ModelForecast], quota: Quota) -> list[int] | None:
    """The percent of a GPU of each model that a request needs, within the quota.

    None: its env has no shares, or no utilisation is known from runs.
    """
    if not quota.has_shares:
        return None
    found = []
    for row in forecasts:
        use = row.utilization
        if use is None or use.source is Source.ROOFLINE:
            return None
        found.append(math.ceil(use.number if use.interval is None else use.interval[1]))
    most = WHOLE_PERCENT if quota.compute_percent is None else quota.compute_percent
    return [min(most, max(1, percent)) for percent in found] or None


# -- the answer --


def answer(found: Features, forecasts: Sequence[ModelForecast]) -> dict[str, Any]:
    """The JSON object of a forecast."""
    most = max(forecasts, key=lambda row: row.needed_bytes or 0, default=None)
    if most is not None and most.memory_bytes is None:
        most = None
    nothing = most is None and all(row.step_ns is None for row in forecasts)
    return {
        "schema_version": SCHEMA_VERSION,
        "memory_bytes": None if most is None else most.memory_bytes,
        "memory_margin_bytes": None if most is None else most.memory_margin_bytes,
        "models": [_row(row) for row in forecasts],
        "features": features.table(found),
        "reason": "neither memory nor operations of a step were found" if nothing else None,
    }


def _row(row: ModelForecast) -> dict[str, Any]:
    interval: dict[str, list[float]] = {}
    if row.utilization is not None and row.utilization.interval is not None:
        interval["utilization_percent"] = [round(end) for end in row.utilization.interval]
    if row.step_ns is not None and row.step_ns.interval is not None:
        ends = row.step_ns.interval
        interval["step_seconds"] = [_seconds(end) for end in ends]
        if row.iterations:
            interval["run_seconds"] = [_seconds(end * row.iterations) for end in ends]
    return {
        "name": row.name,
        "memory_bytes": row.memory_bytes,
        "memory_margin_bytes": row.memory_margin_bytes,
        "utilization_percent": None if row.utilization is None else round(row.utilization.number),
        "step_seconds": None if row.step_ns is None else _seconds(row.step_ns.number),
        "run_seconds": None if row.run_ms is None else row.run_ms / 1000,
        "interval": interval or None,
        "source": row.source.value,
        "error_percent": None if row.step_ns is None else row.step_ns.error_percent,
        "reason": row.reason,
    }


def _seconds(time_ns: float) -> float:
    """Four significant digits."""
    return float(f"{time_ns / NS:.4g}")
