"""Clients over UDP, where the env's socket is out of reach. A keyed MAC authenticates each packet.

Knows: keys, epochs, counters, datagrams. Must not know: the meaning of a message.

A packet is accepted if its MAC is valid under its env's key, its epoch is the current one and its
counter is higher than every earlier one of that client. So forged and replayed packets have no
effect, and no clock is compared. A new epoch begins with each manager, and when an env drops idle
clients from a full table. Answers are kept by request id for a client that repeats a lost request.

A MAC check costs time. C code (csrc/manager/sift.c) checks packets and drops those without a valid
MAC, within a share of the processor's time. When that share runs out, only hosts with few such
packets are still checked, and in the end only the addresses of clients. A packet with a valid MAC
but no new content (replayed, of another epoch) is charged to its host; a new packet is charged to
its env.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
import socket
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from client_plugin.messages.form import Part, SpokenError
from nodemgr._native import lib
from nodemgr.core.model.entities import ProcessKey, Transport
from nodemgr.edge.clients.client_sessions import Hub, Session, cost_ns
from nodemgr.edge.clients.rate_limits import CpuTimeShare, RateLimiter, Strangers
from nodemgr.edge.clients.sift import Address, Level, PacketBatch, Sift, Signed
from nodemgr.edge.host.clock import Clock
from nodemgr.edge.host.loop import SwallowingSelector
from nodemgr.edge.rpc.wire import Fields, Value, decode, encode, sign

WRONG_ADDRESS = {
    errno.EADDRNOTAVAIL: Part(
        "name an address of this node, which this is not (ip address lists them)"
    ),
    errno.EADDRINUSE: Part("name another port, since another program listens there"),
    errno.EACCES: Part("name a port from 1024 on, since one below needs root"),
    socket.EAI_NONAME: Part("name an address of this node, since no such host is known here"),
}
"""Error code to explanation, for an address that cannot be bound."""
MAX_CLIENTS_PER_ENV = 1_100
IDLE_NS = 60_000_000_000
"""A client without lease or place may be removed after this silence, if the table is full."""
REMEMBERED_ANSWERS = 8
STRANGERS_NS = 125_000_000
"""Processor time per second for packets without a valid MAC: an eighth of a core."""
LEVELS = (Level.ALL, Level.ALL, Level.ALL, Level.OF_QUIET_HOSTS, Level.OF_KNOWN)
"""The packets to check, indexed by the quarters of STRANGERS_NS spent."""
REST_S = 0.002
"""Read interval of the socket in a flood: a larger batch costs less per packet."""
MOST_BATCHES = 16
FLOOD_PACKETS = 1_000
"""More packets than this in a second without a valid MAC are a flood."""
MAX_STALE_OF_HOST, MAX_STALE, FEW_STALE = 500, 2_000, 8
"""Signed packets per second without new content, of one host and of all: some 50 µs each.

A host with few of them is accepted beyond the total.
"""
MAX_HOSTS = 4_096
RATE_LIMIT_NS = 200_000_000
"""Cost limit per second for all clients of one env: 4 000 beats."""
FINAL = frozenset({"GRANT", "DENY", "ACK", "FENCE"})
REPEATABLE = frozenset({"RELEASE", "CANCEL", "REJOIN"})
"""Repeated requests answered from `answers`. The core itself repeats its answer to ACQUIRE."""


class UdpAddressError(SpokenError):
    """One line: the address that cannot be bound, the reason and the remedy."""


def process_key(env: str, client: str) -> ProcessKey:
    return f"udp:{env}:{client}"


class UdpClient(Session):
    """One client id of one env."""

    __slots__ = ("address", "answers", "client", "counter", "heard_ns", "secret", "server")

    def __init__(
        self, server: UdpServer, env: str, client: str, secret: bytes, address: Address
    ) -> None:
        super().__init__(
            server.hub.next_connection(),
            env,
            process_key(env, client),
            Transport.UDP,
            None,
            f"udp:{env}",
        )
        self.server = server
        self.client = client
        self.secret = secret
        """The key of its packets and of the answers."""
        self.address = address
        self.counter = -1
        self.heard_ns = 0
        self.answers: OrderedDict[int, tuple[str, dict[str, Value | None]]] = OrderedDict()

    def answer(self, verb: str, fds: Sequence[int] = (), **fields: Value | None) -> None:
        rid = fields.get("rid")
        if verb == "FENCE":
            self.answers.clear()  # an ended grant must not be sent again
        elif verb in FINAL and isinstance(rid, int):
            self.answers[rid] = (verb, fields)
            if len(self.answers) > REMEMBERED_ANSWERS:
                self.answers.popitem(last=False)
        self.server.send(self, verb, fields)


class _Key(NamedTuple):
    secret: bytes
    until_ns: int | None
    """None: no expiry."""


class UdpServer:
    """One socket for the clients of all envs."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        selector: SwallowingSelector,
        hub: Hub,
        clock: Clock,
        sock: socket.socket,
    ) -> None:
        """`selector` is the loop's own: packets without a valid MAC cost no turn of the loop."""
        self.hub = hub
        self._loop = loop
        self._selector = selector
        self._now_ns = clock.monotonic_ns
        self._sock = sock
        self._keys: dict[str, list[_Key]] = {}
        """The current key first, then the previous key until it expires."""
        self._epochs: dict[str, int] = {}
        self._clients: dict[str, OrderedDict[str, UdpClient]] = {}
        self._at: dict[Address, UdpClient] = {}
        """The client last heard from each address."""
        self._sift = Sift()
        self._share = CpuTimeShare(STRANGERS_NS)
        self._strange = 0
        """Packets without a valid MAC in this second."""
        self._stale = Strangers(MAX_STALE_OF_HOST, MAX_STALE, FEW_STALE, MAX_HOSTS)
        self._resting: asyncio.TimerHandle | None = None
        self._rate_limiters: dict[str, RateLimiter] = {}
        self.address: tuple[str, int] = sock.getsockname()[:2]
        """The bound host and port."""
        selector.swallow(sock.fileno(), self._readable)

    @staticmethod
    def bind(host: str, port: int) -> socket.socket:
        """Raises UdpAddressError."""
        try:
            return UdpServer._bound(host, port)
        except OSError as error:
            remedy = WRONG_ADDRESS.get(
                error.errno or 0, Part("mend that, or name another address")
            )()
            raise UdpAddressError(
                f"udp: {host}:{port} cannot be listened on ({error.strerror})", f"{remedy}"
            ) from None

    @staticmethod
    def _bound(host: str, port: int) -> socket.socket:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
        )[0]
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
        """Sets a new key.

        The old key stays valid for `grace_ns`; its clients do not learn the new one.
        """
        before = self._keys.get(env, [])[:1]
        self._set_keys(
            env, [_Key(key, None), *(_Key(old.secret, self._now_ns() + grace_ns) for old in before)]
        )

    def _set_keys(self, env: str, keys: list[_Key]) -> None:
        self._keys[env] = keys
        self._sift.set_keys(env, [key.secret for key in keys])

    def close(self, env: str) -> None:
        """Removes the env's keys and closes its clients."""
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
        """Called by the selector. True: no packet was signed, so the loop has nothing to do."""
        signed = False
        for _ in range(MOST_BATCHES):
            try:
                batch = self._sift.receive(self._sock.fileno(), self._level())
            except OSError:  # an ICMP error for an earlier datagram
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
        """Handles one packet from any source."""
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
        """False: the host sent too much without new content, or the env is over its cost limit."""
        address, now_ns = signed.address, self._now_ns()
        at = self._at.get(address)
        if at is None and not self._stale.may_try(address[0], now_ns):
            return False
        verb, fields = decode(signed.packet)
        env = fields.get("env", "")
        key = self._key(env, signed.key, now_ns)
        if key is None:
            self.hub.counters["packets_forged"] += 1
            return True
        if (
            at is not None
            and not self._continues(at, fields)
            and not self._stale.may_try(address[0], now_ns)
        ):
            return False
        if self._rate_limiters[env].rest_ns(now_ns) > 0:
            return False
        if not self._accept(verb, fields, key.secret, address, now_ns):
            self._stale.charge(address[0])
        return True

    def _key(self, env: str, number: int, now_ns: int) -> _Key | None:
        """The env's key of this number; None: it has expired or was removed."""
        known = self._keys.get(env, [])
        keys = [key for key in known if key.until_ns is None or now_ns < key.until_ns]
        if len(keys) < len(known):
            self._set_keys(env, keys)
        return keys[number] if number < len(keys) else None

    def _continues(self, client: UdpClient, fields: Fields) -> bool:
        """The message has this client's env and id, the current epoch and a higher counter."""
        named = fields["env"] == client.env and fields["client"] == client.client
        return (
            named
            and fields.get("epoch") == self._epochs[client.env]
            and fields["counter"] > client.counter
        )

    def _accept(self, verb: str, fields: Fields, key: bytes, address: Address, now_ns: int) -> bool:
        """Handles an authentic packet. False: nothing new (an eavesdropper can resend it)."""
        env, name, counter = fields["env"], fields["client"], fields["counter"]
        epoch = self._epochs[env]
        if verb == "HELLO" or fields.get("epoch") != epoch:
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
        self._rate_limiters[env].spent += cost_ns(verb)
        remembered = client.answers.get(fields.get("rid", -1)) if verb in REPEATABLE else None
        if remembered is not None:
            self.send(client, *remembered)
        else:
            self.hub.received(client, verb, fields, [])
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
        """Removes idle clients without lease or place.

        A new epoch prevents replay of their packets.
        """
        clients, now_ns = self._clients[env], self._now_ns()
        idle = [
            c
            for c in clients.values()
            if c.key not in self.hub.last_beat_ns and now_ns - c.heard_ns > IDLE_NS
        ]
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

    def _send(
        self,
        key: bytes,
        client: str,
        counter: int,
        address: Address,
        verb: str,
        fields: Mapping[str, Value | None],
    ) -> None:
        """Sends one datagram. The client repeats its request if the datagram is lost."""
        packet = sign(encode(verb, client=client, counter=counter, **fields), key)
        with contextlib.suppress(OSError):
            self._sock.sendto(packet, address)

    def client_count(self) -> int:
        return sum(map(len, self._clients.values()))


def _new_epoch() -> int:
    return secrets.randbits(52) + 1
