"""The link over bad networks: delay, cuts within a frame, silence, partitions, reconnection.

A small proxy stands between both ends, and delays, swallows or cuts what passes. In namespaces of
their own with a veth pair the kernel loses packets (iptables' statistic). TCP keeps the order of
one connection; what a network reorders is the end of one and the beginning of the next.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from nodemgr.edge.links import keys
from nodemgr.edge.links.pace import Pace
from tests.edge.links.ends import QUICK, SHY, Ends, ends
from tests.edge.links.test_head_links import up
from tests.edge.links.wire import Wire
from tests.support.examples import examples


@pytest.fixture
def both() -> Iterator[Ends]:
    with ends() as opened:
        yield opened


class Told:
    """Numbered words both ways. In each session they come in order, without a gap."""

    def __init__(self, both: Ends, pace: Pace) -> None:
        self.both = both
        self.head = both.head(pace)
        self.wire = Wire(both.loop, self.head.links.address)
        self.node = both.node(self.head, address=self.wire.address, pace=pace)
        both.open.append(self.wire)
        up(both, self.head, self.node)
        self.count = 0

    def say(self, count: int) -> None:
        for _ in range(count):
            self.count += 1
            self.node.link.send("report", text=self.count)
            self.head.links.say("gn1", "assign", text=self.count)

    def ordered(self) -> None:
        """Within a session each end heard a part of what was said, without a hole in it."""
        for heard, begins in (
            ([row[0] if row[0] != "message" else row[3] for row in self.head.heard], "synced"),
            (self.node.heard, "lab"),
        ):
            before = None
            for one in heard:
                if not isinstance(one, int):
                    before = None
                    assert one in (begins, "silent", None)
                    continue
                assert before is None or one == before + 1, heard[-50:]
                before = one

    def goes_on(self) -> None:
        """A word said from now on, again until it is heard, reaches the other end."""

        def is_heard() -> bool:
            self.say(1)
            return self.head.heard[-1][-1] == self.count - 1 or isinstance(
                self.head.heard[-1][-1], int
            )

        self.both.until(lambda: self.node.link.is_up and "gn1" in self.head.links.sessions())
        self.both.until(is_heard)


def test_words_over_a_slow_way_come_in_order(both: Ends) -> None:
    told = Told(both, QUICK)
    told.wire.delay_s = lambda: random.choice((0.0, 0.0, 0.001, 0.004))
    told.say(200)
    both.until(lambda: told.head.heard[-1][-1] == 200 and told.node.heard[-1] == 200)
    told.ordered()
    assert told.node.hellos == 1


@pytest.mark.parametrize("seed", range(examples(4)))
def test_connections_that_are_cut_anywhere(both: Ends, seed: int) -> None:
    """In the handshake, within a frame, before the welcome: no session has a hole."""
    dice = random.Random(seed)
    told = Told(both, QUICK)
    for _ in range(12):
        told.say(dice.randrange(20))
        passed = told.wire.passed + dice.randrange(3_000)
        both.until(lambda passed=passed: told.wire.passed >= passed)  # type: ignore[misc]
        told.wire.cut()
    told.goes_on()
    told.ordered()
    assert told.node.hellos > 3


def test_a_partition_that_heals(both: Ends) -> None:
    """Nothing ends the connection: both ends notice the silence, and begin anew."""
    told = Told(both, SHY)
    told.say(20)
    told.wire.is_silent = True
    both.until(lambda: not told.node.link.is_up and not told.head.links.sessions())
    told.say(20)  # lost: nobody is there
    told.wire.is_silent = False
    told.goes_on()
    told.ordered()
    assert ("silent", "gn1") in told.head.heard


def test_the_late_bytes_of_an_old_connection_come_after_the_new_hello(both: Ends) -> None:
    """The order at a reconnection: what the first one held is not heard in the second session."""
    told = Told(both, SHY)
    old = told.wire
    told.say(5)
    both.until(lambda: told.head.heard[-1][-1] == 5)
    old.is_silent = True
    told.say(5)
    other = Wire(both.loop, told.head.links.address)
    both.open.append(other)
    second = both.node(told.head, pair=told.node.pair, address=other.address)
    up(both, told.head, second)
    session = told.head.links.sessions()["gn1"]
    count = len(told.head.heard)
    old.is_silent, old.is_shut = False, True
    second.link.send("report", text="after")
    both.until(lambda: ("message", "gn1", "report", "after") in told.head.heard)
    late = [row for row in told.head.heard[count:] if row[0] == "message" and row[3] != "after"]
    assert late == []
    assert told.head.links.sessions()["gn1"] == session


# -- packets that are lost: two network namespaces and a veth pair --

TOOLS = ("ip", "iptables", "unshare", "nsenter")


def _run(*command: str) -> bool:
    done = subprocess.run(command, capture_output=True, check=False)
    return done.returncode == 0


@contextlib.contextmanager
def network() -> Iterator[tuple[str, str]]:
    """Two namespaces, 10.99.7.1 (the head's, where the test's threads go) and 10.99.7.2."""
    if os.geteuid() != 0 or not all(map(shutil.which, TOOLS)):
        pytest.skip("only root makes namespaces, by ip and iptables")
    names = f"nmh{os.getpid()}", f"nmn{os.getpid()}"
    try:
        for name in names:
            if not _run("ip", "netns", "add", name):
                pytest.skip("this kernel or container lets nobody make network namespaces")
        ends_of = [f"{name}v" for name in names]
        made = ["ip", "link", "add", ends_of[0], "netns", names[0], "type", "veth", "peer", "name",
                ends_of[1], "netns", names[1]]  # fmt: skip
        if not _run(*made):
            pytest.skip("this kernel has no veth")
        for number, (name, end) in enumerate(zip(names, ends_of, strict=True), 1):
            inside = "ip", "netns", "exec", name
            assert _run(*inside, "ip", "addr", "add", f"10.99.7.{number}/24", "dev", end)
            assert _run(*inside, "ip", "link", "set", end, "up")
        yield names
    finally:
        for name in names:
            _run("ip", "netns", "del", name)


FAR = r"""
import asyncio, sys
from nodemgr.edge.links.keys import KeyPair
from nodemgr.edge.links.node_link import NodeLink
from nodemgr.edge.links.pace import PACE
address, head_key, public, secret = sys.argv[1:]
loop = asyncio.new_event_loop()
PACE = PACE._replace(pause_s=0.05, longest_pause_s=1.0)
link = NodeLink(
    loop, address, head_key, KeyPair(public, secret), lambda: {"boot": 1},
    lambda frame: link.send("report", text=frame["text"]), lambda welcome: None, PACE,
)
loop.run_forever()
"""


def test_a_network_that_loses_packets_and_is_cut(both: Ends) -> None:
    """A fifth of the packets each way is lost; then all are, and then none."""
    with network() as (ours, theirs):
        home = os.open("/proc/self/ns/net", os.O_RDONLY)
        away = os.open(f"/run/netns/{ours}", os.O_RDONLY)
        far: subprocess.Popen[bytes] | None = None
        try:
            _enter(away)  # this thread and those of ZeroMQ that it begins
            head = both.head(QUICK._replace(beat_s=1.0, silent_s=5.0), address="10.99.7.1:7471")
            pair = keys.new_pair()
            head.known["gn1"] = pair.public
            far = subprocess.Popen(
                ["ip", "netns", "exec", theirs, sys.executable, "-c", FAR, head.links.address,
                 head.pair.public, *pair],
            )  # fmt: skip
            both.until(lambda: "gn1" in head.links.sessions())
            rule = ["INPUT", "-m", "statistic", "--mode", "random", "--probability", "0.2",
                    "-j", "DROP"]  # fmt: skip
            filters = "iptables", "--wait"  # another run of the tests may have its lock
            for name in (ours, theirs):
                if not _run("ip", "netns", "exec", name, *filters, "-A", *rule):
                    pytest.skip("this kernel loses no packets on purpose")
            _echoes(both, head, 200)
            drop = ["ip", "netns", "exec", theirs, *filters, "-I", "INPUT", "-j", "DROP"]
            assert _run(*drop)
            both.until(lambda: not head.links.sessions())
            assert _run(*drop[:4], *filters, "-F")
            both.until(lambda: "gn1" in head.links.sessions())
            _echoes(both, head, 200)
        finally:
            if far is not None:
                far.kill()
                far.wait()
            _enter(home)
            os.close(home)
            os.close(away)


def _enter(namespace: int) -> None:
    assert ctypes.CDLL(None, use_errno=True).setns(namespace, 0x40000000) == 0


def _echoes(both: Ends, head: Any, count: int) -> None:
    """So many words go there and come back; one that a lost session took is said again."""
    for number in range(count):
        word = f"{number} of {len(head.heard)}"
        said: dict[str, int] = {}

        def is_back(word: str = word, said: dict[str, int] = said) -> bool:
            session = head.links.sessions().get("gn1")
            if session is not None and said.get("in") != session:
                said["in"] = session
                head.links.say("gn1", "assign", text=word)
            return ("message", "gn1", "report", word) in head.heard[-5:]

        both.until(is_back)
