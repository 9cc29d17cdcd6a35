"""`nodemgr quota`: what the manager is asked to do, and what it is never asked."""

from __future__ import annotations

import getpass
import grp
import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from nodemgr.core.model.encoding import encode
from nodemgr.core.model.entities import Env, QueueRow, Quota
from nodemgr.edge.store.database import FILE_NAME, CommitBatch, Store
from tests.cli.conftest import Run, RunningManager, one_line, quota


def asked(manager: RunningManager) -> dict[str, Any]:
    ((verb, arguments),) = manager.orders
    assert verb == "quota_set"
    return arguments


@pytest.fixture
def setting(manager: RunningManager) -> RunningManager:
    manager.answers["quota_set"] = {"quota": quota(), "warnings": []}
    return manager


@pytest.mark.parametrize(
    ("flags", "arguments"),
    [
        (["--gpus", "2"], {"gpus": 2}),
        (["--gpus", "2", "--memory", "24GiB"], {"gpus": 2, "memory_bytes": 24 * 2**30}),
        (["--gpus", "2", "--memory-per-gpu", "12GB"], {"gpus": 2, "memory_bytes": 24 * 10**9}),
        (["--gpus", "2", "--memory", "none"], {"gpus": 2, "memory_bytes": None}),
        (["--gpus", "0", "--no-gpu", "cpu"], {"gpus": 0, "no_gpu": "cpu"}),
        (["--gpus", "4", "--default-gpus", "1"], {"gpus": 4, "default_gpus": 1}),
        (["--gpus", "4", "--default-gpus", "none"], {"gpus": 4, "default_gpus": None}),
        (
            ["--gpus", "1", "--priority", "high", "--acquire", "import"],
            {"gpus": 1, "priority": "high", "acquire": "import"},
        ),
        (["--gpus", "1", "--no-manager", "error"], {"gpus": 1, "no_manager": "error"}),
        (["--gpus", "1", "--enforce", "kill"], {"gpus": 1, "enforce": "kill"}),
        (["--gpus", "1", "--enforce", "default"], {"gpus": 1, "enforce": None}),
        (["--gpus", "1", "--nobody"], {"gpus": 1, "users": [], "groups": []}),
        (["--memory", "24GiB"], {"memory_bytes": 24 * 2**30}),
        (
            ["--compute", "40%", "--class", "best-effort"],
            {"compute_percent": 40, "task_class": "best-effort"},
        ),
        (
            ["--compute", "none", "--class", "normal"],
            {"compute_percent": None, "task_class": "normal"},
        ),
        (
            ["--idle", "30min", "--when-idle", "suspend", "--max-keep", "2h"],
            {"idle_ms": 1_800_000, "when_idle": "suspend", "max_keep_ms": 7_200_000},
        ),
        (["--idle", "none", "--when-idle", "keep"], {"idle_ms": None, "when_idle": "keep"}),
    ],
)
def test_what_is_said_is_asked_and_nothing_else(
    nodemgr: Run, setting: RunningManager, flags: list[str], arguments: dict[str, Any]
) -> None:
    result = nodemgr("quota", "set", "alice", *flags)
    assert (result.returncode, result.stderr) == (0, "")
    assert asked(setting) == {"env": "alice", **arguments}


def test_users_and_groups(nodemgr: Run, setting: RunningManager) -> None:
    user, group = getpass.getuser(), grp.getgrgid(os.getgid()).gr_name
    nodemgr(
        "quota", "set", "alice", "--gpus", "1", "--user", user, "--user", "root", "--group", group
    )
    assert asked(setting) == {
        "env": "alice", "gpus": 1, "add_users": [user, "root"], "add_groups": [group],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "arguments"),
    [
        (["--user", "54321"], {"add_users": ["54321"]}),
        (["--user", "+54321"], {"add_users": ["+54321"]}),
        (
            ["--no-user", "gone", "--no-group", "54"],
            {"drop_users": ["gone"], "drop_groups": ["54"]},
        ),
        (["--users-only", "--user", "root"], {"users": ["root"], "groups": []}),
    ],
)
def test_users_that_come_and_go(
    nodemgr: Run, setting: RunningManager, flags: list[str], arguments: dict[str, Any]
) -> None:
    setting.answers["quota_set"] |= {"gained": ["root", "@ml"], "lost": ["eve"]}
    result = nodemgr("quota", "set", "alice", *flags)
    assert asked(setting) == {"env": "alice", **arguments}
    assert result.stderr.splitlines() == [
        "nodemgr: root, @ml gained access to environment alice",
        "nodemgr: eve lost access to environment alice",
    ]


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--gpus", "-1"], "-1"),
        (["--gpus", "1.5"], "1.5"),
        (["--gpus", "99999999999999999999"], "--gpus"),
        (["--gpus", "1", "--memory", "8"], "bare number"),
        (["--gpus", "1", "--memory", "-8GiB"], "no sign"),
        (["--gpus", "1", "--memory", "0GiB"], "zero"),
        (["--gpus", "1", "--memory", "9999999TiB"], "more memory than any node has"),
        (["--gpus", "1", "--memory", "8XB"], "no unit"),
        (["--gpus", "1000", "--memory-per-gpu", "1TiB"], "more memory than any node has"),
        (["--gpus", "1", "--memory", "8GiB", "--memory-per-gpu", "8GiB"], "name one of them"),
        (["--gpus", "0", "--memory-per-gpu", "8GiB"], "no GPU to have memory on"),
        (["--memory-per-gpu", "8GiB"], "name it with --gpus"),
        (["--gpus", "1", "--default-gpus", "x"], "whole number from 0 to"),
        (["--gpus", "1", "--default-gpus", "-1"], "whole number from 0 to"),
        (["--gpus", "1", "--default-gpus", "999999999999999999999"], "whole number from 0 to"),
        (["--gpus", "1", "--acquire", "later"], "later"),
        (["--gpus", "1", "--no-gpu", "wait"], "wait"),
        (["--gpus", "1", "--user", "no-such-user-here"], "no user 'no-such-user-here'"),
        (["--gpus", "1", "--group", "no-such-group-here"], "no group 'no-such-group-here'"),
        (["--gpus", "1", "--user", "root", "--nobody"], "name one of them"),
        (["--compute", "40"], "'40' is a bare number"),
        (["--compute", "0%"], "a share of zero"),
        (["--compute", "101%"], "more than a whole GPU"),
        (["--compute", "-1%"], "is no share"),
        (["--class", "batch"], "batch"),
        (["--idle", "30"], "bare number"),
        (["--idle", "soon"], "soon"),
        (["--idle", "0"], "'0' is less than 1 s: name a longer time, or none"),
        (["--idle", "999ms"], "'999ms' is less than 1 s"),
        (["--when-idle", "kill"], "kill"),
        (["--max-keep", "none"], "none"),
    ],
)
def test_what_is_wrong_is_never_asked(
    nodemgr: Run, setting: RunningManager, flags: list[str], complaint: str
) -> None:
    result = nodemgr("quota", "set", "alice", *flags)
    assert result.returncode == 2
    assert complaint in one_line(result)
    assert setting.orders == []


def test_a_warning_is_a_message(nodemgr: Run, setting: RunningManager) -> None:
    setting.answers["quota_set"] = {
        "quota": quota(gpus=8),
        "warnings": ["8 GPUs are more than this node has, 4"],
    }
    result = nodemgr("quota", "set", "alice", "--gpus", "8", "--json")
    assert result.returncode == 0
    assert one_line(result) == "warning: 8 GPUs are more than this node has, 4"
    assert json.loads(result.stdout) == {"schema_version": 1, "quota": quota(gpus=8)}


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("usage", 2), ("not_found", 1), ("refused", 1), ("store", 1), ("quota", 77)],
)
def test_a_refusal_is_the_manager_s_line(
    nodemgr: Run, setting: RunningManager, code: str, exit_code: int
) -> None:
    setting.answers["quota_set"] = (code, "there is no queue 'express': use high, normal, low")
    result = nodemgr("quota", "set", "alice", "--gpus", "1", "--priority", "express")
    assert (result.returncode, one_line(result)) == (
        exit_code,
        "there is no queue 'express': use high, normal, low",
    )


def test_show(nodemgr: Run, manager: RunningManager) -> None:
    manager.answers["quota_show"] = answer = {
        "schema_version": 1,
        "quotas": [quota(), quota("bob", memory_bytes=None, groups=["ml"])],
    }
    assert json.loads(nodemgr("quota", "show", "--json").stdout) == answer
    title, alice, bob = nodemgr("quota", "show").stdout.splitlines()
    assert title.split()[:3] == ["ENV", "GPUS", "MEMORY"]
    assert alice.split()[:4] == ["alice", "2", "24", "GiB"]
    assert alice.endswith("the manager's user"), "who is not root everywhere"
    assert "whole GPUs" in bob
    assert bob.endswith("@ml")
    assert manager.orders == [("quota_show", {}), ("quota_show", {})]


def test_shares_and_idle_tasks_have_columns_where_a_quota_names_them(
    nodemgr: Run, manager: RunningManager
) -> None:
    def titles(*quotas: dict[str, Any]) -> list[str]:
        manager.answers["quota_show"] = {"schema_version": 1, "quotas": list(quotas)}
        return nodemgr("quota", "show").stdout.splitlines()[0].split("  ")

    assert not {"CLASS", "COMPUTE", "IDLE", "WHEN IDLE", "MAX KEEP"} & set(titles(quota()))
    shared = quota("bob", task_class="best-effort", compute_percent=40)
    idle = quota("carol", idle_ms=1_800_000, when_idle="suspend")
    assert {"CLASS", "COMPUTE"} <= set(titles(quota(), shared))
    assert {"IDLE", "WHEN IDLE", "MAX KEEP"} <= set(titles(quota(), idle))
    titles(quota(), shared, idle)
    _, alice, bob, carol = nodemgr("quota", "show").stdout.splitlines()
    assert alice.split()[-9:] == ["node's", "-", "-", "-", "-", "-", "the", "manager's", "user"]
    assert "best-effort     40 %" in bob
    assert "30 min  suspend         8 h" in carol


def test_show_one(nodemgr: Run, manager: RunningManager) -> None:
    manager.answers["quota_show"] = ("not_found", "no environment 'carol'")
    result = nodemgr("quota", "show", "carol")
    assert (result.returncode, one_line(result)) == (1, "no environment 'carol'")
    assert manager.orders == [("quota_show", {"env": "carol"})]


def test_show_none(nodemgr: Run, manager: RunningManager) -> None:
    manager.answers["quota_show"] = {"schema_version": 1, "quotas": []}
    assert "nodemgr quota set" in nodemgr("quota", "show").stdout


def test_rm(nodemgr: Run, manager: RunningManager) -> None:
    manager.answers["quota_rm"] = {"env": "alice", "warnings": ["1 task lost its GPUs: t1"]}
    result = nodemgr("quota", "rm", "alice", "--force")
    assert (result.returncode, result.stdout) == (0, "")
    assert result.stderr.splitlines() == [
        "nodemgr: warning: 1 task lost its GPUs: t1",
        "nodemgr: alice is removed",
    ]
    assert manager.orders == [("quota_rm", {"env": "alice", "force": True})]


def test_no_manager(nodemgr: Run) -> None:
    result = nodemgr("quota", "show")
    assert result.returncode == 69
    assert "nodemgr serve" in one_line(result)


def test_no_admin(stranger: Run, manager: RunningManager) -> None:
    (manager.run_dir / "control.sock").chmod(0o660)
    result = stranger("quota", "show")
    assert result.returncode == 1
    assert "only root, the manager's user and the group nodemgr" in one_line(result)


# -- load --

QUOTA = {
    "gpus": 2, "memory_bytes": 24 * 2**30, "default_gpus": 1, "priority": "night",
    "max_priority": "night", "acquire": "import",
    "no_gpu": "cpu", "no_manager": "error", "users": ["root"], "groups": ["root"],
    "enforce": "kill", "compute_percent": 40, "task_class": "best-effort", "idle_ms": 60_000,
    "when_idle": "suspend", "max_keep_ms": 1_000, "borrow": 1, "placement": "pack",
    "cpus": 8, "host_memory_bytes": 2**36, "forecast": "off",
}  # fmt: skip


@pytest.fixture
def loading(setting: RunningManager) -> RunningManager:
    setting.answers["queue_create"] = {}
    return setting


def test_load_sets_again_what_show_printed(
    nodemgr: Run, loading: RunningManager, tmp_path: Path
) -> None:
    loading.answers["quota_show"] = {
        "schema_version": 1,
        "quotas": [{"env": "alice", **QUOTA, "memory_per_gpu_bytes": 12 * 2**30}],
    }
    (tmp_path / "kept").write_text(nodemgr("quota", "show", "--json").stdout)
    loading.orders.clear()
    result = nodemgr("quota", "load", tmp_path / "kept")
    assert (result.returncode, result.stdout, result.stderr) == (
        0,
        "",
        "nodemgr: 1 of 1 quotas are set\n",
    )
    assert asked(loading) == {"env": "alice", **QUOTA}


def test_load_takes_quotas_and_queues_out_of_another_versions_store(
    nodemgr: Run, loading: RunningManager, tmp_path: Path
) -> None:
    store = Store(tmp_path)
    quota_of_alice = Quota(**QUOTA | {"users": ("root",), "groups": ("root",)})
    rows = (
        ("env", "alice", Env("alice", quota_of_alice)),
        ("queue", "night", QueueRow("night", 7, 3)),
    )
    store.commit(
        CommitBatch({(kind, key): encode(kind, row) for kind, key, row in rows}, [], [], {})
    )
    store.close()
    with sqlite3.connect(tmp_path / FILE_NAME) as older:
        older.executescript(
            "PRAGMA user_version = 1; DROP TABLE history; DROP TABLE records; DROP TABLE events;"
        )
    older.close()
    before = (tmp_path / FILE_NAME).read_bytes()
    assert nodemgr("quota", "load", tmp_path / FILE_NAME).returncode == 0
    verb, arguments = loading.orders.pop(0)
    assert (verb, arguments["queue"], arguments["rank"], arguments["cap"]) == (
        "queue_create",
        "night",
        7,
        3,
    )
    assert asked(loading) == {"env": "alice", **QUOTA}
    assert (tmp_path / FILE_NAME).read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\xff", b"[1]", b"{}", b'{"quotas": 1}', b'{"quotas": [{"gpus": 1}]}', b"[" * 100_000,
        b"SQLite format 3\0", b"SQLite format 3\0" * 99,
    ],
)  # fmt: skip
def test_load_of_something_else_asks_nothing(
    nodemgr: Run, loading: RunningManager, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "other").write_bytes(content)
    result = nodemgr("quota", "load", tmp_path / "other")
    assert result.returncode == 1
    assert "has no quotas" in one_line(result)
    assert loading.orders == []
    assert "cannot be read (No such file" in one_line(
        nodemgr("quota", "load", tmp_path / "nothing")
    )


def test_load_reads_no_file_without_end(nodemgr: Run, loading: RunningManager) -> None:
    result = nodemgr("quota", "load", "/dev/zero")
    assert result.returncode == 1
    assert "/dev/zero has more than 16777216 bytes" in one_line(result)
    assert loading.orders == []


def test_load_goes_on_after_a_quota_that_is_refused(
    nodemgr: Run, setting: RunningManager, tmp_path: Path
) -> None:
    setting.answers["quota_set"] = ("usage", "priority: must be one of high, normal, low")
    (tmp_path / "kept").write_text(
        json.dumps({"quotas": [{"env": "alice", "gpus": 1}, {"env": "bob", "gpus": 1}]})
    )
    result = nodemgr("quota", "load", tmp_path / "kept")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-2:] == [
        "nodemgr: 0 of 2 quotas are set",
        "nodemgr: not set: alice, bob; mend what the lines above name, and load the file again",
    ]
