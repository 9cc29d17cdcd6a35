"""Clients over UDP, on machines or in networks that the env's socket does not reach: a keyed MAC says who speaks.

Knows: keys, epochs, counters, datagrams. Must not know: what a message means.

A packet counts if its MAC is right under its env's key, its epoch is the present one and its counter is higher than every
earlier one of that client: so neither forging nor replaying does anything, and no clock is compared. A new epoch begins with
each manager, and for an env whose table of clients is full of dead ones. Answers are remembered by request id for a client
that asks again because a packet was lost.

A MAC costs time, so three purses limit who may have one looked at: what proves nothing (malformed, forged, replayed, of another
epoch) is paid for by its host, and by all such hosts together; what is new and authentic by its env; and a packet that comes
from where a client is, and names that client, epoch and a new counter, is looked at even while strangers flood.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
import socket
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nodemgr.core.model import ProcessKey, Transport
from nodemgr.edge.clock import Clock
from nodemgr.edge.rates import Allowance, Strangers
from nodemgr.edge.sessions import Hub, Session, cost_ns
from nodemgr.edge.wire import PACKET_BYTES, Message, Value, WireError, decode, encode, sign, verify

Address = Any  # (host, port), or four of them over IPv6
BATCH = 64
WRONG_ADDRESS = {
    errno.EADDRNOTAVAIL: "no interface of this node has that address (ip address lists them)",
    errno.EADDRINUSE: "another program listens there: name another port",
    errno.EACCES: "a port below 1024 needs root: name another one",
    socket.EAI_NONAME: "no such host is known here: name an address of this node",
}
"""What is said of an address that cannot be listened on, by the error."""
MAX_CLIENTS_PER_ENV = 1_100
IDLE_NS = 60_000_000_000
"""A client without lease or place that has been silent for so long makes room for others."""
REMEMBERED_ANSWERS = 8
MAX_STRANGE_OF_HOST = 500
MAX_STRANGE = 2_000
"""Packets a second that prove nothing, of one host and of all: 30 to 65 µs each, so an eighth of a core at most."""
MAX_HOSTS = 4_096
ALLOWANCE_NS = 200_000_000
"""What the clients of one env may cost together in a second: 4 000 beats."""
MAX_FORGED_OF_CLIENT = 100
"""A second, by one who makes up a client's address, id, epoch and counter: beyond them that client is not heard."""
MAX_LOOKED_AT = 5_000
"""Packets a second from a client's address, each decoded: some 6 µs."""
FINAL = frozenset({"GRANT", "DENY", "ACK", "FENCE"})
REPEATABLE = frozenset({"RELEASE", "CANCEL", "REJOIN"})
"""What is answered from memory when asked again; ACQUIRE the core itself answers the same."""


class UdpAddressError(Exception):
    """One line: which address cannot be listened on, why, and what to do."""


def process_key(env: str, client: str) -> ProcessKey:
    return f"udp:{env}:{client}"


class UdpClient(Session):
    """One client id of one env."""

    __slots__ = ("address", "answers", "client", "counter", "forged", "heard_ns", "looked_at", "secret", "server")

    def __init__(self, server: UdpServer, env: str, client: str, secret: bytes, address: Address) -> None:
        super().__init__(server.hub.next_connection(), env, process_key(env, client), Transport.UDP, None, f"udp:{env}")
        self.server = server
        self.client = client
        self.secret = secret
        """The key that it signs with, and is answered with."""
        self.address = address
        self.counter = -1
        self.heard_ns = 0
        self.looked_at = Allowance(MAX_LOOKED_AT)
        self.forged = Allowance(MAX_FORGED_OF_CLIENT)
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


class _Key(NamedTuple):
    secret: bytes
    until_ns: int | None
    """None: for good."""


class UdpServer:
    """One socket for the clients of all envs."""

    def __init__(self, loop: asyncio.AbstractEventLoop, hub: Hub, clock: Clock, sock: socket.socket) -> None:
        self.hub = hub
        self._loop = loop
        self._now_ns = clock.monotonic_ns
        self._sock = sock
        self._keys: dict[str, list[_Key]] = {}
        """The present key first; behind it, for a while, the one before."""
        self._epochs: dict[str, int] = {}
        self._clients: dict[str, OrderedDict[str, UdpClient]] = {}
        self._at: dict[Address, UdpClient] = {}
        """Who was heard from there last."""
        self._strangers = Strangers(MAX_STRANGE_OF_HOST, MAX_STRANGE, MAX_HOSTS)
        self._allowances: dict[str, Allowance] = {}
        self.address: tuple[str, int] = sock.getsockname()[:2]
        """Where it listens."""
        loop.add_reader(sock.fileno(), self._readable)

    @staticmethod
    def bind(host: str, port: int) -> socket.socket:
        """Raises UdpAddressError."""
        try:
            return UdpServer._bound(host, port)
        except OSError as error:
            why = WRONG_ADDRESS.get(error.errno or 0, "see the error")
            raise UdpAddressError(f"udp: {host}:{port} cannot be listened on: {why} ({error.strerror})") from None

    @staticmethod
    def _bound(host: str, port: int) -> socket.socket:
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
        known = self._keys.get(env)
        if known is None or known[0].secret != key:
            self._keys[env] = [_Key(key, None)]
        self._epochs.setdefault(env, _new_epoch())
        self._clients.setdefault(env, OrderedDict())
        self._allowances.setdefault(env, Allowance(ALLOWANCE_NS))

    def renew(self, env: str, key: bytes, grace_ns: int) -> None:
        """Another key; who has the old one is heard for so long. It knows nothing of the new one."""
        before = self._keys.get(env, [])[:1]
        self._keys[env] = [_Key(key, None), *(_Key(old.secret, self._now_ns() + grace_ns) for old in before)]

    def close(self, env: str) -> None:
        """Its clients are heard no more, since their key is gone."""
        self._keys.pop(env, None)
        self._epochs.pop(env, None)
        self._allowances.pop(env, None)
        for client in self._clients.pop(env, OrderedDict()).values():
            self._forget_address(client)
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
            if not self._datagram(packet, address):
                self.hub.counters["packets_throttled"] += 1

    def _datagram(self, packet: bytes, address: Address) -> bool:
        """One packet, decoded, verified and taken. False: its sender has cost too much in this second."""
        host, now_ns = address[0], self._now_ns()
        at = self._at.get(address)
        if not (self._strangers.may_try(host, now_ns) if at is None else self._may_look_at(at, now_ns)):
            return False
        message = self._decoded(packet)
        if message is None:
            self._strangers.charge(host)
            return True
        known = at if at is not None and self._continues(at, message) else None
        if not (self._strangers.may_try(host, now_ns) if known is None else known.forged.rest_ns(now_ns) == 0):
            return False
        key = self._key_of(packet, message, now_ns)
        if key is None:
            if known is None:
                self._strangers.charge(host)
            else:
                known.forged.spent += 1
        elif self._allowances[message.text("env") or ""].rest_ns(now_ns) > 0:
            return False
        elif not self._accept(message, key, address, now_ns):
            self._strangers.charge(host)
        return True

    def _may_look_at(self, client: UdpClient, now_ns: int) -> bool:
        client.looked_at.spent += 1
        return client.looked_at.rest_ns(now_ns) == 0 and self._allowances[client.env].rest_ns(now_ns) == 0

    def _continues(self, client: UdpClient, message: Message) -> bool:
        """What nobody can make up who has not listened: this client's id, the epoch, and a counter that was not there yet."""
        fields: Mapping[str, Any] = message.fields
        named = fields["env"] == client.env and fields["client"] == client.client
        return named and fields.get("epoch") == self._epochs[client.env] and fields["counter"] > client.counter

    def _decoded(self, packet: bytes) -> Message | None:
        try:
            message = decode(packet)
        except WireError:
            message = None
        if message is None or not {"env", "client", "counter"} <= message.fields.keys():
            self.hub.counters["packets_malformed"] += 1
            return None
        return message

    def _key_of(self, packet: bytes, message: Message, now_ns: int) -> bytes | None:
        """Under which of the env's keys it is signed; None: under none."""
        for key in self._keys.get(message.text("env") or "", ()):
            if key.until_ns is None or now_ns < key.until_ns:
                with contextlib.suppress(WireError):
                    verify(packet, key.secret)
                    return key.secret
        self.hub.counters["packets_forged"] += 1
        return None

    def _accept(self, message: Message, key: bytes, address: Address, now_ns: int) -> bool:
        """An authentic packet. False: it says nothing new (whoever has listened can send it again)."""
        fields: Mapping[str, Any] = message.fields
        env, name, counter = fields["env"], fields["client"], fields["counter"]
        epoch = self._epochs[env]
        if message.verb == "HELLO" or fields.get("epoch") != epoch:
            answer: dict[str, Value | None] = {"rid": fields.get("rid", 0), "epoch": epoch}
            self._send(key, name, counter, address, "EPOCH", answer)
            return False
        client = self._client(env, name, key, address)
        if client is None:
            self.hub.counters["connections_over_limit"] += 1
            return False
        if counter <= client.counter:
            self.hub.counters["packets_replayed"] += 1
            return False
        self._heard(client, counter, address, now_ns)
        client.secret = key
        self._allowances[env].spent += cost_ns(message.verb)
        remembered = client.answers.get(fields.get("rid", -1)) if message.verb in REPEATABLE else None
        if remembered is not None:
            self.send(client, *remembered)
        else:
            self.hub.received(client, message, [])
        return True

    def _heard(self, client: UdpClient, counter: int, address: Address, now_ns: int) -> None:
        self._forget_address(client)
        client.counter, client.address, client.heard_ns = counter, address, now_ns
        self._at[address] = client

    def _forget_address(self, client: UdpClient) -> None:
        if self._at.get(client.address) is client:
            del self._at[client.address]

    def _client(self, env: str, name: str, key: bytes, address: Address) -> UdpClient | None:
        clients = self._clients[env]
        client = clients.get(name)
        if client is None:
            if len(clients) >= MAX_CLIENTS_PER_ENV and not self._make_room(env):
                return None
            client = clients[name] = UdpClient(self, env, name, key, address)
            self.hub.opened(client)
        return client

    def _make_room(self, env: str) -> bool:
        """Forgets clients that hold nothing and say nothing, and begins a new epoch, so that nothing of theirs can be replayed."""
        clients, now_ns = self._clients[env], self._now_ns()
        idle = [c for c in clients.values() if c.key not in self.hub.last_beat_ns and now_ns - c.heard_ns > IDLE_NS]
        for client in idle:
            del clients[client.client]
            self._forget_address(client)
            self.hub.closed(client)
        if idle:
            self._epochs[env] = _new_epoch()
        return bool(idle)

    # -- packets out --

    def send(self, client: UdpClient, verb: str, fields: Mapping[str, Value | None]) -> None:
        if client.env in self._keys:
            self._send(client.secret, client.client, client.counter, client.address, verb, fields)

    def _send(self, key: bytes, client: str, counter: int, address: Address, verb: str, fields: Mapping[str, Value | None]) -> None:
        """One datagram; one that is lost is asked for again."""
        packet = sign(encode(verb, client=client, counter=counter, **fields), key)
        with contextlib.suppress(OSError):
            self._sock.sendto(packet, address)

    def line(self) -> str:
        """For `nodemgr doctor`."""
        clients = sum(map(len, self._clients.values()))
        held_to = "each with whole GPUs or a fixed cap, for there is no ledger; their deaths are told by silence"
        return f"{clients} client{'' if clients == 1 else 's'}, {held_to}"


def _new_epoch() -> int:
    return secrets.randbits(52) + 1
