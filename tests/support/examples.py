"""How many examples each property test tries.

Every `max_examples` and every range of seeds goes through `examples`, so NODEMGR_EXAMPLES
multiplies them all (tests/deep.py).
"""

from __future__ import annotations

import hashlib
import os
import secrets
from typing import Any

import pytest

VARIABLE = "NODEMGR_EXAMPLES"
TIMES = int(os.environ.get(VARIABLE, "1"))


def examples(usual: int) -> int:
    """The number for this run, where `usual` is the number for a run of the whole suite."""
    return usual * TIMES


def seeds(mark: pytest.MarkDecorator, *kept: int) -> list[Any]:
    """Of a random walk: ten, those that found a fault once, and one that nobody has seen.

    80 with the slow tests, or the long ones where a walk takes half a second. `mark` is pytest's:
    it stands in the file of its test.
    """
    usual = examples(10)
    more = [pytest.param(seed, marks=mark) for seed in range(usual, 80)]
    return [*range(usual), *kept, fresh_seed(), *more]


def fresh_seed() -> int:
    """Another one in each run, one for all its workers. The test's id shows it."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or secrets.token_hex()
    return int.from_bytes(hashlib.sha256(run.encode()).digest()[:4], "big")


LONG_PAST = min(1_000_000, examples(100_000))
"""The rows of a long history: a million in a deep run of ten times the examples."""
