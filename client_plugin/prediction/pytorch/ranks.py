"""torch.distributed as one rank of a launcher finds it.

Rank and world size are those of the launcher's variables or of init_process_group. A collective
operation leaves tensors as they are, and gives every rank this rank's objects. At barriers, and
before a step of distributed data parallelism, a rank waits for the other ranks of this node: one
may read a file that another writes. Knows: functions of torch.distributed. Must not know:
operators, what is recorded.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from typing import Any, Callable, Dict, List, Optional

MOST_WAIT_S, MOST_START_S = 20.0, 5.0
"""The time that one rank waits in all, and the part of it for ranks that have not started."""
POLL_S = 0.01
COUNT_BYTES = 12


class RankMeeting:
    """A file for each rank, which it locks: the barriers at which it has arrived.

    The lock of a process ends with it: the others do not wait for a rank that has ended.
    """

    def __init__(self, directory: str, rank: int) -> None:
        """Raises OSError: another process is this rank, or the file cannot be made."""
        self._directory, self._rank = directory, rank
        self._count = 0
        self._left_s, self._start_left_s = MOST_WAIT_S, MOST_START_S
        self._file = os.open(self._path(rank), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise
        self._arrive()

    def meet(self, ranks: List[int]) -> None:
        self._count += 1
        self._arrive()
        others = [rank for rank in ranks if rank != self._rank]
        while others and self._left_s > 0:
            behind = [rank for rank in others if self._is_behind(rank)]
            if not behind:
                return
            begun_s = time.monotonic()
            time.sleep(POLL_S)
            spent_s = time.monotonic() - begun_s
            self._left_s -= spent_s
            if not all(map(self._has_started, behind)):
                self._start_left_s -= spent_s

    def leave(self) -> None:
        """No rank waits for this one any more."""
        os.close(self._file)

    def _arrive(self) -> None:
        os.pwrite(self._file, str(self._count).encode().rjust(COUNT_BYTES), 0)

    def _path(self, rank: int) -> str:
        return os.path.join(self._directory, f"rank-{rank}")

    def _has_started(self, rank: int) -> bool:
        return os.path.exists(self._path(rank))

    def _is_behind(self, rank: int) -> bool:
        if not self._has_started(rank):
            return self._start_left_s > 0
        with open(self._path(rank), "rb+") as file:
            count = file.read(COUNT_BYTES)
            with suppress(OSError):  # it lives
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return False
        return not count or int(count) < self._count


class Ranks:
    """This process among those of its launcher."""

    def __init__(self, directory: str) -> None:
        """`directory`: the ranks meet there; empty: they do not."""
        self._directory = directory
        self._meeting: Optional[RankMeeting] = None
        self.is_initialized = False
        self.rank = _number("RANK", 0)
        self.world_size = max(1, _number("WORLD_SIZE", 1))

    def init_process_group(self, *_args: Any, **kwargs: Any) -> None:
        rank, world_size = kwargs.get("rank", -1), kwargs.get("world_size", -1)
        self.rank = self.rank if rank < 0 else rank
        self.world_size = self.world_size if world_size < 1 else world_size
        self.is_initialized = True
        if self._directory and self._meeting is None:
            with suppress(OSError):
                self._meeting = RankMeeting(self._directory, self.rank)

    def meet(self, *_args: Any, async_op: bool = False, **_kwargs: Any) -> Optional[DoneWork]:
        """The ranks of this node arrive here before one of them goes on."""
        if self._meeting is not None:
            count = _number("LOCAL_WORLD_SIZE", self.world_size)
            first = self.rank - self.rank % max(1, count)
            self._meeting.meet(list(range(first, first + count)))
        return DoneWork() if async_op else None

    def destroy_process_group(self, *_args: Any) -> None:
        self.is_initialized = False
        if self._meeting is not None:
            self._meeting.leave()
            self._meeting = None

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
            **dict.fromkeys(COLLECTIVES, _done), **dict.fromkeys(BARRIERS, self.meet),
            "new_group": lambda *args, **kwargs: None,
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


BARRIERS = ("barrier", "monitored_barrier")
COLLECTIVES = (
    "broadcast", "broadcast_object_list", "scatter",
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
