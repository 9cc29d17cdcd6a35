"""Lightning as its users start it by torchrun: `with_lightning.py RECORD DIRECTORY`.

Each worker is a node of one process, as under the leader of an elastic task. It resumes from its
`last` checkpoint.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from common import CLASSES, FEATURES, SampleRecord
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, BATCH, EVERY, STEPS = 480, 8, 20, 400
record, directory = SampleRecord(sys.argv[1]), Path(sys.argv[2])
torch.set_num_threads(1)
lightning.seed_everything(1)


class Linear(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(FEATURES, CLASSES)

    def training_step(self, batch: Any, _number: int) -> Any:
        own, inputs, classes = batch
        record.takes(own.tolist())
        return torch.nn.functional.cross_entropy(self.inner(inputs), classes)

    def on_train_batch_end(self, *_rest: Any) -> None:
        rate = self.trainer.lr_scheduler_configs[0].scheduler.get_last_lr()[0]
        record.step_of_samples(self.trainer.global_step - 1, rate)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, STEPS)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


numbers = torch.Generator().manual_seed(2)
data = TensorDataset(
    torch.arange(SAMPLES), torch.randn(SAMPLES, FEATURES, generator=numbers),
    torch.randint(CLASSES, (SAMPLES,), generator=numbers),
)  # fmt: skip
kept = ModelCheckpoint(directory, every_n_train_steps=EVERY, save_last=True, save_top_k=1)
trainer = lightning.Trainer(
    accelerator="cpu", devices=1, num_nodes=int(os.environ.get("WORLD_SIZE", "1")),
    strategy="ddp", max_steps=STEPS, callbacks=[kept], logger=False, enable_progress_bar=False,
    enable_model_summary=False,
)  # fmt: skip
record.ready()
last = directory / "last.ckpt"
trainer.fit(
    Linear(), DataLoader(data, BATCH, shuffle=True), ckpt_path=str(last) if last.exists() else None
)
