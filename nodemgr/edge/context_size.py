"""What a CUDA context takes by itself, learned per GPU model from the processes that have hardly anything else.

Knows: the auditor's figures, how an estimate follows from them. Must not know: where it is written (envs.py, the store).

The shim charges the estimate before it makes a context. A process whose figures did not move between two looks, and which was
charged little beside its context, shows what that really took: what the driver shows less what else was charged. One such process
may be odd (one that did not get to run for seconds, with an allocation charged and not yet made, seems to have a smaller context), so
the estimate is the median of the last few, and never below the initial one, by which nobody gets more than his grant; on a node of
several models the smallest is told, so that no grant is smaller for it than it must be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from statistics import median_low

from nodemgr.core.model import Gpu, ProcessKey, Uuid
from nodemgr.edge.auditor import Figure

INITIAL_BYTES = 64 << 20
"""Less than any context takes on a GPU of today."""
MOST_BYTES = 4 << 30
"""What shows more has something else."""
MOST_BESIDE_BYTES = 64 << 20
STEP_BYTES = 8 << 20
"""Smaller differences are not worth telling every client."""
KEPT_SAMPLES = 9
META = "context_bytes:"
"""Key of the store's memory of a model's estimate, before the model's name."""


class ContextSizes:
    """The estimate, and what it rests on."""

    def __init__(self, remember: Callable[[str, str | None], None], remembered: Mapping[str, str]) -> None:
        """`remembered`: the store's facts by key."""
        self._remember = remember
        self._estimates = {
            key.removeprefix(META): int(text) for key, text in remembered.items() if key.startswith(META) and text.isdecimal()
        }
        self._samples: dict[str, deque[int]] = {}
        self._sampled: set[tuple[ProcessKey, Uuid]] = set()
        """Processes that need not be looked at again: sampled, or made with another estimate."""
        self.told_bytes = INITIAL_BYTES
        """What clients are told now."""

    def settle(self, gpus: Iterable[Gpu]) -> bool:
        """What to tell on a node of these GPUs; True where that is something else than before."""
        known = [self._estimates[gpu.name] for gpu in gpus if gpu.name in self._estimates]
        before_bytes, self.told_bytes = self.told_bytes, min(known, default=INITIAL_BYTES)
        return self.told_bytes != before_bytes

    def look(self, figures: list[Figure], gpus: Mapping[Uuid, Gpu]) -> bool:
        """One look of the auditor; True where clients are to be told something else."""
        here = {(figure.process.key, figure.uuid) for figure in figures}
        self._sampled &= here
        learned = False
        for figure in figures:
            size_bytes = self._size(figure)
            if size_bytes is not None and figure.uuid in gpus:
                learned = self._learn(gpus[figure.uuid].name, size_bytes) or learned
                self._sampled.add((figure.process.key, figure.uuid))
        if not learned or not self.settle(gpus.values()):
            return False
        self._sampled |= here  # they were charged by the estimate before
        return True

    def _size(self, figure: Figure) -> int | None:
        """What this process's context took, if its figures say so."""
        if not figure.is_settled or (figure.process.key, figure.uuid) in self._sampled:
            return None
        beside_bytes = figure.word_bytes - self.told_bytes
        if beside_bytes < 0:  # the shim saw that the GPU lacks less than the estimate, and charged that
            return figure.driver_bytes if 0 < figure.driver_bytes < self.told_bytes else None
        size_bytes = figure.driver_bytes - beside_bytes
        return size_bytes if beside_bytes <= MOST_BESIDE_BYTES and 0 < size_bytes <= MOST_BYTES else None

    def _learn(self, model: str, size_bytes: int) -> bool:
        samples = self._samples.setdefault(model, deque(maxlen=KEPT_SAMPLES))
        samples.append(size_bytes)
        estimate_bytes = max(median_low(samples), INITIAL_BYTES)
        before_bytes = self._estimates.get(model)
        if abs(estimate_bytes - (before_bytes or INITIAL_BYTES)) < STEP_BYTES:
            if before_bytes is not None:
                return False
            estimate_bytes = INITIAL_BYTES
        self._estimates[model] = estimate_bytes
        self._remember(META + model, str(estimate_bytes))
        return True
