"""The training of the series without a framework: `with_sockets.py CHECKPOINT LINES`.

The loop, the plan and the leader's protocol are those of the library, and so are the sums through
sockets, which TensorFlow's trainings use. A worker starts in a tenth of the time of PyTorch.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from client_plugin.training.loop import Run, StepSums
from client_plugin.training.tensorflow import arrays
from client_plugin.training.tensorflow.socket_group import SocketGroup
from tests.elastic.kills import problem
from tests.elastic.kills.worker import StepLines

NUMBERS = 4


class NumberTraining:
    """The form of client_plugin.training.loop.TrainingFramework."""

    def __init__(self) -> None:
        self._inputs, self._targets = problem.data()
        self.weights = np.zeros(problem.FEATURES)
        self._speed = np.zeros(problem.FEATURES)
        self._loss, self._gradient = 0.0, np.zeros(problem.FEATURES)

    def structure(self) -> int:
        return problem.FEATURES

    def checksum(self) -> int:
        return zlib.crc32(self.weights.tobytes())

    def group(self, membership: Any, rank: int, caller: Any) -> SocketGroup:
        return SocketGroup(membership, rank, caller)

    def stream(self, step: int, rank: int, size: int) -> Iterator[Any]:
        for each in range(step, problem.STEPS):
            for piece in problem.PLAN.pieces(each, rank, size):
                samples = list(piece.samples)
                yield self._inputs[samples], self._targets[samples]

    def begin(self, piece: Any, seed: int) -> None:
        pass

    def add(self, loss: Any, weight: float, tape: Any) -> None:
        """`loss`: the loss and its gradient."""
        self._loss += loss[0] * weight
        self._gradient = self._gradient + loss[1] * weight

    def finish(self, piece: Any) -> None:
        pass

    def reduce(self, group: SocketGroup, samples: int, knows: bool, stops: bool) -> StepSums:
        own = np.array([samples, knows, stops, self._loss, *self._gradient], np.float64)
        total = group.sum(own)
        self._gradient = total[NUMBERS:]
        return StepSums(*(float(each) for each in total[:NUMBERS]))

    def apply(self) -> None:
        self._speed = problem.MOMENTUM * self._speed + self._gradient
        self.weights = self.weights - problem.RATE * self._speed
        self.drop()

    def drop(self) -> None:
        self._loss, self._gradient = 0.0, np.zeros(problem.FEATURES)

    def snapshot(self) -> Any:
        return {"weights": self.weights.copy(), "speed": self._speed.copy()}

    def restore(self, snapshot: Any) -> None:
        self.weights, self._speed = snapshot["weights"].copy(), snapshot["speed"].copy()
        self.drop()

    def write(self, contents: Any, file: BinaryIO) -> None:
        arrays.write(contents, file)

    def read(self, path: str) -> Any:
        return arrays.read(path)

    def save(self, path: str, contents: Any) -> None:
        raise NotImplementedError


def main() -> None:
    lines = StepLines(sys.argv[2])
    training = NumberTraining()
    with Run(lambda: training, problem.PLAN, sys.argv[1], problem.CHECKPOINT_S) as run:
        lines.use_gpu()
        for inputs, targets in run:
            step, rank, size = run.step, run.rank, run.size
            run.backward(problem.loss_and_gradient(training.weights, inputs, targets))
            if run.step > step:
                lines.write(run, step, rank, size)


if __name__ == "__main__":
    main()
