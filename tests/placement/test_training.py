"""Trainings with their files: stop, resume, curve, and faults in one line."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from nodemgr.edge.placement import weights
from nodemgr.placement import pictures, training
from nodemgr.placement.rollouts import made_up
from nodemgr.placement.scorer import Round, ScorerSettings, ScorerTraining
from nodemgr.placement.training import Files, Training, TrainingFault
from tests.placement.support import SMALL

FEW = ScorerSettings(hidden=4, batches=1, placements=2, randoms=2)
GIVEN = {"method": "scorer", "seed": 1, "gpus": 6}


def begun(folder: Path, rounds: int = 6) -> Training:
    trainer = ScorerTraining(made_up(SMALL, 4), 1, FEW)
    return Training(trainer, Files(folder / "own.json"), rounds, dict(GIVEN))


@pytest.mark.frameworks
def test_a_training_that_was_stopped_and_resumed_ends_with_the_same_weights(
    tmp_path: Path,
) -> None:
    (tmp_path / "whole").mkdir()
    whole, first, second = begun(tmp_path / "whole"), begun(tmp_path), begun(tmp_path)
    assert whole.run(lambda progress: None, lambda: False)
    seen: list[int] = []
    assert not first.run(lambda progress: seen.append(progress.done), lambda: len(seen) == 3)
    assert first.files.checkpoint.exists()
    second.resume()
    assert second.run(lambda progress: seen.append(progress.done), lambda: False)
    assert seen == [1, 2, 3, 4, 5, 6]
    assert second.curve == whole.curve
    assert second.finish() == whole.finish()
    assert weights.load(second.files.weights) == weights.load(whole.files.weights)
    assert not second.files.checkpoint.exists()


@pytest.mark.frameworks
def test_the_curve_is_a_row_for_each_round(tmp_path: Path) -> None:
    run = begun(tmp_path, 2)
    run.run(lambda progress: None, lambda: False)
    with run.files.csv.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["round"] for row in rows] == ["1", "2"]
    assert [float(row["reward"]) for row in rows] == [row.reward for row in run.curve]


@pytest.mark.frameworks
def test_a_checkpoint_of_other_options_is_refused_in_one_line(tmp_path: Path) -> None:
    begun(tmp_path, 1).run(lambda progress: None, lambda: False)
    other = begun(tmp_path)
    other.given["seed"] = 2
    with pytest.raises(TrainingFault, match="other options"):
        other.resume()


@pytest.mark.frameworks
@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04 cut"])
def test_a_damaged_checkpoint_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    run = begun(tmp_path)
    run.files.checkpoint.write_bytes(content)
    with pytest.raises(TrainingFault, match="is no checkpoint") as caught:
        run.resume()
    assert "\n" not in str(caught.value)


def test_a_picture_needs_matplotlib_alone(tmp_path: Path) -> None:
    path, curve = tmp_path / "curve.png", [Round(0.1 * number, 1, 1, 1) for number in range(40)]
    if pictures.can_draw():
        pictures.learning_curve(path, curve)
        assert path.read_bytes().startswith(b"\x89PNG")
    else:
        with pytest.raises(ImportError):
            pictures.learning_curve(path, curve)


def test_a_missing_torch_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(TrainingFault, match="extra `torch`"):
        training.need_torch()
