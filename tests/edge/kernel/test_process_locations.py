"""Containers by the names of cgroups, as engines make them, and by what the engines wrote down."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from nodemgr.edge.host.loop import new_loop
from nodemgr.edge.kernel import process_locations
from tests.edge.hub import settle

ID = "3f" * 32
INNER = "77" * 32


@pytest.mark.parametrize(
    ("cgroup", "container"),
    [
        (f"0::/machine.slice/libpod-{ID}.scope/container", ID),
        (f"12:memory:/libpod_parent/libpod-{ID}\n0::/x", ID),
        (f"0::/docker/{ID}", ID),
        (f"0::/system.slice/docker-{ID}.scope", ID),
        (f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope", ID),
        (f"0::/kubepods/besteffort/pod1/{ID}", ID),
        (f"0::/docker/{ID}/docker/{INNER}", ID),
        ("0::/user.slice/user-0.slice/session-1.scope", None),
        (f"0::/build-{ID}0", None),
        ("", None),
    ],
)
def test_a_container_is_in_the_name_of_the_cgroup(cgroup: str, container: str | None) -> None:
    assert process_locations.container_in(cgroup) == container


def test_engines_know_what_they_called_it(tmp_path: Path) -> None:
    podman, docker = tmp_path / "containers.json", tmp_path / "docker"
    podman.write_text(
        json.dumps([{"id": INNER, "names": ["other"]}, {"id": ID, "names": ["web-1", "alias"]}])
    )
    assert process_locations.name_of(ID, podman, docker) == "web-1"
    (docker / ("ab" * 32)).mkdir(parents=True)
    (docker / ("ab" * 32) / "config.v2.json").write_text('{"Name": "/db\\u001b[31m"}')
    assert process_locations.name_of("ab" * 32, podman, docker) == "db [31m"


@pytest.mark.parametrize(
    "text", ["", "[", "{}", "[1, null]", '[{"id": 5}]', f'[{{"id": "{ID}", "names": 7}}]']
)
def test_what_cannot_be_read_names_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "containers.json").write_text(text)
    assert process_locations.name_of(ID, tmp_path / "containers.json", tmp_path / "docker") is None


def test_a_process_of_this_node_is_in_no_namespace_and_one_that_is_gone_nowhere() -> None:
    assert process_locations.location_of(os.getpid()).pid_inside is None
    assert process_locations.location_of(2**22 + 1) == process_locations.NOWHERE


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that were looked for."""
    pids: list[int] = []

    def look(pid: int) -> process_locations.ProcessLocation:
        pids.append(pid)
        return process_locations.ProcessLocation(pid_inside=pid)

    monkeypatch.setattr(process_locations, "location_of", look)
    return pids


def test_of_many_who_come_at_once_some_are_looked_for_in_each_turn(looked: list[int]) -> None:
    loop, _ = new_loop()
    known = process_locations.ProcessLocations(loop)
    answered: list[int] = []
    for pid in range(1, 41):
        known.expect(f"unix:{pid}:1")
    known.when_known(lambda: answered.append(len(looked)))
    known.expect("unix:41:1")
    known.forget("unix:2:1")  # it has ended meanwhile
    assert (looked, answered) == ([], [])
    counts = []
    for _ in range(5):
        loop.call_soon(loop.stop)
        loop.run_forever()
        counts.append(len(looked))
    assert counts == [15, 31, 40, 40, 40]
    assert looked == [1, *range(3, 42)]
    assert answered == [40]
    assert known.of("unix:41:1").pid_inside == 41
    assert len(looked) == 40
    known.when_known(lambda: answered.append(-1))
    assert answered[-1] == -1, "nobody is expected"
    loop.close()


def test_who_must_be_known_at_once_is_looked_for_once(looked: list[int]) -> None:
    loop, _ = new_loop()
    known = process_locations.ProcessLocations(loop)
    known.expect("unix:7:1")
    assert known.of("unix:7:1").pid_inside == 7
    assert known.of("udp:alice:ab") == process_locations.NOWHERE
    settle(loop, rounds=3)
    assert looked == [7]
    loop.close()


def test_what_engines_wrote_down_is_read_until_a_container_has_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names: list[str | None] = [None, "web", "another"]
    monkeypatch.setattr(process_locations, "container_of", lambda pid: ID)
    monkeypatch.setattr(process_locations, "name_of", lambda container: names.pop(0))
    process_locations._engine_name.cache_clear()
    assert [process_locations.location_of(os.getpid()).container_name for _ in range(3)] == [
        None,
        "web",
        "web",
    ]
    process_locations._engine_name.cache_clear()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a mount namespace")
def test_who_has_the_old_part_of_a_directory_is_named_and_nobody_for_another_one(
    tmp_path: Path,
) -> None:
    """Also where the directories of two managers have one name."""
    part, place = tmp_path / "first" / "run" / "part", tmp_path / "place"
    (tmp_path / "second" / "run").mkdir(parents=True)
    part.mkdir(parents=True)
    place.mkdir()
    script = f"mount --bind {part} {place} && echo mounted && read line"
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as program:  # fmt: skip
        assert program.stdout is not None
        if program.stdout.readline() != "mounted\n":
            pytest.skip("no mounts here")
        shutil.rmtree(tmp_path / "first" / "run")
        found = process_locations.containers_without(tmp_path / "first" / "run")
        assert found == [f"pid {program.pid}"]
        assert process_locations.containers_without(tmp_path / "second" / "run") == []
        program.communicate("\n")
