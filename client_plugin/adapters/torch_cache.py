"""PyTorch's cache in a range of memory: cached blocks go back once the limit has shrunk.

Knows: torch.cuda, and the size of a GPU's memory as the shim shows it, which is the present limit.
Must not know: ranges, the ledger. Runs after a step of an optimizer, in the thread of the program,
where PyTorch itself allows empty_cache(): never from another thread or a signal handler.
"""

from __future__ import annotations

import os
import time
from typing import Any, Callable

from .. import stderr

PERIOD_S = 0.25
"""The limits are read no more often."""


def wanted() -> bool:
    """Whether the task has a range of memory: only then a limit shrinks."""
    return "-" in os.environ.get("NODEMGR_MEMORY", "")


class CacheWatch:
    """The limits at the last look, by GPU."""

    def __init__(self, cuda: Any, clock: Callable[[], float] = time.monotonic) -> None:
        """`cuda`: the module torch.cuda."""
        self._cuda = cuda
        self._clock = clock
        self._next_s = 0.0
        self._limits: dict[int, int] = {}

    def step(self, *_args: Any, **_kwargs: Any) -> None:
        """Called by PyTorch after each step. A fault is reported once, and ends the watch."""
        now_s = self._clock()
        if now_s < self._next_s:
            return
        self._next_s = now_s + PERIOD_S
        try:
            self._read_limit()
        except Exception as error:
            self._next_s = float("inf")
            stderr.report("PyTorch's cache in a range of memory", error)

    def _read_limit(self) -> None:
        cuda = self._cuda
        # memory must not be freed while a graph records the launches of this stream
        if not cuda.is_initialized() or cuda.is_current_stream_capturing():
            return
        before = self._limits
        # a GPU without reserved memory may have no context, and a question would make one
        used = [index for index in range(cuda.device_count()) if cuda.memory_reserved(index)]
        self._limits = {index: cuda.mem_get_info(index)[1] for index in used}
        if any(limit < before.get(index, 0) for index, limit in self._limits.items()):
            cuda.empty_cache()
