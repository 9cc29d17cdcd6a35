"""The names that `placement` may have, and the orders that need neither rates nor the job.

Knows: how full a GPU is. Must not know: the model, whose import takes longer than a whole verb of
the command line, which offers these names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol


class Fill(Protocol):
    """The fill of a GPU, by which the plain orders choose."""

    @property
    def remaining_bytes(self) -> int: ...
    @property
    def tasks(self) -> int: ...
    @property
    def number(self) -> int: ...


FillOrder = Callable[[Fill], tuple[float, ...]]
"""The key of a GPU; the smallest is chosen first."""


class PlainOrder(NamedTuple):
    key: FillOrder
    meaning: str


ORDERS = {
    "spread": PlainOrder(
        lambda gpu: (-gpu.remaining_bytes, gpu.tasks, gpu.number), "most remaining memory first"
    ),
    "pack": PlainOrder(
        lambda gpu: (gpu.remaining_bytes, -gpu.tasks, gpu.number), "least remaining memory first"
    ),
    "index": PlainOrder(lambda gpu: (gpu.number,), "lowest index first"),
}
SPREAD = ORDERS["spread"].key
