"""The same training with DDP, as torchrun runs it: `for_torchrun.py RECORD CHECKPOINT`.

It begins with its checkpoint, and saves one every 50 steps, which take at least a second.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from common import BATCH, CLASSES, FEATURES, HIDDEN, SAMPLES, StepRecord
from torch.nn.parallel import DistributedDataParallel

EVERY = 50
record, path = StepRecord(sys.argv[1]), Path(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(1)
inputs, classes = torch.randn(SAMPLES, FEATURES), torch.randint(CLASSES, (SAMPLES,))
model = torch.nn.Sequential(
    torch.nn.Linear(FEATURES, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, CLASSES)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
record.ready()
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
step = 0
if path.exists():
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
parallel = DistributedDataParallel(model)
while True:
    own = torch.arange(step * BATCH + rank, (step + 1) * BATCH, size) % SAMPLES
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(parallel(inputs[own]), classes[own]).backward()
    optimizer.step()
    record.step(step, rank, size)
    step += 1
    if rank == 0 and step % EVERY == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, path.with_name("new"))
        path.with_name("new").replace(path)
