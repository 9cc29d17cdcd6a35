"""The CDI files follow the envs, atomically, and a failure harms nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodemgr.core.views import cdi
from nodemgr.edge.containers import cdi_files, payload
from nodemgr.edge.containers.cdi_files import Containers, gpu_nodes, missing_node
from nodemgr.edge.containers.shared_files import files_below
from nodemgr.paths import payload_dir
from tests.core import cdi_rules
from tests.support.limits import until
from tests.support.manager import Manager


def containers(tmp_path: Path, simulated: bool = True) -> Containers:
    (tmp_path / "run").mkdir(exist_ok=True)
    hook = cdi.Hook("createRuntime", "/bin/true", ("true",))
    return Containers(
        tmp_path / "cdi",
        "x.test/env",
        tmp_path / "run",
        tmp_path / "state",
        simulated,
        lambda env: hook if env == "alice" else None,
    )


def read(path: Path) -> Any:
    spec = json.loads(path.read_text())
    assert spec["cdiVersion"] == cdi_rules.check(spec)
    return spec


def test_the_file_has_a_device_for_each_env_that_can_be_one(tmp_path: Path) -> None:
    box = containers(tmp_path)
    box.settle(["bob", "alice", "dash-"])
    alice, bob = read(tmp_path / "cdi" / "x.json")["devices"]
    assert (alice["name"], bob["name"]) == ("alice", "bob")
    assert alice["containerEdits"]["hooks"] == [
        {"hookName": "createRuntime", "path": "/bin/true", "args": ["true"]}
    ]
    assert "hooks" not in bob["containerEdits"]
    assert box.device("alice") == "x.test/env=alice"
    assert box.device("dash-") is None


def test_the_files_that_containers_share_are_kept_open(tmp_path: Path) -> None:
    """A lease that a container got on one would make each start of a program wait."""
    box = containers(tmp_path, simulated=False)
    box.settle(["alice"])
    preload = tmp_path / "run" / cdi_files.PRELOAD_FILE
    shared = {str(preload), *map(str, files_below([payload.current(tmp_path / "state").resolve()]))}

    def kept() -> set[str]:
        maps = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
        return {words[5] for words in maps if len(words) > 5} & shared

    until(lambda: kept() == shared, lambda: shared - kept())
    box.close()
    assert not kept()


def test_without_an_env_there_is_no_file(tmp_path: Path) -> None:
    box = containers(tmp_path)
    box.settle(["alice"])
    box.settle([])
    assert list((tmp_path / "cdi").iterdir()) == []
    assert box.fault is None


def test_the_client_is_copied_at_the_start_and_not_for_the_first_env(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 ms of the loop, in which others had no answer."""
    box = containers(tmp_path)
    box.settle([])
    assert payload.current(tmp_path / "state").is_dir()
    monkeypatch.setattr(payload, "place", None)
    box.settle(["alice"])
    assert (box.fault, box.path.exists()) == (None, True)


def test_a_file_that_needs_no_change_stays_the_very_file(tmp_path: Path) -> None:
    """The preload file is mounted into containers: a new one would be another's."""
    box = containers(tmp_path)
    box.settle(["alice"])
    files = [tmp_path / "cdi" / "x.json", tmp_path / "run" / "ld.so.preload"]
    before = [os.stat(path).st_ino for path in files]
    box.settle(["alice"])
    assert [os.stat(path).st_ino for path in files] == before
    assert files[1].read_text() == "/opt/nodemgr/client_plugin/_lib/$LIB/libnodemgr.so\n"


def test_a_file_of_roots_that_is_not_on_a_mount_of_its_own_is_given_to_no_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(cdi_files, "CDI_DIRS", (tmp_path / "cdi",))
    box = containers(tmp_path)
    box.settle(["alice"])
    assert "sim" not in (tmp_path / "cdi" / "x.json").read_text()
    assert str(box.missing()).startswith("containers get no simulated driver: ")


def test_what_is_mounted_is_there_and_only_the_simulators_state_is_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cdi_files, "may_be_shared", lambda _state: True)
    containers(tmp_path).settle(["alice"])
    mounts = read(tmp_path / "cdi" / "x.json")["containerEdits"]["mounts"]
    client = [
        Path(mount["hostPath"])
        for mount in mounts
        if mount["containerPath"].startswith("/opt/nodemgr/") and "ro" in mount["options"]
    ]
    assert [path.name for path in client] == ["client_plugin", "sitecustomize", "nodemgr"]
    assert all(path.exists() and not path.is_relative_to(payload_dir()) for path in client)
    assert [mount["containerPath"] for mount in mounts if "rw" in mount["options"]] == [
        "/opt/nodemgr/sim/node.state"
    ]


def test_a_real_node_brings_every_device_node_and_no_simulator(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidiactl"):
        (tmp_path / name).symlink_to("/dev/null")
    (tmp_path / "nvidia1").write_text("no device")
    assert gpu_nodes(tmp_path) == (str(tmp_path / "nvidia0"), str(tmp_path / "nvidiactl"))
    containers(tmp_path, simulated=False).settle(["alice"])
    assert "sim" not in (tmp_path / "cdi" / "x.json").read_text()


def test_a_node_that_programs_cannot_make_in_a_container_is_missed(tmp_path: Path) -> None:
    assert missing_node(tmp_path) is None  # no GPU, nothing to miss
    (tmp_path / "nvidia0").symlink_to("/dev/null")
    assert "nvidia-modprobe -u" in str(missing_node(tmp_path))
    (tmp_path / "nvidia-uvm").symlink_to("/dev/null")
    assert missing_node(tmp_path) is None


def test_a_failure_is_kept_and_the_next_success_ends_it(tmp_path: Path) -> None:
    box = containers(tmp_path)
    (tmp_path / "cdi").write_text("a file where the directory should be")
    box.settle(["alice"])
    assert box.fault is not None
    assert str(tmp_path / "cdi" / "x.json") in box.fault
    (tmp_path / "cdi").unlink()
    box.settle(["alice"])
    assert box.fault is None


def test_a_manager_keeps_the_file_as_its_quotas_are(make_manager: Callable[..., Manager]) -> None:
    manager = make_manager(environment={"NODEMGR_CDI_KIND": "here.test/env"})
    path = manager.run_dir / "cdi" / "here.json"
    manager.quota("alice", 1)
    manager.quota("2nd", 1)
    assert [device["name"] for device in read(path)["devices"]] == ["2nd", "alice"]
    manager.call("quota_rm", env="2nd")
    assert [device["name"] for device in read(path)["devices"]] == ["alice"]
    manager.restart()
    assert [device["name"] for device in read(path)["devices"]] == ["alice"]


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's view needs root")
def test_nobody_on_the_node_reaches_the_socket_that_containers_are_shown(manager: Manager) -> None:
    manager.quota("alice", 1)
    directory = manager.run_dir / "containers"
    assert (directory / "alice" / "socket").is_socket()
    assert directory.stat().st_mode & 0o777 == 0o700


def test_quotas_hold_where_the_file_cannot_be_written(make_manager: Callable[..., Manager]) -> None:
    manager = make_manager(environment={"NODEMGR_CDI_DIR": "/proc/none"})
    manager.quota("alice", 1)
    assert [env["name"] for env in manager.status()["envs"]] == ["alice"]
    assert "/proc/none/nodemgr.json could not be written" in manager.log
    rows = {row["name"]: row for row in manager.call("doctor")["checks"]}
    assert rows["containers"]["ok"] is False
    assert "/proc/none" in rows["containers"]["detail"]
