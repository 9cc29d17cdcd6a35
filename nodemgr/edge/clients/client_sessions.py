"""One client on either transport: its identity from the kernel or a MAC, its messages, its answers.

A message becomes an event for the core, and an effect of the core becomes an answer. Knows: the
common part of both transports, and the wire's keys beside the core's words. Must not know: sockets,
the store, the decisions.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from client_plugin import fields as request_fields
from client_plugin.messages.form import stated
from nodemgr.core.model import effects, events
from nodemgr.core.model.entities import (
    CLASS_ORDER,
    ConnectionId,
    GpuRange,
    ProcessKey,
    RunSpec,
    TaskClass,
    Transport,
    Uuid,
    Word,
)
from nodemgr.core.model.values import replace
from nodemgr.edge.kernel.processes import Credentials, Identity, one_line
from nodemgr.edge.rpc.wire import Fields, Value, cut_text
from nodemgr.messages import orders as messages

BEAT_NS, DECODED_NS, ASK_NS = 50_000, 150_000, 5_000_000
"""Cost of a packet to its env: a plain beat, any other, a question.

Not the measured time: on a busy machine that includes others' work.
"""
SUBMIT_NS = 200_000
"""Cost of a sheet, and of the submission written on it: 2 500 jobs a second."""
CLAIM_NS = 1_000_000
"""Cost of a message from a runner or a container's supervisor.

Its owner is looked up in /proc, and files are opened. (Output costs its bytes beside.)
"""
_COST_NS = {
    "BEAT": BEAT_NS,
    "ASK": ASK_NS,
    **dict.fromkeys(("RUNNER", "CLAIM", "RUNNING", "ENDED", "FAILED"), CLAIM_NS),
}
MAX_REASON_BYTES = 700
"""The most bytes of a line for people in one packet."""
NO_LEASE = "none"
"""The lease that a FENCE names for a client without a known lease.

A client that believes that it holds one names it in a REJOIN.
"""
BOUNDS = (
    ("world", 0, 1 << 31), ("gated", 0, 1), ("elastic", 0, 1), ("starts", 0, 1),
    *((row.wire, row.least_on_wire, row.most_on_wire) for row in request_fields.NUMBERS_ON_WIRE),
)  # fmt: skip
"""Of an ACQUIRE's numbers: key, least, most."""
_own, _of_run = (
    {field.name for field in dataclasses.fields(kind)} for kind in (events.Acquire, RunSpec)
)
ASKED, OF_RUN = (
    [(row.wire, row.name) for row in request_fields.NUMBERS_ON_WIRE if row.name in names]
    for names in (_own, _of_run - _own - {row.name for row in request_fields.RUN if row.most})
)
"""Key and name of the numbers that an ACQUIRE has as its event, or as the event's run alone."""


def cost_ns(verb: str) -> int:
    return _COST_NS.get(verb, DECODED_NS)


ADMINS = ""
"""Stands for an environment in the sessions of the control socket; no environment has this name."""
PAGES = " "
"""The same of the socket of the web page's process."""


class Session:
    """A UNIX connection, or a client id over UDP. Subclasses implement the answer."""

    __slots__ = (
        "_by_index",
        "asked",
        "caller",
        "connection",
        "env",
        "has_kin",
        "key",
        "pid",
        "transport",
        "user",
    )

    def __init__(
        self,
        connection: ConnectionId,
        env: str,
        key: ProcessKey,
        transport: Transport,
        pid: int | None,
        user: str,
    ) -> None:
        self.connection = connection
        self.env = env
        self.key = key
        self.transport = transport
        self.pid = pid
        self.user = user
        self.asked = False
        """True once the core knows the session: then the core gets its end."""
        self._by_index = False
        self.caller = events.Caller(connection, env, key, transport, pid, user)
        """The session as the core sees it; `find_kin` adds the ancestors."""
        self.has_kin = False

    def asks(self, fields: Fields) -> None:
        """Notes the form in which the answer to this ACQUIRE names GPUs."""
        self._by_index = fields.get("visible") == "index"

    @property
    def by_index(self) -> bool:
        """Whether its CUDA_VISIBLE_DEVICES has the driver's numbers, and not UUIDs."""
        return self._by_index

    def ancestors(self) -> tuple[int, ...]:
        """Returns the current ancestors."""
        return ()

    def may_enter(self) -> bool:
        """Returns whether the env's current quota admits this user."""
        return True

    def find_kin(self, job_of: Callable[[Sequence[int]], str | None]) -> None:
        """Looks up the ancestors once: a parent that ends later still counts.

        `job_of`: maps ancestors to their job."""
        if not self.has_kin:
            self.has_kin = True
            ancestors = self.ancestors()
            self.caller = replace(
                self.caller, ancestors=ancestors, job_id=job_of(ancestors) if ancestors else None
            )

    def answer(self, verb: str, fds: Sequence[int] = (), **fields: Value | None) -> None:
        """Sends a message, now or later, unless the client is gone or not reading. Never raises."""
        raise NotImplementedError

    def spend(self, cost_ns: int) -> None:
        """Charges the env the cost of a request beyond that of its packet."""

    def took(self, duration_ns: int) -> None:
        """Adds the time that a deferred answer took to make."""

    def owes(self, answers: int) -> None:
        """So many more of its questions are under way, or fewer."""

    def beats_fast(self, fast: bool) -> None:
        """Sets whether beats bypass the core (the process holds or waits, and is not stalled)."""


class Hub(Protocol):
    """The part of the daemon that the transports use."""

    last_beat_ns: dict[ProcessKey, int]
    """Time of the last beat by process that holds or waits; the transports write it."""
    counters: Counter[str]

    def next_connection(self) -> ConnectionId: ...

    def opened(self, session: Session) -> None: ...

    def received(self, session: Session, verb: str, fields: Fields, fds: list[int]) -> None:
        """Handles a complete message with a known sender. Takes over the descriptors."""
        ...

    def closed(self, session: Session) -> None: ...

    def may_enter(self, env: str, who: Identity | Credentials) -> bool: ...

    def entitled(self, env: str) -> tuple[frozenset[int], frozenset[int]]:
        """Returns the users and the groups with access."""
        ...

    def expects_files(self, env: str) -> bool:
        """Returns whether clients are asked to bring the env's ledger back."""
        ...


# -- a message as an event


def absurd(fields: Fields) -> str | None:
    """The impossible figure of an ACQUIRE, in one line that shows it as it was asked.

    None: all figures are possible.
    """
    for key, least, most in BOUNDS:
        value = fields.get(key, least)
        if value > most:
            return stated(f"{key}={value} cannot be meant", f"at most {most}")
        if value < least:
            return stated(f"{key}={value} cannot be meant", f"at least {least}")
    first, last = fields.get("gpus"), fields.get("gpus_max")
    if last is not None and not 1 <= (first or 0) <= last:
        return stated(
            f"a range from {first} to {last} GPUs cannot be meant",
            "a range has at least one GPU, and ends no earlier than it begins",
        )
    first, last = fields.get("memory"), fields.get("memory_max")
    if last is not None and not 1 <= (first or 0) <= last:
        return messages.MEMORY_RANGE_ABSURD(least=first, most=last)
    if fields.get("class", TaskClass.NORMAL) not in CLASS_ORDER:
        return f"class={fields['class']} is none of {', '.join(TaskClass)}"
    return None


def acquire(
    session: Session,
    fields: Fields,
    wall_ns: int,
    unkept_bytes: Mapping[Uuid, int],
    expected_ms: int | None = None,
) -> events.Acquire:
    of_run: dict[str, Any] = {name: fields.get(key) for key, name in OF_RUN}
    return events.Acquire(
        session.caller,
        str(fields["rid"]),
        fields["task"],
        RunSpec(
            one_line(fields.get("command") or ""),
            fields.get("gpus", 0),
            fields.get("memory"),
            None,
            gpu_range=_gpu_range(fields),
            memory_most_bytes=fields.get("memory_max"),
            expected_ms=expected_ms,
            **of_run,
        ),
        world=max(1, fields.get("world", 1)),
        wall_ns=wall_ns,
        unkept_bytes=unkept_bytes,
        is_default="gpus" not in fields,
        task_class=TaskClass(fields["class"]) if "class" in fields else None,
        gated=fields.get("gated") == 1,
        worker_gpu=fields.get("worker_gpu"),
        starts=fields.get("starts") == 1 and session.pid is not None,
        **{name: fields.get(key) for key, name in ASKED},
    )


def _gpu_range(fields: Fields) -> GpuRange | None:
    most = fields.get("gpus_max")
    return None if most is None else GpuRange(most, fields.get("elastic") == 1)


WORDS = {word.value.upper(): word for word in Word}
"""The verbs of an elastic task's words."""


def elastic_word(session: Session, verb: str, fields: Fields, wall_ns: int) -> events.ElasticWord:
    rid, uuid = str(fields["rid"]), fields["gpu"]
    return events.ElasticWord(session.caller, rid, WORDS[verb], uuid, wall_ns)


def cancel(session: Session, fields: Fields, wall_ns: int) -> events.Cancel:
    return events.Cancel(session.caller, str(fields["rid"]), wall_ns)


def rejoin(session: Session, fields: Fields, wall_ns: int) -> events.Rejoin:
    return events.Rejoin(
        session.caller,
        str(fields["rid"]),
        fields["task"],
        fields["lease"],
        fields.get("slot"),
        fields.get("generation", 0),
        wall_ns,
    )


def beat(session: Session, fields: Fields, wall_ns: int) -> events.Beat:
    rid = fields.get("rid")
    return events.Beat(session.caller, None if rid is None else str(rid), wall_ns)


def progressed(session: Session, fields: Fields, wall_ns: int) -> events.Progressed:
    return events.Progressed(session.key, fields["done"], fields.get("total"), wall_ns)


def release(
    session: Session, fields: Fields, wall_ns: int, peak_bytes: int | None
) -> events.Release:
    return events.Release(session.caller, str(fields["rid"]), wall_ns, peak_bytes)


def rid_of(fields: Fields) -> int:
    """0 where there is none: no client asks under that number."""
    rid: int = fields.get("rid", 0)
    return rid


# -- an effect as an answer


def line(text: str) -> str:
    """A reason as it fits into a packet."""
    return cut_text(text, MAX_REASON_BYTES)


def answer_grant(
    session: Session,
    effect: effects.SendGrant,
    beat_ms: int,
    fds: tuple[int, ...],
    gates: tuple[int, ...] | None,
    threads: int | None,
    visible: tuple[str, ...] | None,
) -> None:
    """`gates`: the process's slots in the launch gates of its GPUs; their files end `fds`.

    `threads`: the percentage of threads for MPS. `visible`: for CUDA_VISIBLE_DEVICES; None: UUIDs.
    """
    session.answer(
        "GRANT",
        fds,
        rid=int(effect.rid),
        task=effect.task.token,
        lease=effect.task.task_id,
        gpus=effect.task.gpus,
        visible=visible,
        rows=effect.rows,
        limits=effect.limits,
        slot=effect.process.slot,
        generation=effect.process.generation,
        gates=gates,
        threads=threads,
        beat_ms=beat_ms,
    )


def answer_wait(session: Session, effect: effects.SendWait) -> None:
    standing, reason = effect.standing, line(effect.standing.line)
    session.answer("WAIT", rid=int(effect.rid), position=standing.position, reason=reason)


def answer_deny(session: Session, effect: effects.SendDeny) -> None:
    session.answer("DENY", rid=int(effect.rid), code=effect.code.value, reason=line(effect.reason))


def answer_fence(session: Session, effect: effects.SendFence) -> None:
    rid = None if effect.rid is None else int(effect.rid)
    session.answer("FENCE", lease=effect.task_id or NO_LEASE, reason=line(effect.reason), rid=rid)


def answer_note(session: Session, effect: effects.SendNote) -> None:
    session.answer("NOTE", text=line(effect.text))


def answer_ack(session: Session, effect: effects.SendAck) -> None:
    session.answer("ACK", rid=int(effect.rid))


def answer_offer(session: Session, effect: effects.SendOffer) -> None:
    session.answer("OFFER", lease=effect.task_id, gpu=effect.uuid)


def answer_recall(session: Session, effect: effects.SendRecall) -> None:
    reason = line(effect.reason)
    session.answer(
        "RECALL", lease=effect.task_id, gpu=effect.uuid, recall_ms=effect.in_ms, reason=reason
    )


def answer_withdrawn(session: Session, effect: effects.SendWithdrawn) -> None:
    session.answer("WITHDRAWN", lease=effect.task_id, gpu=effect.uuid)
