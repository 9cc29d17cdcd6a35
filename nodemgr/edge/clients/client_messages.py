"""A client's message to an event for the core, and an effect of the core's to an answer.

Knows: the wire's keys beside the core's words. Must not know: sockets, the store, what is decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nodemgr.core.model import effects, events
from nodemgr.core.model.entities import Uuid
from nodemgr.edge.clients.client_sessions import Session
from nodemgr.edge.kernel.processes import command_line, one_line
from nodemgr.edge.rpc.wire import Message, cut_text

MAX_REASON_BYTES = 700
"""Of a packet, for one line to show."""
NO_LEASE = "none"
"""The lease that a FENCE names for a client without a known lease.

A client that believes that it holds one names it in a REJOIN.
"""
MOST = {"gpus": 1 << 31, "world": 1 << 31, "memory": 1 << 60, "wait_ms": 1 << 40}
"""Of an ACQUIRE: above anything that could be meant."""


def absurd(fields: Mapping[str, Any]) -> str | None:
    """The impossible figure of an ACQUIRE, in one line that shows it as it was asked.

    None: all figures are possible.
    """
    for key, most in MOST.items():
        if fields.get(key, 0) > most:
            return f"{key}={fields[key]} cannot be meant: at most {most}"
    return None


def acquire(
    session: Session, fields: Mapping[str, Any], wall_ns: int, used_bytes: Mapping[Uuid, int]
) -> events.Acquire:
    command = one_line(fields.get("command") or "") or (
        command_line(session.pid) if session.pid is not None else ""
    )
    gpus, memory_bytes, world, wait_ms = (
        fields.get("gpus"),
        fields.get("memory"),
        max(1, fields.get("world", 1)),
        fields.get("wait_ms"),
    )
    return events.Acquire(
        session.caller,
        str(fields["rid"]),
        fields["task"],
        gpus,
        memory_bytes,
        world,
        wait_ms,
        command,
        wall_ns,
        used_bytes,
    )


def cancel(session: Session, fields: Mapping[str, Any], wall_ns: int) -> events.Cancel:
    return events.Cancel(session.caller, str(fields["rid"]), wall_ns)


def rejoin(session: Session, fields: Mapping[str, Any], wall_ns: int) -> events.Rejoin:
    return events.Rejoin(
        session.caller,
        str(fields["rid"]),
        fields["task"],
        fields["lease"],
        fields.get("slot"),
        fields.get("generation", 0),
        wall_ns,
    )


def beat(session: Session, fields: Mapping[str, Any], wall_ns: int) -> events.Beat:
    rid = fields.get("rid")
    return events.Beat(session.caller, None if rid is None else str(rid), wall_ns)


def release(session: Session, fields: Mapping[str, Any], wall_ns: int) -> events.Release:
    return events.Release(session.caller, str(fields["rid"]), wall_ns)


def rid_of(message: Message) -> int:
    """0 where there is none: no client asks under that number."""
    rid = message.fields.get("rid", 0)
    return rid if isinstance(rid, int) else 0


def line(text: str) -> str:
    """A reason as it fits into a packet."""
    return cut_text(text, MAX_REASON_BYTES)


def answer_grant(
    session: Session, effect: effects.SendGrant, beat_ms: int, fds: tuple[int, ...]
) -> None:
    session.answer(
        "GRANT",
        fds,
        rid=int(effect.rid),
        task=effect.token,
        lease=effect.task_id,
        gpus=effect.gpus,
        rows=effect.rows,
        limits=effect.limits,
        slot=effect.slot,
        generation=effect.generation,
        beat_ms=beat_ms,
    )


def answer_wait(session: Session, effect: effects.SendWait) -> None:
    session.answer(
        "WAIT", rid=int(effect.rid), position=effect.position, reason=line(effect.reason)
    )


def answer_deny(session: Session, effect: effects.SendDeny) -> None:
    session.answer("DENY", rid=int(effect.rid), code=effect.code.value, reason=line(effect.reason))


def answer_fence(session: Session, effect: effects.SendFence) -> None:
    rid = None if effect.rid is None else int(effect.rid)
    session.answer("FENCE", lease=effect.task_id or NO_LEASE, reason=line(effect.reason), rid=rid)


def answer_note(session: Session, effect: effects.SendNote) -> None:
    session.answer("NOTE", text=line(effect.text))


def answer_ack(session: Session, effect: effects.SendAck) -> None:
    session.answer("ACK", rid=int(effect.rid))
