"""Questions of a node to its head, each until it is answered.

Knows: a frame `ask` and its answer, in pieces or whole. Must not know: verbs, who may ask.

A question that was lost with a session is asked again in the next one: the head knows a submission
by its key, and every other verb may be said twice. Where the head is away for ANSWER_TIMEOUT_S,
all get one line. A question of AT_ONCE gets it as soon as there is no session: the asker has
something else to show, or asks again by itself.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, Protocol

from nodemgr.edge.links.frames import MAX_FRAME_BYTES, FrameTooLong
from nodemgr.edge.rpc.operation import OperationError, Reply
from nodemgr.edge.rpc.pieces import MORE, joined

ANSWER_TIMEOUT_S = 2.0
AT_ONCE = frozenset({"cluster_queue", "cluster_submit", "cluster_submit_many"})
MAX_ASKS = 1_000


class SendFrame(Protocol):
    def __call__(self, kind: str, /, **fields: Any) -> bool: ...


class _Ask:
    def __init__(self, fields: dict[str, Any], reply: Reply, wanted: Callable[[], bool]) -> None:
        self.fields, self.reply, self.wanted = fields, reply, wanted
        self.parts: list[str] = []
        self.was_sent = False


class Asks:
    """All questions that wait for an answer."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        send: SendFrame,
        away: Callable[[], str],
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        """`away`: why there is no session; empty: there is one."""
        self._loop, self._send, self._away, self._timeout_s = loop, send, away, timeout_s
        self._asks: dict[int, _Ask] = {}
        self._ids = itertools.count(1)

    def ask(self, fields: dict[str, Any], reply: Reply, wanted: Callable[[], bool]) -> None:
        """`wanted`: whether its caller is still there."""
        for number in [number for number, ask in self._asks.items() if not ask.wanted()]:
            del self._asks[number]
        if len(self._asks) >= MAX_ASKS:
            line = "the head has many questions of this node"
            reply(OperationError(line, "ask again", "busy"))
            return
        number = next(self._ids)
        ask = self._asks[number] = _Ask({"id": number, **fields}, reply, wanted)
        self._say(number, ask)

    def _say(self, number: int, ask: _Ask) -> None:
        try:
            is_sent = self._send("ask", **ask.fields)
        except FrameTooLong:
            del self._asks[number]
            line = f"the order has more than {MAX_FRAME_BYTES} bytes"
            ask.reply(OperationError(line, "put its command and variables into a file", "usage"))
            return
        if is_sent:
            ask.was_sent = True
        elif ask.fields["verb"] in AT_ONCE:
            self._give_up(number)
        else:
            self._loop.call_later(self._timeout_s, self._give_up, number)

    def link_changed(self) -> None:
        for number, ask in list(self._asks.items()):
            ask.parts = []
            self._say(number, ask)

    def _give_up(self, number: int) -> None:
        why = self._away()
        if why and (ask := self._asks.pop(number, None)) is not None:
            line = f"the cluster's head does not answer ({why})"
            remedy = "try again later; jobs of this node go on"
            if ask.fields["verb"].startswith("cluster_submit"):
                remedy = "try again later; `nodemgr submit --here` queues on this node alone"
            ask.reply(OperationError(line, remedy, "lost" if ask.was_sent else "away"))

    def answered(self, frame: Any) -> None:
        number = frame.get("id")
        ask = self._asks.get(number) if isinstance(number, int) else None
        if ask is None:
            return
        if (result := joined(frame, ask.parts)) is not MORE:
            del self._asks[number]
            ask.reply(result)
