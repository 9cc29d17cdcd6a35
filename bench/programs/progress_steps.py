"""The cost of a counted step: PyTorch's SGD with and without the hook, in turns.

    python bench/programs/progress_steps.py [ROUNDS]

Prints medians of processor time over the rounds. The library is loaded; no manager is needed.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from client_plugin import progress

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
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 201
    weights = [torch.nn.Parameter(torch.ones(8)) for _ in range(4)]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.SGD(weights, lr=1e-9)
    register = sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook
    plain, hooked, alone = [], [], []
    for _ in range(rounds):
        plain.append(steps_us(optimizer))
        handle = register(progress.step)
        hooked.append(steps_us(optimizer))
        handle.remove()
        alone.append(counts_us())
    before, after, count = map(statistics.median, (plain, hooked, alone))
    ratio = statistics.median([after / before for before, after in zip(plain, hooked, strict=True)])
    print(f"step without the hook  {before:8.2f} us")
    print(f"step with the hook     {after:8.2f} us  (ratio {ratio:.3f})")
    print(f"one count              {count:8.2f} us")


if __name__ == "__main__":
    main()
