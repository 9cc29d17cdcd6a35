"""Batches of a PyTorch dataset in the order of the plan.

Each sample is loaded with random numbers of its own, so that augmentation does not depend on how
the batch is divided. Must not know: models, the agent.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Tuple

import torch
from torch.utils.data import DataLoader, TensorDataset

from ..datasets import sample_of, seed_python
from ..plan import SamplePlan

SampleKey = Tuple[int, int]
"""The seed and the index of a sample."""


def seed_all(seed: int) -> None:
    """The global generators of torch, of Python, and of numpy where it is loaded."""
    torch.manual_seed(seed)
    seed_python(seed)


class Seeded:
    """A dataset whose keys bring the seed of the sample."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitem__(self, key: SampleKey) -> Any:
        seed, sample = key
        torch.default_generator.manual_seed(seed)
        seed_python(seed)
        return sample_of(self._dataset, sample)


class Loading(NamedTuple):
    """Options of the loader, as torch.utils.data.DataLoader has them."""

    workers: int
    collate: Optional[Callable[[List[Any]], Any]]


class _Keys:
    """The keys of each batch; `begin` moves it, since worker processes outlive a resize."""

    def __init__(self, plan: SamplePlan) -> None:
        self._plan = plan
        self._begin = (0, 0, 1)

    def begin(self, step: int, rank: int, size: int) -> None:
        self._begin = (step, rank, size)

    def __iter__(self) -> Iterator[List[SampleKey]]:
        first, rank, size = self._begin
        for step in range(first, self._plan.steps):
            for piece in self._plan.pieces(step, rank, size):
                yield [(self._plan.sample_seed(step, each), each) for each in piece.samples]


class SampleStream:
    """The dataset of a training."""

    def __init__(
        self, dataset: Any, plan: SamplePlan, device: torch.device, loading: Loading
    ) -> None:
        self._dataset = dataset
        self._device = device
        self._keys = _Keys(plan)
        self._loader: Any = None
        if not (type(dataset) is TensorDataset and loading.collate is None):
            self._loader = DataLoader(
                Seeded(dataset),
                batch_sampler=self._keys,
                num_workers=loading.workers,
                collate_fn=loading.collate,
                persistent_workers=loading.workers > 0,
                pin_memory=device.type == "cuda",
            )

    def stream(self, step: int, rank: int, size: int) -> Iterator[Any]:
        """The batches of one rank from a step on, on the device."""
        self._keys.begin(step, rank, size)
        batches = self._loader
        if batches is None:  # tensors of the host: one index instead of one call for each sample
            batches = (self._dataset[[sample for _, sample in keys]] for keys in self._keys)
        return (moved(batch, self._device) for batch in batches)


def moved(value: Any, device: torch.device) -> Any:
    """The value with all of its tensors on the device."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, dict):
        return {key: moved(each, device) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(moved(each, device) for each in value))
    if isinstance(value, (list, tuple)):
        return type(value)(moved(each, device) for each in value)
    return value
