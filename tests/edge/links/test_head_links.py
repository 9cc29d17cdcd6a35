"""The link's two ends together: sessions, gaps, silence, strangers, words, floods.

Each test drives real sockets over loopback in one loop; test_lossy_links.py has lossy
networks.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from nodemgr.edge.links import keys
from nodemgr.edge.links.frames import MAX_FRAME_BYTES, FrameTooLong, encode
from nodemgr.edge.links.joining import Joining
from nodemgr.edge.links.pace import MAX_FRAMES
from tests.edge.links.ends import QUICK, SHY, Ends, Head, Node, ends
from tests.support.limits import WAIT_LIMIT_S


@pytest.fixture
def both() -> Iterator[Ends]:
    with ends() as opened:
        yield opened


def up(both: Ends, head: Head, node: Node) -> None:
    both.until(lambda: node.link.is_up and node.name in head.links.sessions())


def test_a_known_node_says_hello_and_both_hear_each_other_in_order(both: Ends) -> None:
    head = both.head()
    node = both.node(head)
    up(both, head, node)
    assert head.heard == [("synced", "gn1", 1)]
    assert node.heard == ["lab"]
    for number in range(300):
        assert node.link.send("report", text=number)
        assert head.links.say("gn1", "assign", text=number)
    both.until(lambda: len(head.heard) == 301 and len(node.heard) == 301)
    assert [row[3] for row in head.heard[1:]] == list(range(300))
    assert node.heard[1:] == list(range(300))
    # the welcome is a frame too
    assert head.links.counts == {"said": 301, "heard": 300}


def test_a_stranger_ends_at_the_handshake_and_hears_why(both: Ends) -> None:
    head = both.head()
    stranger = both.node(head, known=False)
    both.until(lambda: "does not know" in stranger.link.why)
    assert stranger.hellos == 0
    assert head.heard == []
    head.known["gn1"] = stranger.pair.public  # it is tried again, and the head knows it now
    up(both, head, stranger)


def test_another_heads_key_is_no_head(both: Ends) -> None:
    head, other = both.head(), both.head()
    lost = both.node(other, address=head.links.address)
    both.until(lambda: lost.link.why.startswith(("the peer", "the connection", "nothing")))
    assert not lost.link.is_up
    assert lost.hellos == 0


def test_a_gap_in_the_numbers_ends_the_session_and_a_new_one_begins_with_a_hello(
    both: Ends,
) -> None:
    head = both.head()
    node = both.node(head)
    up(both, head, node)
    node.link._numbers.stamped("report", {})  # type: ignore[union-attr]  # lost on the way
    node.link.send("report", text="after the gap")
    both.until(lambda: head.heard[-1] == ("synced", "gn1", 2))
    assert head.heard == [("synced", "gn1", 1), ("silent", "gn1"), ("synced", "gn1", 2)]
    head.links._sessions["gn1"].numbers.stamped("assign", {})
    head.links.say("gn1", "assign", text="after the gap")
    both.until(lambda: head.heard[-1] == ("synced", "gn1", 3))
    assert "after the gap" not in node.heard


def test_a_second_hello_of_a_key_ends_the_first_session(both: Ends) -> None:
    """A copied node: the two never share a session, and neither is heard under the other's."""
    head = both.head()
    first = both.node(head)
    up(both, head, first)
    session = head.links.sessions()["gn1"]
    both.node(head, pair=first.pair)
    both.until(lambda: head.links.sessions().get("gn1", session) != session)
    assert ("silent", "gn1") in head.heard


def test_a_silent_node_is_noticed_and_so_is_a_silent_head(both: Ends) -> None:
    head = both.head(SHY)
    node = both.node(head)
    up(both, head, node)
    node.link._timer.cancel()  # as a process that is stopped
    both.until(lambda: head.heard[-1] == ("silent", "gn1"))
    assert head.links.counts["silent"] == 1
    quiet = both.node(head, "gn2", pace=SHY)
    up(both, head, quiet)
    head.links._timer.cancel()
    both.until(lambda: not quiet.link.is_up)
    assert quiet.heard == ["lab", None]


def test_a_head_that_begins_again_gets_a_hello_of_each_node(both: Ends) -> None:
    head = both.head()
    nodes = [both.node(head, f"gn{number}") for number in range(5)]
    for node in nodes:
        up(both, head, node)
    address = head.links.address
    head.links.close()
    both.until(lambda: not any(node.link.is_up for node in nodes))
    assert all("end" in node.link.why or "nothing" in node.link.why for node in nodes)
    head.links = head.open(address)
    both.open[0] = head.links
    for node in nodes:
        up(both, head, node)
        assert node.hellos == 2


def test_a_node_that_left_is_not_heard_any_more(both: Ends) -> None:
    head = both.head()
    node = both.node(head)
    up(both, head, node)
    del head.known["gn1"]
    head.links.forget("gn1")
    both.until(lambda: "does not know" in node.link.why)
    assert head.links.sessions() == {}
    assert not head.links.say("gn1", "assign")


def join(both: Ends, head: Head, word: keys.OneTimeWord, node: str, pair: keys.KeyPair) -> Any:
    outcome: list[Any] = []
    Joining(
        both.loop, head.links.address, word, {"node": node, "key": pair.public}, outcome.append,
        QUICK,
    )  # fmt: skip
    both.until(lambda: outcome)
    return outcome[0]


def test_a_word_joins_one_node_and_is_refused_to_another(both: Ends) -> None:
    head = both.head()
    word = keys.new_word(head.pair.public)
    node, thief = keys.new_pair(), keys.new_pair()
    assert "does not know" in join(both, head, word, "gn1", node)  # the head has not given it
    head.words[word.pair.public] = ""
    assert join(both, head, word, "gn1", node)["head"] == "lab"
    assert join(both, head, word, "gn1", node)["head"] == "lab"  # the first answer was lost
    assert join(both, head, word, "gn2", thief)["error"] == "the word was used"
    assert head.known == {"gn1": node.public}
    up(both, head, both.node(head, "gn1", pair=node))
    del head.words[word.pair.public]
    assert "does not know" in join(both, head, word, "gn1", node)


def test_the_key_of_a_word_may_only_join(both: Ends) -> None:
    head = both.head()
    word = keys.new_word(head.pair.public)
    head.words[word.pair.public] = ""
    node = both.node(head, pair=word.pair, known=False)
    both.until(lambda: head.links.counts["unknown"])
    assert head.heard == []
    assert not node.link.is_up


class Rogue:
    """A socket with a known key, which sends what it likes."""

    def __init__(self, both: Ends, head: Head, name: str = "rogue") -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        pair = keys.new_pair()
        head.known[name] = pair.public
        self.socket.curve_publickey = pair.public.encode()
        self.socket.curve_secretkey = pair.secret.encode()
        self.socket.curve_serverkey = head.pair.public.encode()
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(f"tcp://{head.links.address}")
        both.open.append(self)

    def close(self) -> None:
        self.socket.close()
        self.context.term()


def test_garbage_of_a_known_node_is_dropped_and_counted(both: Ends) -> None:
    head = both.head()
    node = both.node(head)
    up(both, head, node)
    rogue = Rogue(both, head)
    rogue.socket.send(b"\xff\xfe")
    rogue.socket.send_multipart([b"one", b"two"])
    rogue.socket.send(b'{"t":"join"}')
    rogue.socket.send(encode("report", {}, 77, 1))  # of a session that never was
    both.until(lambda: head.links.counts["garbage"] >= 3 and head.links.counts["late"])
    assert head.links.sessions().keys() == {"gn1"}
    assert ("silent", "gn1") not in head.heard


def test_a_frame_beyond_the_limit_is_not_sent_and_one_that_is_sent_ends_its_connection(
    both: Ends,
) -> None:
    head = both.head()
    node = both.node(head)
    up(both, head, node)
    with pytest.raises(FrameTooLong):
        node.link.send("report", text="a" * 2**20)
    assert node.link.send("report", text="short")
    rogue = Rogue(both, head)
    rogue.socket.send(b"a" * (2**20 + 1))
    rogue.socket.send(b"garbage that never arrives")
    both.until(lambda: ("message", "gn1", "report", "short") in head.heard)
    assert head.links.sessions().keys() == {"gn1"}


def test_a_node_that_floods_loses_its_session_and_no_other_does(both: Ends) -> None:
    head = both.head(QUICK._replace(beat_s=WAIT_LIMIT_S))  # the flood is within one beat
    node, other = both.node(head), both.node(head, "gn2")
    up(both, head, node)
    up(both, head, other)
    for number in range(2 * MAX_FRAMES):
        if not node.link.send("report", text=number):
            break
    both.until(lambda: head.links.counts["flood"] or head.links.counts["gap"] or
               ("silent", "gn1") in head.heard)  # fmt: skip
    assert ("silent", "gn2") not in head.heard


def test_a_node_that_sends_the_longest_frames_loses_its_session_and_no_other_does(
    both: Ends,
) -> None:
    """A turn of the loop reads a mebibyte, and a beat's time has eight."""
    head = both.head(QUICK._replace(beat_s=WAIT_LIMIT_S))
    node, other = both.node(head), both.node(head, "gn2")
    up(both, head, node)
    up(both, head, other)
    text = "a" * (MAX_FRAME_BYTES - 1_000)
    for _ in range(12):
        node.link.send("report", text=text)
        other.link.send("report", text="beside it")
    both.until(lambda: head.links.counts["flood"])
    both.until(lambda: head.heard.count(("message", "gn2", "report", "beside it")) == 12)
    heard = [row for row in head.heard if row[:2] == ("message", "gn1")]
    assert len(heard) <= 2**23 // MAX_FRAME_BYTES + 1
    assert ("silent", "gn2") not in head.heard


def test_a_fault_in_an_event_harms_no_other_node(
    both: Ends, capsys: pytest.CaptureFixture[str]
) -> None:
    head = both.head()
    node, other = both.node(head), both.node(head, "gn2")
    up(both, head, node)
    up(both, head, other)
    heard = head.heard
    head.heard = None  # type: ignore[assignment]
    node.link.send("report", text="a fault")
    both.until(lambda: "in a frame of the cluster" in capsys.readouterr().err)
    head.heard = heard
    other.link.send("report", text="after it")
    both.until(lambda: ("message", "gn2", "report", "after it") in heard)


def test_strangers_on_the_port_harm_no_session(both: Ends) -> None:
    """Bytes that are no handshake, connections without a word, and many of them."""
    head = both.head()
    node = both.node(head)
    up(both, head, node)
    host, _, port = head.links.address.rpartition(":")
    strangers = []
    for number in range(200):
        one = socket.create_connection((host.strip("[]"), int(port)))
        if number % 2:
            one.sendall(b"GET / HTTP/1.1\r\n\r\n" * 20)
        strangers.append(one)
    assert node.link.send("report", text="still here")
    both.until(lambda: head.heard[-1][-1] == "still here")
    for one in strangers:
        one.close()
    assert head.links.sessions().keys() == {"gn1"}
    assert node.hellos == 1
