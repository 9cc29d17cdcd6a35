"""After the first step of Keras's `fit`: further batches, and the validation that follows them.

Knows: the functions that Keras calls for each batch, the time that this may take. Must not know:
how memory is computed, how a step is known.

No batch is computed from then on. A batch that is larger than those before is traced. An epoch
ends after MOST_BATCHES, and the program goes on to the validation, whose first batch is traced:
there the watch ends, or after the second epoch that has none, or by its time.
"""

from __future__ import annotations

import math
import os
import threading
from typing import Any, Callable, Dict, List

import tensorflow as tf

from .. import outcome
from . import step

MOST_BATCHES = 4
"""Of each epoch."""
MOST_EPOCHS = 2
"""Without a validation."""


class LaterBatches:
    """How far one process is in them."""

    def __init__(self, write: Callable[[Dict[str, Any]], None], leave: Callable[[], None]) -> None:
        self._write, self._leave = write, leave
        self._found: Dict[str, Any] = {}
        """The outcome of the step, with the memory of all that was seen."""
        self._shapes: List[List[int]] = []
        self._batches = self._epochs = 0
        self.is_begun = self.has_saved = False

    def begin(self, found: Dict[str, Any], batch: Any) -> bool:
        """Whether there is time for it. `batch`: None: the program has a loop of its own."""
        seconds = 0.0 if batch is None else float(os.environ.get(outcome.GO_ON_S) or 0)
        self._found, self.is_begun = found, seconds > 0
        self._is_new(batch)
        if self.is_begun:
            timer = threading.Timer(seconds, self.end)
            timer.daemon = True
            timer.start()
            self._write({**self.result(), "goes_on": True})
        return self.is_begun

    def result(self, has_validated: bool = False) -> Dict[str, Any]:
        phases = {
            "steps": 1,
            "validation": has_validated,
            "checkpoint": self.has_saved,
            "batch_shapes": self._shapes,
        }
        return {**self._found, "phases": phases, "is_short": self.is_begun and not has_validated}

    def end(self, has_validated: bool = False) -> None:
        self._write(self.result(has_validated))
        self._leave()

    def trained(self, model: Any, batches: Any, trace: Callable[[Any], Any]) -> Dict[str, Any]:
        """In the place of a step. Raises StopIteration: the epoch is over."""
        self._batches += 1
        if self._batches >= MOST_BATCHES or self._epochs >= MOST_EPOCHS:
            self._batches, self._epochs = 0, self._epochs + 1
            model.stop_training = self._epochs >= MOST_EPOCHS
            raise StopIteration
        data = next(iter(batches))
        if self._is_new(data):
            self._take(step.outcome_of(trace(data)))
        return {}

    def validated(self, model: Any, batches: Any, trace: Callable[[Any], Any]) -> None:
        """In the place of the first batch of a validation. The optimizer keeps its variables."""
        found = step.outcome_of(trace(next(iter(batches))))
        self._take(found, _optimizer_bytes(model))
        self.end(has_validated=True)

    def _is_new(self, batch: Any) -> bool:
        """Whether it is larger than all before."""
        shape = next((list(map(int, one.shape)) for one in tf.nest.flatten(batch)
                      if tf.is_tensor(one) and one.shape.is_fully_defined()), [])  # fmt: skip
        is_larger = math.prod(shape) > max(map(math.prod, self._shapes), default=0)
        if shape and shape not in self._shapes:
            self._shapes.append(shape)
        return is_larger

    def _take(self, found: Dict[str, Any], beside_bytes: int = 0) -> None:
        for name in ("live_peak_bytes", "allocated_peak_bytes", "reserved_peak_bytes"):
            self._found[name] = max(self._found[name], found[name] + beside_bytes)


def _optimizer_bytes(model: Any) -> int:
    """Of its variables: the graph of a validation has none of them."""
    variables: Any = getattr(getattr(model, "optimizer", None), "variables", ())
    return sum(
        math.prod(map(int, one.shape)) * tf.as_dtype(one.dtype).size
        for one in (variables() if callable(variables) else variables)
    )
