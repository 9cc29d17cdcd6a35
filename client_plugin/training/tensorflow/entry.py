"""`elastic(...)` for TensorFlow: its arguments become the parts of a run."""

from __future__ import annotations

import sys
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from ..arguments import plan_of
from ..loop import Run
from .global_batches import GlobalBatches
from .keras_fit import FittedTraining
from .variables import Together, VariableParts, VariableTraining


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
    clip_norm: Optional[float] = None,
) -> Run:
    if isinstance(dataset, (list, tuple)) and dataset and _is_array(dataset[0]):
        dataset = Together(dataset)
    elif isinstance(dataset, tf.data.Dataset):
        dataset = GlobalBatches(dataset, global_batch)
    plan = plan_of(dataset, global_batch, max_per_gpu, epochs, seed, virtual_workers)
    plan = plan._replace(is_in_order=isinstance(dataset, GlobalBatches))
    is_compiled = getattr(model, "optimizer", None) is optimizer
    is_fit_near = "fit" in sys._getframe(2).f_code.co_names  # of the program's function

    def make() -> VariableTraining:
        parts = VariableParts(model, optimizer, dataset, clip_norm)
        if is_compiled:
            return FittedTraining(parts, plan, is_fit_near)
        return VariableTraining(parts, plan)

    return Run(make, plan, checkpoint, checkpoint_every_s)


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or tf.is_tensor(value)
