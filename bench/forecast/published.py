"""Forecasts against figures that others measured on a GPU and published.

    python bench/forecast/published.py FILE [--rows N] [--kept FILE]

FILE is a table of GPUMemNet (itu-rad/GPUMemNet; it has no licence and is no part of this
repository), measured on an A100 with 40 GiB:

- Datasets/MLP/mlp_data_step1.csv or mlp_data_step2.csv: multi-layer perceptrons with Adam. Columns
  that are read: `Filename` (input, output, batch), `Activations-Params` (the layers), `Max GPU
  Memory (MiB)`, `Avg GPUTL` (utilisation).
- Related_works/FakeTensor/fake_tensor.xlsx: networks of timm. Columns that are read: `Filename`
  (name, batch), `Max GPU Memory (MiB)`. Needs timm; of torchvision, which timm imports for data,
  an empty shape is enough. The optimizer is not published: SGD with momentum, the default of timm's
  own program, is taken. Rows above half of the GPU's memory are left out: a run that did not fit is
  not marked, and it ends in the upper half.

So many rows are drawn, always the same. Each network makes two steps on a fake GPU, as `nodemgr
predict` watches it; a row that has no forecast is counted with its reason.

The published memory has the GPU's context in it, which depends on the driver: the median difference
of every second row is taken for it, and the errors are those of the other rows. Utilisation: four
of five rows are learned from, the others are the test. Of all rows: how many need more than the
manager gives a first task, before any has shown its context. --kept: a file of the rows, which is
read if it is there. Needs torch.
"""

from __future__ import annotations

import argparse
import ast
import csv
import importlib
import importlib.abc
import importlib.machinery
import json
import random
import re
import statistics
import sys
import types
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from table import utilization_errors

from arguments import parse
from client_plugin.prediction import features as client_features
from nodemgr.core.forecast import features as feature_form
from nodemgr.core.forecast import margins
from nodemgr.core.forecast.prediction import DEFAULT_CONSTANT_BYTES
from nodemgr.core.forecast.samples import Sample

MIB = 1 << 20
GPU, GPU_MIB = "A100-40GiB", 40 << 10
STEPS = 2
SEED = 14
FILENAME, LAYERS, PEAK = "Filename", "Activations-Params", "Max GPU Memory (MiB)"
PERCENT = "Avg GPUTL"
PERCEPTRON = re.compile(r"input:(\d+)_output:(\d+)_.*batch:(\d+)")
NETWORK = re.compile(r"(.+)_(\d+)\.out")
SHEET = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"

EXAMPLE = [
    {FILENAME: f"input:64_output:9_batch:{batch}", PEAK: "400",
     LAYERS: "[('linear', 32, 2080), ('batch_normalization', 32, 64), ('ReLU', 32, 0),"
             " ('linear', 9, 297)]"}
    for batch in (8, 16)
]  # fmt: skip
"""Two rows of that form with an invented peak."""


class Row(NamedTuple):
    """One row of the file with its forecast."""

    name: str
    peak_mib: float
    percent: float | None
    forecast_mib: float | None
    features: dict[str, Any]
    reason: str = ""
    """Empty: there is a forecast."""


# -- the file --


def table_of(path: Path) -> list[dict[str, str]]:
    """Raises SystemExit with one line."""
    try:
        if path.suffix == ".xlsx":
            found = list(sheet(path))
        else:
            with path.open(newline="") as file:
                found = list(csv.DictReader(file))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile, ElementTree.ParseError) as error:
        sys.exit(f"{path} cannot be read as a table: {error!r}")
    if not found or not {FILENAME, PEAK} <= set(found[0]):
        sys.exit(f"{path}: columns {FILENAME}, {PEAK} are needed")
    return found


def sheet(path: Path) -> Iterator[dict[str, str]]:
    """The rows of the first sheet of an Office Open XML workbook, by the first row's names."""
    with zipfile.ZipFile(path) as archive:
        strings = [
            "".join(part.text or "" for part in item.iter(f"{SHEET}t"))
            for item in ElementTree.fromstring(archive.read("xl/sharedStrings.xml"))
        ]
        root = ElementTree.fromstring(archive.read("xl/worksheets/sheet1.xml"))
    names: dict[str, str] | None = None
    for row in root.iter(f"{SHEET}row"):
        cells = {}
        for cell in row:
            content = cell.findtext(f"{SHEET}v")
            if content is not None:
                column = cell.attrib["r"].rstrip("0123456789")
                cells[column] = strings[int(content)] if cell.get("t") == "s" else content
        if names is None:
            names = cells
        else:
            yield {name: cells.get(column, "") for column, name in names.items()}


def drawn(table: Sequence[dict[str, str]], count: int) -> list[dict[str, str]]:
    """So many of the rows that count, in the order of the file."""
    usable = [row for row in table if LAYERS in row or float(row[PEAK]) <= GPU_MIB / 2]
    places = random.Random(SEED).sample(range(len(usable)), min(count, len(usable)))
    return [usable[place] for place in sorted(places)]


# -- the trainings --


def perceptron(row: dict[str, str]) -> tuple[Any, Callable[[], Any], Any, Any]:
    """The model, its batch on the processor, its loss and its optimizer."""
    import torch

    named = PERCEPTRON.search(row[FILENAME])
    if named is None:
        raise ValueError(f"no sizes in the name {row[FILENAME]!r}")
    width, _, batch = map(int, named.groups())
    layers: list[Any] = []
    for kind, size, parameters in ast.literal_eval(row[LAYERS]):
        if kind == "linear":
            layers.append(torch.nn.Linear(parameters // size - 1, size))
        elif kind == "batch_normalization":
            layers.append(torch.nn.BatchNorm1d(size))
        elif kind == "dropout":
            layers.append(torch.nn.Dropout())
        else:
            layers.append(getattr(torch.nn, kind)(**({"dim": 1} if kind == "Softmax" else {})))
    outputs = [layer for layer in layers if isinstance(layer, torch.nn.Linear)][-1].out_features
    model = torch.nn.Sequential(*layers)

    def make() -> Any:
        labels = torch.zeros(batch, dtype=torch.long)
        return torch.empty(batch, width), labels if outputs > 1 else labels[:, None].float()

    loss = torch.nn.CrossEntropyLoss() if outputs > 1 else torch.nn.BCEWithLogitsLoss()
    return model, make, loss, torch.optim.Adam


def network(row: dict[str, str]) -> tuple[Any, Callable[[], Any], Any, Any]:
    """The same of a network of timm, at the size of its images."""
    import timm
    import torch

    named = NETWORK.fullmatch(row[FILENAME])
    if named is None:
        raise ValueError(f"no name and batch in {row[FILENAME]!r}")
    batch = int(named[2])
    model = timm.create_model(named[1])
    shape = model.pretrained_cfg["input_size"]

    def make() -> Any:
        return torch.empty(batch, *shape), torch.zeros(batch, dtype=torch.long)

    def optimizer(parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True)

    return model, make, torch.nn.CrossEntropyLoss(), optimizer


def forecast(row: dict[str, str], gpu: Any) -> Row:
    """The row with the reserved bytes and the features of its training, or with a reason."""
    recorder = gpu.begin()
    percent = row.get(PERCENT)
    known = row[FILENAME], float(row[PEAK]), float(percent) if percent else None
    try:
        model, make, loss, optimizer_of = (perceptron if LAYERS in row else network)(row)
        model.to("cuda")
        optimizer = optimizer_of(model.parameters())
        for _ in range(STEPS):
            inputs, labels = (part.to("cuda") for part in make())
            optimizer.zero_grad()
            found = model(inputs)
            value = loss(found, labels)
            value.backward()
            optimizer.step()
            recorder.step_ended()
    except Exception as error:
        return Row(*known, None, {}, f"{type(error).__name__}: {error}".splitlines()[0][:100])
    result = gpu.result(model, STEPS)
    features = client_features.packed(result)
    return Row(*known, result["reserved_peak_bytes"] / MIB, features)


class Shape(type):
    """A class with every attribute."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


class EmptyModule(types.ModuleType):
    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Shape(name, (), {})


class Torchvision(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Empty modules, where there is no torchvision: timm's networks need none of it."""

    def find_spec(self, name: str, *_others: Any) -> Any:
        if name.partition(".")[0] != "torchvision":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        return EmptyModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


# -- the errors --


def rows_of(table: Sequence[dict[str, str]], kept: Path | None) -> list[Row]:
    if kept is not None and kept.exists():
        return [Row(*row) for row in json.loads(kept.read_text())]
    import torch
    from fake_gpu import FakeGpu

    torch.set_num_threads(1)
    if LAYERS not in table[0]:
        sys.meta_path.append(Torchvision())  # an installed one is found first
        importlib.import_module("timm")
    gpu, found = FakeGpu(), []
    for number, row in enumerate(table):
        found.append(forecast(row, gpu))
        if sys.stderr.isatty():
            print(f"\r{number + 1} of {len(table)}", end="", file=sys.stderr, flush=True)
        if kept is not None:
            kept.with_suffix(".part").write_text(json.dumps(found))
    if kept is not None:
        kept.with_suffix(".part").replace(kept)
    return found


def show_memory(rows: Sequence[Row]) -> None:
    pairs = [(row.peak_mib, row.forecast_mib) for row in rows if row.forecast_mib is not None]
    if len(pairs) < 2:
        sys.exit(f"{len(pairs)} rows have a forecast: two are needed")
    context = statistics.median(truth - guess for truth, guess in pairs[::2])
    errors = [100 * (guess + context - truth) / truth for truth, guess in pairs[1::2]]
    sizes = sorted(map(abs, errors))
    print(f"context {context:.0f} MiB, of {len(pairs[::2])} rows; the other {len(errors)}:")
    print(f"median error {statistics.median(sizes):.1f} %, 90 % within "
          f"{sizes[int(0.9 * len(sizes))]:.1f} %, within 15 %: "
          f"{100 * sum(size <= 15 for size in sizes) / len(sizes):.0f} %, more than 15 % below: "
          f"{100 * sum(error < -15 for error in errors) / len(errors):.1f} %")  # fmt: skip
    beyond = sum(truth > first_task_mib(guess) for truth, guess in pairs)
    print(f"more memory than a first task is given, before any has shown its context: "
          f"{beyond} of {len(pairs)}")  # fmt: skip
    reasons = Counter(row.reason for row in rows if row.reason)
    print(f"without a forecast: {sum(reasons.values())} of {len(rows)} rows")
    for reason, count in reasons.most_common():
        print(f"  {count} {reason}")


def first_task_mib(forecast_mib: float) -> float:
    """Memory with its margin, as the manager fills it in without samples."""
    memory_bytes = round(forecast_mib * MIB) + DEFAULT_CONSTANT_BYTES
    return (memory_bytes + margins.memory_bytes(memory_bytes, (), "")) / MIB


def show_utilization(rows: Sequence[Row]) -> None:
    known = [
        Sample(
            wall_ns=place, env=f"env{place % 3}", user=f"user{place % 9}", gpu_model=GPU,
            driver="", features=feature_form.parse(row.features), run_ms=0, peak_bytes=None,
            utilization_percent=round(row.percent), step_ns=None, steps=0,
        )
        for place, row in enumerate(rows)
        if row.percent is not None and not row.reason
    ]  # fmt: skip
    tests = known[::5]
    older = [one for place, one in enumerate(known) if place % 5]
    if not older:
        print("utilisation: not measured")
        return
    percents = [float(one.utilization_percent or 0) for one in older]
    middle = statistics.median(percents)
    constant = [abs(middle - float(one.utilization_percent or 0)) for one in tests]
    ways = {**utilization_errors(older, tests), f"always {middle:.0f} %": constant}
    for way, errors in ways.items():
        if not errors:
            print(f"utilisation, {way}: abstains")
            continue
        sizes = sorted(map(abs, errors))
        print(f"utilisation, {way}: {len(sizes)} of {len(tests)} rows: mean error "
              f"{statistics.mean(sizes):.1f} points, median {statistics.median(sizes):.1f}, 90 % "
              f"within {sizes[int(0.9 * len(sizes))]:.1f}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, nargs="?", help="needed, but for --short")
    parser.add_argument("--rows", type=int, default=300, help="so many, drawn from the file")
    parser.add_argument("--kept", type=Path, help="a file of the forecasts")
    options = parse(parser, rows=10)
    if options.file is None and not options.short:
        parser.error("name the file")
    table = EXAMPLE if options.file is None else drawn(table_of(options.file), options.rows)
    rows = rows_of(table, options.kept)
    show_memory(rows)
    show_utilization(rows)


if __name__ == "__main__":
    main()
