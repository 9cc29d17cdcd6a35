"""A training by PyTorch: gradients, buffers, random numbers and the state that joiners receive.

Knows: the model, the optimizer and what belongs to it. Must not know: the agent, generations.

All that a step sums lies in one flat tensor for each dtype: the loop's numbers, the gradients, one
flag for each parameter, the buffers. New flat tensors are made for each step, since an abandoned
collective may still write into old ones. The parameters stay where they are.
"""

from __future__ import annotations

import hashlib
from typing import Any, BinaryIO, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch

from ...messages import training as messages
from ...messages.form import stated
from ..calls import CollectiveThread
from ..channel import GenerationMembers
from ..checkpoints import replaced
from ..loop import StepSums
from ..plan import MicroBatch, SamplePlan, mixed
from .process_groups import TorchGroup
from .samples import SampleStream, seed_all

BufferRow = Dict[str, torch.Tensor]
NUMBERS = 5
"""Samples, workers that know of a later generation, workers that stop, the loss, CHANGED."""
LOSS, CHANGED = 3, 4
"""CHANGED: the workers on which other parameters are trained than in the step before."""


class TrainingParts(NamedTuple):
    """The program's own objects."""

    model: Any
    optimizer: Any
    scheduler: Any
    scaler: Any
    clip_norm: Optional[float]


class TorchTraining:
    """The framework's part of a run."""

    def __init__(
        self, parts: TrainingParts, plan: SamplePlan, samples: SampleStream, device: torch.device
    ) -> None:
        self._parts = parts
        self._plan = plan
        self._samples = samples
        self._device = device
        self._parameters: BufferRow = dict(parts.model.named_parameters())
        self._trained = self._trained_now()
        self._buffers: BufferRow = dict(parts.model.named_buffers())
        self._rows: List[BufferRow] = [self._copied() for _ in range(plan.virtual_workers or 1)]
        self._fresh: Dict[int, BufferRow] = {}
        self._loss = torch.zeros((), device=device)
        self._flags: List[float] = []

    # -- one step --

    def stream(self, step: int, rank: int, size: int) -> Iterator[Any]:
        return self._samples.stream(step, rank, size)

    def begin(self, piece: MicroBatch, seed: int) -> None:
        """The random numbers and buffers of the piece's worker."""
        if not piece.opens:
            return
        seed_all(seed)
        self._load(self._rows[piece.worker if self._plan.virtual_workers else 0])

    def add(self, loss: Any, weight: float, tape: Any) -> None:
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            shape = tuple(loss.shape) if isinstance(loss, torch.Tensor) else None
            found = type(loss).__name__ if shape is None else f"a tensor of shape {shape}"
            raise ValueError(messages.NO_LOSS(found=found))
        weighted = loss.reshape(()) * weight
        self._loss += weighted.detach()
        scaler = self._parts.scaler
        (weighted if scaler is None else scaler.scale(weighted)).backward()

    def finish(self, piece: MicroBatch) -> None:
        """Without virtual workers the buffers of rank 0 hold for all."""
        if self._plan.virtual_workers or piece.worker == 0:
            self._fresh[piece.worker] = self._copied()

    def reduce(self, group: TorchGroup, samples: int, knows: bool, stops: bool) -> StepSums:
        now = self._trained_now()
        counts = [samples, knows, stops, 0, now.keys() != self._trained.keys()]
        flats, head = self._summed(group, counts)
        if head[CHANGED]:
            self._retrain(group, now)
            flats, head = self._summed(group, counts)
        self._take(flats, head)
        return StepSums(*head[:CHANGED])

    def apply(self) -> None:
        optimizer, scaler = self._parts.optimizer, self._parts.scaler
        if scaler is not None:  # a worker without samples has not scaled a loss yet
            scaler.scale(torch.zeros((), device=self._device))
        if self._parts.clip_norm is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(self._trained.values(), self._parts.clip_norm)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        if self._parts.scheduler is not None:
            self._parts.scheduler.step()
        self.drop()

    def drop(self) -> None:
        for parameter in self._parameters.values():
            parameter.grad = None
        self._fresh = {}
        self._loss = torch.zeros((), device=self._device)
        self._load(self._rows[0])

    def _trained_now(self) -> BufferRow:
        return {n: p for n, p in self._parameters.items() if p.requires_grad}

    def _retrain(self, group: TorchGroup, now: BufferRow) -> None:
        """The program has changed requires_grad: other gradients are summed from now on."""
        text = repr(sorted(now))
        own = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "little")
        if any(found != [own] for found in group.gather([own])):
            raise RuntimeError(
                stated(
                    "elastic: requires_grad of the parameters differs between the workers",
                    "change it on every worker at the same step",
                )
            )
        self._trained = now

    def _summed(
        self, group: TorchGroup, counts: List[int]
    ) -> Tuple[Dict[torch.dtype, torch.Tensor], List[float]]:
        """The flat tensors of all workers, added; NUMBERS, and a flag for each parameter."""
        numbers = torch.tensor(counts, dtype=torch.float32, device=self._device)
        numbers[LOSS] = self._loss
        flats = self._flat(numbers)
        group.sum(list(flats.values()))
        return flats, flats[torch.float32][: NUMBERS + len(self._trained)].tolist()

    def _flat(self, numbers: torch.Tensor) -> Dict[torch.dtype, torch.Tensor]:
        flags = torch.tensor([float(p.grad is not None) for p in self._trained.values()])
        parts = {torch.float32: [numbers, flags.to(self._device)]}
        for name, parameter in self._trained.items():
            gradient = parameter.grad
            if gradient is not None and gradient.layout != torch.strided:
                raise ValueError(
                    stated(
                        f"elastic: the gradient of {name} is sparse",
                        "use a layer with sparse=False",
                    )
                )
            gradient = torch.zeros_like(parameter) if gradient is None else gradient
            parts.setdefault(gradient.dtype, []).append(gradient.detach().reshape(-1))
        for number in range(len(self._rows)):
            for name, buffer in self._buffers.items():
                own = self._fresh[number][name] if number in self._fresh else None
                own = torch.zeros_like(buffer) if own is None else own
                own = own.to(torch.uint8) if own.dtype == torch.bool else own
                parts.setdefault(own.dtype, []).append(own.reshape(-1))
        return {dtype: torch.cat(each) for dtype, each in parts.items()}

    def _take(self, flats: Dict[torch.dtype, torch.Tensor], head: List[float]) -> None:
        """The sums become gradients and buffers, in the order of `_flat`."""
        offsets = {**dict.fromkeys(flats, 0), torch.float32: len(head)}

        def cut(dtype: torch.dtype, shape: Any) -> torch.Tensor:
            begin, count = offsets[dtype], shape.numel()
            offsets[dtype] = begin + count
            return flats[dtype][begin : begin + count].view(shape)

        for parameter, flag in zip(self._trained.values(), head[NUMBERS:]):
            total = cut(parameter.dtype, parameter.shape)
            parameter.grad = total if flag else None
        if head[0] == self._plan.global_batch:  # else a wrong total, of which nothing is kept
            for row in self._rows:
                for name, buffer in self._buffers.items():
                    is_bool = buffer.dtype == torch.bool
                    dtype = torch.uint8 if is_bool else buffer.dtype
                    row[name] = cut(dtype, buffer.shape).to(buffer.dtype).clone()

    # -- buffers --

    def _copied(self) -> BufferRow:
        return {name: buffer.detach().clone() for name, buffer in self._buffers.items()}

    def _load(self, row: BufferRow) -> None:
        with torch.no_grad():
            for name, buffer in self._buffers.items():
                buffer.copy_(row[name])

    # -- joining --

    def group(
        self, membership: GenerationMembers, rank: int, caller: Optional[CollectiveThread]
    ) -> TorchGroup:
        return TorchGroup(membership, rank, caller, self._device)

    def structure(self) -> int:
        parts = self._parts
        tensors = [*self._parameters.items(), *self._buffers.items()]
        named = [(n, tuple(t.shape), str(t.dtype)) for n, t in tensors]
        kinds = [type(each).__name__ for each in (parts.optimizer, parts.scheduler, parts.scaler)]
        sizes = [len(group["params"]) for group in parts.optimizer.param_groups]
        plan = self._plan._replace(epochs=0, max_per_gpu=0)
        text = repr((named, kinds, sizes, tuple(plan)))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "little")

    def checksum(self) -> int:
        """Of the bits of all parameters and buffers, computed where they are."""
        total = 0
        tensors = list(self._parameters.values())
        tensors += [row[name] for row in self._rows for name in self._buffers]
        for tensor in tensors:
            words = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            if words.numel() % 4 == 0:
                words = words.view(torch.int32)
            total = mixed(total, int(words.sum(dtype=torch.int64).item()))
        return total

    # -- state --

    def snapshot(self) -> Any:
        parts = self._parts
        return {
            "parameters": _on_host(self._parameters),
            "trained": list(self._trained),
            "rows": _on_host(self._rows),
            "optimizer": _on_host(parts.optimizer.state_dict()),
            "scheduler": None if parts.scheduler is None else parts.scheduler.state_dict(),
            "scaler": None if parts.scaler is None else parts.scaler.state_dict(),
        }

    def restore(self, snapshot: Any) -> None:
        parts = self._parts
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(snapshot["parameters"][name])
                parameter.requires_grad_(name in snapshot["trained"])
        self._trained = self._trained_now()
        self._rows = [
            {name: tensor.to(self._buffers[name].device) for name, tensor in row.items()}
            for row in snapshot["rows"]
        ]
        parts.optimizer.load_state_dict(snapshot["optimizer"])
        if parts.scheduler is not None:
            parts.scheduler.load_state_dict(snapshot["scheduler"])
        if parts.scaler is not None:
            parts.scaler.load_state_dict(snapshot["scaler"])
        self.drop()

    def write(self, contents: Any, file: BinaryIO) -> None:
        torch.save(contents, file)

    def read(self, path: str) -> Any:
        return torch.load(path, map_location="cpu", weights_only=True)

    def save(self, path: str, contents: Any) -> None:
        """`contents`, or the model's state_dict."""
        contents = self._parts.model.state_dict() if contents is None else contents
        replaced(path, lambda file: torch.save(contents, file))


def _on_host(value: Any) -> Any:
    """A copy whose tensors are the processor's, and stay as they are while training goes on."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _on_host(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_on_host(each) for each in value)
    return value
