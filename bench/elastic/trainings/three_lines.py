"""PyTorch with the three lines: `three_lines.py RECORD CHECKPOINT`."""

from __future__ import annotations

import sys

import torch
from common import BATCH, CLASSES, FEATURES, HIDDEN, SAMPLES, StepRecord
from nodemgr_client import elastic

record = StepRecord(sys.argv[1])
torch.manual_seed(1)
data = (torch.randn(SAMPLES, FEATURES), torch.randint(CLASSES, (SAMPLES,)))
model = torch.nn.Sequential(
    torch.nn.Linear(FEATURES, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, CLASSES)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
record.ready()
with elastic(
    model, optimizer, data, global_batch=BATCH, max_per_gpu=BATCH, epochs=1_000_000,
    checkpoint=sys.argv[2], checkpoint_every_s=2.0, device="cpu",
) as run:  # fmt: skip
    for inputs, classes in run:
        step, rank, size = run.step, run.rank, run.size
        run.backward(torch.nn.functional.cross_entropy(model(inputs), classes))
        if run.step > step:
            record.step(step, rank, size)
