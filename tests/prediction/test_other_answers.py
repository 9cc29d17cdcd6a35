"""Programs whose way depends on values of the GPU are watched with both answers."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client_plugin.prediction import findings, other_answers, outcome
from client_plugin.prediction.other_answers import FAR, MOST_YES, NO, SMALL, YES, Asked
from client_plugin.verbs.launch import watching
from tests.support.limits import WAIT_LIMIT_S

from .forked import Forks, forks
from .test_findings import SEEN, watched

ALL_DAY_MS = 86_400_000


def seen(*answers: bool, number: bool = False, **more: Any) -> dict[str, Any]:
    asked = {"answers": [*answers], "origins": ["a.py:3"], "has_number": number}
    return {**SEEN, "asked": asked, **more}


def test_each_answer_that_was_given_asks_for_the_other_one() -> None:
    assert other_answers.wanted(watched(SEEN)) == []
    assert other_answers.wanted(watched(seen())) == []
    assert other_answers.wanted(watched(seen(False))) == [YES]
    assert other_answers.wanted(watched(seen(True))) == [NO]
    assert other_answers.wanted(watched(seen(True), seen(False))) == [YES, NO]
    assert other_answers.wanted(watched({**SEEN, "asked": 5})) == []


def test_a_program_that_ended_by_a_number_is_watched_with_another_one() -> None:
    asked = seen(number=True)["asked"]
    early = {**outcome.abstention("no training step"), "asked": asked}
    assert other_answers.wanted(watched(early)) == [FAR]
    assert other_answers.wanted(watched(seen(number=True, steps=1))) == [FAR]
    assert other_answers.wanted(watched(seen(number=True))) == []
    assert other_answers.wanted(watched(early, status=1 << 8)) == []


def test_the_larger_figure_counts_and_a_look_without_one_does_not() -> None:
    small, large = (watched(seen(reserved_peak_bytes=size)) for size in (5, 6))
    failed = watched(outcome.abstention("it raised"), status=1 << 8)
    one_step = watched(seen(reserved_peak_bytes=9, steps=1))
    assert other_answers.chosen({"": small, YES: large, NO: failed, FAR: one_step}) is large
    assert other_answers.chosen({"": failed, YES: failed}) is failed
    assert other_answers.origins({"": failed, YES: small, NO: large}) == ["a.py:3"]


def test_a_figure_that_follows_the_memory_of_the_gpu_is_none() -> None:
    first = watched(seen(reserved_peak_bytes=100))
    first.outcomes["0.json"]["asked"]["has_memory"] = True
    assert other_answers.wanted(first) == [SMALL]
    same, less = (watched(seen(reserved_peak_bytes=size)) for size in (100, 60))
    assert other_answers.chosen({"": first, SMALL: same}) is first
    found = findings.find(other_answers.chosen({"": first, SMALL: less}), 7)
    assert found.features is None
    assert "sizes its work by the memory of the GPU" in str(found.reason)


CUT = watched({"phase": {"backwards": 1, "on_gpu": True}}, status=None)
"""Its time was over."""


def test_a_figure_that_is_the_same_with_both_answers_does_not_depend_on_them() -> None:
    first, larger = watched(seen(True)), watched(seen(False, reserved_peak_bytes=2**40))
    failed = watched(outcome.abstention("it raised"), status=1 << 8)
    for other, told, is_answered, ends in (
        (first, [], True, False),
        (larger, ["a.py:3"], True, False),
        (failed, [], True, True),
        (CUT, ["a.py:3"], False, False),
        (None, ["a.py:3"], False, False),
    ):
        trials = {"": first} if other is None else {"": first, NO: other}
        assert other_answers.depends(trials, [NO]) == told
        assert other_answers.is_answered(trials, [NO]) is is_answered
        assert other_answers.ends(trials) is ends
    assert other_answers.depends({"": failed, YES: larger}, [YES]) == ["a.py:3"]
    assert other_answers.depends({"": watched(SEEN)}, []) == []


def test_a_program_whose_time_was_over_is_not_sized_by_the_memory() -> None:
    first = watched(seen())
    assert other_answers.chosen({"": first, SMALL: CUT}) is first


def test_a_loop_that_waits_for_a_no_ends() -> None:
    asked = Asked(YES)
    answers = [asked.boolean(False, "a.py:1") for _ in range(MOST_YES + 1)]
    assert answers == [True] * MOST_YES + [False]
    assert asked.boolean(False, "a.py:2")
    for line in range(5):
        asked.boolean(False, f"b.py:{line}")
    assert asked.row()["origins"] == ["a.py:1", "a.py:2", "b.py:0"]


def test_only_numbers_with_a_point_are_far_away() -> None:
    assert (Asked(FAR).number(1.0), Asked(FAR).number(1), Asked(NO).number(1.0)) == (100.0, 1, 1.0)


# -- programs --

EXPERTS = """
import torch
experts = torch.nn.ModuleList(torch.nn.Linear(512, 512) for _ in range(8)).cuda()
gate = torch.nn.Linear(512, 8).cuda()
optimizer = torch.optim.Adam([*experts.parameters(), *gate.parameters()])
for _ in range(3):
    x = torch.zeros(16, 512, device="cuda")
    weights = gate(x)
    loss = weights.sum()
    for number, expert in enumerate(experts):
        if (weights.argmax(1) == number).any():
            loss = loss + expert(x).sum()
    loss.backward()
    optimizer.step()
"""
BYTES = 4 * 8 * 512 * 512
"""Of the experts' weights."""


@pytest.fixture(scope="module")
def programs() -> Iterator[Forks]:
    with forks("torch", "torch._dynamo", limit_s=WAIT_LIMIT_S) as started:
        yield started


def trial(code: str, directory: Path, programs: Forks, unknown: str = "") -> Any:
    (directory / "train.py").write_text(textwrap.dedent(code))
    before = f"import os; os.environ['{other_answers.VARIABLE}'] = '{unknown}'"
    return programs.run(directory / "train.py", before)


def result(seen: Any) -> dict[str, Any]:
    found = outcome.best(seen.outcomes.values())
    assert found is not None
    return found


@pytest.mark.frameworks
def test_experts_train_where_the_answer_is_yes(
    tmp_path: Path, programs: Forks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = trial(EXPERTS, tmp_path, programs)
    assert other_answers.wanted(first) == [YES]
    (place,) = result(first)["asked"]["origins"]
    assert place.endswith("train.py:11")
    second = trial(EXPERTS, tmp_path, programs, YES)
    assert other_answers.chosen({"": first, YES: second}) is second
    difference = result(second)["live_peak_bytes"] - result(first)["live_peak_bytes"]
    assert difference > 2 * BYTES, "gradients and two moments, of which some are made at the end"


STOPS = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(100):
    loss = model(torch.zeros(2, 64, device="cuda")).sum()
    if loss{how} < 2.0:
        break
    loss.backward()
    optimizer.step()
"""


@pytest.mark.frameworks
@pytest.mark.parametrize("how", [".item()", ".cpu()", ".detach().cpu().numpy()"])
def test_a_training_that_stops_at_a_small_loss_is_followed(
    tmp_path: Path, programs: Forks, how: str
) -> None:
    code = STOPS.format(how=how)
    first = trial(code, tmp_path, programs)
    assert other_answers.wanted(first)[0] == FAR
    second = trial(code, tmp_path, programs, FAR)
    assert result(second)["steps"] == 2
    assert other_answers.chosen({"": first, YES: second}) is second


@pytest.mark.frameworks
def test_a_question_before_a_crash_is_known(tmp_path: Path, programs: Forks) -> None:
    code = """
    import torch
    if not torch.zeros(100, device="cuda").any():
        raise ValueError("dead")
    """
    first = trial(code, tmp_path, programs)
    assert (first.exit_status, other_answers.wanted(first)) == (1 << 8, [YES])


@pytest.mark.frameworks
@pytest.mark.parametrize("sound", ["torch.isfinite(loss)", "torch.isfinite(loss).cpu()"])
def test_a_sound_training_is_not_told_that_it_is_none(
    tmp_path: Path, programs: Forks, sound: str
) -> None:
    code = STOPS.replace("if loss{how} < 2.0:\n        break", f"assert {sound}")
    first = trial(code, tmp_path, programs)
    assert result(first)["steps"] == 2
    assert other_answers.wanted(first) == [NO]
    second = trial(code, tmp_path, programs, NO)
    assert other_answers.chosen({"": first, NO: second}) is first


SIZED = """
import torch
free, total = torch.cuda.mem_get_info()
size = torch.cuda.get_device_properties(0).total_memory
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.zeros({batch}, 1024, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.mark.frameworks
@pytest.mark.parametrize("batch", ["16", "free >> 24", "size >> 24"])
def test_a_batch_that_the_memory_of_the_gpu_sizes_is_told(
    tmp_path: Path, programs: Forks, batch: str
) -> None:
    first = trial(SIZED.format(batch=batch), tmp_path, programs)
    assert other_answers.wanted(first) == [SMALL]
    second = trial(SIZED.format(batch=batch), tmp_path, programs, SMALL)
    chosen = other_answers.chosen({"": first, SMALL: second})
    assert (chosen is first) is (batch == "16")


@pytest.mark.frameworks
def test_the_command_is_watched_again_and_the_answer_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(EXPERTS)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = watching.watched_findings([sys.executable, "train.py"], ALL_DAY_MS, False)
    assert found.features is not None, found.reason
    assert found.features["memory"]["peak_bytes"] > 3 * BYTES
    assert [note for note in found.notes if "values of the GPU (train.py:11)" in note]


def test_a_program_that_ends_with_the_other_answer_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An assertion of isfinite(loss), say."""
    trials = [watched(seen(True)), watched(outcome.abstention("it raised"), status=1 << 8)]
    monkeypatch.setattr(watching, "watch", lambda _order: trials.pop(0))
    found = watching.watched_findings(["true"], ALL_DAY_MS, False)
    assert found.features is not None
    (note,) = [note for note in found.notes if "a.py:3" in note]
    assert "ends before two steps with the other answer" in note


@pytest.mark.parametrize("is_answered", [True, False])
def test_the_origins_are_a_note(is_answered: bool) -> None:
    origins = ["a.py:3", "b.py:4"]
    found = findings.find(watched(SEEN), 7, origins=origins, is_answered=is_answered)
    (note,) = [note for note in found.notes if "values of the GPU (a.py:3, b.py:4)" in note]
    assert ("allow more with --limit" in note) is not is_answered


def test_without_time_for_the_other_answer_the_first_one_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watching, "watch", lambda _order: watched(seen(False)))
    found = watching.watched_findings(["true"], 0, False)
    assert found.features is not None
    assert [note for note in found.notes if "allow more with --limit" in note]
