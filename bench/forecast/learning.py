"""The learning loop of forecasts on real step times of real models on this machine's processor.

    python bench/forecast/learning.py [--runs 240] [--keep FILE] [--short]

The processor counts as one more GPU model, with its own measured peak and bandwidth. Trainings of
four families (perceptron, convolutions, transformer, LSTM) of random sizes are counted operator by
operator, as `nodemgr predict` counts them, and timed: the fastest of nine steps on one thread,
against a product of matrices that is timed just before and after it, since other programs run.

Prints the median and the 90 % quantile of the error of a predicted step time: of the roofline, of
the network after so many runs, of the nearest earlier run; once with test runs of the families that
were trained with, once with each family left out in turn. `known` is the part of the test runs for
which the network does not abstain; where it abstains, the roofline's figure counts. --keep: a file
of the measured runs, which is read if it is there.
"""

from __future__ import annotations

import argparse
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
from nodemgr.core.forecast import features as feature_form
from nodemgr.core.forecast import gpu_models, learning, measured, network, roofline, samples
from nodemgr.core.forecast.samples import Sample

AFTER = (10, 50, 200)
STEPS = 9
FAMILIES = ("perceptron", "convolutions", "transformer", "lstm")


class Run(NamedTuple):
    """One measured training."""

    family: str
    sample: Sample


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


def fastest_s(step: Callable[[], object], times: int = STEPS) -> float:
    found = []
    for _ in range(times):
        began = time.perf_counter()
        step()
        found.append(time.perf_counter() - began)
    return min(found)


def processor() -> str:
    """This processor as `NAME:TFLOPS:GBPS:GIB`: a large product, and a large copy."""
    import torch

    left, source = torch.randn(512, 512), torch.randn(4 * 2**20)
    target = torch.empty_like(source)
    tflops = 2 * 512**3 / fastest_s(lambda: left @ left, 200) / 1e12
    gbps = 2 * source.nbytes / fastest_s(lambda: target.copy_(source), 200) / 1e9
    return f"processor:{tflops:.3f}:{round(gbps)}:8"


def measure(count: int, seed: int) -> list[Run]:
    import torch

    torch.set_num_threads(1)
    name, dice = processor(), random.Random(seed)
    matrix = torch.randn(256, 256)

    def reference_s() -> float:
        return fastest_s(lambda: matrix @ matrix, 20)

    quiet_s = min(reference_s() for _ in range(20))
    runs = []
    for number in range(count):
        family = FAMILIES[number % len(FAMILIES)]
        model, batch = training(family, dice)
        step = stepper(model, batch)
        found = counted(model, batch, step)
        before_s, step_s = reference_s(), fastest_s(step)
        slower = max(1.0, (before_s + reference_s()) / 2 / quiet_s)
        step_ns = round(step_s / slower * 1e9)
        sample = Sample(number, f"user{number % 5}", name, found, 0, None, None, step_ns, 1_000)
        runs.append(Run(family, sample))
        if sys.stderr.isatty():
            print(f"\r{number + 1} of {count}", end="", file=sys.stderr, flush=True)
    return runs


# -- errors --


def ratios(known: Sequence[Sample], tests: Sequence[Run]) -> dict[str, list[float | None]]:
    """By way, predicted over real of each test run; None: the network abstains."""
    body = learning.train(known)
    net = network.parse(json.dumps(body)).time
    earlier = learning.examples(known, "time")
    found: dict[str, list[float | None]] = {"roofline": [], "network": [], "nearest": []}
    for run in tests:
        model = gpu_models.find(run.sample.gpu_model)
        assert model is not None
        estimate = roofline.estimate(run.sample.features, model)
        assert estimate is not None
        assert run.sample.step_ns is not None
        inputs = network.inputs(run.sample.features, model, estimate)
        plain = estimate.step_ns / run.sample.step_ns
        found["roofline"].append(plain)
        point = None if net is None else network.standardised(net, inputs)
        if (
            net is None
            or point is None
            or not net.card.is_better
            or not network.is_known(net, point)
        ):
            found["network"].append(None)
        else:
            found["network"].append(plain * math.exp(network.correction(net, point, "time")))
        rows = [(example.inputs, example.label) for example in earlier]
        nearest = measured.nearest_ratio(inputs, rows)
        found["nearest"].append(plain * math.exp(nearest or 0.0))
    return found


def row(title: str, known: Sequence[Sample], tests: Sequence[Run]) -> None:
    found = ratios(known, tests)
    plain = [ratio for ratio in found["roofline"] if ratio is not None]
    cells = []
    for way in ("roofline", "network", "nearest"):
        filled = [
            other if ratio is None else ratio
            for ratio, other in zip(found[way], plain, strict=True)
        ]
        errors = sorted(abs(ratio - 1) * 100 for ratio in filled)
        cells.append(f"{statistics.median(errors):7.0f} % {errors[len(errors) * 9 // 10]:7.0f} %")
    share = 100 * sum(ratio is not None for ratio in found["network"]) / len(tests)
    print(f"{title:34}{cells[0]:>20}{cells[1]:>20}{share:7.0f} %{cells[2]:>20}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=240)
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument("--keep", type=Path)
    given = parse(parser, runs=16)
    if given.keep is not None and given.keep.exists():
        rows = json.loads(given.keep.read_text())
        parsed = [(family, samples.parse(text)) for family, text in rows]
        runs = [Run(family, sample) for family, sample in parsed if sample is not None]
    else:
        runs = measure(given.runs, given.seed)
        if given.keep is not None:
            kept = [(run.family, samples.packed(run.sample)) for run in runs]
            given.keep.write_text(json.dumps(kept))
    print(f"{len(runs)} runs on {runs[0].sample.gpu_model}; error of a step's time: median, 90 %\n")
    print(f"{'':34}{'roofline':>20}{'network':>20}{'known':>9}{'nearest':>20}")
    tests = runs[-max(4, len(runs) // 6) :]
    for after in AFTER:
        if after <= len(runs) - len(tests):
            row(f"same families, after {after}", [run.sample for run in runs[:after]], tests)
    for family in FAMILIES:
        others = [run.sample for run in runs if run.family != family]
        row(f"without {family}", others, [run for run in runs if run.family == family])


if __name__ == "__main__":
    main()
