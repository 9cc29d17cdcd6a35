"""`elastic(...)` for PyTorch: its arguments become the parts of a run."""

from __future__ import annotations

import os
from typing import Any, Callable, List, Optional

import torch
from torch.utils.data import TensorDataset

from ... import stderr
from ..arguments import plan_of
from ..loop import Run
from .framework import TorchTraining, TrainingParts
from .samples import Loading, SampleStream

SPLIT = (torch.nn.modules.batchnorm._BatchNorm, torch.nn.modules.dropout._DropoutNd)
"""Layers whose result depends on how a batch is divided."""


def elastic(
    model: Any,
    optimizer: Any,
    dataset: Any,
    *,
    global_batch: int,
    max_per_gpu: int,
    seed: int,
    epochs: int,
    virtual_workers: int,
    checkpoint: Optional[str],
    checkpoint_every_s: float,
    scheduler: Any = None,
    scaler: Any = None,
    clip_norm: Optional[float] = None,
    collate: Optional[Callable[[List[Any]], Any]] = None,
    loader_workers: int = 0,
    device: Any = None,
) -> Run:
    if isinstance(dataset, (list, tuple)) and dataset and isinstance(dataset[0], torch.Tensor):
        dataset = TensorDataset(*dataset)
    plan = plan_of(dataset, global_batch, max_per_gpu, epochs, seed, virtual_workers)
    if not virtual_workers:
        _say_what_depends(model)

    def make() -> TorchTraining:
        own = device_of(model) if device is None else torch.device(device)
        model.to(own)
        samples = SampleStream(dataset, plan, own, Loading(loader_workers, collate))
        parts = TrainingParts(model, optimizer, scheduler, scaler, clip_norm)
        return TorchTraining(parts, plan, samples, own)

    return Run(make, plan, checkpoint, checkpoint_every_s)


def device_of(model: Any) -> torch.device:
    """The GPU of this worker; without one, where the model is."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return next((each.device for each in model.parameters()), torch.device("cpu"))


def _say_what_depends(model: Any) -> None:
    found = {
        type(layer).__name__
        for layer in model.modules()
        if isinstance(layer, SPLIT) and getattr(layer, "p", True)
    }
    if found and os.environ.get("RANK", "0") == "0":
        stderr.say_once(
            f"elastic: {', '.join(sorted(found))} depend on how the batch is divided: "
            "virtual_workers=MAX makes results the same with every number of GPUs"
        )
