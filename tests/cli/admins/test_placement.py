"""`nodemgr placement`: whole trainings in short form, the table, and faults in one line."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from client_plugin.ways.faults import Fault
from nodemgr.cli.admins import placement
from nodemgr.edge.placement import learned, weights
from tests.cli.conftest import Run
from tests.support.local import LocalManager

SHORT = ("--gpus", "6", "--jobs", "5", "--rounds", "3")


@pytest.mark.frameworks
def test_the_documented_training_in_short_form_makes_weights_that_evaluate(
    nodemgr: Run, tmp_path: Path
) -> None:
    out = tmp_path / "own.json"
    made = nodemgr("placement", "train", *SHORT, "--out", out)
    assert made.returncode == 0, made.stderr
    assert f"weights: {out}" in made.stderr
    assert weights.load(out).trained["rounds"] == 3
    assert len((tmp_path / "own.csv").read_text().splitlines()) == 4
    again = tmp_path / "again.json"
    nodemgr("placement", "train", *SHORT, "--out", again)
    assert again.read_text() == out.read_text(), "a training is that of its seed"
    table = nodemgr("placement", "evaluate", "--weights", out, "--seeds", 3, "--jobs", 5, "--json")
    rows = {row["policy"]: row for row in json.loads(table.stdout)["policies"]}
    assert rows["weights own.json"]["hours"] > 0
    assert rows["random"]["to_random"] == [0.0, 0.0]


class Answers:
    """A manager whose four GPUs have failed so often."""

    def __init__(self, failures: int) -> None:
        job = {"entered": 100, "started": 100, "ran_seconds": 7200, "gpus": 2, "state": "done"}
        gpu = {"failures": failures, "failures_per_1000_hours": 40.0}
        self._said = {"status": {"gpus": [gpu] * 4}, "history": {"history": [job], "before": None}}

    def call(self, verb: str, **_: object) -> dict[str, Any]:
        return self._said[verb]


def drawn(monkeypatch: pytest.MonkeyPatch, failures: int) -> tuple[Any, dict[str, Any]]:
    monkeypatch.setattr(placement.asking, "control", lambda run_dir: Answers(failures))
    return placement._draw(16, 3, None, True, None, None, None)


def test_a_history_is_of_this_nodes_gpus_and_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    draw, given = drawn(monkeypatch, 5)
    assert given["gpus"] == 4
    instance = draw(Random(1), "1")
    assert [instance.failures.rate_per_hour(gpu, 0) for gpu in range(4)] == [0.04] * 4
    assert {(job.gpus, job.hours) for job in instance.jobs} == {(2, 2.0)}


def test_a_history_of_few_failures_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Fault, match=r"16 failures of GPUs .* needs 20"):
        drawn(monkeypatch, 4)


@pytest.mark.frameworks
def test_the_method_of_the_source_trains_on_a_trace(nodemgr: Run, tmp_path: Path) -> None:
    trace, out = tmp_path / "jobs.csv", tmp_path / "own.json"
    rows = [f"2017-10-09 07:{minute:02}:00,{600 + minute},{1 + minute % 8}" for minute in range(40)]
    trace.write_text("timestamp,duration,num_gpus\n" + "\n".join(rows))
    made = nodemgr("placement", "train", "--method", "source", "--trace", trace, *SHORT,
        "--out", out)  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert "jobs of the trace that need more than 6 GPUs are left out: 10" in made.stderr
    assert weights.load(out, weights.SOURCE).widths == (8, 256, 196, 196, 128, 6)


def test_used_weights_are_the_managers_at_once(nodemgr: Run, tmp_path: Path) -> None:
    with LocalManager(directory=tmp_path, placement="learned") as manager:
        state, run_dir = tmp_path / "state", manager.run_dir
        for directory, said in ((state, "of the running manager"), (tmp_path, "does not read")):
            used = nodemgr("placement", "use", learned.SHIPPED, "--state-dir", directory,
                run_dir=run_dir)  # fmt: skip
            assert said in used.stderr, used
        assert (state / learned.WEIGHTS_NAME).exists()


def test_used_weights_go_where_the_manager_that_answers_reads_them(
    nodemgr: Run, tmp_path: Path
) -> None:
    with LocalManager(directory=tmp_path, placement="learned") as manager:
        used = nodemgr("placement", "use", learned.SHIPPED, run_dir=manager.run_dir)
        assert "of the running manager" in used.stderr, used
        assert (tmp_path / "state" / learned.WEIGHTS_NAME).exists()


def test_used_weights_are_those_of_the_next_manager(nodemgr: Run, tmp_path: Path) -> None:
    given = tmp_path / "given.json"
    given.write_text(learned.SHIPPED.read_text())
    used = nodemgr("placement", "use", given, "--state-dir", tmp_path)
    assert used.returncode == 0, used.stderr
    assert "the next one that starts there" in used.stderr
    assert weights.load(tmp_path / learned.WEIGHTS_NAME) == weights.load(given)
    given.write_text("{")
    refused = nodemgr("placement", "use", given, "--state-dir", tmp_path)
    assert refused.returncode == 1
    assert "it may be cut" in refused.stderr
    assert weights.load(tmp_path / learned.WEIGHTS_NAME) == weights.load(learned.SHIPPED)


@pytest.mark.frameworks
@pytest.mark.parametrize(
    "body",
    [
        [1],
        {"given": {}, "curve": [], "state": {}},
        {"given": 5, "curve": [], "state": {"module": 1}},
        {"given": {"method": "scorer", "seed": 1, "gpus": 4}, "curve": [], "state": {"x": 1}},
        {"given": {"method": "none", "seed": 1, "gpus": 4}, "curve": [], "state": {"x": 1}},
    ],
    ids=str,
)
def test_a_damaged_checkpoint_is_refused_in_one_line(
    nodemgr: Run, tmp_path: Path, body: object
) -> None:
    import torch

    torch.save(body, tmp_path / "own.checkpoint")
    for words in (
        ("export", tmp_path / "own.checkpoint", tmp_path / "out.json"),
        ("train", *SHORT, "--out", tmp_path / "own.json"),
    ):
        refused = nodemgr("placement", *words)
        assert refused.returncode in {1, 2}
        (line,) = refused.stderr.splitlines()
        assert "checkpoint" in line
    assert not (tmp_path / "out.json").exists()


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("train", "--trace", "/none.csv"), "cannot be read"),
        (("train", "--trace", "/none.csv", "--history"), "both name the jobs"),
        (("train", *SHORT, "--out", "/none/own.json"), "No such file or directory"),
        (("train", *SHORT, "--out", "own.checkpoint"), "is the name of another file"),
        (("train", *SHORT, "--out", "own.csv"), "is the name of another file"),
        (("export", "own.checkpoint", "own.checkpoint"), "is the name of another file"),
        (("export", "/none.checkpoint", "/tmp/none.json"), "is no checkpoint"),
    ],
)
def test_faults_of_a_training_are_one_line(
    nodemgr: Run, words: tuple[str, ...], fault: str
) -> None:
    test_faults_are_one_line(nodemgr, words, fault)


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("evaluate", "--weights", "/none.json"), "cannot be read"),
        (("train", "--gpus", "0"), "0 is not in the range"),
        (("evaluate", "--drift", "1s", "--seeds", "2"), "no cluster can be simulated"),
    ],
)
def test_faults_are_one_line(nodemgr: Run, words: tuple[str, ...], fault: str) -> None:
    ended = nodemgr("placement", *words)
    assert ended.returncode in {1, 2}
    assert fault in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr
