"""One process's fake GPU for many trainings, as `nodemgr predict` watches each of them.

Knows: how a watch begins, and its result. Must not know: the trainings.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from client_plugin.prediction.pytorch.recorder import Recorder
from client_plugin.prediction.pytorch.session import TrainingWatch


class FakeGpu:
    """From now on `cuda` is the fake GPU of this process. Raises where PyTorch makes none."""

    def __init__(self) -> None:
        self._watch = TrainingWatch("")
        self._watch.begin(is_script=False)
        if self._watch.fall_back:
            raise RuntimeError(f"no fake tensors on cuda: {self._watch.fall_back}")

    def begin(self) -> Recorder:
        """The record of the next training, which frees all of the last one first."""
        gc.collect()
        recorder = Recorder()
        self._watch.recorder = self._watch.hybrid.recorder = recorder
        return recorder

    def result(self, model: Any, steps: int) -> dict[str, Any]:
        """The outcome of a training with so many steps, the last of which has ended."""
        self._watch.parameters = {id(one): one.numel() for one in model.parameters()}
        self._watch.steps = {0: steps}
        return self._watch.result()
