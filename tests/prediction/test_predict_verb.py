"""`nodemgr predict`: its lines for people, its JSON, and wrong words on its command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from client_plugin import verbs
from client_plugin.prediction import outcome
from client_plugin.prediction.watch import Watched, WatchOrder
from client_plugin.verbs.launch import watching
from client_plugin.ways import choice
from client_plugin.ways.faults import Exit, Fault
from nodemgr.core.forecast import features as manager
from nodemgr.core.forecast import gpu_models, prediction
from nodemgr.core.forecast.samples import SampleOwner

from .test_findings import SEEN, watched


class Node:
    """A way to a manager that has one H100."""

    def ask(self, verb: str, features: Any, models: Any = ("NVIDIA H100 80GB HBM3",)) -> Any:
        assert verb == "forecast"
        found = manager.parse(features)
        rates = tuple(model for name in models if (model := gpu_models.find(name)))
        return json.loads(json.dumps(prediction.answer(
            found, prediction.predict(found, rates, SampleOwner("alice", "ada")))))  # fmt: skip


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[WatchOrder]:
    """The orders that were watched, each with the outcome SEEN."""
    orders: list[WatchOrder] = []

    def watch(order: WatchOrder) -> Watched:
        orders.append(order)
        return watched(SEEN)

    monkeypatch.setattr(watching, "watch", watch)
    monkeypatch.setattr(choice, "users_way", lambda _whom: Node())
    return orders


def test_each_gpu_model_has_a_line(order: Any, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", "--gpu", "A100-80GiB", "--gpu", "own:10:500:24", "--steps", "100"]
    assert verbs.main([*words, "--", sys.executable, "x.py"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "parameters        7"
    assert lines[4].split() == ["GPU", "MEMORY", "MARGIN", "USE", "STEP", "RUN", "FROM"]
    assert lines[5].startswith("NVIDIA A100-SXM4-80GB")
    assert "roofline" in lines[5]
    assert lines[6].startswith("own ")


def test_a_learned_time_has_its_error(
    order: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Learned(Node):
        def ask(self, verb: str, features: Any, models: Any = ()) -> Any:
            answer = super().ask(verb, features)
            answer["models"][0] |= {"source": "learned", "error_percent": 12}
            return answer

    monkeypatch.setattr(choice, "users_way", lambda _whom: Learned())
    assert verbs.main(["predict", "--", sys.executable, "x.py"]) == 0
    assert "learned (error 12 %)" in capsys.readouterr().out


def test_a_missing_run_time_has_its_remedy(order: Any, capsys: pytest.CaptureFixture[str]) -> None:
    line = "Run times need the number of steps of the whole run: name it with --steps."
    for words, is_there in (((), True), (("--steps", "100"), False)):
        assert verbs.main(["predict", *words, "--", sys.executable, "x.py"]) == 0
        assert (line in capsys.readouterr().out.splitlines()) is is_there


def test_the_command_runs_without_a_gpu_and_a_lease(order: list[WatchOrder]) -> None:
    assert verbs.main(["predict", "--limit", "5s", "--", sys.executable, "x.py", "--json"]) == 0
    [ordered] = order
    assert ordered.command == [sys.executable, "x.py", "--json"]
    assert (ordered.limit_s, ordered.is_confined) == (5.0, True)
    assert ordered.variables["NODEMGR_OFF"] == "1"
    assert ordered.variables["CUDA_VISIBLE_DEVICES"] == ""
    assert ordered.variables["PYTHONPATH"].split(":")[0].endswith("sitecustomize")


def test_json_has_the_documented_fields(order: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert verbs.main(["predict", "--json", "--", sys.executable, "x.py"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer.keys() == {
        "schema_version", "memory_bytes", "memory_margin_bytes", "models", "features", "reason",
        "dropped_files", "phases", "is_experimental",
    }  # fmt: skip
    [model] = answer["models"]
    assert model["source"] == "roofline"
    assert answer["features"]["conv2d"] == 4_800


def test_without_a_manager_the_memory_is_known(
    order: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(_whom: Any) -> Any:
        raise Fault(
            "the client cannot be loaded into this Python (x)",
            "nodemgr doctor says more",
            code=Exit.UNREACHABLE,
        )

    monkeypatch.setattr(choice, "users_way", none)
    assert verbs.main(["predict", "--json", "--", sys.executable, "x.py"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["memory_bytes"], answer["models"]) == (2 << 20, [])
    assert answer["reason"].startswith("times are not predicted: ")


def test_an_environment_that_is_not_there_is_refused_before_the_command_is_watched(
    order: list[WatchOrder], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    (tmp_path / "envs" / "alice").mkdir(parents=True)

    def none(whom: Any) -> Any:
        choice.refuse_env(tmp_path, whom.env)

    monkeypatch.setattr(choice, "users_way", none)
    words = ["predict", "--env", "nobody", "--", sys.executable, "x.py"]
    assert verbs.main(words) == Exit.QUOTA_REFUSES
    assert order == []
    assert "no environment 'nobody'" in capsys.readouterr().err


def test_an_abstention_is_one_line_and_a_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watched(outcome.abstention("it does not train"))
    monkeypatch.setattr(watching, "watch", lambda _order: seen)
    assert verbs.main(["predict", "--", sys.executable, "x.py"]) == Exit.FAILED
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "nodemgr: no prediction, because it does not train\n"
    assert verbs.main(["predict", "--json", "--", sys.executable, "x.py"]) == Exit.FAILED
    answer = json.loads(capsys.readouterr().out)
    assert answer["reason"] == "no prediction, because it does not train"


def test_a_refused_confinement_names_the_option(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = Watched({}, None, "", [], "Operation not permitted")
    monkeypatch.setattr(watching, "watch", lambda _order: refused)
    assert verbs.main(["predict", "--", sys.executable, "x.py"]) == Exit.FAILED
    assert "Operation not permitted): --unconfined runs it" in capsys.readouterr().err


def test_a_working_directory_that_is_gone_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert verbs.main(["predict", "--", sys.executable, "x.py"]) == Exit.FAILED
    assert capsys.readouterr().err.startswith("nodemgr: the working directory is gone")
    monkeypatch.chdir(tmp_path)


def test_a_watch_that_broke_off_does_not_blame_the_confinement(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Watched({}, None, "", [], "its process was ended")
    monkeypatch.setattr(watching, "watch", lambda _order: broken)
    assert verbs.main(["predict", "--unconfined", "--", sys.executable, "x.py"]) == Exit.FAILED
    assert "could not be watched to its end (its process was ended)" in capsys.readouterr().err


WRONG = {
    ("predict",): "Missing argument 'COMMAND...'",
    ("predict", "--limit", "soon", "--", "x"): "Invalid value for '--limit'",
    ("predict", "--steps", "0", "--", "x"): "is no whole number of at least 1",
    ("predict", "--gpu"): "Option '--gpu' requires an argument",
    **{
        ("predict", "--gpu", f"own:{rates}", "--", "x"): f"'own:{rates}' is no GPU model: write"
        for rates in (
            "nan:1:1",
            "inf:1:1",
            "0:1:1",
            "-5:1:1",
            "5:-1:1",
            "5:1:0",
            "5:1",
            "1e9:1:1",
            "5:1:1:1",
            "",
        )
    },
    ("predict", "--gpu", "", "--", "x"): "'' is no GPU model: write its name, 1 to 96 printable",
    ("predict", "--gpu", "a\nb", "--", "x"): "is no GPU model: write its name",
    ("predict", "--gpu", "a" * 97, "--", "x"): "is no GPU model: write its name",
    ("predict", *["--gpu", "T4-16GiB"] * 17, "--", "x"): "17 GPU models are named: name at most 16",
    ("predict", "--", "no-such-program"): "no-such-program: not found in PATH",
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_words_are_one_line(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert verbs.main(list(words)) in (Exit.USAGE, Exit.NOT_FOUND)
    printed = capsys.readouterr().err
    assert WRONG[words] in printed
    assert printed.count("\n") == 1
