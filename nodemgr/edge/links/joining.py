"""A node's question to a head with a word: may it join?

Knows: one connection with the word's key, its one answer. Must not know: what the answer changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import zmq

from nodemgr.edge.links.frames import Frame, encode
from nodemgr.edge.links.keys import OneTimeWord
from nodemgr.edge.links.node_link import Dealer
from nodemgr.edge.links.pace import PACE, Pace
from nodemgr.edge.links.sockets import Socket


class Joining:
    """Asks once, and calls `done` once: with the head's answer, or with the reason of none."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: str,
        word: OneTimeWord,
        said: Frame,
        done: Callable[[dict[str, Any] | str], None],
        pace: Pace = PACE,
    ) -> None:
        self._said, self._done = said, done
        self._is_over = False
        self._context: zmq.Context[Socket] = zmq.Context()
        self._timer = loop.call_later(pace.hello_s, self._end, "the head says nothing")
        self._dealer = Dealer(
            loop, self._context, address, *word, self._ready, self._end, self._answered
        )

    def _ready(self) -> None:
        self._dealer.send(encode("join", self._said))

    def _answered(self, frame: Frame) -> None:
        if frame["t"] == "joined":
            self._end(dict(frame))

    def _end(self, outcome: dict[str, Any] | str) -> None:
        if not self._is_over:
            self._is_over = True
            self._timer.cancel()
            self._dealer.close()
            self._context.term()
            self._done(outcome)
