"""`elastic(...)` for TensorFlow: its arguments become the parts of a run."""

from __future__ import annotations

import os
import sys
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from ..arguments import plan_of
from ..loop import Run
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
    plan = plan_of(dataset, global_batch, max_per_gpu, epochs, seed, virtual_workers)
    is_spare = os.environ.get("NODEMGR_WORKER_GPU") == ""

    def make() -> VariableTraining:
        if is_spare and os.environ["NODEMGR_WORKER_GPU"]:
            _begin_anew()
        return VariableTraining(VariableParts(model, optimizer, dataset, clip_norm), plan)

    return Run(make, plan, checkpoint, checkpoint_every_s)


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or tf.is_tensor(value)


def _begin_anew() -> None:
    """TensorFlow has looked for GPUs already, and found none: the program starts again with one."""
    words = list(getattr(sys, "orig_argv", [sys.executable, *sys.argv]))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *words[1:]])
