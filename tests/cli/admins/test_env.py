"""`nodemgr env` against a real manager: create, give to containers, show and remove."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from nodemgr.cli.admins.env import ways
from tests.cli.conftest import Run, one_line
from tests.core import cdi_rules
from tests.support.manager import HOLD, Manager

GIB = 2**30


@pytest.fixture
def verb(manager: Manager, nodemgr: Run) -> Run:
    return lambda *arguments: nodemgr(*arguments, run_dir=manager.run_dir)


@pytest.fixture
def manager(make_manager: Callable[..., Manager]) -> Manager:
    return make_manager(simulate="2x16GiB")


def test_create_makes_all_of_it_and_prints_the_flag(verb: Run, manager: Manager) -> None:
    made = verb("env", "create", "alice", "--gpus", "2", "--memory", "8GiB", "--user", "54321")
    assert made.returncode == 0
    assert "54321 gained access to environment alice" in made.stderr
    for line in (
        "podman run --device nodemgr.local/env=alice IMAGE COMMAND",
        "docker run --device nodemgr.local/env=alice IMAGE COMMAND",
        'devices: ["nodemgr.local/env=alice"]',
        '- {driver: cdi, device_ids: ["nodemgr.local/env=alice"], capabilities: [gpu]}',
        f'hostPath: {{path: "{manager.run_dir}/containers/alice"}}',
        'mountPath: "/run/nodemgr-env", readOnly: true}',
    ):
        assert line in made.stdout
    assert f"must be told to read {manager.run_dir / 'cdi'}" in made.stderr
    spec = json.loads((manager.run_dir / "cdi" / "nodemgr.json").read_text())
    cdi_rules.check(spec)
    assert [device["name"] for device in spec["devices"]] == ["alice"]
    assert (manager.env_dir("alice") / "client.conf").is_file()


def test_create_says_where_the_limits_of_the_host_do_not_hold(verb: Run, manager: Manager) -> None:
    limits = "--cpus and --host-memory limit jobs and commands on the node, and not in a container"
    made = verb("env", "create", "alice", "--gpus", "1", "--cpus", "1", "--host-memory", "64MiB")
    assert (made.returncode, made.stderr.count(limits)) == (0, 1)
    (quota,) = manager.call("quota_show", env="alice")["quotas"]
    assert (quota["cpus"], quota["host_memory_bytes"]) == (1, 64 << 20)
    assert limits not in verb("env", "create", "bob", "--gpus", "1").stderr
    for wrong in (("--cpus", "0"), ("--host-memory", "0")):
        assert verb("quota", "set", "alice", *wrong).returncode == 2
    assert verb("quota", "set", "alice", "--cpus", "none").returncode == 0
    assert manager.call("quota_show", env="alice")["quotas"][0]["cpus"] is None


def test_create_changes_nothing_that_is_there(verb: Run, manager: Manager) -> None:
    verb("env", "create", "alice", "--gpus", "2")
    again = verb("env", "create", "alice", "--gpus", "1")
    assert again.returncode == 1
    assert "`nodemgr quota set alice` changes it" in one_line(again)
    assert manager.call("quota_show", env="alice")["quotas"][0]["gpus"] == 2


@pytest.mark.parametrize("name", ["dash-", "dot.", "under_"])
def test_a_name_that_no_device_can_have_is_refused(verb: Run, manager: Manager, name: str) -> None:
    refused = verb("env", "create", name, "--gpus", "1")
    assert refused.returncode == 2
    assert "ends with a letter or digit" in one_line(refused)
    verb("quota", "set", name, "--gpus", "1")  # without a container it may be called so
    shown = verb("env", "show", name)
    assert shown.returncode == 0
    assert "no container can be given" in one_line(shown)


def test_list_and_show_as_json(verb: Run, manager: Manager) -> None:
    verb("env", "create", "alice", "--gpus", "2", "--memory", "8GiB")
    verb("env", "create", "bob", "--gpus", "1")
    listed = json.loads(verb("env", "list", "--json").stdout)
    assert listed["schema_version"] == 1
    assert [env["env"] for env in listed["envs"]] == ["alice", "bob"]
    (alice,) = json.loads(verb("env", "show", "alice", "--json").stdout)["envs"]
    assert (alice["device"], alice["quota"]["memory_bytes"], alice["tasks"]) == (
        "nodemgr.local/env=alice",
        8 * GIB,
        [],
    )
    assert Path(alice["container_directory"], "socket").is_socket()
    unknown = verb("env", "show", "carol")
    assert unknown.returncode == 77
    assert "no environment 'carol'" in one_line(unknown)


@pytest.mark.parametrize("group", ["env", "quota"])
def test_rm_says_what_still_runs_and_waits_for_force(
    group: str, verb: Run, manager: Manager
) -> None:
    verb("env", "create", "alice", "--gpus", "1")
    program = manager.hold("alice")
    assert program.stdout is not None
    program.stdout.readline()
    kept = verb(group, "rm", "alice")
    assert kept.returncode == 1
    said = kept.stderr.splitlines()
    assert f"t1 runs: {HOLD} (pid {program.pid})" in said[0]
    assert "alice is not removed" in said[1]
    assert manager.status()["envs"][0]["name"] == "alice"
    assert verb(group, "rm", "alice", "--force").returncode == 0
    assert manager.status()["envs"] == []
    assert not (manager.run_dir / "cdi" / "nodemgr.json").exists()


def test_rekey_prints_where_the_new_key_lies(
    nodemgr: Run, make_manager: Callable[..., Manager]
) -> None:
    manager = make_manager(simulate="1x8GiB", options=["--udp", "127.0.0.1:0"])
    nodemgr("env", "create", "alice", "--gpus", "1", run_dir=manager.run_dir)
    key = manager.state_dir / "keys" / "alice" / "key"
    before = key.read_text()
    done = nodemgr("env", "rekey", "alice", "--grace", "10min", run_dir=manager.run_dir)
    assert (done.returncode, done.stdout.strip()) == (0, str(key.parent))
    assert key.read_text() != before
    (event,) = [
        event for event in manager.call("events")["events"] if event["name"] == "env.rekeyed"
    ]
    assert (event["env"], event["grace_ms"]) == ("alice", 600_000)
    assert "no environment" in one_line(nodemgr("env", "rekey", "carol", run_dir=manager.run_dir))


def test_nvidias_own_devices_stand_beside_ours() -> None:
    said = ways(
        {"device": "nodemgr.local/env=alice", "companions": ["nvidia.com/gpu=all"], "mounts": []}
    )
    assert (
        said["podman"]
        == "podman run --device nodemgr.local/env=alice --device nvidia.com/gpu=all IMAGE COMMAND"
    )


def test_a_pod_is_shown_what_the_device_would_show_it(verb: Run, manager: Manager) -> None:
    verb("env", "create", "alice", "--gpus", "1")
    spec = json.loads((manager.run_dir / "cdi" / "nodemgr.json").read_text())
    edits = [spec["containerEdits"], spec["devices"][0]["containerEdits"]]
    by_device = {
        (mount["hostPath"], mount["containerPath"], "rw" in mount["options"])
        for edit in edits
        for mount in edit["mounts"]
    }
    (env,) = json.loads(verb("env", "show", "alice", "--json").stdout)["envs"]
    assert {tuple(mount) for mount in env["mounts"]} == by_device
    pod = ways(env)["kubernetes, in a pod"]
    for number, (here, there, writable) in enumerate(env["mounts"]):
        assert f'- {{name: nodemgr-{number}, hostPath: {{path: "{here}"}}}}' in pod
        assert (
            f'- {{name: nodemgr-{number}, mountPath: "{there}", readOnly:'
            f" {'false' if writable else 'true'}}}" in pod
        )
