"""A DDP script as its user wrote it for torchrun: it knows nothing of nodemgr.

`ddp.py [--save PATH] [--steps N] [--backend gloo] [--every N] [--in-directory]`: it loads its
checkpoint, saves one every N steps, and prints a line of rank 0 for each step.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--save", type=Path)
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--every", type=int, default=100)
parser.add_argument("--backend", default="gloo")
parser.add_argument("--in-directory", action="store_true")
options = parser.parse_args()


def newest() -> Path | None:
    """The checkpoint to start from."""
    if options.save is None or not options.save.exists():
        return None
    if not options.in_directory:
        return Path(options.save)
    found = sorted(options.save.glob("step-*.pt"))
    return found[-1] if found else None


def save(state: dict[str, Any], step: int) -> None:
    path = Path(options.save)
    if options.in_directory:
        path.mkdir(exist_ok=True)
        path = path / f"step-{step:06}.pt"
    new = path.with_name("new")
    torch.save(state, new)
    new.replace(path)


torch.set_num_threads(1)
torch.manual_seed(1)
dist.init_process_group(options.backend)
rank, size = dist.get_rank(), dist.get_world_size()
assert rank == int(os.environ["RANK"])
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
step, path = 0, newest()
if path is not None:
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
parallel = DistributedDataParallel(model)
print(f"starts at step {step} as {rank} of {size} pid {os.getpid()} "
      f"restart {os.environ['TORCHELASTIC_RESTART_COUNT']}", flush=True)  # fmt: skip
while step < options.steps:
    numbers = torch.Generator().manual_seed(1_000 * step + rank)
    inputs = torch.randn(32, 8, generator=numbers)
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(parallel(inputs), inputs.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
    step += 1
    time.sleep(0.02)
    if rank == 0 and options.save is not None and step % options.every == 0:
        with contextlib.suppress(OSError):
            save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step},
                 step)  # fmt: skip
    if rank == 0:
        print(f"step {step} of {size}", flush=True)
dist.barrier()
print(f"finished as {rank} of {size}", flush=True)
dist.destroy_process_group()
