"""The learned policy of a manager: its weights, and None with one line where there are none."""

from __future__ import annotations

import math
from array import array
from pathlib import Path

from client_plugin.messages.form import MessageLine
from nodemgr.core.placement.policies import KnownGpu, SizedJob
from nodemgr.edge.placement import learned, weights
from nodemgr.edge.placement.learned import LearnedScores
from nodemgr.edge.placement.weights import Weights

GPUS = [KnownGpu(index, f"GPU-{index}", 0, 0, rate) for index, rate in enumerate((0.5, 0.001))]
JOB = SizedJob(1, 5.0)


def test_the_shipped_weights_are_usable_and_prefer_the_reliable_gpu(tmp_path: Path) -> None:
    said: list[MessageLine] = []
    scores = LearnedScores(tmp_path, said.append)(GPUS, JOB)
    assert scores is not None
    assert scores[1] > scores[0]
    assert said == []
    assert LearnedScores(tmp_path, print).fault == ""
    assert learned.SHIPPED.stat().st_size < 1_000_000


def test_own_weights_come_before_the_shipped_ones(tmp_path: Path) -> None:
    shipped = weights.load(learned.SHIPPED)
    for place in range(len(shipped.values)):
        shipped.values[place] = -shipped.values[place]
    weights.save(tmp_path / learned.WEIGHTS_NAME, shipped)
    assert LearnedScores(tmp_path, print)(GPUS, JOB) != LearnedScores(tmp_path / "x", print)(
        GPUS, JOB
    )


def test_damaged_weights_give_no_scores_and_one_line(tmp_path: Path) -> None:
    said: list[MessageLine] = []
    text = learned.SHIPPED.read_text()
    (tmp_path / learned.WEIGHTS_NAME).write_text(text[: len(text) // 2])
    scores = LearnedScores(tmp_path, said.append)
    assert "it may be cut" in scores.fault
    assert [scores(GPUS, JOB) for _ in range(3)] == [None] * 3
    (line,) = said
    assert "it may be cut" in line
    assert "reliable" in line


def test_a_rate_that_is_no_number_gives_no_scores_and_one_line(tmp_path: Path) -> None:
    said: list[MessageLine] = []
    scores = LearnedScores(tmp_path, said.append)
    wrong = [*GPUS, KnownGpu(2, "GPU-2", 0, 0, math.nan)]
    assert [scores(wrong, JOB) for _ in range(3)] == [None] * 3
    assert len(said) == 1
    assert scores(GPUS, JOB) is None, "reliable decides from now on"
    assert scores.fault == said[0]


def network(gpus: int, favourite: int) -> Weights:
    """One dense layer from <n, t, s> that prefers one GPU, then those with a high index."""
    widths = (gpus + 2, gpus)
    values = array("f", [0.0]) * weights.count_of(weights.SOURCE, widths)
    for gpu in range(gpus):
        values[-gpus + gpu] = 100.0 if gpu == favourite else float(gpu)
    return Weights(weights.SOURCE, widths, values)


def test_the_network_of_the_source_picks_usable_gpus_one_by_one(tmp_path: Path) -> None:
    weights.save(tmp_path / learned.WEIGHTS_NAME, network(6, favourite=1))
    scores = LearnedScores(tmp_path, print)
    idle = [KnownGpu(index, f"GPU-{index}", 0, 0, 0.1) for index in (0, 1, 3, 4)]
    assert scores(idle, SizedJob(2, 5.0)) == [0.0, 2.0, 0.0, 1.0]
    assert scores(idle[2:], SizedJob(2)) == [1.0, 2.0], "a taken favourite is masked"


def test_a_network_for_fewer_gpus_gives_way_to_reliable_in_one_line(tmp_path: Path) -> None:
    said: list[MessageLine] = []
    weights.save(tmp_path / learned.WEIGHTS_NAME, network(1, favourite=0))
    scores = LearnedScores(tmp_path, said.append)
    assert [scores(GPUS, JOB) for _ in range(2)] == [None, None]
    assert [line for line in said if "a node of 1 GPUs" in line] == said != []


def test_a_network_whose_state_is_of_another_size_is_refused(tmp_path: Path) -> None:
    wrong = Weights(weights.SOURCE, (3, 2), array("f", [0.0] * 8))
    weights.save(tmp_path / learned.WEIGHTS_NAME, wrong)
    assert "its shapes fit no network" in LearnedScores(tmp_path, print).fault
