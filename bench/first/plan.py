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
    Step("frameworks", "frameworks", "memory, result, refusal of each framework", 120),
    Step("suspend", "suspension", "calls singly, then by the manager; shared memory", 60),
    Step("shares", "sharing", "GPU time by measured kernels, error in points", 60),
    Step("train", "training", "a training's steps a second; bare, shim, gated", 90),
    Step("calls", "calls", "CPU ns a call; bare, shim, gated", 70),
    Step("answers", "answers", "error codes of the driver, the simulator, the shim", 40),
    Step("lookups", "answers", "each symbol and version, and its hook", 60),
    Step("service", "sharing", "latencies beside best effort", 30),
    Step("kill", "sharing", "SIGKILL to the free memory and the next grant", 60),
    Step("smi", "commands", "nvidia-smi, bare and in an environment", 60),
    Step("demo", "commands", "nodemgr demo", 75),
    Step("build", "commands", "does the product build here", 120, needs_driver=False),
    Step("tests", "commands", "tests/gpu, one at a time", 600),
)
NAMES = tuple(step.name for step in STEPS)
