"""torch.distributed as one rank of a launcher finds it without the others.

Rank and world size are those of the launcher's variables or of init_process_group. A collective
operation leaves tensors as they are, and gives every rank this rank's objects. Knows: functions of
torch.distributed. Must not know: operators, what is recorded.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Optional


class Ranks:
    """This process among those of its launcher."""

    def __init__(self) -> None:
        self.is_initialized = False
        self.rank = _number("RANK", 0)
        self.world_size = max(1, _number("WORLD_SIZE", 1))

    def init_process_group(self, *_args: Any, **kwargs: Any) -> None:
        rank, world_size = kwargs.get("rank", -1), kwargs.get("world_size", -1)
        self.rank = self.rank if rank < 0 else rank
        self.world_size = self.world_size if world_size < 1 else world_size
        self.is_initialized = True

    def destroy_process_group(self, *_args: Any) -> None:
        self.is_initialized = False

    def device_count(self) -> int:
        """One GPU for each rank of this node."""
        return max(1, _number("LOCAL_WORLD_SIZE", 1))

    def all_gather_object(self, objects: Any, own: Any, *_args: Any, **_kwargs: Any) -> None:
        objects[:] = [own] * len(objects)

    def gather_object(self, own: Any, objects: Any = None, *_args: Any, **_kwargs: Any) -> None:
        if objects is not None:
            objects[:] = [own] * len(objects)

    def stubs(self) -> Dict[str, Callable[..., Any]]:
        """Function of torch.distributed -> its stub."""
        return {
            **dict.fromkeys(COLLECTIVES, _done), "new_group": lambda *args, **kwargs: None,
            "init_process_group": self.init_process_group,
            "destroy_process_group": self.destroy_process_group,
            "is_initialized": lambda: self.is_initialized, "is_nccl_available": lambda: True,
            "get_backend": lambda *args: "nccl", "isend": _handle, "irecv": _handle,
            "batch_isend_irecv": lambda operations: [DoneWork() for _ in operations],
            "get_process_group_ranks": lambda *args: list(range(self.world_size)),
            "get_global_rank": lambda _group, rank: rank,
            "get_group_rank": lambda _group, rank: rank,
            "get_rank": lambda *args: self.rank, "get_world_size": lambda *args: self.world_size,
            "all_gather_object": self.all_gather_object, "gather_object": self.gather_object,
        }  # fmt: skip


COLLECTIVES = (
    "barrier", "monitored_barrier", "broadcast", "broadcast_object_list", "scatter",
    "scatter_object_list", "reduce", "all_reduce", "gather", "all_gather", "all_gather_into_tensor",
    "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "send", "recv",
)  # fmt: skip


class DoneWork:
    """The handle of an operation with async_op=True."""

    def wait(self, *_args: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


def _handle(*_args: Any, **_kwargs: Any) -> DoneWork:
    return DoneWork()


def _done(*_args: Any, async_op: bool = False, **_kwargs: Any) -> Optional[DoneWork]:
    return DoneWork() if async_op else None


def _number(name: str, otherwise: int) -> int:
    try:
        return int(os.environ.get(name, otherwise))
    except ValueError:
        return otherwise
