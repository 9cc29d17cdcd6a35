"""The answer names the phases of a training that were seen, and what was not."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client_plugin import verbs
from client_plugin.prediction import findings
from client_plugin.verbs.launch import watching
from tests.support.limits import WAIT_LIMIT_S

from .forked import Forks, forks
from .test_findings import SEEN, watched
from .test_predict_verb import order

__all__ = ["order"]
SHAPES = {"validation": True, "checkpoint": False, "batch_shapes": [[16, 3], [8, 3]]}
SHORT = {**SEEN, "phases": SHAPES, "is_short": True}


def test_a_training_without_a_word_of_phases_has_its_steps_alone() -> None:
    assert findings.find(watched(SEEN), 7).phases == {
        "steps": 2, "validation": False, "checkpoint": False, "batch_shapes": [],
        "is_margin_wider": False,
    }  # fmt: skip
    assert findings.find(watched(), 7).phases is None


def test_the_last_line_and_the_json_name_them(
    order: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watching, "watch", lambda _order: watched(SHORT))
    assert verbs.main(["predict", "--", sys.executable, "x.py"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "Seen: 2 training steps, 2 shapes of batches, validation; not seen, and not in the figure:"
        " checkpoint, larger batches. The margin is wider for it."
    )
    assert verbs.main(["predict", "--json", "--", sys.executable, "x.py"]) == 0
    assert json.loads(capsys.readouterr().out)["phases"] == {
        "steps": 2, **SHAPES, "is_margin_wider": True,
    }  # fmt: skip


TRAINING = """
import torch
model = torch.nn.Linear(64, 8).cuda()
teacher = torch.nn.Linear(64, 8).cuda().eval()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for size in (16, 8, 4):
    batch = torch.zeros(size, 64).cuda()
    with torch.no_grad():
        teacher(batch)
    if {validates}:
        model.eval()
        with torch.no_grad():
            model(batch)
        model.train()
    model(batch).sum().backward()
    optimizer.step()
    if {saves}:
        torch.save(model.state_dict(), "model.pt")
"""


@pytest.fixture(scope="module")
def programs() -> Iterator[Forks]:
    with forks("torch", "torch._dynamo", limit_s=WAIT_LIMIT_S) as started:
        yield started


@pytest.mark.frameworks
@pytest.mark.parametrize(("validates", "saves"), [(True, False), (False, True)])
def test_a_validation_and_a_checkpoint_are_seen(
    tmp_path: Path, programs: Forks, monkeypatch: pytest.MonkeyPatch, validates: bool, saves: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    code = TRAINING.format(validates=validates, saves=saves)
    (tmp_path / "train.py").write_text(textwrap.dedent(code))
    found = findings.find(programs.run(tmp_path / "train.py"), WAIT_LIMIT_S)
    assert found.phases == {
        "steps": 2, "validation": validates, "checkpoint": saves,
        "batch_shapes": [[16, 64], [8, 64]], "is_margin_wider": True,
    }  # fmt: skip


EPOCHS = """
import torch
from torch.utils.data import DataLoader, Dataset

class Lines(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, place):
        return torch.zeros(8 + place // 4 * 4)

model = torch.nn.Linear(1, 512).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
seen = 0
while True:
    for lines in DataLoader(Lines(), batch_size=4):
        model(lines.cuda().unsqueeze(-1)).sum().backward()
        optimizer.step()
        seen += 1
    model.eval()
    with torch.no_grad():
        kept = [model(lines.cuda().unsqueeze(-1)) for lines in DataLoader(Lines(), batch_size=400,
                collate_fn=lambda rows: torch.zeros(400, 500))]
    model.train()
    {then}
"""
GO_ON = """
import os
os.environ["NODEMGR_PREDICT_GO_ON_S"] = "{seconds}"
"""


def followed(
    tmp_path: Path, programs: Forks, code: str, seconds: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The phases and the features of a program that may go on for so long after two steps."""
    (tmp_path / "train.py").write_text(code)
    seen = programs.run(tmp_path / "train.py", GO_ON.format(seconds=seconds))
    found = findings.find(seen, WAIT_LIMIT_S)
    assert found.phases is not None, found.reason
    assert found.features is not None
    return found.phases, found.features


@pytest.mark.frameworks
@pytest.mark.parametrize("then", ["pass", "assert seen == 100"])
def test_the_watch_goes_on_to_the_longest_batch_and_the_validation(
    tmp_path: Path, programs: Forks, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """Also where the program ends with an exception, since it counts its batches."""
    monkeypatch.chdir(tmp_path)
    code = EPOCHS.format(then=then)
    early, features = followed(tmp_path, programs, code, 0)
    assert (early["steps"], early["validation"]) == (2, False)
    phases, later = followed(tmp_path, programs, code, 2 * WAIT_LIMIT_S)
    assert (phases["validation"], phases["is_margin_wider"]) == (True, True)
    assert phases["batch_shapes"][-1] == [4, 404, 1], "the last of the loader"
    assert phases["steps"] <= 8
    validation_bytes = 400 * 500 * 512 * 4
    assert later["memory"]["peak_bytes"] >= validation_bytes > features["memory"]["peak_bytes"]
    assert later["memory"]["margin_bytes"] == later["memory"]["peak_bytes"] * 300 // 1_000
    assert {**later, "memory": None} == {**features, "memory": None}, "of the second step"


@pytest.mark.frameworks
def test_a_watch_whose_time_is_up_says_what_it_saw(
    tmp_path: Path, programs: Forks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = (
        TRAINING.format(validates=False, saves=False).replace("(16, 8, 4)", "(16, 16)")
        + "kept = torch.zeros(1 << 20).cuda()\nwhile True:\n    pass\n"
    )
    phases, features = followed(tmp_path, programs, code, 1)
    assert phases == {
        "steps": 2, "validation": False, "checkpoint": False, "batch_shapes": [[16, 64]],
        "is_margin_wider": True,
    }  # fmt: skip
    assert features["memory"]["peak_bytes"] >= 4 << 20
