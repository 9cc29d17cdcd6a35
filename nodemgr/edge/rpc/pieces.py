"""An answer over a link: in one frame, or in pieces of its JSON text that its taker joins.

Knows: the fields `ok`, `part`, `last`, `refusal`. Must not know: questions, frames, sockets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from client_plugin.messages.form import relayed
from nodemgr.edge.rpc.operation import OperationError

PIECE_CHARS = 2**18
"""Of an answer that is longer. JSON text is at most twice as long within JSON."""
MAX_PIECES = 256
MORE = object()
"""The frame was a piece; others follow."""


def pieces(number: object, result: object) -> Iterator[dict[str, Any]]:
    """The fields of the frames that carry a result or a refusal."""
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


def joined(said: Mapping[str, Any], parts: list[str]) -> Any:
    """The result, an OperationError, or MORE: `parts` has the pieces so far."""
    if isinstance(part := said.get("part"), str):
        if len(parts) < MAX_PIECES:
            parts.append(part)
            return MORE
        return _unreadable()
    if isinstance(refusal := said.get("refusal"), dict):
        error, code = str(refusal.get("error"))[:2_000], str(refusal.get("code") or "refused")
        if refusal.keys() >= {"argument", "fault"}:  # an earlier version has the first alone
            fault, argument = str(refusal["fault"])[:2_000], str(refusal["argument"])
            return OperationError(relayed(fault), code=code, argument=argument)
        return OperationError(relayed(error), code=code)
    if isinstance(last := said.get("last"), str):
        try:
            return json.loads("".join([*parts, last]))
        except (ValueError, RecursionError):
            return _unreadable()
    return said.get("ok")


def _unreadable() -> OperationError:
    return OperationError("the answer over the link cannot be read", "ask again", "busy")
