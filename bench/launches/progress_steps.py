"""The cost of a counted step: PyTorch's SGD with and without the hook, in turns.

    python bench/launches/progress_steps.py [--rounds 201]

Prints medians of processor time over the rounds. The library is loaded; no manager is needed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from arguments import parse
from client_plugin import progress
from node import table

STEPS = 200


def steps_us(optimizer: torch.optim.Optimizer) -> float:
    began_s = time.thread_time()
    for _ in range(STEPS):
        optimizer.step()
    return (time.thread_time() - began_s) / STEPS * 1e6


def counts_us() -> float:
    began_s = time.thread_time()
    for _ in range(STEPS):
        progress.step()
    return (time.thread_time() - began_s) / STEPS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=201)
    arguments = parse(parser, rounds=5)
    weights = [torch.nn.Parameter(torch.ones(8)) for _ in range(4)]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.SGD(weights, lr=1e-9)
    register = sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook
    plain, hooked, alone = [], [], []
    for _ in range(arguments.rounds):
        plain.append(steps_us(optimizer))
        handle = register(progress.step)
        hooked.append(steps_us(optimizer))
        handle.remove()
        alone.append(counts_us())
    table(
        "SGD, processor time of a step",
        [("without the hook", plain), ("with the hook", hooked), ("one count", alone)],
        "us",
        "without the hook",
    )


if __name__ == "__main__":
    main()
