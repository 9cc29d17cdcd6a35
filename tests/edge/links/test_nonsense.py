"""Frames of the link itself with fields of a wrong form, both ways: nothing raises.

A session ends or goes on, and the node is up again after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from nodemgr.edge.links.frames import decode
from tests.edge.links.ends import QUICK, Ends, Head, Node, ends
from tests.edge.links.test_head_links import Rogue, up
from tests.wrong import spoiled

HELLO = {"t": "hello", "name": "rogue", "version": 1}
FRAMES: tuple[dict[str, Any], ...] = (
    {"t": "beat", "s": 1, "n": 1}, {"t": "report", "s": 1, "n": 1, "number": 1}, HELLO,
    {"t": "join", "node": "x", "key": "k", "envs": [], "take_over": False}, {"t": "welcome"},
    {"t": "over", "why": "x", "of": 1},
)  # fmt: skip
WELCOME = {"t": "welcome", "s": 5, "n": 1, "head": "lab", "generation": 1, "spread_ms": 0}
OVER = {"t": "over", "why": "an end", "of": 5}


@pytest.fixture
def both() -> Iterator[Ends]:
    with ends() as opened:
        yield opened


def raw(frame: dict[str, Any]) -> bytes:
    return json.dumps(frame).encode()


def test_a_node_says_nonsense_to_the_link(both: Ends, capfd: pytest.CaptureFixture[str]) -> None:
    head = both.head()
    node = both.node(head)
    up(both, head, node)
    rogue = Rogue(both, head)
    count = 0
    for frame in FRAMES:
        for bad in spoiled(frame):
            rogue.socket.send(raw(bad))
            count += 1
    node.link.send("report", text="still here")
    both.until(lambda: ("message", "gn1", "report", "still here") in head.heard)
    rogue.socket.send(raw(HELLO))
    both.until(lambda: "rogue" in head.links.sessions())
    assert head.links.counts["garbage"] > 20
    assert head.links.counts["late"] > 20
    assert node.hellos == 1
    assert "Traceback" not in capfd.readouterr().err


def test_a_head_says_nonsense_to_the_link(both: Ends, capfd: pytest.CaptureFixture[str]) -> None:
    head = both.head()
    node = Quick(head)
    both.open.append(node.link)
    for frame in (WELCOME, OVER, {"t": "beat", "s": 5, "n": 2}):
        for bad in spoiled(frame):
            both.until(lambda: node.link._dealer is not None)
            known = decode(raw(bad))
            if known is not None:
                node.link._take(known)
    up(both, head, node)
    assert "Traceback" not in capfd.readouterr().err


class Quick(Node):
    """A node of which the next try comes at once, however often it failed."""

    def __init__(self, head: Head) -> None:
        super().__init__(head, "gn1", pace=QUICK._replace(longest_pause_s=0.01))
