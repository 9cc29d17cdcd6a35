"""Both ends of a link in one loop, over loopback, with what each has reported."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from nodemgr.edge.links import keys
from nodemgr.edge.links.head_links import HeadLinks
from nodemgr.edge.links.node_link import NodeLink
from nodemgr.edge.links.pace import Pace
from tests.support.limits import WAIT_LIMIT_S

QUICK = Pace(
    beat_s=0.02, silent_s=WAIT_LIMIT_S, hello_s=WAIT_LIMIT_S, pause_s=0.01, longest_pause_s=0.1,
    handshake_s=0.0,
)  # fmt: skip
"""Nothing is silent before a test has failed."""
SHY = QUICK._replace(silent_s=0.3)
"""Silence is noticed soon."""


class Head:
    """A head that keeps what it hears."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, pace: Pace = QUICK, address: str = "127.0.0.1:0",
        pair: keys.KeyPair | None = None,
    ) -> None:  # fmt: skip
        self.loop, self.pace = loop, pace
        self.pair = pair or keys.new_pair()
        self.known: dict[str, str] = {}
        self.words: dict[str, str] = {}
        """By the public key of an open word: the key of the node that has used it."""
        self.heard: list[tuple[Any, ...]] = []
        self.links = self.open(address)

    def open(self, address: str) -> HeadLinks:
        return HeadLinks(
            self.loop, address, self.pair, self.known, self.words.__contains__,
            {"head": "lab", "generation": 1}, self, self.pace,
        )  # fmt: skip

    def joined(self, word: str, node: str, key: str, said: Any) -> dict[str, Any]:
        if self.words[word] not in ("", key):
            return {"error": "the word was used"}
        self.words[word] = self.known[node] = key
        return {}

    def synced(self, node: str, session: int, said: Any) -> None:
        self.heard.append(("synced", node, said.get("boot")))

    def message(self, node: str, session: int, said: Any) -> None:
        self.heard.append(("message", node, said["t"], said.get("text")))

    def silent(self, node: str, session: int) -> None:
        self.heard.append(("silent", node))


class Node:
    def __init__(self, head: Head, name: str, pair: keys.KeyPair | None = None, *,
                 known: bool = True, address: str = "", pace: Pace = QUICK) -> None:  # fmt: skip
        self.name = name
        self.pair = pair or keys.new_pair()
        if known:
            head.known[name] = self.pair.public
        self.heard: list[Any] = []
        self.hellos = 0
        self.link = NodeLink(
            head.loop, address or head.links.address, head.pair.public, self.pair, self.hello,
            lambda frame: self.heard.append(frame.get("text")),
            lambda welcome: self.heard.append(welcome and welcome.get("head")), pace,
        )  # fmt: skip

    def hello(self) -> dict[str, Any]:
        self.hellos += 1
        return {"boot": self.hellos}


class Ends:
    """The loop, and what to close at the end."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.open: list[Any] = []

    def head(self, pace: Pace = QUICK, **more: Any) -> Head:
        head = Head(self.loop, pace, **more)
        self.open.append(head.links)
        return head

    def node(self, head: Head, name: str = "gn1", **more: Any) -> Node:
        node = Node(head, name, **more)
        self.open.append(node.link)
        return node

    def until(self, holds: Callable[[], Any]) -> None:
        async def wait() -> None:
            while not holds():
                await asyncio.sleep(0.002)

        self.loop.run_until_complete(asyncio.wait_for(wait(), WAIT_LIMIT_S))


@contextlib.contextmanager
def ends() -> Iterator[Ends]:
    both = Ends()
    try:
        yield both
    finally:
        for link in reversed(both.open):
            link.close()
        both.loop.close()
