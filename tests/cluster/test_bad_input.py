"""Bad input that differs between nodes, with a real head and real managers.

Nodes whose files differ are managers in mount namespaces of their own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from client_plugin.ways.faults import Fault
from tests.cluster.site import ENV, QUICK, USER, Site, site, submitted_as
from tests.support.limits import until
from tests.support.manager import Manager

pytestmark = pytest.mark.slow
CLONE_NEWNS = 0x20000
REC_PRIVATE, BIND = 0x44000, 0x1000
SOLO = 54_321


@pytest.fixture(scope="module")
def two() -> Iterator[Site]:
    with site(2, simulate="2x8GiB") as made:
        yield made


def with_mount(source: str, target: str, kind: str | None = None) -> Callable[[], None]:
    """For a manager's process before its exec: it alone sees this mount."""
    libc = ctypes.CDLL(None, use_errno=True)
    kind_b, flags = (None, BIND) if kind is None else (kind.encode(), 0)

    def mounts() -> None:
        if libc.unshare(CLONE_NEWNS) == 0:
            libc.mount(b"none", b"/", None, REC_PRIVATE, None)
            libc.mount(source.encode(), target.encode(), kind_b, flags, None)

    return mounts


@contextlib.contextmanager
def with_lines(path: Path, *lines: str) -> Iterator[Callable[[], None]]:
    """A manager's own /etc/passwd."""
    path.write_text(Path("/etc/passwd").read_text() + "".join(f"{line}\n" for line in lines))
    yield with_mount(str(path), "/etc/passwd")


@contextlib.contextmanager
def third(two: Site, simulate: str = "8x8GiB", before_exec: Callable[[], None] | None = None,
          **environment: str) -> Iterator[Manager]:  # fmt: skip
    """A node that leaves at the end."""
    node = Manager(simulate, environment={**QUICK, **environment}, before_exec=before_exec)
    two.nodes["gn3"] = node.start()
    two.join("gn3")
    yield node
    node.call("node_leave")
    two.nodes.pop("gn3").close()


def ended(two: Site, jobs: list[str]) -> list[dict[str, Any]]:
    rows = two.until_ended(*jobs)
    return [rows[job] for job in jobs]


def needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root makes a mount namespace and becomes another user")


def test_a_user_who_exists_on_one_node_only(two: Site) -> None:
    """The job goes from node to node until it is there."""
    needs_root()
    two.marks.touch()
    two.marks.chmod(0o666)
    with (
        with_lines(two.directory / "passwd", f"solo:x:{SOLO}:{SOLO}::/:/bin/sh") as mounts,
        third(two, "2x8GiB", mounts) as node,
    ):
        if "solo" not in Path(f"/proc/{node.pid}/root/etc/passwd").read_text():
            pytest.skip("this container lets nobody mount")
        two.head.call("env_set", env=ENV, gpus=1_000, users=[USER, "solo"])
        until(lambda: "solo" in node.call("quota_show", env=ENV)["quotas"][0]["users"])
        script = f"echo 1000 >> {two.marks}"
        jobs = [submitted_as(SOLO, node, number, script) for number in range(1, 4)]
        rows = ended(two, jobs)
        assert {(row["node"], row["state"]) for row in rows} == {("gn3", "done")}
        assert two.begun()[1000] == 3
        others = two.submit(name="gn1", count=3)
        assert {row["state"] for row in two.until_ended(*others).values()} == {"done"}
        two.head.call("env_set", env=ENV, gpus=1_000, users=[USER])


def test_a_directory_that_one_node_does_not_have(two: Site) -> None:
    needs_root()
    home = two.directory / "home"
    (home / "work").mkdir(parents=True)
    with third(two, before_exec=with_mount("none", str(home), "tmpfs")) as node:
        if Path(f"/proc/{node.pid}/root{home}/work").exists():
            pytest.skip("this container lets nobody mount")
        jobs = two.submit(count=4, cwd=str(home / "work"))
        rows = ended(two, jobs)
        assert {row["state"] for row in rows} == {"done"}
        assert "gn3" not in {row["node"] for row in rows}
        (large,) = two.submit(gpus=8, cwd=str(home / "work"))
        assert f"{home}/work: No such file" in two.until_ended(large)[large]["why"]


def test_gpus_of_other_sizes_and_a_job_larger_than_any_node(two: Site) -> None:
    with third(two, "1x80GiB"):
        (large,) = two.submit(memory_bytes=40 << 30)
        assert two.until_ended(large)[large]["node"] == "gn3"
        with pytest.raises(Fault, match=r"3 GPUs are more than any node has \(2\)"):
            two.submit(gpus=3)
    with pytest.raises(Fault, match="40 GiB of a GPU asked"):
        two.submit(memory_bytes=40 << 30)


def test_a_node_starts_no_job_as_root_unless_its_own_settings_say_so(two: Site) -> None:
    needs_root()
    with third(two, NODEMGR_CLUSTER_USERS=""):
        jobs = two.submit(count=6)
        rows = ended(two, jobs)
        assert {row["state"] for row in rows} == {"done"}
        assert "gn3" not in {row["node"] for row in rows}
        (large,) = two.submit(gpus=8)
        assert (
            "as root (uid 0): its cluster_users do not name it"
            in two.until_ended(large)[large]["why"]
        )


def test_a_join_word_is_used_once(two: Site) -> None:
    word = two.head.call("node_word", node="gn3")["word"]
    said = {"address": two.head.address, "word": word, "node": "gn3"}
    nodes = [Manager("1x8GiB", environment=QUICK).start() for _ in range(2)]
    try:
        first, second = nodes
        first.call("node_join", **said)
        with pytest.raises(Fault, match="word"):
            second.call("node_join", **said)
        until(lambda: two.row("gn3")["up"])
        first.call("node_leave")
    finally:
        for node in nodes:
            node.close()
