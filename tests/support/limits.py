"""How long a test waits for what must happen: long, because it limits a hang and nothing else."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

WAIT_LIMIT_S = float(os.environ.get("NODEMGR_TEST_WAIT_S", "300"))
"""On a machine with ten times the load of its cores an import of PyTorch took more than 60 s.

The variable shortens it where a machine has no other work and its minutes are dear (bench/first).
"""

T = TypeVar("T")


def until(holds: Callable[[], T], what: object = "", pause_s: float = 0.01) -> T:
    """Asks again until the answer is true, and returns it: for what no event tells.

    `what` is said where it never is; a function is called for it.
    """
    deadline = time.monotonic() + WAIT_LIMIT_S
    while not (found := holds()):
        if time.monotonic() > deadline:
            raise AssertionError(what() if callable(what) else what)
        time.sleep(pause_s)
    return found
