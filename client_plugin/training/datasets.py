"""One sample of a dataset, and the random numbers of Python with which it is loaded.

Must not know: a framework, the plan.
"""

from __future__ import annotations

import random
import sys
from typing import Any

from ..messages.form import stated


def seed_python(seed: int) -> None:
    """The global generators of Python, and of numpy where it is loaded."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def sample_of(dataset: Any, sample: int) -> Any:
    """StopIteration of the dataset would look like the end of all batches."""
    try:
        return dataset[sample]
    except StopIteration:
        raise RuntimeError(
            stated(
                f"elastic: the dataset raised StopIteration for sample {sample}",
                "__getitem__ must return each sample below the length of the dataset",
            )
        ) from None
