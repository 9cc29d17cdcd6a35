"""The manager's own checks, each on surroundings that are well and on some that are not."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodemgr.edge.gpu.gpu_inventory import DriverReading
from nodemgr.edge.host import privileges
from nodemgr.edge.setup import doctor
from nodemgr.edge.setup.doctor import CheckContext
from nodemgr.edge.store.database import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path)
    yield store
    store.close()


def row(name: str, store: Store, **said: Any) -> tuple[bool, str]:
    around = CheckContext(store, None, DriverReading(()), 0, **{"descriptors_used": 40, **said})
    (found,) = [check for check in doctor.examine(around) if check["name"] == name]
    return found["ok"], found["detail"]


@pytest.mark.parametrize(
    ("limit", "used", "envs", "gpus", "ok"),
    [
        (20_000, 40, 3, 24, True),
        (20_000, 40, 100, 400, False),
        (20_000, 19_990, 0, 0, False),
        (1_024, 40, 0, 0, False),
    ],
)
def test_descriptors_against_the_sum_of_quotas(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    limit: int,
    used: int,
    envs: int,
    gpus: int,
    ok: bool,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (limit, limit))
    found, detail = row("descriptors", store, descriptors_used=used, envs=envs, quota_gpus=gpus)
    assert (found, f"{used} of {limit} in use" in detail) == (ok, True)


def test_whether_jobs_can_be_started(store: Store) -> None:
    assert row("jobs", store, jobs=(False, "no job can be started: it is away")) == (
        False,
        "no job can be started: it is away",
    )
    assert row("jobs", store, jobs=(True, "started by our own launcher")) == (
        True,
        "started by our own launcher",
    )


def test_whether_tasks_can_be_suspended(store: Store) -> None:
    ok, detail = row("suspension", store)
    assert ok
    assert "the driver moves the GPU memory of tasks to host memory" in detail
    assert row("suspension", store, suspension=(True, "skipped, since it is old")) == (
        True,
        "skipped, since it is old",
    )


def test_a_group_that_is_not_there_is_said_and_is_no_fault(store: Store) -> None:
    assert row("group", store, group="no-such-group") == (
        True, "there is no group no-such-group: the manager's own user and root alone may order it",
    )  # fmt: skip
    assert row("group", store, group="root")[1].startswith("root: ")


@pytest.mark.parametrize(
    ("held", "ok", "words"),
    [
        (1 << 5 | 1 << 19, True, "CAP_KILL, CAP_SYS_PTRACE"),
        (0, True, "none"),
        (1 << 5 | 1 << 1 | 1 << 7, False, "holds 2 capabilities"),
    ],
)
def test_rights_that_nothing_uses(
    store: Store, monkeypatch: pytest.MonkeyPatch, held: int, ok: bool, words: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(privileges, "held", lambda: held)
    found, detail = row("privileges", store)
    assert (found, words in detail) == (ok, True)


def test_another_users_manager_says_what_it_cannot_see(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    assert "this user's processes alone" in row("privileges", store)[1]


def test_an_environment_that_could_not_be_refreshed(store: Store) -> None:
    assert row("environments' files", store) == (True, "as the quotas are")
    assert row("environments' files", store, env_faults=["alice: no room", "bob: no room"]) == (
        False,
        "alice: no room; bob: no room",
    )
