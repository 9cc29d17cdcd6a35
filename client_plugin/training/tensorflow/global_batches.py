"""A `tf.data.Dataset` of global batches: each worker reads it whole, and takes its rows.

A worker that joins reads on to the step of the others. Must not know: models, sums.
"""

from __future__ import annotations

import zlib
from typing import Any, Optional, Tuple

import numpy as np
import tensorflow as tf

from ...messages.form import stated


class GlobalBatches:
    """The batches by step. The order of an epoch comes from the number of iterators before."""

    def __init__(self, dataset: Any, global_batch: int) -> None:
        """Raises ValueError: the number or the size of its batches is not known or not right."""
        self._dataset = dataset
        self.shapes = dataset.element_spec
        self._batches = int(dataset.cardinality())
        self._global_batch = global_batch
        self._iterator: Any = None
        self._next = 0
        """The step of the iterator's next batch."""
        self._batch: Any = None
        self._is_read = False
        if self._batches < 1:
            raise ValueError(
                stated(
                    "elastic: the tf.data.Dataset has no known number of batches",
                    "leave out repeat(), or name the number by "
                    "tf.data.experimental.assert_cardinality",
                )
            )
        for spec in tf.nest.flatten(dataset.element_spec):
            if not spec.shape.rank or spec.shape[0] != global_batch:
                raise ValueError(
                    stated(
                        f"elastic: a batch of the tf.data.Dataset has the shape {spec.shape}, and "
                        f"global_batch is {global_batch}",
                        f"make it by batch({global_batch}, drop_remainder=True)",
                    )
                )

    def __len__(self) -> int:
        return self._batches * self._global_batch

    def __getitem__(self, place: Tuple[int, int, int]) -> Any:
        """Rows [begin, end) of the batch of a step, which is never smaller than in the call before.

        `place`: (step, begin, end).
        """
        step, begin, end = place
        while self._next <= step:
            if self._next % self._batches == 0:
                self._iterator = self._begun(self._next // self._batches, step)
            self._batch = next(self._iterator)
            self._next += 1
        self._is_read = True
        return tf.nest.map_structure(lambda each: each[begin:end], self._batch)

    def _begun(self, epoch: int, step: int) -> Any:
        """The epoch's iterator. An epoch before that of `step` is begun and not read."""
        iterator = iter(self._dataset)
        while epoch < step // self._batches:
            self._next += self._batches
            epoch += 1
            iterator = iter(self._dataset)
        return iterator

    def digest(self) -> Optional[int]:
        """16 bits of the newest batch's first sample. None: no row of it was read."""
        if not self._is_read:
            return None
        self._is_read = False
        first = np.ascontiguousarray(tf.nest.flatten(self._batch)[0][0].numpy())
        return zlib.crc32(first.tobytes()) & 0xFFFF
