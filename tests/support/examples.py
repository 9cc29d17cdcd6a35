"""How many examples each property test tries.

Every `max_examples` and every range of seeds goes through `examples`, so NODEMGR_EXAMPLES
multiplies them all (tests/deep.py).
"""

from __future__ import annotations

import hashlib
import os
import secrets

VARIABLE = "NODEMGR_EXAMPLES"
TIMES = int(os.environ.get(VARIABLE, "1"))


def examples(usual: int) -> int:
    """The number for this run, where `usual` is the number for a run of the whole suite."""
    return usual * TIMES


def fresh_seeds() -> list[int]:
    """In a deep run another seed each time, one for all its workers; the test's id shows it.

    In a run of the whole suite none: it judges the change, and not a walk that nobody has seen.
    """
    if TIMES == 1:
        return []
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or secrets.token_hex()
    return [int.from_bytes(hashlib.sha256(run.encode()).digest()[:4], "big")]


LONG_PAST = min(1_000_000, examples(100_000))
"""The rows of a long history: a million in a deep run of ten times the examples."""
