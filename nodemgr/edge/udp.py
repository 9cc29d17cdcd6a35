"""Clients over UDP, on machines or in networks that the env's socket does not reach: a keyed MAC says who speaks.

Knows: keys, epochs, counters, datagrams. Must not know: what a message means.

A packet counts if its MAC is right under its env's key, its epoch is the present one and its counter is higher than every
earlier one of that client: so neither forging nor replaying does anything, and no clock is compared. A new epoch begins with
each manager, and for an env whose table of clients is full of dead ones. Answers are remembered by request id for a client
that asks again because a packet was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from nodemgr.core.model import ProcessKey, Transport
from nodemgr.edge.clock import Clock
from nodemgr.edge.sessions import Hub, Session
from nodemgr.edge.wire import PACKET_BYTES, Message, Value, WireError, decode, encode, sign, verify

Address = Any  # (host, port), or four of them over IPv6
BATCH = 64
MAX_CLIENTS_PER_ENV = 1_100
IDLE_NS = 60_000_000_000
"""A client without lease or place that has been silent for so long makes room for others."""
REMEMBERED_ANSWERS = 8
MAX_INVALID_PER_SECOND = 200
MAX_VALID_PER_SECOND = 20_000
MAX_SOURCES = 4_096
FINAL = frozenset({"GRANT", "DENY", "ACK", "FENCE"})
REPEATABLE = frozenset({"RELEASE", "CANCEL", "REJOIN"})
"""What is answered from memory when asked again; ACQUIRE the core itself answers the same."""


def process_key(env: str, client: str) -> ProcessKey:
    return f"udp:{env}:{client}"


class UdpClient(Session):
    """One client id of one env."""

    __slots__ = ("address", "answers", "client", "counter", "heard_ns", "server")

    def __init__(self, server: UdpServer, env: str, client: str, address: Address) -> None:
        super().__init__(server.hub.next_connection(), env, process_key(env, client), Transport.UDP, None, f"udp:{env}")
        self.server = server
        self.client = client
        self.address = address
        self.counter = -1
        self.heard_ns = 0
        self.answers: OrderedDict[int, tuple[str, dict[str, Value | None]]] = OrderedDict()

    def answer(self, verb: str, fds: Sequence[int] = (), **fields: Value | None) -> None:
        rid = fields.get("rid")
        if verb == "FENCE":
            self.answers.clear()  # a grant that is over must not be given again
        elif verb in FINAL and isinstance(rid, int):
            self.answers[rid] = (verb, fields)
            if len(self.answers) > REMEMBERED_ANSWERS:
                self.answers.popitem(last=False)
        self.server.send(self, verb, fields)


class _Source:
    """What one address has sent in this second."""

    __slots__ = ("invalid", "valid")

    def __init__(self) -> None:
        self.valid = 0
        self.invalid = 0


class UdpServer:
    """One socket for the clients of all envs."""

    def __init__(self, loop: asyncio.AbstractEventLoop, hub: Hub, clock: Clock, sock: socket.socket) -> None:
        self.hub = hub
        self._loop = loop
        self._now_ns = clock.monotonic_ns
        self._sock = sock
        self._keys: dict[str, bytes] = {}
        self._epochs: dict[str, int] = {}
        self._clients: dict[str, OrderedDict[str, UdpClient]] = {}
        self._sources: dict[Address, _Source] = {}
        self._window_ns = 0
        self.address: tuple[str, int] = sock.getsockname()[:2]
        """Where it listens."""
        loop.add_reader(sock.fileno(), self._readable)

    @staticmethod
    def bind(host: str, port: int) -> socket.socket:
        """Raises OSError."""
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**22)
            sock.bind(address)
        except OSError:
            sock.close()
            raise
        return sock

    # -- envs --

    def open(self, env: str, key: bytes) -> None:
        self._keys[env] = key
        self._epochs.setdefault(env, _new_epoch())
        self._clients.setdefault(env, OrderedDict())

    def close(self, env: str) -> None:
        """Its clients are heard no more, since their key is gone."""
        self._keys.pop(env, None)
        self._epochs.pop(env, None)
        for client in self._clients.pop(env, OrderedDict()).values():
            self.hub.closed(client)

    def close_all(self) -> None:
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()

    # -- packets in --

    def _readable(self) -> None:
        for _ in range(BATCH):
            try:
                packet, address = self._sock.recvfrom(PACKET_BYTES + 1)
            except BlockingIOError:
                return
            except OSError:  # an ICMP answer to something that was sent
                continue
            self._datagram(packet, address)

    def _datagram(self, packet: bytes, address: Address) -> None:
        source = self._source(address)
        if source.invalid >= MAX_INVALID_PER_SECOND or source.valid >= MAX_VALID_PER_SECOND:
            self.hub.counters["packets_throttled"] += 1
            return
        try:
            message = self._authentic(packet)
        except WireError:
            source.invalid += 1
            return
        source.valid += 1
        self._accept(message, address)

    def _source(self, address: Address) -> _Source:
        now_ns = self._now_ns()
        if now_ns - self._window_ns >= 1_000_000_000 or len(self._sources) >= MAX_SOURCES:
            self._window_ns = now_ns
            self._sources.clear()
        source = self._sources.get(address)
        if source is None:
            source = self._sources[address] = _Source()
        return source

    def _authentic(self, packet: bytes) -> Message:
        """Raises WireError, and counts which."""
        try:
            message = decode(packet)
            env, client, counter = (message.fields.get(name) for name in ("env", "client", "counter"))
            if not (isinstance(env, str) and isinstance(client, str) and isinstance(counter, int)):
                raise WireError("without env, client or counter")
        except WireError:
            self.hub.counters["packets_malformed"] += 1
            raise
        try:
            key = self._keys.get(env)
            if key is None:
                raise WireError("of an env that has no key here")
            verify(packet, key)
        except WireError:
            self.hub.counters["packets_forged"] += 1
            raise
        return message

    def _accept(self, message: Message, address: Address) -> None:
        fields: Mapping[str, Any] = message.fields
        env, name, counter = fields["env"], fields["client"], fields["counter"]
        epoch = self._epochs[env]
        if message.verb == "HELLO" or fields.get("epoch") != epoch:
            answer: dict[str, Value | None] = {"rid": fields.get("rid", 0), "epoch": epoch}
            self._send(env, name, counter, address, "EPOCH", answer)
            return
        client = self._client(env, name, address)
        if client is None:
            self.hub.counters["connections_over_limit"] += 1
            return
        if counter <= client.counter:
            self.hub.counters["packets_replayed"] += 1
            return
        client.counter, client.address, client.heard_ns = counter, address, self._now_ns()
        remembered = client.answers.get(fields.get("rid", -1)) if message.verb in REPEATABLE else None
        if remembered is not None:
            self.send(client, *remembered)
        else:
            self.hub.received(client, message, [])

    def _client(self, env: str, name: str, address: Address) -> UdpClient | None:
        clients = self._clients[env]
        client = clients.get(name)
        if client is None:
            if len(clients) >= MAX_CLIENTS_PER_ENV and not self._make_room(env):
                return None
            client = clients[name] = UdpClient(self, env, name, address)
            self.hub.opened(client)
        return client

    def _make_room(self, env: str) -> bool:
        """Forgets clients that hold nothing and say nothing, and begins a new epoch, so that nothing of theirs can be replayed."""
        clients, now_ns = self._clients[env], self._now_ns()
        idle = [c for c in clients.values() if c.key not in self.hub.last_beat_ns and now_ns - c.heard_ns > IDLE_NS]
        for client in idle:
            del clients[client.client]
            self.hub.closed(client)
        if idle:
            self._epochs[env] = _new_epoch()
        return bool(idle)

    # -- packets out --

    def send(self, client: UdpClient, verb: str, fields: Mapping[str, Value | None]) -> None:
        self._send(client.env, client.client, client.counter, client.address, verb, fields)

    def _send(self, env: str, client: str, counter: int, address: Address, verb: str, fields: Mapping[str, Value | None]) -> None:
        """One datagram; one that is lost is asked for again."""
        key = self._keys.get(env)
        if key is None:
            return
        packet = sign(encode(verb, client=client, counter=counter, **fields), key)
        with contextlib.suppress(OSError):
            self._sock.sendto(packet, address)


def _new_epoch() -> int:
    return secrets.randbits(52) + 1
