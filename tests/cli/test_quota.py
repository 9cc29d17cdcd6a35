"""`nodemgr quota`: what the manager is asked to do, and what it is never asked."""

from __future__ import annotations

import getpass
import grp
import json
import os
import pwd
from typing import Any

import pytest

from tests.cli.conftest import Run, RunningManager, one_line, quota


def asked(manager: RunningManager) -> dict[str, Any]:
    ((verb, arguments),) = manager.orders
    assert verb == "quota_set"
    assert arguments.pop("by") == pwd.getpwuid(os.getuid()).pw_name
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
        (["--gpus", "1", "--priority", "high", "--acquire", "import"], {"gpus": 1, "priority": "high", "acquire": "import"}),
        (["--gpus", "1", "--no-manager", "error"], {"gpus": 1, "no_manager": "error"}),
        (["--gpus", "1", "--enforce", "kill"], {"gpus": 1, "enforce": "kill"}),
        (["--gpus", "1", "--enforce", "default"], {"gpus": 1, "enforce": None}),
        (["--gpus", "1", "--nobody"], {"gpus": 1, "users": [], "groups": []}),
        (["--memory", "24GiB"], {"memory_bytes": 24 * 2**30}),
    ],
)
def test_what_is_said_is_asked_and_nothing_else(nodemgr: Run, setting: RunningManager, flags: list[str], arguments: dict[str, Any]) -> None:
    result = nodemgr("quota", "set", "alice", *flags)
    assert (result.returncode, result.stderr) == (0, "")
    assert asked(setting) == {"env": "alice", **arguments}


def test_users_and_groups(nodemgr: Run, setting: RunningManager) -> None:
    user, group = getpass.getuser(), grp.getgrgid(os.getgid()).gr_name
    nodemgr("quota", "set", "alice", "--gpus", "1", "--user", user, "--user", "root", "--group", group)
    assert asked(setting) == {"env": "alice", "gpus": 1, "users": [user, "root"], "groups": [group]}


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
        (["--gpus", "1", "--default-gpus", "x"], "number of GPUs"),
        (["--gpus", "1", "--default-gpus", "-1"], "number of GPUs"),
        (["--gpus", "1", "--default-gpus", "999999999999999999999"], "number of GPUs"),
        (["--gpus", "1", "--acquire", "later"], "later"),
        (["--gpus", "1", "--no-gpu", "wait"], "wait"),
        (["--gpus", "1", "--user", "no-such-user-here"], "no user 'no-such-user-here'"),
        (["--gpus", "1", "--group", "no-such-group-here"], "no group 'no-such-group-here'"),
        (["--gpus", "1", "--user", "root", "--nobody"], "name one of them"),
    ],
)
def test_what_is_wrong_is_never_asked(nodemgr: Run, setting: RunningManager, flags: list[str], complaint: str) -> None:
    result = nodemgr("quota", "set", "alice", *flags)
    assert result.returncode == 2
    assert complaint in one_line(result)
    assert setting.orders == []


def test_a_warning_is_a_message(nodemgr: Run, setting: RunningManager) -> None:
    setting.answers["quota_set"] = {"quota": quota(gpus=8), "warnings": ["8 GPUs are more than this node has, 4"]}
    result = nodemgr("quota", "set", "alice", "--gpus", "8", "--json")
    assert result.returncode == 0
    assert one_line(result) == "warning: 8 GPUs are more than this node has, 4"
    assert json.loads(result.stdout) == {"schema_version": 1, "quota": quota(gpus=8)}


@pytest.mark.parametrize(("code", "exit_code"), [("usage", 2), ("not_found", 1), ("refused", 1), ("store", 1), ("quota", 77)])
def test_a_refusal_is_the_manager_s_line(nodemgr: Run, setting: RunningManager, code: str, exit_code: int) -> None:
    setting.answers["quota_set"] = (code, "there is no queue 'express': use high, normal, low")
    result = nodemgr("quota", "set", "alice", "--gpus", "1", "--priority", "express")
    assert (result.returncode, one_line(result)) == (exit_code, "there is no queue 'express': use high, normal, low")


def test_show(nodemgr: Run, manager: RunningManager) -> None:
    manager.answers["quota_show"] = answer = {"schema_version": 1, "quotas": [quota(), quota("bob", memory_bytes=None, groups=["ml"])]}
    assert json.loads(nodemgr("quota", "show", "--json").stdout) == answer
    title, alice, bob = nodemgr("quota", "show").stdout.splitlines()
    assert title.split()[:3] == ["ENV", "GPUS", "MEMORY"]
    assert alice.split()[:4] == ["alice", "2", "24", "GiB"]
    assert "whole GPUs" in bob
    assert bob.endswith("@ml")
    assert manager.orders == [("quota_show", {}), ("quota_show", {})]


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
    result = nodemgr("quota", "rm", "alice")
    assert (result.returncode, result.stdout) == (0, "")
    assert result.stderr.splitlines() == ["nodemgr: warning: 1 task lost its GPUs: t1", "nodemgr: alice is removed"]
    assert manager.orders == [("quota_rm", {"env": "alice", "by": pwd.getpwuid(os.getuid()).pw_name})]


def test_no_manager(nodemgr: Run) -> None:
    result = nodemgr("quota", "show")
    assert result.returncode == 69
    assert "nodemgr serve" in one_line(result)


def test_no_admin(stranger: Run, manager: RunningManager) -> None:
    (manager.run_dir / "control.sock").chmod(0o660)
    result = stranger("quota", "show")
    assert result.returncode == 1
    assert "only root and the group nodemgr" in one_line(result)
