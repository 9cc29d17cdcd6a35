"""A small training with the three lines: `torch_training.py STEPS [CHECKPOINT]`. Prints its steps.

The words of a line: the step, its worker, the number of workers, the monotonic clock.
"""

from __future__ import annotations

import os
import sys
import time

import torch
from nodemgr_client import elastic

torch.manual_seed(1)
features = torch.randn(256, 8)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = (features, features.sum(1, keepdim=True))
number = os.environ.get("NODEMGR_WORKER", "-")
epochs = int(sys.argv[1]) // 8
kept = {"checkpoint": sys.argv[2], "checkpoint_every_s": 0.05} if len(sys.argv) > 2 else {}
print(f"built by {number}", flush=True)
sizes = {"global_batch": 32, "max_per_gpu": 32, "epochs": epochs}
with elastic(model, optimizer, data, **sizes, **kept) as run:
    for batch, target in run:
        run.backward(torch.nn.functional.mse_loss(model(batch), target))
        print(f"step {run.step} by {number} of {run.size} at {time.monotonic():.3f}", flush=True)
        time.sleep(0.02)
if run.is_main:
    print(f"finished step {run.step}: {float(model.weight.sum()):.6f}", flush=True)
