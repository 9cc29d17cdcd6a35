"""After two steps: the rest of an epoch, cut short, and the validation that follows it.

Knows: PyTorch's loaders, the time that this may take. Must not know: what is measured.

From its begin on, each loader gives a few of its batches, from the first to the last of those that
are left, so that an epoch ends soon. The watch ends at the step that follows a validation, after
MOST_STEPS steps, or by its time.
"""

from __future__ import annotations

import os
import threading
from itertools import islice
from typing import Any, Callable, Iterator

from torch.utils.data import dataloader

from .. import outcome

MOST_STEPS = 8
MOST_BATCHES = 4
"""Of each loader."""
MOST_DRAWN = 1_000
"""Batches of a loader from which these are taken: their numbers, not their contents."""


class LaterPhases:
    """How far one process is in them."""

    def __init__(self, time_is_up: Callable[[], None]) -> None:
        self._time_is_up = time_is_up
        self.is_begun = self.is_over = False
        self._steps = 0
        self._timer: Any = None

    def begin(self) -> None:
        """At most once; a process without time for it ends it at once."""
        self.is_begun = True
        seconds = float(os.environ.get(outcome.GO_ON_S) or 0)
        self.is_over = seconds <= 0
        if self.is_over:
            return
        self._cut_loaders()
        self._timer = threading.Timer(seconds, self._time_is_up)
        self._timer.daemon = True
        self._timer.start()

    def stepped(self, has_validated: bool) -> None:
        """The program made one step more."""
        self._steps += 1
        self.is_over = has_validated or self._steps >= MOST_STEPS

    def _cut_loaders(self) -> None:
        kind: Any = dataloader._BaseDataLoaderIter
        draw = kind._next_index

        def drawn(loader: Any) -> Any:
            if not getattr(loader, "_nodemgr_is_cut", False):
                loader._nodemgr_is_cut = True
                loader._sampler_iter = _few(loader)
            return draw(loader)

        kind._next_index = drawn


def _few(loader: Any) -> Iterator[Any]:
    """Evenly from the batches that are left; of a stream the next ones."""
    if loader._dataset_kind == dataloader._DatasetKind.Iterable:
        return islice(loader._sampler_iter, MOST_BATCHES)
    left = list(islice(loader._sampler_iter, MOST_DRAWN))
    last = len(left) - 1
    chosen = {round(number * last / (MOST_BATCHES - 1)) for number in range(MOST_BATCHES)}
    return iter([left[number] for number in sorted(chosen) if number >= 0])
