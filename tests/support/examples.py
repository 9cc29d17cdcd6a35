"""How many examples each property test tries.

Every `max_examples` and every range of seeds goes through `examples`, so NODEMGR_EXAMPLES
multiplies them all (tests/deep.py).
"""

from __future__ import annotations

import os

VARIABLE = "NODEMGR_EXAMPLES"
TIMES = int(os.environ.get(VARIABLE, "1"))


def examples(usual: int) -> int:
    """The number for this run, where `usual` is the number for a run of the whole suite."""
    return usual * TIMES


LONG_PAST = min(1_000_000, examples(100_000))
"""The rows of a long history: a million in a deep run of ten times the examples."""
