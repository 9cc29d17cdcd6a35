"""Outcomes of a watched command become features or one reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from client_plugin.prediction import findings, outcome
from client_plugin.prediction.watch import Watched

from .test_features import OUTCOME

SEEN: dict[str, Any] = {
    **OUTCOME, "steps": 2, "backwards": 2, "stand_ins": 0, "bounded": [], "not_saved": [],
}  # fmt: skip
FAILED = 1 << 8
IMPORT: dict[str, Any] = {"phase": {"backwards": 0, "on_gpu": False, "is_import": True}}


def watched(*outcomes: dict[str, Any], status: int | None = 0, last: str = "") -> Watched:
    return Watched({f"{at}.json": one for at, one in enumerate(outcomes)}, status, last, [], "")


REASONS = {
    "nothing": (watched(), "no import of PyTorch or TensorFlow was seen: name a Python"),
    "an error": (watched(status=FAILED, last="KeyError: 3"), "exit code 1 before a training"),
    "a signal": (watched(status=11), "signal 11 before a training step (no output)"),
    "os._exit": (watched({"phase": {"backwards": 0, "on_gpu": True}}), "without a backward pass"),
    "no backward pass": (watched(outcome.abstention("it does not train")), "it does not train"),
    "an error first": (
        watched(outcome.abstention("it does not train"), status=FAILED, last="no file"),
        "(no file)",
    ),
    "a certain reason": (
        watched(outcome.abstention("op x", is_certain=True), status=FAILED),
        "op x",
    ),
    "a crash beside": (
        watched(
            outcome.abstention("it does not train"), outcome.abstention("a crash", is_crash=True)
        ),
        "a crash",
    ),
    "a certain reason beside a crash": (
        watched(
            outcome.abstention("a crash", is_crash=True),
            outcome.abstention("op x", is_certain=True),
        ),
        "op x",
    ),
    "no end": (
        watched({"phase": {"backwards": 0, "on_gpu": True}}, status=None),
        "7 s passed before two training steps (tensors were on the GPU)",
    ),
    "no import": (watched(status=None), "(no import of PyTorch or TensorFlow was seen)"),
    "an import": (
        watched(IMPORT, status=None),
        "(the import of PyTorch or TensorFlow had not ended",
    ),
    "an import that failed": (watched(IMPORT), "no import of PyTorch or TensorFlow was seen"),
    "an import in one process": (
        watched(IMPORT, {"phase": {"backwards": 0, "on_gpu": False}}, status=None),
        "(the framework was imported)",
    ),
}


@pytest.mark.parametrize("name", REASONS)
def test_a_reason_stands_in_one_line(name: str) -> None:
    seen, expected = REASONS[name]
    found = findings.find(seen, 7.0)
    assert found.features is None
    assert found.reason is not None
    assert expected in found.reason
    assert "\n" not in found.reason


def test_a_name_that_is_no_utf8_can_be_printed() -> None:
    found = findings.find(watched(SEEN)._replace(written=["/x/f\udcff\udce9"]), 7.0)
    assert found.dropped == ["/x/f\\xff\\xe9"]


def test_of_several_processes_the_largest_counts() -> None:
    small = {**SEEN, "reserved_peak_bytes": 1}
    found = findings.find(watched(small, SEEN, outcome.abstention("a launcher")), 7.0)
    assert found.features is not None
    assert found.features["memory"] == {"peak_bytes": SEEN["reserved_peak_bytes"]}


def test_notes_name_stand_ins_bounds_and_files() -> None:
    odd = {**SEEN, "steps": 1, "stand_ins": 3, "bounded": ["nonzero"], "not_saved": ["/a/b.pt"]}
    seen = watched(odd)._replace(written=["/a/log", "/a/__pycache__/x.pyc"])
    found = findings.find(seen, 7.0, 500)
    assert found.dropped == ["/a/b.pt", "/a/log"]
    assert [str(note) for note in found.notes] == [
        "the command would have written /a/b.pt, /a/log; all of it is dropped",
        "the program asked for 3 values that only a GPU computes; it got stand-ins",
        "sizes that depend on values were taken at their upper bound (nonzero)",
        "the program made one training step; the memory of later steps may be larger",
    ]
    assert found.features is not None
    assert found.features["execution"]["iteration"] == 500


def test_one_stand_in_is_one_value() -> None:
    (note,) = findings.find(watched({**SEEN, "stand_ins": 1}), 7.0).notes
    assert str(note) == "the program asked for 1 value that only a GPU computes; it got stand-ins"


def test_an_import_leaves_what_the_process_has_shown(tmp_path: Path) -> None:
    outcome.import_begins(str(tmp_path))
    assert [*outcome.read_all(str(tmp_path)).values()] == [IMPORT]
    shown = outcome.abstention("it does not train")
    outcome.write(outcome.own_path(str(tmp_path)), shown)
    outcome.import_begins(str(tmp_path))
    assert [*outcome.read_all(str(tmp_path)).values()] == [shown]


def test_an_outcome_is_final_after_two_steps_or_with_a_certain_reason() -> None:
    assert outcome.is_final(SEEN)
    assert outcome.is_final(outcome.abstention("x", is_certain=True))
    assert not outcome.is_final(outcome.abstention("x"))
    assert not outcome.is_final({**SEEN, "steps": 1})
    assert not outcome.is_final({"phase": {}})


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("short", "short"),
        ("It failed here. " + "word " * 60, "It failed here. "),
        (
            "A first sentence of some length that says what has happened to it, in full. " * 4,
            "full.",
        ),
        ("word " * 100, "word ..."),
        ("x" * 500, "x ..."),
    ],
)
def test_no_line_ends_in_mid_sentence(line: str, shown: str) -> None:
    found = findings.shortened(line)
    assert len(found) <= findings.LINE_CHARACTERS
    assert shown.strip() in found
    assert found == line or found.endswith((".", " ..."))


def test_an_exception_of_several_lines_is_told_whole() -> None:
    error = ValueError("Expected all tensors to be on the same device,\n  but found two")
    told = "ValueError: Expected all tensors to be on the same device, but found two"
    assert findings.exception_line(error) == told
