"""The learning loop of forecasts on real step times of real models on this machine's processor.

    python bench/forecast/learning.py [--runs 240] [--steps 9] [--keep FILE] [--short]

The processor counts as one more GPU model, with its own measured peak and bandwidth. Trainings of
four families (perceptron, convolutions, transformer, LSTM) of random sizes are counted operator by
operator, as `nodemgr predict` counts them, and timed: the least processor time of --steps steps on
one thread, which other programs do not add to. Measured twice, the same training differs by 11 %
in the median even so; by the clock on the wall, beside a load of eight, by 44 %.

Prints the median and the 90 % quantile of the error of a predicted step time: of the roofline; of
what is learned after so many runs (`learned`, the best of the network, the nearest samples and
both); of the network and of the nearest earlier run alone. Once with test runs of the families that
were trained with, once with each family left out in turn. `known` is the part of the test runs for
which the learned correction does not abstain; where it abstains, the roofline's figure counts.

The last rows are the pace of the first 20 steps against that of the next 20: all of them; from the
end of the first step on, where a program makes its first report and the manager begins to count;
and the median of those. Beside them the pace of these next 20 against 20 more, when nothing warms
up: the machine's own part of the error. --keep: a file of the measured runs, which is read if it is
there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from arguments import parse
from node import against_target, finish
from nodemgr.core.forecast import features as feature_form
from nodemgr.core.forecast import gpu_models, learning, network, roofline, samples
from nodemgr.core.forecast.samples import Sample
from nodemgr.core.model.values import replace

AFTER = (10, 50, 200)
GOAL_PACE = 10.0
FAMILIES = ("perceptron", "convolutions", "transformer", "lstm")
LEAST_STEPS = 20
PACED_STEPS = 3 * LEAST_STEPS


class Run(NamedTuple):
    """One measured training."""

    family: str
    sample: Sample
    paced: tuple[float, ...] = ()
    """The times of its first PACED_STEPS steps; empty: not measured."""


def training(family: str, dice: random.Random) -> tuple[Any, Any]:
    """A model and a batch of random sizes."""
    import torch
    from torch import nn

    batch = dice.choice((4, 8, 16, 32, 64))
    if family == "perceptron":
        width, depth = dice.choice((64, 128, 256, 512, 1024)), dice.randint(1, 6)
        hidden = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(width, 10)), torch.randn(8 * batch, width)
    if family == "convolutions":
        channels, depth = dice.choice((8, 16, 32)), dice.randint(1, 4)
        layers: list[Any] = [nn.Conv2d(3, channels, 3, padding=1), nn.ReLU()]
        for _ in range(depth):
            layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()]
        layers += [nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]
        return nn.Sequential(*layers), torch.randn(batch // 2, 3, *[dice.choice((16, 24, 32))] * 2)
    if family == "transformer":
        width = dice.choice((32, 64, 128, 256))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, dropout=0.0)
        model = nn.TransformerEncoder(layer, dice.randint(1, 4), enable_nested_tensor=False)
        return model, torch.randn(batch // 4, dice.choice((16, 32, 64, 128)), width)
    width = dice.choice((32, 64, 128, 256))
    model = nn.LSTM(width, width, dice.randint(1, 3), batch_first=True)
    return model, torch.randn(batch, dice.choice((8, 16, 32)), width)


def stepper(model: Any, batch: Any) -> Callable[[], None]:
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)

    def step() -> None:
        optimizer.zero_grad()
        found = model(batch)
        found = found[0] if isinstance(found, tuple) else found
        (found * found).mean().backward()
        optimizer.step()

    return step


def counted(model: Any, batch: Any, step: Callable[[], None]) -> feature_form.Features:
    """The features of one step, by the client's own tables."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from client_plugin.prediction.pytorch.recorder import Recorder

    recorder = Recorder()

    class Counting(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, function, _types, arguments=(), words=None):  # type: ignore[no-untyped-def]
            made = function(*arguments, **(words or {}))
            recorder.node(function, list(tensors(arguments)), list(tensors(made)), arguments)
            return made

    def tensors(given: Any) -> Iterator[Any]:
        if isinstance(given, torch.Tensor):
            yield given
        elif isinstance(given, (list, tuple)):
            for one in given:
                yield from tensors(one)

    with Counting():
        step()
    record = recorder.step
    return feature_form.parse({
        "schema_version": 1,
        "framework": f"torch {torch.__version__}"[:64],
        "graph": record.kinds.elements(),
        "execution": {
            "batchsize": batch.shape[0], "iteration": 1_000, "input": batch[0].numel(),
        },
        "richer": {
            "parameters": sum(one.numel() for one in model.parameters()),
            "depth": record.depth,
            "operations": record.work.operations,
            "bytes": record.work.moved_bytes,
            "kernels": record.work.kernels,
        },
        "work": [list(row) for row in record.work.rows()],
    })  # fmt: skip


def fastest_s(step: Callable[[], object], times: int) -> float:
    found = []
    for _ in range(times):
        began = time.process_time()
        step()
        found.append(time.process_time() - began)
    return min(found)


def paced(step: Callable[[], object]) -> tuple[float, ...]:
    """The time of each of the first steps."""
    ends = [time.process_time()]
    for _ in range(PACED_STEPS):
        step()
        ends.append(time.process_time())
    return tuple(end - before for before, end in itertools.pairwise(ends))


def processor(times: int) -> str:
    """This processor as `NAME:TFLOPS:GBPS:GIB`: the best of large products, and of large copies."""
    import torch

    left, source = torch.randn(512, 512), torch.randn(4 * 2**20)
    target = torch.empty_like(source)
    tflops = 2 * 512**3 / fastest_s(lambda: left @ left, times) / 1e12
    gbps = 2 * source.nbytes / fastest_s(lambda: target.copy_(source), times) / 1e9
    return f"processor:{tflops:.3f}:{round(gbps)}:8"


def measure(count: int, seed: int, steps: int, paced_each: int) -> list[Run]:
    import torch

    torch.set_num_threads(1)
    name, dice = processor(22 * steps), random.Random(seed)
    runs = []
    for number in range(count):
        family = FAMILIES[number % len(FAMILIES)]
        model, batch = training(family, dice)
        step = stepper(model, batch)
        first_steps = () if number % paced_each else paced(step)
        found = counted(model, batch, step)
        step_ns = round(fastest_s(step, steps) * 1e9)
        user = f"user{number % 5}"
        sample = Sample(number, user, user, name, "", found, 0, None, None, step_ns, 1_000)
        runs.append(Run(family, sample, first_steps))
        if sys.stderr.isatty():
            print(f"\r{number + 1} of {count}", end="", file=sys.stderr, flush=True)
    return runs


# -- errors --


COLUMNS = ("roofline", "learned", "network", "nearest")
Ratios = dict[str, list[float]]


def nearest_ratio(
    vector: Sequence[float], others: Sequence[tuple[Sequence[float], float]]
) -> float | None:
    """The baseline: the figure of the nearest of (vector, figure); None: there is none."""
    if not others:
        return None
    return min(others, key=lambda other: math.dist(vector, other[0]))[1]


def ratios(known: Sequence[Sample], tests: Sequence[Run]) -> tuple[Ratios, float]:
    """By way, predicted over real of each test run; and the part that is known."""
    networks = network.parse(json.dumps(learning.train(known)))
    net = networks.time
    earlier = [(example.inputs, example.prior) for example in learning.examples(known, "time")]
    found: Ratios = {way: [] for way in COLUMNS}
    count = 0
    for run in tests:
        model = gpu_models.find(run.sample.gpu_model)
        assert model is not None
        estimate = roofline.estimate(run.sample.features, model)
        assert estimate is not None
        assert run.sample.step_ns is not None
        inputs = network.inputs(run.sample.features, model, estimate)
        plain = estimate.step_ns / run.sample.step_ns
        row = dict.fromkeys(COLUMNS, plain)
        row["nearest"] *= math.exp(nearest_ratio(inputs, earlier) or 0.0)
        point = None if net is None else network.standardised(net, inputs)
        if net is not None and point is not None and network.is_known(net, point):
            fitted = networks.step_ns(run.sample.features, model, estimate) / run.sample.step_ns
            alone = replace(net, way="network")
            row["network"] = fitted * math.exp(network.correction(alone, point, "time"))
            if net.card.is_better:
                row["learned"] = fitted * math.exp(network.correction(net, point, "time"))
                count += 1
        for way, ratio in row.items():
            found[way].append(ratio)
    return found, count / len(tests)


class Row(NamedTuple):
    """One line of the table: percent, by column; the share of runs that are known."""

    title: str
    errors: dict[str, tuple[float, float]]
    known: float | None = None


def quantiles(found: Sequence[float]) -> tuple[float, float]:
    """The median and the 90 % quantile of the errors, in percent."""
    errors = sorted(abs(ratio - 1) * 100 for ratio in found)
    return statistics.median(errors), errors[min(len(errors) - 1, len(errors) * 9 // 10)]


def rows(runs: Sequence[Run]) -> Iterator[Row]:
    tests = runs[-max(4, len(runs) // 6) :]
    for after in AFTER:
        if after <= len(runs) - len(tests):
            yield one(f"same families, after {after}", [r.sample for r in runs[:after]], tests)
    for family in FAMILIES:
        others = [run.sample for run in runs if run.family != family]
        yield one(f"without {family}", others, [run for run in runs if run.family == family])


def one(title: str, known: Sequence[Sample], tests: Sequence[Run]) -> Row:
    found, part = ratios(known, tests)
    return Row(title, {way: quantiles(ratio) for way, ratio in found.items()}, part)


def against_targets(made: Sequence[Row], paces: dict[str, tuple[float, float]]) -> None:
    for row in made:
        if row.title.endswith("after 50"):
            (learned, _), (prior, _) = row.errors["learned"], row.errors["roofline"]
            against_target("step time after 50 runs, of the roofline's error", learned / prior, 0.5,
                "times")  # fmt: skip
    way = "by steps 2 to 20"
    if way in paces:
        for name, error in zip(("median", "90 %"), paces[way], strict=True):
            against_target(f"pace {way}, {name}", error, GOAL_PACE, "%")


def pace_errors(runs: Sequence[Run]) -> dict[str, tuple[float, float]]:
    """Of the pace after 20 steps, by the way in which it is measured."""
    found: dict[str, list[float]] = {}
    for run in runs:
        if run.paced:
            first, later, last = (run.paced[start:][:20] for start in (0, 20, 40))
            pace = statistics.fmean(later)
            for way, guess in (
                ("by the first 20 steps", statistics.fmean(first)),
                ("by steps 2 to 20", statistics.fmean(first[1:])),
                ("by the median of steps 2 to 20", statistics.median(first[1:])),
            ):
                found.setdefault(way, []).append(guess / pace)
            rest = pace / statistics.fmean(last)
            found.setdefault("by steps 21 to 40, of 41 to 60", []).append(rest)
    return {way: quantiles(ratios) for way, ratios in found.items()}


def read(path: Path) -> list[Run]:
    kept = json.loads(path.read_text())
    parsed = [(family, samples.parse(text), tuple(paced)) for family, text, paced in kept]
    return [Run(family, sample, paced) for family, sample, paced in parsed if sample is not None]


def measured_runs(given: argparse.Namespace) -> list[Run]:
    """From the file --keep, if it is there."""
    keep: Path | None = given.keep
    if keep is not None and keep.exists():
        return read(keep)
    runs = measure(given.runs, given.seed, given.steps, given.paced_each)
    if keep is not None:
        kept = [(run.family, samples.packed(run.sample), run.paced) for run in runs]
        keep.write_text(json.dumps(kept))
    return runs


SHORT = {"runs": 14, "steps": 1, "paced_each": 14}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of the measurement, for bench/forecast/table.py too."""
    parser.add_argument("--runs", type=int, default=240, help="for the step times")
    parser.add_argument("--steps", type=int, default=9, help="timed in each run; the least counts")
    parser.add_argument("--paced-each", type=int, default=6, help="a pace of one of so many runs")
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument("--keep", type=Path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_arguments(parser)
    given = parse(parser, **SHORT)
    runs = measured_runs(given)
    print(f"{len(runs)} runs on {runs[0].sample.gpu_model}; error of a step's time: median, 90 %\n")
    print(f"{'':26}" + "".join(f"{way:>18}" for way in COLUMNS) + f"{'known':>8}")
    made, paces = list(rows(runs)), pace_errors(runs)
    for row in made:
        cells = "".join(
            f"{row.errors[way][0]:7.0f} % {row.errors[way][1]:6.0f} %" for way in COLUMNS
        )
        print(f"{row.title:26}{cells}{100 * (row.known or 0):6.0f} %")
    for way, (middle, far) in paces.items():
        print(f"{way:32}{middle:7.0f} % {far:6.0f} %")
    against_targets(made, paces)
    finish(given)


if __name__ == "__main__":
    main()
