"""A loop of accelerate as its users start it by torchrun: `with_accelerate.py RECORD DIRECTORY`.

After the example "checkpointing" of its documentation: save_state, load_state, skip_first_batches.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import set_seed
from common import CLASSES, FEATURES, SampleRecord
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, BATCH, EVERY, STEPS = 480, 8, 20, 400
record, directory = SampleRecord(sys.argv[1]), Path(sys.argv[2])
torch.set_num_threads(1)
set_seed(1)
accelerator = Accelerator(cpu=True)
numbers = torch.Generator().manual_seed(2)
data = TensorDataset(
    torch.arange(SAMPLES), torch.randn(SAMPLES, FEATURES, generator=numbers),
    torch.randint(CLASSES, (SAMPLES,), generator=numbers),
)  # fmt: skip
model = torch.nn.Linear(FEATURES, CLASSES)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, STEPS)
loader = DataLoader(data, BATCH, shuffle=True)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
record.ready()
step = 0
found = sorted(directory.glob("step-*"))
if found:
    accelerator.load_state(str(found[-1]))
    step = int(found[-1].name.partition("-")[2])
while step < STEPS:
    epoch, place = divmod(step, len(loader))
    loader.set_epoch(epoch)
    for own, inputs, classes in skip_first_batches(loader, place) if place else loader:
        loss = torch.nn.functional.cross_entropy(model(inputs), classes)
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        record.takes(own.tolist())
        record.step_of_samples(step, scheduler.get_last_lr()[0])
        step += 1
        if step % EVERY == 0:
            accelerator.save_state(str(directory / f"step-{step:06}"))
        if step == STEPS:
            break
