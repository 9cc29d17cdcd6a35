"""Containers on a node of a cluster: all verbs work there, and their own jobs stay there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from client_plugin.ways.choice import UserWay
from tests.cluster.site import QUICK, Head
from tests.containers.conftest import container_node
from tests.containers.podman import Containers
from tests.support.limits import until
from tests.support.manager import HOLD, Manager

pytestmark = pytest.mark.slow


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    made = Head(tmp_path / "head")
    made.start()
    yield made
    made.kill()


@pytest.fixture
def node(
    make_manager: Callable[..., Manager], kind: str, timeout_ms: int, head: Head
) -> Iterator[Manager]:
    """It has joined the head, and has an environment of the cluster."""
    settings = {"NODEMGR_TIMEOUT_MS": str(timeout_ms), **QUICK}
    for manager in container_node(make_manager, kind, **settings):
        word = head.call("node_word", node="gn1")["word"]
        manager.call("node_join", address=head.address, word=word, node="gn1", take_over=False)
        head.call("env_set", env="team", gpus=2, users=["root"])
        until(lambda: manager.env_dir("team").exists())  # noqa: B023
        yield manager


def test_a_container_on_a_node_of_a_cluster(
    node: Manager, containers: Containers, head: Head
) -> None:
    box = containers.start("team")

    def says(*words: str) -> tuple[int, str]:
        return containers.execute(box, *words)

    here = ("--gpus", "1", "--", "/bin/sh", "-c", "echo container")
    refused = "nodemgr: a job of a container runs where its container is: `nodemgr submit --here`\n"
    assert says("nodemgr", "submit", *here) == (1, refused)
    code, job = says("nodemgr", "submit", "--here", *here)
    assert (code, job) == (0, "j1\n")
    assert says("nodemgr", "wait", "j1") == (0, "")
    assert says("nodemgr", "logs", "j1") == (0, "container\n")
    given = {
        "argv": ["/bin/sh", "-c", "echo node; sleep 3"], "cwd": "/", "gpus": 1,
        "environ": ["PATH=/usr/bin:/bin"], "key": f"{7:032x}",
    }  # fmt: skip
    assert UserWay(node.env_dir("team")).ask("job_submit", **given)["job"] == "c1"
    assert says("nodemgr", "logs", "--follow", "c1")[1].endswith("node\n")
    assert says("nodemgr", "wait", "c1") == (0, "")
    assert says("nodemgr", "history")[1].split("\n")[1].split()[:4] == ["c1", "gn1", "team", "done"]
    assert "gn1:0" in says("nodemgr", "status", "--cluster")[1]
    assert says(str(HOLD), "-s", "0")[0] == 0, "an interactive grant"
