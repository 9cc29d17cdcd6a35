"""Clients over UDP, on machines or in networks that the env's socket does not reach: a keyed MAC says who speaks.

Knows: keys, epochs, counters, datagrams. Must not know: what a message means.

A packet counts if its MAC is right under its env's key, its epoch is the present one and its counter is higher than every
earlier one of that client: so neither forging nor replaying does anything, and no clock is compared. A new epoch begins with
each manager, and for an env whose table of clients is full of dead ones. Answers are remembered by request id for a client
that asks again because a packet was lost.

A MAC costs time. Packets without a right one are checked and dropped in C (sift.py), for a share of the processor's time; when that is
spent, hosts that have sent few of them are still heard, and in the end the addresses of clients alone. A packet with a right MAC that
says nothing new (replayed, of another epoch) is paid for by its host; one that is new by its env.
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

from nodemgr._native import lib
from nodemgr.core.model.entities import ProcessKey, Transport
from nodemgr.edge.clients.client_sessions import Hub, Session, cost_ns
from nodemgr.edge.clients.rate_limits import CpuTimeShare, RateLimiter, Strangers
from nodemgr.edge.clients.sift import Address, Level, PacketBatch, Sift, Signed
from nodemgr.edge.host.clock import Clock
from nodemgr.edge.host.loop import SwallowingSelector
from nodemgr.edge.rpc.wire import Message, Value, decode, encode, sign

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
STRANGERS_NS = 125_000_000
"""Of the processor's time in a second, for packets that no key has signed: an eighth of a core."""
LEVELS = (Level.ALL, Level.ALL, Level.ALL, Level.OF_QUIET_HOSTS, Level.OF_KNOWN)
"""What is checked, by the quarters of that time that are spent."""
REST_S = 0.002
"""While strangers flood, the socket is read so often: many packets at once cost less each."""
MOST_BATCHES = 16
FLOOD_PACKETS = 1_000
"""Of strangers in a second, from which on that is a flood."""
MAX_STALE_OF_HOST, MAX_STALE, FEW_STALE = 500, 2_000, 8
"""Packets a second that are signed and say nothing new, of one host and of all: some 50 µs each. A host with few is heard beyond that."""
MAX_HOSTS = 4_096
RATE_LIMIT_NS = 200_000_000
"""What the clients of one env may cost together in a second: 4 000 beats."""
FINAL = frozenset({"GRANT", "DENY", "ACK", "FENCE"})
REPEATABLE = frozenset({"RELEASE", "CANCEL", "REJOIN"})
"""What is answered from memory when asked again; ACQUIRE the core itself answers the same."""


class UdpAddressError(Exception):
    """One line: which address cannot be listened on, why, and what to do."""


def process_key(env: str, client: str) -> ProcessKey:
    return f"udp:{env}:{client}"


class UdpClient(Session):
    """One client id of one env."""

    __slots__ = ("address", "answers", "client", "counter", "heard_ns", "secret", "server")

    def __init__(self, server: UdpServer, env: str, client: str, secret: bytes, address: Address) -> None:
        super().__init__(server.hub.next_connection(), env, process_key(env, client), Transport.UDP, None, f"udp:{env}")
        self.server = server
        self.client = client
        self.secret = secret
        """The key that it signs with, and is answered with."""
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


class _Key(NamedTuple):
    secret: bytes
    until_ns: int | None
    """None: for good."""


class UdpServer:
    """One socket for the clients of all envs."""

    def __init__(self, loop: asyncio.AbstractEventLoop, selector: SwallowingSelector, hub: Hub, clock: Clock, sock: socket.socket) -> None:
        """`selector` is the loop's own: strangers' packets cost no turn of the loop."""
        self.hub = hub
        self._loop = loop
        self._selector = selector
        self._now_ns = clock.monotonic_ns
        self._sock = sock
        self._keys: dict[str, list[_Key]] = {}
        """The present key first; behind it, for a while, the one before."""
        self._epochs: dict[str, int] = {}
        self._clients: dict[str, OrderedDict[str, UdpClient]] = {}
        self._at: dict[Address, UdpClient] = {}
        """Who was heard from there last."""
        self._sift = Sift()
        self._share = CpuTimeShare(STRANGERS_NS)
        self._strange = 0
        """Packets of strangers in this second."""
        self._stale = Strangers(MAX_STALE_OF_HOST, MAX_STALE, FEW_STALE, MAX_HOSTS)
        self._resting: asyncio.TimerHandle | None = None
        self._rate_limiters: dict[str, RateLimiter] = {}
        self.address: tuple[str, int] = sock.getsockname()[:2]
        """Where it listens."""
        selector.swallow(sock.fileno(), self._readable)

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
            self._set_keys(env, [_Key(key, None)])
        self._epochs.setdefault(env, _new_epoch())
        self._clients.setdefault(env, OrderedDict())
        self._rate_limiters.setdefault(env, RateLimiter(RATE_LIMIT_NS))

    def renew(self, env: str, key: bytes, grace_ns: int) -> None:
        """Another key; who has the old one is heard for so long. It knows nothing of the new one."""
        before = self._keys.get(env, [])[:1]
        self._set_keys(env, [_Key(key, None), *(_Key(old.secret, self._now_ns() + grace_ns) for old in before)])

    def _set_keys(self, env: str, keys: list[_Key]) -> None:
        self._keys[env] = keys
        self._sift.set_keys(env, [key.secret for key in keys])

    def close(self, env: str) -> None:
        """Its clients are heard no more, since their key is gone."""
        self._keys.pop(env, None)
        self._sift.set_keys(env, ())
        self._epochs.pop(env, None)
        self._rate_limiters.pop(env, None)
        for client in self._clients.pop(env, OrderedDict()).values():
            self._forget_address(client)
            self.hub.closed(client)

    def close_all(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
        self._selector.forget(self._sock.fileno())
        self._sock.close()

    # -- packets in --

    def _readable(self) -> bool:
        """Called by the selector. True: there were none but strangers' packets, which leave the loop nothing to do."""
        signed = False
        for _ in range(MOST_BATCHES):
            try:
                batch = self._sift.receive(self._sock.fileno(), self._level())
            except OSError:  # an ICMP answer to something that was sent
                continue
            if batch is None:
                break
            self._take(batch)
            signed = signed or bool(batch.signed)
            if batch.received < lib.NM_SIFT_PACKETS:
                break
        if self._strange <= FLOOD_PACKETS:
            return not signed
        self._selector.forget(self._sock.fileno())
        self._resting = self._loop.call_later(REST_S, self._read_again)
        return False

    def _read_again(self) -> None:
        self._resting = None
        self._selector.swallow(self._sock.fileno(), self._readable)

    def _datagram(self, packet: bytes, address: Address) -> None:
        """One packet, by whatever way it came."""
        self._take(self._sift.take(packet, address, self._level()))

    def _level(self) -> Level:
        second = self._share.second
        level = LEVELS[self._share.quarters(self._now_ns())]
        if self._share.second != second:
            self._strange = 0
            self._sift.set_window(self._share.second)
        return level

    def _take(self, batch: PacketBatch) -> None:
        counters = self.hub.counters
        counters["packets_malformed"] += batch.malformed
        counters["packets_forged"] += batch.forged
        counters["packets_throttled"] += batch.throttled
        self._strange += batch.received - len(batch.signed)
        self._share.spend(batch.strangers_ns)
        for signed in batch.signed:
            if not self._take_signed(signed):
                counters["packets_throttled"] += 1

    def _take_signed(self, signed: Signed) -> bool:
        """False: its host has sent too much that said nothing new in this second, or its env has cost too much."""
        address, now_ns = signed.address, self._now_ns()
        at = self._at.get(address)
        if at is None and not self._stale.may_try(address[0], now_ns):
            return False
        message = decode(signed.packet)
        env = message.text("env") or ""
        key = self._key(env, signed.key, now_ns)
        if key is None:
            self.hub.counters["packets_forged"] += 1
            return True
        if at is not None and not self._continues(at, message) and not self._stale.may_try(address[0], now_ns):
            return False
        if self._rate_limiters[env].rest_ns(now_ns) > 0:
            return False
        if not self._accept(message, key.secret, address, now_ns):
            self._stale.charge(address[0])
        return True

    def _key(self, env: str, number: int, now_ns: int) -> _Key | None:
        """None: it is no key of the env any more."""
        known = self._keys.get(env, [])
        keys = [key for key in known if key.until_ns is None or now_ns < key.until_ns]
        if len(keys) < len(known):
            self._set_keys(env, keys)
        return keys[number] if number < len(keys) else None

    def _continues(self, client: UdpClient, message: Message) -> bool:
        """This client's id, the epoch, and a counter that was not there yet."""
        fields: Mapping[str, Any] = message.fields
        named = fields["env"] == client.env and fields["client"] == client.client
        return named and fields.get("epoch") == self._epochs[client.env] and fields["counter"] > client.counter

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
        self._rate_limiters[env].spent += cost_ns(message.verb)
        remembered = client.answers.get(fields.get("rid", -1)) if message.verb in REPEATABLE else None
        if remembered is not None:
            self.send(client, *remembered)
        else:
            self.hub.received(client, message, [])
        return True

    def _heard(self, client: UdpClient, counter: int, address: Address, now_ns: int) -> None:
        self._forget_address(client)
        client.counter, client.address, client.heard_ns = counter, address, now_ns
        if address not in self._at:
            self._sift.know(address)
        self._at[address] = client

    def _forget_address(self, client: UdpClient) -> None:
        if self._at.get(client.address) is client:
            del self._at[client.address]
            self._sift.forget(client.address)

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
