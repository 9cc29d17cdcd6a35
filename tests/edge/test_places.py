"""Containers by the names of cgroups, as engines make them, and by what the engines wrote down."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from nodemgr.edge import places

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
    assert places.container_in(cgroup) == container


def test_engines_know_what_they_called_it(tmp_path: Path) -> None:
    podman, docker = tmp_path / "containers.json", tmp_path / "docker"
    podman.write_text(json.dumps([{"id": INNER, "names": ["other"]}, {"id": ID, "names": ["web-1", "alias"]}]))
    assert places.name_of(ID, podman, docker) == "web-1"
    (docker / ("ab" * 32)).mkdir(parents=True)
    (docker / ("ab" * 32) / "config.v2.json").write_text('{"Name": "/db\\u001b[31m"}')
    assert places.name_of("ab" * 32, podman, docker) == "db [31m"


@pytest.mark.parametrize("text", ["", "[", "{}", "[1, null]", '[{"id": 5}]', f'[{{"id": "{ID}", "names": 7}}]'])
def test_what_cannot_be_read_names_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "containers.json").write_text(text)
    assert places.name_of(ID, tmp_path / "containers.json", tmp_path / "docker") is None


def test_a_process_of_this_node_is_in_no_namespace_and_one_that_is_gone_nowhere() -> None:
    assert places.place_of(os.getpid()).pid_inside is None
    assert places.place_of(2**22 + 1) == places.NOWHERE
