"""Process groups of PyTorch: one of gloo (processor) or NCCL (GPU) for each generation.

Made beside torch.distributed's default group, which stays the program's. A group of one worker has
no backend. Must not know: models, steps.
"""

from __future__ import annotations

import datetime
from typing import Any, List, Optional, Sequence

import torch
import torch.distributed as dist

from ..calls import CollectiveThread
from ..channel import GenerationMembers
from .state_bytes import checked_length, packed, unpacked

TIMEOUT = datetime.timedelta(minutes=30)
"""As torch's own: a main worker may validate for long while the others wait for its gradient.

The end of a member is not found by this limit: its connections break, or the agent reports it.
"""
CHUNK_BYTES = 1 << 28


class TorchGroup:
    """The members of one generation."""

    def __init__(
        self,
        membership: GenerationMembers,
        rank: int,
        caller: Optional[CollectiveThread],
        device: torch.device,
    ) -> None:
        self._device = device
        self._caller = caller
        self._rank = rank
        self._backend: Any = None
        if caller is not None and membership.size > 1:
            self._backend = caller.call(lambda: _backend(membership, rank, device))

    def sum(self, tensors: Sequence[torch.Tensor]) -> None:
        """Each tensor becomes its sum over all members, in place."""
        self._call(lambda backend: [backend.allreduce([each]) for each in tensors])

    def gather(self, numbers: Sequence[int]) -> List[List[int]]:
        own = torch.tensor(list(numbers), dtype=torch.int64, device=self._device)
        if self._backend is None:
            return [own.tolist()]
        every = [torch.zeros_like(own) for _ in range(self._backend.size())]
        self._call(lambda backend: [backend.allgather([every], [own])])
        return [each.tolist() for each in every]

    def send(self, rank: int, data: Any) -> None:
        whole = packed(data)
        length = torch.tensor([whole.numel()], dtype=torch.int64, device=self._device)
        self._call(lambda backend: [backend.send([length], rank, 0)])
        for chunk in whole.split(CHUNK_BYTES):
            moved = chunk.to(self._device)
            self._call(lambda backend, moved=moved: [backend.send([moved], rank, 0)])

    def receive(self, rank: int) -> Any:
        length = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._call(lambda backend: [backend.recv([length], rank, 0)])
        whole = torch.empty(checked_length(int(length.item())), dtype=torch.uint8)
        for chunk in whole.split(CHUNK_BYTES):
            moved = chunk if self._device.type == "cpu" else torch.empty_like(
                chunk, device=self._device
            )  # fmt: skip
            self._call(lambda backend, moved=moved: [backend.recv([moved], rank, 0)])
            if moved is not chunk:
                chunk.copy_(moved)
        return unpacked(whole)

    def close(self, is_broken: bool) -> None:
        """Its connections close, so that the members that still wait for it go on, too."""
        backend, self._backend = self._backend, None
        if backend is not None and is_broken and self._device.type == "cuda":
            backend.abort()
        if self._caller is not None:
            self._caller.leave()

    def _call(self, begin: Any) -> None:
        """Begins collectives on the caller's thread and waits for them.

        On a GPU the gradients must be computed before another stream reads them, and the thread
        waits for the device: a sum that was only queued may still break.
        """
        if self._backend is None or self._caller is None:
            return
        backend, device = self._backend, self._device
        ready = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None

        def work() -> None:
            if ready is not None:
                torch.cuda.current_stream(device).wait_event(ready)
            for each in begin(backend):
                each.wait()
            if ready is not None:
                torch.cuda.current_stream(device).synchronize()

        self._caller.call(work)


def _backend(membership: GenerationMembers, rank: int, device: torch.device) -> Any:
    store = dist.PrefixStore(f"generation {membership.generation}", _store(membership, rank))
    if device.type == "cuda":
        torch.cuda.set_device(device)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = TIMEOUT
        return dist.ProcessGroupNCCL(store, rank, membership.size, options)
    return dist.ProcessGroupGloo(store, rank, membership.size, TIMEOUT)


def _store(membership: GenerationMembers, rank: int) -> Any:
    host, _, port = membership.store.rpartition(":")
    if host and "/" not in host and port.isdigit():
        return dist.TCPStore(
            host, int(port), membership.size, rank == 0, TIMEOUT, wait_for_workers=False
        )
    return dist.FileStore(membership.store, -1)
