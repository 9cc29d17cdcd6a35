"""The rounds of a training: progress, learning curve, checkpoints, stop and resume.

Knows: files beside the weights. Must not know: how a round learns. A round depends on the seed and
its number alone, so a training that was stopped and resumed ends with the same weights.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from client_plugin.messages.form import SpokenError, stated
from client_plugin.ways import installed
from nodemgr.edge.placement import weights as weights_file
from nodemgr.edge.placement.weights import Weights
from nodemgr.messages import placement as messages
from nodemgr.placement.scorer import Round

SAVED_EVERY = 25
"""Rounds between two checkpoints."""
BESIDE = (".checkpoint", ".new", ".csv", ".png")
"""Suffixes of the files beside the weights."""
METHODS = ("scorer", "source")


class TrainingFault(SpokenError):
    """The training cannot go on. The message is one line."""


class RoundTrainer(Protocol):
    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...
    def round(self, number: int) -> Round: ...
    def weights(self, trained: dict[str, Any]) -> Weights: ...


class Files(NamedTuple):
    """The files of one training, beside its weights."""

    weights: Path

    @property
    def checkpoint(self) -> Path:
        return self.weights.with_suffix(".checkpoint")

    @property
    def csv(self) -> Path:
        return self.weights.with_suffix(".csv")

    @property
    def picture(self) -> Path:
        return self.weights.with_suffix(".png")


class RoundProgress(NamedTuple):
    done: int
    rounds: int
    last: Round


def check_name(weights: Path) -> None:
    """Raises TrainingFault where the weights would replace a file beside them."""
    if weights.suffix in BESIDE:
        raise TrainingFault(
            f"{weights} is the name of another file of the training",
            "name the weights NAME.json; .csv, .png, .checkpoint and .new stand beside them",
            "usage",
        )


def need_torch() -> None:
    """Raises TrainingFault where torch is not installed."""
    try:
        import torch  # noqa: F401
    except ImportError:
        line = stated(
            "the training of placements needs the extra `torch`", f"{installed.command('torch')}"
        )
        raise TrainingFault(line) from None


class Training:
    """A training with its files. `given`: the options that decide its result."""

    def __init__(
        self, trainer: RoundTrainer, files: Files, rounds: int, given: dict[str, Any]
    ) -> None:
        self.trainer, self.files, self.rounds, self.given = trainer, files, rounds, given
        self.curve: list[Round] = []

    def resume(self) -> None:
        """Go on from the checkpoint, if there is one. Raises TrainingFault if it is another's."""
        path = self.files.checkpoint
        if not path.exists():
            return
        saved = read_checkpoint(path)
        if saved["given"] != self.given or len(saved["curve"]) > self.rounds:
            raise TrainingFault(
                f"{path} is the checkpoint of a training with other options",
                "give its options to go on with it, --restart to drop it, or another --out",
            )
        restore(self.trainer, saved, path)
        self.curve = [Round(*row) for row in saved["curve"]]

    def run(self, report: Callable[[RoundProgress], None], stopped: Callable[[], bool]) -> bool:
        """Returns whether all rounds are done; False: it was stopped, and can be resumed."""
        self.save()  # a directory that cannot be written to is found out before the rounds
        while len(self.curve) < self.rounds and not stopped():
            self.curve.append(self.trainer.round(len(self.curve)))
            report(RoundProgress(len(self.curve), self.rounds, self.curve[-1]))
            if len(self.curve) % SAVED_EVERY == 0:
                self.save()
        self.save()
        return len(self.curve) >= self.rounds

    def save(self) -> None:
        import torch

        body = {
            "given": self.given,
            "curve": [tuple(row) for row in self.curve],
            "state": self.trainer.state(),
        }
        draft = self.files.checkpoint.with_suffix(".new")
        with draft.open("wb") as file:  # torch's own faults about files are no OSError
            torch.save(body, file)
        draft.replace(self.files.checkpoint)
        write_curve(self.files.csv, self.curve)

    def finish(self) -> Weights:
        """Writes the weights, and removes the checkpoint."""
        trained = {**self.given, "rounds": len(self.curve)}
        made = self.trainer.weights(trained)
        weights_file.save(self.files.weights, made)
        self.files.checkpoint.unlink(missing_ok=True)
        return made


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Raises TrainingFault."""
    import torch

    try:
        if not path.is_file():
            raise FileNotFoundError(path)  # torch would wait for the writer of a FIFO
        saved = dict(torch.load(path, weights_only=True))
        given, curve = saved["given"], saved["curve"]
        is_whole = given["method"] in METHODS and type(given["seed"]) is type(given["gpus"]) is int
        if is_whole and all(len(row) == len(Round._fields) for row in curve) and saved["state"]:
            return saved
    except Exception:  # a damaged file fails in many ways
        pass
    raise TrainingFault(messages.CHECKPOINT_DAMAGED(path=path))


def restore(trainer: RoundTrainer, saved: dict[str, Any], path: Path) -> None:
    """The trainer goes on from the checkpoint that was read. Raises TrainingFault."""
    try:
        trainer.restore(saved["state"])
    except Exception:  # networks of another form fail in many ways
        raise TrainingFault(messages.CHECKPOINT_DAMAGED(path=path)) from None


def write_curve(path: Path, curve: list[Round]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("round", *Round._fields))
        writer.writerows((number, *row) for number, row in enumerate(curve, 1))
