"""The files that one request crosses, as docs/inside/request-and-job.md lists them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from nodemgr.core.model import effects, entities, events
from nodemgr.edge.engine import client_hub, node_monitor
from nodemgr.edge.store.database import CommitBatch
from tests.support.local import LocalManager
from tests.support.udp_clients import FakeClient

ROOT = Path(__file__).resolve().parents[3]
MOST_FILES = 30
"""The aim. It may fall, and may not grow."""
PACKET = b"NODEMGR/1 "
FORMS = (
    events.Acquire,
    entities.Request,
    entities.Task,
    entities.Process,
    entities.Grant,
    effects.Save,
    CommitBatch,
    effects.SendGrant,
)
"""The classes of the forms that a request has in the manager. Its packets are bytes."""


def section() -> str:
    text = (ROOT / "docs/inside/request-and-job.md").read_text()
    return text.partition("### The files of one request\n")[2].partition("\n## ")[0]


def crossed() -> list[str]:
    return re.findall(r"^\d+\. `([^`]+)`", section(), re.MULTILINE)


def beside() -> list[str]:
    """The files of the manager that run for a request without being handed it."""
    return re.findall(r"^- `([^`]+)`", section(), re.MULTILINE)


def test_the_listed_files_exist_and_are_no_more_than_before() -> None:
    files = crossed() + beside()
    assert [name for name in files if not (ROOT / name).is_file()] == []
    assert len(files) == len(set(files))
    assert len(crossed()) <= MOST_FILES
    assert f"crosses {len(crossed())} files" in section()


def is_request(value: object) -> bool:
    if isinstance(value, bytes | memoryview):
        return bytes(value).startswith(PACKET)
    return isinstance(value, FORMS)


def is_handed_request(frame: FrameType) -> bool:
    """Whether a function that begins is handed the request in one of its forms."""
    values = list(frame.f_locals.values())
    values += [part for value in values if isinstance(value, list | tuple) for part in value]
    return any(map(is_request, values))


def traced(
    manager: LocalManager, make_client: Callable[..., FakeClient]
) -> tuple[set[str], set[str]]:
    """The manager's files that run while an environment's first process is granted a GPU.

    A second process follows. Only functions in the manager's loop count. Returns the files with a
    function that is handed the request, and the others.
    """
    ran: set[str] = set()
    handed: set[str] = set()

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT / "nodemgr"):
            ran.add(str(path.relative_to(ROOT)))
            if is_handed_request(frame):
                handed.add(str(path.relative_to(ROOT)))

    manager.do(lambda: sys.setprofile(note))
    for _ in range(2):
        make_client(manager.env_dir("alice")).acquire(1)
    manager.do(lambda: sys.setprofile(None))
    return handed, ran - handed


def test_the_lists_are_what_a_grant_runs(
    make_client: Callable[..., FakeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No reading of the GPUs, of beats and of a minute comes between: it crosses its own files."""
    monkeypatch.setattr(client_hub, "FRESH_NS", 1 << 62)
    for name in ("IDLE_PERIOD_S", "BEAT_CHECK_S"):
        monkeypatch.setattr(node_monitor, name, 10_000)
    with LocalManager(beat_ms=60_000) as manager:
        manager.do(manager.service.daemon.sampler.close)
        manager.call("quota_set", env="alice", gpus=2)
        manager.gpus.gate.clear()
        for _ in range(5):  # the new quota wakes the scheduler's task some turns later
            manager.do(lambda: None)
        handed, others = traced(manager, make_client)
        manager.gpus.gate.set()
    assert handed == {name for name in crossed() if name.startswith("nodemgr/")}
    others.discard("nodemgr/edge/host/threads.py")  # where a checkpoint of the store is due
    assert others == set(beside())
