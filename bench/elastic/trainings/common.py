"""The record of steps that all trainings of this folder write; standard library only."""

from __future__ import annotations

import json
import os
import time

SAMPLES, BATCH, FEATURES, HIDDEN, CLASSES = 960, 48, 64, 256, 10
STEP_S = 0.02
"""A step takes at least this: the time in which a GPU would compute."""


class StepRecord:
    """Appends lines of JSON, each in one write, to the file that all processes share."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def ready(self) -> None:
        """The next line is where a spare waits."""
        self._write(ready=os.getpid())

    def step(self, step: int, rank: int, size: int) -> None:
        """The step `step` (from 0) is complete."""
        self._write(step=step, rank=rank, size=size, pid=os.getpid())
        time.sleep(STEP_S)

    def _write(self, **fields: int) -> None:
        line = json.dumps({**fields, "at_s": time.monotonic()})
        os.write(self._file, line.encode() + b"\n")


class SampleRecord(StepRecord):
    """Also the samples and the learning rate of each step, in a file beside it."""

    PAUSE_S = 0.1

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._samples = os.open(path + ".samples", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._taken: list[list[int]] = []

    def takes(self, samples: list[int]) -> None:
        """The next batch of this worker; a loader may be some batches ahead."""
        self._taken.append([int(each) for each in samples])

    def step_of_samples(self, step: int, rate: float) -> None:
        """The step `step` (from 0) is complete; `rate`: the learning rate after it."""
        rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        said = {"step": step, "rank": rank, "size": size, "rate": rate,
                "samples": self._taken.pop(0)}  # fmt: skip
        os.write(self._samples, json.dumps(said).encode() + b"\n")
        self.step(step, rank, size)
        time.sleep(self.PAUSE_S)
