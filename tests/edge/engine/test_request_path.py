"""The files that one request crosses, as docs/ARCHITECTURE.md lists them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from nodemgr.edge.engine import client_hub
from tests.support.local import LocalManager
from tests.support.udp_clients import FakeClient

ROOT = Path(__file__).resolve().parents[3]
MOST_FILES = 54
"""As many as there are. The aim is 30: this figure may fall, and may not grow."""


def listed() -> list[str]:
    text = (ROOT / "docs/ARCHITECTURE.md").read_text()
    section = text.partition("### The files of one request\n")[2].partition("\n## ")[0]
    return re.findall(r"^\d+\. `([^`]+)`$", section, re.MULTILINE)


def test_the_listed_files_exist_and_are_no_more_than_before() -> None:
    files = listed()
    assert [name for name in files if not (ROOT / name).is_file()] == []
    assert len(files) == len(set(files)) <= MOST_FILES
    assert f"crosses {len(files)} files" in (ROOT / "docs/ARCHITECTURE.md").read_text()


def traced(manager: LocalManager, make_client: Callable[..., FakeClient]) -> set[str]:
    """The manager's files that run while an environment's first process is granted a GPU.

    A second process follows. Only functions in the manager's loop count.
    """
    files: set[str] = set()

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT / "nodemgr"):
            files.add(str(path.relative_to(ROOT)))

    manager.do(lambda: sys.setprofile(note))
    for _ in range(2):
        make_client(manager.env_dir("alice")).acquire(1)
    manager.do(lambda: sys.setprofile(None))
    return files


def test_the_list_is_what_a_grant_crosses(
    make_client: Callable[..., FakeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No reading of the GPUs comes between: it crosses files of its own."""
    monkeypatch.setattr(client_hub, "FRESH_NS", 1 << 62)
    with LocalManager(beat_ms=60_000, timeout_ms=600_000) as manager:
        manager.call("quota_set", env="alice", gpus=2)
        manager.gpus.gate.clear()
        found = traced(manager, make_client)
        manager.gpus.gate.set()
    assert found == {name for name in listed() if name.startswith("nodemgr/")}
