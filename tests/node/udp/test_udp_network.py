"""Manager and clients in two network namespaces with a lossy link and nothing shared.

The client's clock is another one, too: in a time namespace CLOCK_MONOTONIC is twelve days ahead.
Needs root, and netem or nftables in the kernel. All namespaces are the test's own and go with it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.node.programs import finish, said
from tests.support.manager import HOLD, Manager

CLONE_NEWNET = 0x40000000
AHEAD_S = 1_000_000
PORT = 7_311
QUICK = {"NODEMGR_BEAT_MS": "100", "NODEMGR_TIMEOUT_MS": "4000"}
GIB = 2**30

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc", "nft", "nsenter", "unshare"))),
    reason="only root makes namespaces, by ip, tc, nft, nsenter and unshare",
)


def run(*command: str) -> bool:
    return (
        subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
        ).returncode
        == 0
    )


class Side:
    """A namespace with one end of the link."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.device = f"{name}v"
        self.address = address

    def run(self, *command: str) -> bool:
        return run("ip", "netns", "exec", self.name, *command)

    def up(self) -> None:
        assert self.run("ip", "link", "set", "lo", "up")
        assert self.run("ip", "addr", "add", f"{self.address}/24", "dev", self.device)
        assert self.run("ip", "link", "set", self.device, "up")

    def spoil(self) -> bool:
        """From now on the link loses many packets; with netem it doubles and reorders, too."""
        netem = (
            "netem",
            "delay",
            "3ms",
            "2ms",
            "reorder",
            "25%",
            "loss",
            "20%",
            "duplicate",
            "20%",
        )
        if self.run("tc", "qdisc", "add", "dev", self.device, "root", *netem):
            return True
        chain = "add chain inet lossy arriving { type filter hook input priority 0; }"
        rule = (
            "add rule inet lossy arriving meta l4proto udp numgen random mod 100 < 30 counter drop"
        )
        return all(self.run("nft", text) for text in ("add table inet lossy", chain, rule))


class Link:
    def __init__(self) -> None:
        self.manager, self.clients = (
            Side(f"nm{os.getpid()}m", "10.213.77.1"),
            Side(f"nm{os.getpid()}c", "10.213.77.2"),
        )

    def make(self) -> None:
        one, other = self.manager, self.clients
        for side in (one, other):
            if not run("ip", "netns", "add", side.name):
                pytest.skip("this kernel or container lets nobody make network namespaces")
        if not run(
            "ip",
            "link",
            "add",
            one.device,
            "netns",
            one.name,
            "type",
            "veth",
            "peer",
            "name",
            other.device,
            "netns",
            other.name,
        ):
            pytest.skip("this kernel has no veth")
        one.up()
        other.up()

    def spoil(self) -> None:
        if not (self.manager.spoil() and self.clients.spoil()):
            pytest.skip("this kernel has neither netem nor nftables' numgen")

    def cut(self, is_cut: bool) -> None:
        assert self.clients.run(
            "ip", "link", "set", self.clients.device, "down" if is_cut else "up"
        )

    def close(self) -> None:
        for side in (self.manager, self.clients):
            run("ip", "netns", "del", side.name)


@pytest.fixture
def link() -> Iterator[Link]:
    link = Link()
    try:
        link.make()
        yield link
    finally:
        link.close()


@pytest.fixture
def node(link: Link) -> Iterator[Manager]:
    libc = ctypes.CDLL(None, use_errno=True)
    namespace = os.open(f"/run/netns/{link.manager.name}", os.O_RDONLY)
    options = ["--udp", f"{link.manager.address}:{PORT}"]
    node = Manager(
        "2x8GiB", options, QUICK, before_exec=lambda: libc.setns(namespace, CLONE_NEWNET)
    )
    try:
        node.start()
        node.quota("alice", 1, memory_bytes=4 * GIB)
        yield node
    finally:
        node.close()
        os.close(namespace)


class Remote:
    """The env's directory as it was copied to a machine beyond the link."""

    def __init__(self, node: Manager, link: Link) -> None:
        self._node = node
        self.directory = node.directory / "remote"
        shutil.copytree(node.state_dir / "keys" / "alice", self.directory)
        later = (
            "unshare",
            "--time",
            "--monotonic",
            str(AHEAD_S),
            "--boottime",
            str(AHEAD_S),
            "--fork",
            "--kill-child",
        )
        self._way = ["nsenter", f"--net=/run/netns/{link.clients.name}", *later]

    def hold(self, *options: str) -> subprocess.Popen[str]:
        return self._node.spawn(
            "alice", [*self._way, str(HOLD), *options], NODEMGR_ENV_DIR=str(self.directory)
        )


def test_a_life_over_a_bad_link(node: Manager, link: Link) -> None:
    """Asked, beaten for, released: through all losses it is one lease and no silence."""
    link.spoil()
    events = node.events(since=None)
    program = Remote(node, link).hold("-b", str(GIB))
    assert said(program)["error"] is None
    granted = events.expect("task.granted", env="alice")
    for _ in range(3):  # longer than the timeout
        events.expect_nothing(1.0)
    assert finish(program)[0] == 0
    events.expect("task.ended", task=granted["task"])
    status = node.status()
    assert (status["tasks"], status["queue"], status["counters"]["packets_forged"]) == ([], [], 0)
    assert len(node.call("allocations")["allocations"]) == 1


def test_who_is_cut_off_loses_his_lease_and_hears_so_when_the_link_is_back(
    node: Manager, link: Link
) -> None:
    link.spoil()
    events = node.events(since=None)
    program = Remote(node, link).hold("-b", str(GIB))
    said(program)
    link.cut(True)
    ended = events.expect("task.ended")
    assert "silent" in ended["why"]
    assert node.status()["gpus"][0]["tasks"] == 0
    link.cut(False)
    assert program.stderr is not None
    told = next(line for line in program.stderr if "no answer from the manager" not in line)
    assert "new allocations are refused" in told
    finish(program)
    assert node.status()["tasks"] == []


def test_who_dies_beyond_the_link_is_reclaimed(node: Manager, link: Link) -> None:
    link.spoil()
    events = node.events(since=None)
    program = Remote(node, link).hold()
    said(program)
    program.kill()
    assert "silent" in events.expect("task.ended")["why"]
    assert node.status()["gpus"][0]["tasks"] == 0
