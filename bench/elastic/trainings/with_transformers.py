"""transformers.Trainer as its users start it by torchrun: `with_transformers.py RECORD DIRECTORY`.

It resumes from the newest checkpoint in DIRECTORY. The model comes from a configuration.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from common import SampleRecord
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

SAMPLES, BATCH, LENGTH, WORDS, EVERY, STEPS = 480, 8, 12, 50, 20, 400
record, directory = SampleRecord(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
set_seed(1)
numbers = torch.Generator().manual_seed(2)
words = torch.randint(WORDS, (SAMPLES, LENGTH), generator=numbers)


def collated(samples: list[int]) -> dict[str, Any]:
    record.takes(samples)
    return {"input_ids": words[samples], "labels": (words[samples].sum(1) % 2).long()}


class Steps(TrainerCallback):
    def on_step_end(self, arguments: Any, state: Any, control: Any, **parts: Any) -> None:
        rate = parts["lr_scheduler"].get_last_lr()[0]
        record.step_of_samples(state.global_step - 1, rate)


model = BertForSequenceClassification(
    BertConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=LENGTH,
    )
)  # fmt: skip
trainer = Trainer(
    model,
    TrainingArguments(
        output_dir=directory, use_cpu=True, ddp_backend="gloo", max_steps=STEPS,
        per_device_train_batch_size=BATCH, learning_rate=1e-3, lr_scheduler_type="linear",
        save_steps=EVERY, save_total_limit=2, report_to=[], disable_tqdm=True, seed=1,
    ),
    data_collator=collated, train_dataset=list(range(SAMPLES)), callbacks=[Steps()],
)  # fmt: skip
record.ready()
trainer.train(resume_from_checkpoint=get_last_checkpoint(directory))
