"""Forecasts of memory against peaks that others measured on a GPU and published.

    python bench/forecast/published.py FILE [--rows N]

FILE is a CSV table of GPUMemNet's measurements of multi-layer perceptrons (itu-rad/GPUMemNet,
Datasets/MLP/mlp_data_step1.csv; it has no licence and is no part of this repository). Columns that
are read: `Filename` (input, output, batch), `Activations-Params` (the layers), `Max GPU Memory
(MiB)`. Each network makes two steps with Adam on a fake GPU, as `nodemgr predict` watches it.

The published figure has the GPU's context in it, which depends on the driver: the median difference
of every second row is taken for it, and the errors are those of the other rows. Needs torch.
"""

from __future__ import annotations

import argparse
import ast
import csv
import gc
import importlib
import re
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from arguments import parse

MIB = 1 << 20
NEEDED = ("Filename", "Activations-Params", "Max GPU Memory (MiB)")
NAME = re.compile(r"input:(\d+)_output:(\d+)_.*batch:(\d+)")

EXAMPLE = [
    {NEEDED[0]: f"input:64_output:9_batch:{batch}", NEEDED[2]: "400",
     NEEDED[1]: "[('linear', 32, 2080), ('ReLU', 32, 0), ('linear', 9, 297)]"}
    for batch in (8, 16)
]  # fmt: skip
"""Two rows of that form with an invented peak."""


def forecast(row: dict[str, str], hybrid: Any) -> int:
    """The reserved bytes of two steps."""
    import torch

    from client_plugin.prediction.caching_allocator import replay
    from client_plugin.prediction.pytorch.recorder import Recorder

    gc.collect()
    hybrid.recorder = recorder = Recorder()
    named = NAME.search(row["Filename"])
    if named is None:
        raise ValueError(f"no sizes in the name {row['Filename']!r}")
    width, _, batch = map(int, named.groups())
    layers: list[Any] = []
    for kind, size, parameters in ast.literal_eval(row["Activations-Params"]):
        if kind == "linear":
            with torch.device("cuda"):
                layers.append(torch.nn.Linear(parameters // size - 1, size))
        else:
            layers.append(getattr(torch.nn, kind)())
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters())
    outputs = layers[-1].out_features
    cost = torch.nn.CrossEntropyLoss() if outputs > 1 else torch.nn.BCEWithLogitsLoss()
    for _ in range(2):
        inputs = torch.empty(batch, width).to("cuda")
        labels = torch.zeros(batch, dtype=torch.long).to("cuda")
        optimizer.zero_grad()
        found = model(inputs)
        cost(found, labels if outputs > 1 else labels[:, None].float()).backward()
        optimizer.step()
    return replay(recorder.with_libraries()).reserved_peak_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, nargs="?", help="needed, but for --short")
    parser.add_argument("--rows", type=int, default=300, help="so many, spread over the file")
    options = parse(parser, rows=10)
    table = EXAMPLE if options.short else []
    if options.file:
        with options.file.open(newline="") as file:
            table = list(csv.DictReader(file))
    if not table or any(name not in table[0] for name in NEEDED):
        sys.exit(f"{options.file}: columns {', '.join(NEEDED)} are needed")
    importlib.import_module("torch._dynamo")  # it reads torch.cuda's functions while it loads

    from client_plugin.prediction.pytorch import device, stubs
    from client_plugin.prediction.pytorch.hybrid import Hybrid
    from client_plugin.prediction.pytorch.recorder import Recorder

    hybrid = Hybrid(Recorder())
    device.install()
    stubs.install(hybrid, lambda name: None)
    hybrid.__enter__()
    rows = table[:: max(1, len(table) // options.rows)][: options.rows]
    pairs = [(float(row[NEEDED[2]]), forecast(row, hybrid) / MIB) for row in rows]
    context = statistics.median(truth - guess for truth, guess in pairs[::2])
    errors = [100 * (guess + context - truth) / truth for truth, guess in pairs[1::2]]
    sizes = sorted(map(abs, errors))
    print(f"context {context:.0f} MiB, of {len(pairs[::2])} rows; the other {len(errors)}:")
    print(f"median error {statistics.median(sizes):.1f} %, 90 % within "
          f"{sizes[int(0.9 * len(sizes))]:.1f} %, more than 15 % below: "
          f"{100 * sum(error < -15 for error in errors) / len(errors):.1f} %")  # fmt: skip


if __name__ == "__main__":
    main()
