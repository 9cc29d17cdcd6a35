"""One speaking client, whatever it came by: what the kernel or a MAC says of it, and how to answer it.

Knows: what both transports have in common. Must not know: sockets, what a verb means.
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
"""What a packet costs its env: a plain beat, any other, a question. Not what it took: on a busy machine that is others' time."""
SUBMIT_NS = 200_000
"""The same of a sheet, and of the submission that is written on it: 2 500 jobs in a second."""


CLAIM_NS = 1_000_000
"""What a runner or a supervisor in a container says: whose it is is looked for in /proc, and files are opened."""
_COST_NS = {"BEAT": BEAT_NS, "ASK": ASK_NS, **dict.fromkeys(("RUNNER", "CLAIM", "RUNNING", "FAILED"), CLAIM_NS)}


def cost_ns(verb: str) -> int:
    return _COST_NS.get(verb, DECODED_NS)


class Session:
    """A connection over UNIX, or a client id over UDP. Subclasses say how to answer."""

    __slots__ = ("asked", "caller", "connection", "env", "has_kin", "key", "pid", "transport", "user")

    def __init__(self, connection: ConnectionId, env: str, key: ProcessKey, transport: Transport, pid: int | None, user: str) -> None:
        self.connection = connection
        self.env = env
        self.key = key
        self.transport = transport
        self.pid = pid
        self.user = user
        self.asked = False
        """True once the core has heard of it: then it is told of the end."""
        self.caller = Caller(connection, env, key, transport, pid, user)
        """What the core is told of it, with its ancestors once they were looked for."""
        self.has_kin = False

    def ancestors(self) -> tuple[int, ...]:
        """As they are now."""
        return ()

    def may_enter(self) -> bool:
        """Whether the env's quota, as it is now, lets this user in."""
        return True

    def find_kin(self, job_of: Callable[[Sequence[int]], str | None]) -> None:
        """Looks for its ancestors, once: a parent that ends later was a parent all the same. `job_of`: whose job's they are."""
        if not self.has_kin:
            self.has_kin = True
            ancestors = self.ancestors()
            self.caller = replace(self.caller, ancestors=ancestors, job_id=job_of(ancestors) if ancestors else None)

    def answer(self, verb: str, fds: Sequence[int] = (), **fields: Value | None) -> None:
        """Sends one message, sooner or later; a client that is gone or does not read gets nothing. Never raises."""
        raise NotImplementedError

    def spend(self, cost_ns: int) -> None:
        """What was asked for turns out to cost its env so much more than its packet did."""

    def took(self, duration_ns: int) -> None:
        """An answer that came later than its question was so long in the making."""

    def beats_fast(self, fast: bool) -> None:
        """Whether a beat may be noted without asking the core (the process holds or waits, and is not stalled)."""


class Hub(Protocol):
    """What the transports need of the daemon."""

    last_beat_ns: dict[ProcessKey, int]
    """Of every process that holds or waits; the transports write the times of its beats."""
    counters: Counter[str]

    def next_connection(self) -> ConnectionId: ...

    def opened(self, session: Session) -> None: ...

    def received(self, session: Session, message: Message, fds: list[int]) -> None:
        """A message that is whole and says who sent it. Takes the descriptors over."""
        ...

    def closed(self, session: Session) -> None: ...

    def may_enter(self, env: str, who: Identity | Credentials) -> bool: ...

    def entitled(self, env: str) -> tuple[frozenset[int], frozenset[int]]:
        """The users and the groups who may enter."""
        ...

    def expects_files(self, env: str) -> bool:
        """Whether clients are asked to bring the env's ledger back."""
        ...
