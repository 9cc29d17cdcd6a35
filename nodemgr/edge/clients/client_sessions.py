"""One client on either transport: its identity from the kernel or a MAC, and how to answer it.

Knows: the common part of both transports. Must not know: sockets, the meaning of a verb.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from nodemgr.core.model.entities import ConnectionId, ProcessKey, Transport
from nodemgr.core.model.events import Caller
from nodemgr.core.model.values import replace
from nodemgr.edge.kernel.processes import Credentials, Identity
from nodemgr.edge.rpc.wire import Message, Value

BEAT_NS, DECODED_NS, ASK_NS = 50_000, 150_000, 5_000_000
"""Cost of a packet to its env: a plain beat, any other, a question.

Not the measured time: on a busy machine that includes others' work.
"""
SUBMIT_NS = 200_000
"""Cost of a sheet, and of the submission written on it: 2 500 jobs a second."""


CLAIM_NS = 1_000_000
"""Cost of a message from a runner or a container's supervisor.

Its owner is looked up in /proc, and files are opened.
"""
_COST_NS = {
    "BEAT": BEAT_NS,
    "ASK": ASK_NS,
    **dict.fromkeys(("RUNNER", "CLAIM", "RUNNING", "FAILED"), CLAIM_NS),
}


def cost_ns(verb: str) -> int:
    return _COST_NS.get(verb, DECODED_NS)


class Session:
    """A UNIX connection, or a client id over UDP. Subclasses implement the answer."""

    __slots__ = (
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
        self.caller = Caller(connection, env, key, transport, pid, user)
        """The session as the core sees it; `find_kin` adds the ancestors."""
        self.has_kin = False

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

    def beats_fast(self, fast: bool) -> None:
        """Sets whether beats bypass the core (the process holds or waits, and is not stalled)."""


class Hub(Protocol):
    """The part of the daemon that the transports use."""

    last_beat_ns: dict[ProcessKey, int]
    """Time of the last beat by process that holds or waits; the transports write it."""
    counters: Counter[str]

    def next_connection(self) -> ConnectionId: ...

    def opened(self, session: Session) -> None: ...

    def received(self, session: Session, message: Message, fds: list[int]) -> None:
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
