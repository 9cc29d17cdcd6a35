"""Connections of strangers to a head's port: their number is bounded, and nodes find it open."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator

import pytest

from nodemgr.edge.links import keys
from nodemgr.edge.links.joining import Joining
from nodemgr.edge.links.pace import MAX_UNPROVED
from tests.edge.links.ends import QUICK, Ends, Head, ends
from tests.edge.links.test_head_links import up
from tests.edge.links.wire import Wire


@pytest.fixture
def both() -> Iterator[Ends]:
    with ends() as opened:
        yield opened


class Silent:
    """Half-open connections: the handshake never comes."""

    def __init__(self, head: Head) -> None:
        host, _, port = head.links.address.rpartition(":")
        self.at, self.open = (host.strip("[]"), int(port)), list[socket.socket]()

    def connect(self, count: int) -> None:
        for _ in range(count):
            self.open.append(socket.create_connection(self.at))

    def ended(self) -> int:
        poll = select.poll()
        for one in self.open:
            poll.register(one, select.POLLRDHUP)
        return len(poll.poll(0))

    def close(self) -> None:
        for one in self.open:
            one.close()


def test_the_oldest_silent_connection_ends_when_there_are_too_many(both: Ends) -> None:
    head = both.head()
    first = both.node(head)
    up(both, head, first)
    strangers = Silent(head)
    both.open.append(strangers)
    for _ in range(4):
        strangers.connect(MAX_UNPROVED // 2)
    both.until(lambda: strangers.ended() >= MAX_UNPROVED)
    assert len(head.links._unproved) <= MAX_UNPROVED
    assert head.links.sessions().keys() == {"gn1"}
    late = both.node(head, "gn2")
    up(both, head, late)
    strangers.connect(2 * MAX_UNPROVED)
    both.until(lambda: strangers.ended() >= 3 * MAX_UNPROVED)
    assert head.links.sessions().keys() == {"gn1", "gn2"}, "they have proved their keys"
    assert (first.hellos, late.hellos) == (1, 1)


def test_a_head_ends_beside_a_flood_that_it_has_not_seen(both: Ends) -> None:
    """ZeroMQ's thread never waits for the loop, which waits for that thread at its end."""
    head = both.head()
    host, _, port = head.links.address.rpartition(":")
    for _ in range(1_200):
        socket.create_connection((host, int(port))).close()
    head.links.close()
    both.open.remove(head.links)


def test_connections_that_have_ended_are_not_counted(both: Ends) -> None:
    head = both.head()
    strangers = Silent(head)
    strangers.connect(50)
    both.until(lambda: len(head.links._unproved) == 50)
    strangers.close()
    both.until(lambda: len(head.links._unproved) == 0)
    nobody = both.node(head, "gn3", known=False)
    both.until(lambda: "does not know" in nobody.link.why)
    nobody.link.close()
    both.until(lambda: len(head.links._unproved) == 0)
    assert head.links._unproved.ended == 0


def test_a_word_that_is_replayed_is_no_word(both: Ends) -> None:
    """A listener has what is of that connection alone, since keys are new in each."""
    head = both.head()
    word = keys.new_word(head.pair.public)
    head.words[word.pair.public] = ""
    heard: list[bytes] = []
    wire = Wire(both.loop, head.links.address, heard.append)
    both.open.append(wire)
    outcome: list[object] = []
    said = {"node": "gn1", "key": keys.new_pair().public}
    Joining(both.loop, wire.address, word, said, outcome.append, QUICK)
    both.until(lambda: outcome)
    known = dict(head.known)
    assert known
    head.words[word.pair.public] = ""  # even if it could be used again
    replay = socket.create_connection(("127.0.0.1", int(head.links.address.rpartition(":")[2])))
    replay.setblocking(False)
    replay.sendall(b"".join(heard))
    both.until(lambda: _is_over(replay))
    replay.close()
    assert head.words[word.pair.public] == ""
    assert head.known == known


def _is_over(one: socket.socket) -> bool:
    try:
        return one.recv(65_536) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
