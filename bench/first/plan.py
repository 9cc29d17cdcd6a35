"""The steps in the order of the most learned per second.

Knows: the steps' names, questions and limits. Must not know: how a step runs or answers.
"""

from __future__ import annotations

from typing import NamedTuple


class Step(NamedTuple):
    """One question. The function of its name in `module` answers it with one line."""

    name: str
    module: str
    question: str
    limit_s: float
    needs_driver: bool = True


STEPS = (
    Step("facts", "facts", "the machine as found", 30, needs_driver=False),
    Step("node", "facts", "does `serve` find the GPU", 20),
    Step("driver", "driver", "context, granularity, kernel times; bare, shim, gated", 60),
)
NAMES = tuple(step.name for step in STEPS)
