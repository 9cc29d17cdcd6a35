"""Questions of a node to its head, each until it is answered.

Knows: a frame `ask` and its answer, in pieces or whole. Must not know: verbs, who may ask.

A question that was lost with a session is asked again in the next one: the head knows a submission
by its key, and every other verb may be said twice. Where the head is away for ANSWER_TIMEOUT_S,
all get one line.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from client_plugin.messages.form import relayed, stated
from nodemgr.edge.rpc.operation import OperationError, Reply

ANSWER_TIMEOUT_S = 30.0
MAX_ASKS = 1_000
PIECE_CHARS = 2**18
"""Of an answer that is longer: JSON text is at most twice as long within JSON."""


class SendFrame(Protocol):
    def __call__(self, kind: str, /, **fields: Any) -> bool: ...


class _Ask:
    def __init__(self, fields: dict[str, Any], reply: Reply, wanted: Callable[[], bool]) -> None:
        self.fields, self.reply, self.wanted = fields, reply, wanted
        self.parts: list[str] = []


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
            reply(OperationError(stated("the head has many questions of this node", "ask again",
                                        "busy")))  # fmt: skip
            return
        number = next(self._ids)
        ask = self._asks[number] = _Ask({"id": number, **fields}, reply, wanted)
        if not self._send("ask", **ask.fields):
            self._loop.call_later(self._timeout_s, self._give_up, number)

    def link_changed(self, *, is_up: bool) -> None:
        for number, ask in list(self._asks.items()):
            ask.parts = []
            if is_up:
                self._send("ask", **ask.fields)
            else:
                self._loop.call_later(self._timeout_s, self._give_up, number)

    def _give_up(self, number: int) -> None:
        why = self._away()
        if why and (ask := self._asks.pop(number, None)) is not None:
            line = f"the cluster's head does not answer ({why})"
            remedy = "try again later; `nodemgr submit --here` queues on this node alone"
            ask.reply(OperationError(stated(line, remedy, "away")))

    def answered(self, frame: Any) -> None:
        ask = self._asks.get(frame.get("id"))
        if ask is None:
            return
        if isinstance(part := frame.get("part"), str):
            ask.parts.append(part)
            return
        del self._asks[frame["id"]]
        refusal = frame.get("refusal")
        if isinstance(refusal, dict):
            error, code = str(refusal.get("error"))[:2_000], str(refusal.get("code") or "refused")
            argument = str(refusal.get("argument") or "")
            ask.reply(OperationError(relayed(error), code, argument))
        elif isinstance(last := frame.get("last"), str):
            ask.reply(json.loads("".join([*ask.parts, last])))
        else:
            ask.reply(frame.get("ok"))


def pieces(number: object, result: object) -> Iterator[dict[str, Any]]:
    """The fields of the frames `answer` that carry a result or a refusal."""
    if isinstance(result, OperationError):
        yield {"id": number, "refusal": result.answer()}
        return
    text = result if isinstance(result, str) else json.dumps(result, separators=(",", ":"))
    if len(text) <= PIECE_CHARS:
        yield {"id": number, "ok": json.loads(text) if isinstance(result, str) else result}
        return
    parts = [text[start : start + PIECE_CHARS] for start in range(0, len(text), PIECE_CHARS)]
    for part in parts[:-1]:
        yield {"id": number, "part": part}
    yield {"id": number, "last": parts[-1]}
