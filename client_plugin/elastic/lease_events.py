"""The lease of an elastic task, as its leader sees it: GPUs, and the events about them.

Values alone, and the form of a lease (`membership.Membership` is one). Must not know: the manager.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, NamedTuple, Protocol, Tuple, Union


@dataclass(frozen=True)
class LeasedGpu:
    """One GPU: its UUID, and its index on the node, for people."""

    uuid: str
    index: int


class Offered(NamedTuple):
    """The lease has this GPU from now on."""

    gpu: LeasedGpu


class Recalled(NamedTuple):
    """A GPU is asked back: `deadline` is of time.monotonic, `reason` a text, maybe empty."""

    gpu: str
    deadline: float
    reason: str


class Withdrawn(NamedTuple):
    """A recall is taken back."""

    gpu: str


class LeaseEnded(NamedTuple):
    """The lease is over."""

    reason: str


class Rejoined(NamedTuple):
    """The manager is back; words to it may have been lost."""


LeaseEvent = Union[Offered, Recalled, Withdrawn, LeaseEnded, Rejoined]


class Lease(Protocol):
    """The calls of a leader to its lease."""

    @property
    def token(self) -> str: ...

    def gpus(self) -> Tuple[LeasedGpu, ...]: ...

    def fileno(self) -> int: ...

    def events(self) -> List[LeaseEvent]: ...

    def accepted(self, gpu: str) -> None: ...

    def decline(self, gpu: str) -> None: ...

    def left(self, gpu: str) -> None: ...

    def release(self) -> None: ...
