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


def test_a_training_without_a_word_of_phases_has_its_steps_alone() -> None:
    assert findings.find(watched(SEEN), 7).phases == {
        "steps": 2, "validation": False, "checkpoint": False, "batch_shapes": [],
    }  # fmt: skip
    assert findings.find(watched(), 7).phases is None


def test_the_last_line_and_the_json_name_them(
    order: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watching, "watch", lambda _order: watched({**SEEN, "phases": SHAPES}))
    assert verbs.main(["predict", "--", sys.executable, "x.py"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "Seen: 2 training steps, 2 shapes of batches, validation; not seen, and not in the figure:"
        " checkpoint, larger batches."
    )
    assert verbs.main(["predict", "--json", "--", sys.executable, "x.py"]) == 0
    assert json.loads(capsys.readouterr().out)["phases"] == {"steps": 2, **SHAPES}


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
        "batch_shapes": [[16, 64], [8, 64]],
    }  # fmt: skip
