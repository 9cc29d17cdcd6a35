"""The arguments of `elastic(...)`: their checks, and the framework that serves the model."""

from __future__ import annotations

import sys
from typing import Any

from ..messages import training as messages
from ..messages.form import stated
from .plan import SamplePlan


def plan_of(
    dataset: Any,
    global_batch: int,
    max_per_gpu: int,
    epochs: int,
    seed: int,
    virtual_workers: int,
) -> SamplePlan:
    """ValueError or TypeError with one line: no training is possible with these numbers."""
    numbers = {"global_batch": global_batch, "max_per_gpu": max_per_gpu, "epochs": epochs}
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(messages.NOT_POSITIVE(name=name, value=value))
    if isinstance(virtual_workers, bool) or not isinstance(virtual_workers, int):
        raise ValueError(messages.NOT_POSITIVE(name="virtual_workers", value=virtual_workers))
    try:
        samples = len(dataset)
        dataset.__getitem__  # noqa: B018
    except (TypeError, AttributeError):
        raise TypeError(
            stated(
                f"elastic: a {type(dataset).__name__} has no length or no samples by index",
                "use a dataset with __len__ and __getitem__",
            )
        ) from None
    if samples < global_batch:
        raise ValueError(
            stated(
                f"elastic: the dataset has {samples} samples, fewer than the global batch of "
                f"{global_batch}",
                "use a smaller global_batch, or more data",
            )
        )
    if not 0 <= virtual_workers <= global_batch:
        raise ValueError(
            stated(
                f"elastic: {virtual_workers} virtual workers for a global batch of {global_batch}",
                "there must be at least one sample for each",
            )
        )
    return SamplePlan(samples, global_batch, max_per_gpu, epochs, int(seed), virtual_workers)


def framework_of(model: Any) -> str:
    """The name of its room. TypeError: there is none."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        return "pytorch"
    if sys.modules.get("tensorflow") is not None and hasattr(model, "trainable_variables"):
        return "tensorflow"
    raise TypeError(
        stated(
            f"elastic: {type(model).__name__} is no model of PyTorch or TensorFlow",
            "pass a torch.nn.Module or a keras.Model",
        )
    )
