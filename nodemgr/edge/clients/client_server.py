"""Clients on UNIX sockets: one SOCK_SEQPACKET connection per process.

An env has two listeners: the node's and its containers'.

Knows: sockets, credentials, cost limits for strangers. Must not know: the meaning of a message.

The kernel identifies clients: SO_PEERCRED and SO_PEERPIDFD name the process that connected,
SCM_CREDENTIALS names the sender of each packet. A forked child on its parent's connection gets an
error: it must open its own. A beat equal to the last one costs one comparison: no decoding, no step
of the core.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import struct
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from client_plugin.messages.form import stated
from nodemgr.core.model.entities import Transport
from nodemgr.edge.clients import socket_access
from nodemgr.edge.clients.client_sessions import (
    ADMINS,
    BEAT_NS,
    DECODED_NS,
    PAGES,
    SUBMIT_NS,
    Hub,
    Session,
    cost_ns,
)
from nodemgr.edge.clients.descriptor_filter import (
    ANCILLARY_BYTES,
    DescriptorFilter,
    Received,
    brings_rights,
    close_all,
    descriptors_of,
    refuse_rights,
)
from nodemgr.edge.clients.rate_limits import RateLimiter
from nodemgr.edge.host import descriptors, stderr_log
from nodemgr.edge.host.clock import Clock
from nodemgr.edge.host.loop import SwallowingSelector
from nodemgr.edge.kernel.processes import (
    EXHAUSTED,
    Credentials,
    Identity,
    PeerGone,
    ProcessTable,
    accept_peer,
    ancestors,
    identify_peer,
    user_name,
)
from nodemgr.edge.rpc.wire import PACKET_BYTES, Value, WireError, decode, encode

BACKLOG = 4_096
ACCEPT_BATCH = 8
MAX_ARRIVALS = 1_000
"""Connections a second to one socket; each costs more than most packets.

More wait in the backlog.
"""
MAX_FORBIDDEN = 16
"""Connections per socket of users without access: they only receive the refusal."""
MAX_STRANGERS = 64
"""Connections a second to one socket by users without access.

One more closes the socket to all but the env's users.
"""
SHUT_S = 30.0
"""Duration of that closure; then all users may connect again and get the refusal."""
MAX_MALFORMED = 100
"""Malformed packets before the connection is closed."""
MAX_OUTBOX_BYTES, MAX_OUTBOXES_BYTES = 2**22, 2**25
"""Bounds of an environment's clients,"""
MAX_ADMINS_BYTES = 2**28
"""and both of administrators, whose answers are as large as the node."""
RESERVE_DESCRIPTORS = 32
"""Descriptors reserved for the store, ledgers, /proc, administrators."""
ADMINS_DESCRIPTORS = 16
"""Of these, for administrators' connections: they ask while clients have used up all others."""
RATE_LIMIT_NS = 1_000_000_000
"""Total cost per second of one socket's clients (client_sessions.cost_ns): 20 000 beats."""
TURN_NS = 5_000_000
"""Time spent on one env before the others that wait get their turn."""
OTHERS_NS = 1_000_000_000
"""An env whose clients have asked for something within this time waits for its turns."""
MAX_REST_NS = 1_000_000_000
"""An env rests so long at most while another waits."""
REST_PERCENT = 125
"""Its rest, of the time of its turn. Above 100: reading and garbage are not in that time."""
LATER_CHARGED = frozenset({"sheet", "order"})
"""Questions with a cost known only once read: a submission is cheap, and many arrive at once."""
LATE_TURN_S = 0.05
"""Delay after each request of one socket while the store's disk does not keep up."""
_UCRED = struct.Struct("3i")
_CUT = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
_RETRY_S = 0.2
_CALM_NS = 60_000_000_000
"""A repeated shortage (descriptors, connections) or shut-out is reported after this much calm."""


class SocketBounds(NamedTuple):
    """Limits of the clients of one socket."""

    connections: int
    arrivals: int
    """Connections a second."""
    outbox_bytes: int
    """Unread answers of one client before its connection is closed."""
    outboxes_bytes: int
    """The same for all clients: the next one with an unread answer is closed."""
    rest_percent: int | None = None
    """The rest after each turn, of the turn's time. None: REST_PERCENT, and only beside others."""
    unanswered: int | None = None
    """Questions of one connection that are under way: it is not read before one is answered.

    Nor is it before it has read its answers.
    """


OF_PAGES = SocketBounds(4, 20, 2**26, 2**27, rest_percent=400, unanswered=32)
"""A page process may be taken over by a viewer. It has a fifth of the loop's time at most."""


class Turn:
    """The time spent on an env: its sockets have one turn together."""

    def __init__(self, env: str, rest_percent: int | None) -> None:
        self.env = env
        self.rest_percent = rest_percent
        self.spent_ns = 0
        self.is_over = False
        self.waiting: list[Connection] = []
        """Paused until the next turn."""


class EnvListener:
    """A socket of an env, and the cost of its connections in this second.

    `for_all`: only root makes the socket reachable (in a container of the env, or to
    administrators), so every process that connects has access."""

    def __init__(
        self, turn: Turn, path: Path, sock: socket.socket, for_all: bool, bounds: SocketBounds
    ) -> None:
        self.env, self.turn, self.bounds = turn.env, turn, bounds
        self.path = path
        self.sock = sock
        self.for_all = for_all
        self.connections: set[Connection] = set()
        self.forbidden = 0
        self.full_ns: int | None = None
        """When it last reached its connection limit."""
        self.outbox_bytes = 0
        """Total of all its connections."""
        self.arrivals = RateLimiter(bounds.arrivals)
        self.crowded: asyncio.TimerHandle | None = None
        """Set while this second's connections are used up: when that ends."""
        self.strangers = RateLimiter(MAX_STRANGERS)
        """Connections of users without access."""
        self.shut: asyncio.TimerHandle | None = None
        """Set while the kernel lets only the env's users connect: when that ends."""
        self.shut_ns: int | None = None
        """When `shut` last began."""
        self.listening = False
        self.peeks = True
        """New connections may get descriptors: the kernel cannot refuse, or a ledger is due."""
        self.rate_limiter = RateLimiter(RATE_LIMIT_NS)


class Connection(Session):
    """One connected process."""

    __slots__ = (
        "beat", "credentials", "forbidden", "identity", "is_full", "listener", "malformed",
        "outbox", "outbox_bytes", "peeks", "reading", "server", "sock", "token_beat", "unanswered",
    )  # fmt: skip

    def __init__(
        self,
        server: ClientServer,
        listener: EnvListener,
        sock: socket.socket,
        identity: Identity,
        forbidden: bool,
    ) -> None:
        super().__init__(
            server.hub.next_connection(),
            listener.env,
            identity.key,
            Transport.UNIX,
            identity.pid,
            user_name(identity.uid),
        )
        self.server = server
        self.listener = listener
        self.sock = sock
        self.identity = identity
        self.forbidden = forbidden
        self.credentials = [
            (
                socket.SOL_SOCKET,
                socket.SCM_CREDENTIALS,
                _UCRED.pack(identity.pid, identity.uid, min(identity.gids)),
            )
        ]
        self.beat: bytes | None = None
        """The packet of a plain beat; None while each beat must be decoded."""
        self.token_beat = b""
        self.malformed = 0
        self.peeks = listener.peeks
        self.outbox: deque[tuple[bytes, list[int]]] = deque()
        """Waiting packets, descriptors duplicated: a ledger may close, its number be reused."""
        self.outbox_bytes = 0
        self.reading = False
        self.unanswered = 0
        self.is_full = False
        """It is not read before it is answered, and has read the answer."""

    def ancestors(self) -> tuple[int, ...]:
        return ancestors(self.identity.pid)

    def read(self) -> bool:
        """Reads a packet; the selector calls it. True: the loop has nothing to do."""
        server = self.server
        if self.listener.turn.is_over:
            server.await_turn(self)
            return False
        try:
            if self.peeks and brings_rights(self.sock):
                server.filter_descriptors(self)
                return False
            packet, ancillary, flags, _ = self.sock.recvmsg(
                PACKET_BYTES + 1, ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
            )
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            packet, ancillary, flags = b"", [], 0
        if packet == self.beat and ancillary == self.credentials:
            server.hub.last_beat_ns[self.key] = server.now_ns()
            rate_limiter = self.listener.rate_limiter
            rate_limiter.spent += BEAT_NS
            if rate_limiter.spent <= rate_limiter.most:
                return True
            server.over_budget(self)
        elif packet or ancillary:
            # an empty packet carries credentials, the end of the connection does not
            server.take(self, packet, ancillary, flags)
        else:
            server.drop(self)
        return False

    def may_enter(self) -> bool:
        return self.listener.for_all or self.server.hub.may_enter(self.env, self.identity)

    def beats_fast(self, fast: bool) -> None:
        self.beat = self.token_beat if fast and self.token_beat else None

    def spend(self, cost_ns: int) -> None:
        if self.listener.bounds.rest_percent is None:  # else its time is measured
            self.server._spend(self, cost_ns)

    def took(self, duration_ns: int) -> None:
        self.server.took(self.listener.turn, duration_ns)

    def owes(self, answers: int) -> None:
        self.unanswered += answers
        self.server.weigh(self)

    def answer(self, verb: str, fds: Sequence[int] = (), **fields: Value | None) -> None:
        self.server.send(self, encode(verb, **fields), fds)


class ClientServer:
    """The listeners and connections of all envs, in the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        selector: SwallowingSelector,
        hub: Hub,
        processes: ProcessTable,
        clock: Clock,
        max_per_env: int,
        is_late: Callable[[], bool] = lambda: False,
        on_full: Callable[[str], None] = lambda env: None,
    ) -> None:
        """`selector` is the loop's own: it calls the readers that note beats.

        `is_late`: the store's disk does not keep up with the clients' writes. `on_full`: called
        when an env reaches its connection limit; new clients wait until a connection ends.
        """
        self.hub = hub
        self._loop = loop
        self._selector = selector
        self._processes = processes
        self.now_ns = clock.monotonic_ns
        self._descriptor_filter = DescriptorFilter(loop)
        self._max_per_env = max_per_env
        self._listeners: dict[Path, EnvListener] = {}
        self._turns: dict[str, Turn] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._exhausted_ns: int | None = None
        self.on_full = on_full
        self.is_late = is_late
        self._last_asked = "", -OTHERS_NS
        """The env of the last packet that was no beat, and its time;"""
        self._others_asked_ns = -OTHERS_NS
        """the same of any other env."""
        self._worked: Counter[Turn] = Counter()
        """Time (ns) spent on each env since the last scheduling pass."""
        self._descriptor_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - RESERVE_DESCRIPTORS

    # -- envs --

    def open(
        self,
        env: str,
        path: Path,
        *,
        for_all: bool = False,
        let_in: Callable[[Path], None] = socket_access.open_to_all,
    ) -> None:
        """Listens for the env's clients; replaces an old socket of that name. Raises OSError.

        `let_in`: opens the socket's file to its users.
        """
        if path in self._listeners:
            if not self.hub.expects_files(env):
                self._listeners[path].peeks = not refuse_rights(self._listeners[path].sock, True)
            if self._listeners[path].shut is not None:
                self._admit_users_alone(self._listeners[path])
            return
        path.unlink(missing_ok=True)
        sock = socket.socket(
            socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            refuses = refuse_rights(sock, not self.hub.expects_files(env))
            sock.bind(str(path))
            let_in(path)
            sock.listen(BACKLOG)
        except OSError:
            sock.close()
            raise
        bounds = self._bounds_of(env)
        turn = self._turns.setdefault(env, Turn(env, bounds.rest_percent))
        listener = self._listeners[path] = EnvListener(turn, path, sock, for_all, bounds)
        listener.peeks = not refuses
        self._listen(listener)

    def _bounds_of(self, env: str) -> SocketBounds:
        if env == PAGES:
            return OF_PAGES
        if env == ADMINS:
            return SocketBounds(self._max_per_env, MAX_ARRIVALS, MAX_ADMINS_BYTES, MAX_ADMINS_BYTES)
        return SocketBounds(self._max_per_env, MAX_ARRIVALS, MAX_OUTBOX_BYTES, MAX_OUTBOXES_BYTES)

    def close(self, env: str) -> None:
        """Accepts no new clients; connected ones stay and receive the outcome."""
        self._turns.pop(env, None)
        for listener in [listener for listener in self._listeners.values() if listener.env == env]:
            del self._listeners[listener.path]
            self._silence(listener)
            self._close_socket(listener.sock, listener.peeks)
            listener.path.unlink(missing_ok=True)

    def close_all(self) -> None:
        """At the manager's end: leases stay, clients find the next manager by the same names."""
        if self._retry is not None:
            self._retry.cancel()
        for listener in self._listeners.values():
            self._silence(listener)
            for connection in list(listener.connections):
                self.drop(connection)
            listener.sock.close()
        self._listeners.clear()

    def connections(self) -> int:
        return sum(len(listener.connections) for listener in self._listeners.values())

    def crowd(self, env: str) -> Counter[int]:
        """Returns the number of connections of each process of the env, by PID."""
        return Counter(
            each.identity.pid
            for listener in self._listeners.values()
            if listener.env == env
            for each in listener.connections
        )

    def full(self) -> list[str]:
        """Returns the envs with a socket at its connection limit."""
        return sorted(
            {
                listener.env
                for listener in self._listeners.values()
                if listener.env != PAGES
                and len(listener.connections) >= listener.bounds.connections
            }
        )

    # -- connections come and go --

    def _listen(self, listener: EnvListener) -> None:
        if (
            not listener.listening
            and listener.crowded is None
            and len(listener.connections) < listener.bounds.connections
        ):
            listener.listening = True
            self._selector.swallow(listener.sock.fileno(), partial(self._accept, listener))

    def _deafen(self, listener: EnvListener) -> None:
        if listener.listening:
            listener.listening = False
            self._selector.forget(listener.sock.fileno())

    def _silence(self, listener: EnvListener) -> None:
        """Stops listening for good."""
        self._deafen(listener)
        for timer in (listener.shut, listener.crowded):
            if timer is not None:
                timer.cancel()

    def _accept(self, listener: EnvListener) -> bool:
        """Called by the selector; the loop may have something to do then."""
        for _ in range(ACCEPT_BATCH):
            if len(listener.connections) >= listener.bounds.connections:
                self._full(listener)
                break
            rest_ns = listener.arrivals.rest_ns(self.now_ns())
            if rest_ns > 0:
                self._crowded(listener, rest_ns)
                break
            try:
                sock, peer = accept_peer(listener.sock)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in EXHAUSTED:
                    self._exhausted(listener)
                    break
                continue  # the peer closed the connection
            listener.arrivals.spent += 1
            if not self._admit(listener, sock, peer):
                break
        return False

    def _crowded(self, listener: EnvListener, rest_ns: int) -> None:
        self.hub.counters["connections_throttled"] += 1
        self._deafen(listener)
        listener.crowded = self._loop.call_later(rest_ns / 1e9, self._not_crowded, listener)

    def _not_crowded(self, listener: EnvListener) -> None:
        listener.crowded = None
        if self._retry is None and self._listeners.get(listener.path) is listener:
            self._listen(listener)

    def _full(self, listener: EnvListener) -> None:
        """New clients wait in the backlog until a connection ends. Refills are reported once."""
        self.hub.counters["connections_over_limit"] += 1
        self._deafen(listener)
        before_ns, listener.full_ns = listener.full_ns, self.now_ns()
        is_news = before_ns is None or listener.full_ns - before_ns > _CALM_NS
        if is_news and listener.env != PAGES:
            self.on_full(listener.env)

    def _admit(self, listener: EnvListener, sock: socket.socket, peer: Credentials) -> bool:
        """False: accept no further connection now."""
        try:
            forbidden = not listener.for_all and not self.hub.may_enter(listener.env, peer)
            if forbidden and self._is_one_too_many(listener, peer):
                sock.close()
                self.hub.counters["connections_refused"] += 1
                return True
            identity = identify_peer(sock, peer)
        except (PeerGone, OSError) as error:
            sock.close()
            self.hub.counters["connections_refused"] += 1
            if isinstance(error, OSError) and error.errno in EXHAUSTED:
                self._exhausted(listener)
                return False
            return True
        self._processes.hold(identity)
        connection = Connection(self, listener, sock, identity, forbidden)
        listener.forbidden += forbidden
        listener.connections.add(connection)
        self.hub.opened(connection)
        self._resume(connection)
        connection.read()  # most clients have sent a request by now
        if max(sock.fileno(), identity.pidfd) >= self._limit_of(listener):
            # the kernel gives the lowest free number
            self._exhausted(listener)
            return False
        return True

    # -- strangers --

    def _is_one_too_many(self, listener: EnvListener, peer: Credentials) -> bool:
        """Limits users without access before the process lookup (many times an accept's cost)."""
        strangers, now_ns = listener.strangers, self.now_ns()
        if strangers.rest_ns(now_ns) == 0:
            strangers.spent += 1
        if strangers.spent <= strangers.most:
            return listener.forbidden >= MAX_FORBIDDEN
        if listener.shut is None:
            self._shut_out(listener, peer, now_ns)
        return True

    def _shut_out(self, listener: EnvListener, peer: Credentials, now_ns: int) -> None:
        """Makes the kernel refuse users without access.

        Otherwise each of their connections costs an accept, and a place in the backlog.
        """
        listener.shut = self._loop.call_later(SHUT_S, self._open_again, listener)
        self.hub.counters["strangers_shut_out"] += 1
        before_ns, listener.shut_ns = listener.shut_ns, now_ns
        if self._admit_users_alone(listener) and (
            before_ns is None or now_ns - before_ns > _CALM_NS
        ):
            stderr_log.say(
                f"more than {MAX_STRANGERS} connections a second to the socket of env "
                f"{listener.env} by users who may not enter it ({user_name(peer.uid)} is one): for "
                f"{SHUT_S:g} s the kernel lets only its users connect"
            )

    def _admit_users_alone(self, listener: EnvListener) -> bool:
        """False: no ACLs on this file system; strangers are then accepted and dropped."""
        try:
            socket_access.open_to(listener.path, *self.hub.entitled(listener.env))
        except OSError:
            return False
        return True

    def _open_again(self, listener: EnvListener) -> None:
        listener.shut = None
        try:
            socket_access.open_to_all(listener.path)
        except OSError as error:
            stderr_log.say(
                f"the socket of env {listener.env} stays closed to users who may not enter it: "
                f"{error}"
            )

    # -- connections end --

    def _exhausted(self, last: EnvListener) -> None:
        """Descriptors are exhausted: connected clients stay, new ones wait in the backlog.

        Administrators wait only where one of them took the `last` one.

        Each end admits one client and exhausts them again: that is reported once.
        """
        if self._retry is None:
            self.hub.counters["descriptors_exhausted"] += 1
            before_ns, self._exhausted_ns = self._exhausted_ns, self.now_ns()
            if before_ns is None or self._exhausted_ns - before_ns > _CALM_NS:
                stderr_log.say(
                    f"descriptors are exhausted ({self.connections()} connections): new clients "
                    "wait until one ends",
                    "raise the limit (LimitNOFILE= of the service, ulimit -n)",
                )
            self._retry = self._loop.call_later(_RETRY_S, self._listen_again)
        for listener in self._listeners.values():
            if listener.env != ADMINS or last.env == ADMINS:
                self._deafen(listener)

    def _listen_again(self) -> None:
        self._retry = None
        try:
            probe = os.dup(
                0 if not self._listeners else next(iter(self._listeners.values())).sock.fileno()
            )
        except OSError:
            probe = self._descriptor_limit + ADMINS_DESCRIPTORS
        else:
            os.close(probe)
        if probe >= self._descriptor_limit:
            self._retry = self._loop.call_later(_RETRY_S, self._listen_again)
        for listener in self._listeners.values():
            if probe < self._limit_of(listener):
                self._listen(listener)

    def _limit_of(self, listener: EnvListener) -> int:
        """The first descriptor after which it accepts no connection."""
        return self._descriptor_limit + (ADMINS_DESCRIPTORS if listener.env == ADMINS else 0)

    def drop(self, connection: Connection) -> None:
        """Ends the connection, after either side closed it."""
        listener = connection.listener
        if connection not in listener.connections:
            return
        listener.connections.remove(connection)
        listener.forbidden -= connection.forbidden
        self._pause(connection)
        if connection.outbox:
            self._loop.remove_writer(connection.sock.fileno())
        listener.outbox_bytes -= connection.outbox_bytes
        for _, fds in connection.outbox:
            close_all(fds)
        self._close_socket(connection.sock, connection.peeks)
        self._processes.drop(connection.key)
        if self._retry is None and self._listeners.get(listener.path) is listener:
            self._listen(listener)
        self.hub.closed(connection)

    # -- packets in --

    def filter_descriptors(self, connection: Connection) -> None:
        """Receives a packet with descriptors in a thread; the connection pauses until then."""
        self._pause(connection)
        if not self._descriptor_filter.receive(
            connection.sock, PACKET_BYTES + 1, lambda received: self._released(connection, received)
        ):
            self.drop(connection)

    def _released(self, connection: Connection, received: Received) -> None:
        packet, ancillary, flags = received
        if connection not in connection.listener.connections:
            close_all(_parse_ancillary(ancillary)[1])
        elif packet or ancillary:
            self.take(connection, packet, ancillary, flags)
            self._resume(connection)
        else:
            self.drop(connection)

    def _close_socket(self, sock: socket.socket, peeks: bool) -> None:
        if peeks:
            self._descriptor_filter.close(sock)
        else:
            sock.close()

    def _pause(self, connection: Connection) -> None:
        if connection.reading:
            connection.reading = False
            self._selector.forget(connection.sock.fileno())

    def _resume(self, connection: Connection) -> None:
        if (
            not connection.reading
            and not connection.is_full
            and connection in connection.listener.connections
        ):
            connection.reading = True
            self._selector.swallow(connection.sock.fileno(), connection.read)

    def weigh(self, connection: Connection) -> None:
        """Reads no more of a client that owes as much as it may, until it does no longer."""
        most = connection.listener.bounds.unanswered
        if most is None:
            return
        was_full = connection.is_full
        connection.is_full = connection.unanswered >= most or bool(connection.outbox)
        if connection.is_full:
            self._pause(connection)
        elif was_full:
            self._resume(connection)

    def take(
        self,
        connection: Connection,
        packet: bytes,
        ancillary: list[tuple[int, int, bytes]],
        flags: int,
    ) -> None:
        """Handles a packet that is not a plain beat."""
        if ancillary == connection.credentials:
            sender: int | None = connection.pid
            fds: list[int] = []
        else:
            sender, fds = _parse_ancillary(ancillary)
        try:
            if flags & _CUT:
                raise WireError("more than a packet may hold")
            verb, fields = decode(packet)
        except WireError:
            close_all(fds)
            self._malformed(connection)
            return
        cheap = verb == "ASK" and fields.get("what") in LATER_CHARGED
        self._spend(connection, SUBMIT_NS if cheap else cost_ns(verb))
        if sender != connection.pid:
            close_all(fds)
            self._foreign(connection, fields.get("rid"))
            return
        if verb == "BEAT":
            connection.credentials = ancillary
            connection.token_beat = packet
        elif connection.env != PAGES:
            self._asked(connection.listener)
        began_ns = self.now_ns()
        self.hub.received(connection, verb, fields, fds)
        self.took(connection.listener.turn, self.now_ns() - began_ns)

    def _malformed(self, connection: Connection) -> None:
        self.hub.counters["packets_malformed"] += 1
        self._spend(connection, DECODED_NS)
        connection.malformed += 1
        if connection.malformed >= MAX_MALFORMED:
            self.drop(connection)

    def _foreign(self, connection: Connection, rid: Value | None) -> None:
        """Refuses a packet that another process, often a forked child, sent on this connection."""
        self.hub.counters["packets_foreign"] += 1
        if isinstance(rid, int):
            reason = stated(
                f"this connection belongs to process {connection.pid}",
                "a forked child opens its own",
            )
            connection.answer("DENY", rid=rid, code="bad_request", reason=reason)

    def _spend(self, connection: Connection, cost_ns: int) -> None:
        rate_limiter = connection.listener.rate_limiter
        rate_limiter.spent += cost_ns
        if rate_limiter.spent > rate_limiter.most:
            self.over_budget(connection)

    def took(self, turn: Turn, duration_ns: int) -> None:
        """Adds time spent on the env. After its turn, its clients are read after the others.

        The time of its rest counts in its next turn.
        """
        turn.spent_ns += duration_ns
        self._worked[turn] += duration_ns
        if turn.is_over:
            return
        if self.is_late():
            turn.spent_ns, turn.is_over = 0, True
            self._loop.call_later(LATE_TURN_S, self._begin_turn, turn)
        elif turn.spent_ns > TURN_NS:
            turn.is_over = True
            self._rest(turn, turn.spent_ns)

    def charge(self, env: str, duration_ns: int) -> None:
        """Time spent on the env beside its packets."""
        if (turn := self._turns.get(env)) is not None:
            self.took(turn, duration_ns)

    def share(self, duration_ns: int) -> None:
        """A scheduling pass: its time counts on each env by the time spent there since the last.

        A pass that no client caused counts on none.
        """
        worked, self._worked = self._worked, Counter()
        total_ns = worked.total()
        for turn, spent_ns in worked.items():
            self.took(turn, duration_ns * spent_ns // max(1, total_ns))
        self._worked.clear()

    def _rest(self, turn: Turn, worked_ns: int, late_ns: int = 0) -> None:
        """Where another env waits, none has more than half of the time."""
        now_ns, turn.spent_ns = self.now_ns(), 0
        last_env, last_ns = self._last_asked
        others_ns = self._others_asked_ns if last_env == turn.env else last_ns
        rest_ns = worked_ns * (turn.rest_percent or REST_PERCENT) // 100 - late_ns
        if turn.rest_percent is None:
            rest_ns = min(rest_ns, MAX_REST_NS) if now_ns - others_ns < OTHERS_NS else 0
        self._loop.call_later(rest_ns / 1e9, self._rested, turn, now_ns + rest_ns)

    def _rested(self, turn: Turn, due_ns: int) -> None:
        """Its next turn, unless what was read before the rest was done within it.

        That work was no rest, and is owed a rest of its own.
        """
        worked_ns = turn.spent_ns
        if worked_ns > TURN_NS:
            late_ns = self.now_ns() - due_ns
            self._rest(turn, worked_ns, late_ns - worked_ns)
        else:
            self._begin_turn(turn)

    def _asked(self, listener: EnvListener) -> None:
        """A client of the env has sent something other than a beat."""
        last_env, last_ns = self._last_asked
        if last_env != listener.env:
            self._others_asked_ns = last_ns
        self._last_asked = listener.env, self.now_ns()

    def is_quiet(self) -> bool:
        """No client has asked for anything within OTHERS_NS."""
        return self.now_ns() - self._last_asked[1] > OTHERS_NS

    def over_budget(self, connection: Connection) -> None:
        rest_ns = connection.listener.rate_limiter.rest_ns(self.now_ns())
        if rest_ns > 0 and connection.reading:
            self.hub.counters["connections_throttled"] += 1
            self._pause(connection)
            self._loop.call_later(rest_ns / 1e9, self._resume, connection)

    def await_turn(self, connection: Connection) -> None:
        self._pause(connection)
        connection.listener.turn.waiting.append(connection)

    def _begin_turn(self, turn: Turn) -> None:
        """Other envs' clients precede these in the kernel's list of ready descriptors."""
        waiting, turn.waiting = turn.waiting, []
        turn.is_over = False
        for connection in waiting:
            self._resume(connection)

    # -- packets out --

    def send(self, connection: Connection, packet: bytes, fds: Sequence[int] = ()) -> None:
        """Sends at once if the socket accepts it, else when the client reads again."""
        if connection not in connection.listener.connections:
            return
        try:
            if not connection.outbox and self._send_now(connection, packet, fds):
                return
            copies = [os.dup(fd) for fd in fds]
        except OSError:  # broken, or out of descriptors: the client reconnects and asks again
            self._drop_soon(connection)
            return
        if not connection.outbox:
            self._loop.add_writer(connection.sock.fileno(), self._writable, connection)
        connection.outbox.append((packet, copies))
        connection.outbox_bytes += len(packet)
        connection.listener.outbox_bytes += len(packet)
        self.weigh(connection)
        bounds, all_bytes = connection.listener.bounds, connection.listener.outbox_bytes
        if connection.outbox_bytes > bounds.outbox_bytes or all_bytes > bounds.outboxes_bytes:
            self.hub.counters["connections_deaf"] += 1
            self._drop_soon(connection)

    def _drop_soon(self, connection: Connection) -> None:
        """Drops after the step of the core that answers, not within it."""
        self._loop.call_soon(self.drop, connection)

    @staticmethod
    def _send_now(connection: Connection, packet: bytes, fds: Sequence[int]) -> bool:
        """False: the packet must wait. Raises OSError."""
        try:
            if fds:
                connection.sock.sendmsg([packet], descriptors.rights(fds))
            else:
                connection.sock.send(packet)
        except BlockingIOError:
            return False
        return True

    def _writable(self, connection: Connection) -> None:
        try:
            while connection.outbox:
                packet, fds = connection.outbox[0]
                if not self._send_now(connection, packet, fds):
                    return
                connection.outbox.popleft()
                connection.outbox_bytes -= len(packet)
                connection.listener.outbox_bytes -= len(packet)
                close_all(fds)
        except OSError:
            self.drop(connection)
            return
        self._loop.remove_writer(connection.sock.fileno())
        self.weigh(connection)


def _parse_ancillary(ancillary: list[tuple[int, int, bytes]]) -> tuple[int | None, list[int]]:
    """Returns (PID of the sender, received descriptors)."""
    sender, fds = None, []
    for level, kind, data in ancillary:
        if (
            level == socket.SOL_SOCKET
            and kind == socket.SCM_CREDENTIALS
            and len(data) >= _UCRED.size
        ):
            sender = _UCRED.unpack_from(data)[0]
        elif level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds += descriptors_of(data)
    return sender, fds
