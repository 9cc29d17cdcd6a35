"""A manager with placement = "learned": good weights, and all kinds of unusable ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodemgr.edge.placement import learned, weights
from tests.support.local import LocalManager
from tests.support.udp_clients import FakeClient

SHIPPED = learned.SHIPPED.read_text()


def changed(**fields: Any) -> str:
    return json.dumps({**json.loads(SHIPPED), **fields})


def with_weight(value: Any) -> str:
    return changed(weights=[value, *json.loads(SHIPPED)["weights"][1:]])


def without_checksum() -> str:
    body = json.loads(SHIPPED)
    del body["checksum"]
    return json.dumps(body)


DAMAGED: dict[str, tuple[Callable[[], str], str]] = {
    "cut": (lambda: SHIPPED[: len(SHIPPED) // 2], "it is no JSON; it may be cut"),
    "empty": (lambda: "", "it is no JSON; it may be cut"),
    "another version": (lambda: changed(schema_version=2), "its schema version is 2, not 1"),
    "NaN": (lambda: with_weight(float("nan")), "one of its weights is no finite number"),
    "beyond a float": (lambda: with_weight(10**400), "one of its weights is no finite number"),
    "changed": (lambda: with_weight(0.5), "its checksum is wrong"),
    "no checksum": (without_checksum, "its checksum is wrong"),
    "other features": (lambda: changed(features=["age"]), "its shapes fit no network"),
    "too large": (lambda: " " * 1_000_001, "it is larger than 1000000 bytes"),
}


def prepared(directory: Path) -> Path:
    state = directory / "state"
    state.mkdir(mode=0o700)
    return state / learned.WEIGHTS_NAME


def granted(manager: LocalManager) -> str:
    """Why the GPU of a new task was chosen."""
    manager.call("quota_set", env="alice", gpus=1)
    FakeClient(manager.env_dir("alice")).acquire(1)
    return str(manager.call("allocations", env="alice")["allocations"][-1]["chosen"])


def complaints(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = capsys.readouterr().err.splitlines()
    return [line for line in lines if "learned" in line or "Traceback" in line]


def test_without_a_file_of_its_own_the_shipped_weights_choose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with LocalManager(directory=tmp_path, placement="learned") as manager:
        assert manager.call("status")["placement"] == {
            "setting": "learned", "in_force": "learned", "fault": None,
            "meaning": "highest score by the trained weights first",
        }  # fmt: skip
        assert granted(manager) == "learned: the highest scores by the trained weights"
    assert complaints(capsys) == []


@pytest.mark.parametrize("damage", DAMAGED)
def test_with_unusable_weights_reliable_chooses_and_status_says_why(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, fault = DAMAGED[damage]
    prepared(tmp_path).write_text(text())
    with LocalManager(directory=tmp_path, placement="learned") as manager:
        found = manager.call("status")["placement"]
        assert (found["setting"], found["in_force"]) == ("learned", "reliable")
        assert fault in found["fault"]
        assert granted(manager).startswith("reliable: ")
    (line,) = complaints(capsys)
    assert fault in line
    assert "the policy is reliable" in line


def test_weights_that_cannot_be_read_are_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepared(tmp_path).mkdir()  # as no permission: an error of the open
    with LocalManager(directory=tmp_path, placement="learned") as manager:
        assert manager.call("status")["placement"]["in_force"] == "reliable"
        assert granted(manager).startswith("reliable: ")
    (line,) = complaints(capsys)
    assert "cannot be read" in line


def test_damaged_weights_are_no_fault_where_nothing_names_learned(tmp_path: Path) -> None:
    prepared(tmp_path).write_text("{")
    with LocalManager(directory=tmp_path) as manager:
        assert manager.call("status")["placement"]["fault"] is None
        manager.call("quota_set", env="alice", gpus=1, placement="learned")
        assert "it may be cut" in manager.call("status")["placement"]["fault"]


def test_weights_that_are_replaced_while_it_runs_are_those_of_the_next_reading(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reading is ordered by `nodemgr placement use`, and comes with each start."""
    own = prepared(tmp_path)
    weights.save(own, weights.load(learned.SHIPPED))
    with LocalManager(directory=tmp_path, placement="learned") as manager:
        own.write_text("{")
        assert granted(manager).startswith("learned: ")
        assert manager.call("status")["placement"]["fault"] is None
        assert complaints(capsys) == []
        assert manager.call("placement_read") == {"path": str(own)}
        assert manager.call("status")["placement"]["in_force"] == "reliable"
        assert len(complaints(capsys)) == 1
        weights.save(own, weights.load(learned.SHIPPED))
        manager.call("placement_read")
        assert manager.call("status")["placement"] == {
            "setting": "learned", "in_force": "learned", "fault": None,
            "meaning": "highest score by the trained weights first",
        }  # fmt: skip
        own.write_text("{")
    with LocalManager(directory=tmp_path, placement="learned") as manager:
        assert manager.call("status")["placement"]["in_force"] == "reliable"
    assert len(complaints(capsys)) == 1
