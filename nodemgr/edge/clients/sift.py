"""Datagrams that one of our keys has signed; all others are counted in C and never become Python's.

Knows: csrc/manager/sift.h. Must not know: clients, epochs, counters, how much strangers may cost.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from nodemgr._native import ffi, lib

Address = Any  # (host, port), or four of them over IPv6
_NOTHING = frozenset({errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR})


class Level(IntEnum):
    """Packets of which unknown addresses are checked. Those of known addresses always are."""

    ALL = lib.NM_SIFT_ALL
    OF_QUIET_HOSTS = lib.NM_SIFT_OF_QUIET_HOSTS
    OF_KNOWN = lib.NM_SIFT_OF_KNOWN


class Signed(NamedTuple):
    packet: bytes
    address: Address
    key: int
    """The number of the key among its env's keys."""


class PacketBatch(NamedTuple):
    received: int
    malformed: int
    forged: int
    throttled: int
    strangers_ns: int
    """Processor time for packets that proved nothing."""
    signed: list[Signed]


class Sift:
    def __init__(self) -> None:
        sift = lib.nm_sift_new()
        if sift == ffi.NULL:
            raise MemoryError("no memory for datagrams")
        self._sift = ffi.gc(sift, lib.nm_sift_free)

    def set_keys(self, env: str, keys: Sequence[bytes]) -> None:
        """Replaces the env's keys; without keys no packet of the env counts as signed."""
        if not lib.nm_sift_set_keys(self._sift, env.encode(), b"".join(keys), len(keys)):
            raise MemoryError(f"no memory for the keys of env {env}")

    def know(self, address: Address) -> None:
        """Knows an address until it is forgotten as often."""
        lib.nm_sift_know(self._sift, address[0].encode(), address[1], 1)

    def forget(self, address: Address) -> None:
        lib.nm_sift_know(self._sift, address[0].encode(), address[1], -1)

    def set_window(self, number: int) -> None:
        """Forget the counts of hosts and addresses of another window."""
        lib.nm_sift_set_window(self._sift, number & 0xFFFFFFFF)

    def receive(self, descriptor: int, level: Level) -> PacketBatch | None:
        """Read up to lib.NM_SIFT_PACKETS packets of a non-blocking socket.

        None: there is none. Raises OSError.
        """
        batch = lib.nm_sift_receive(self._sift, descriptor, level)
        if batch != ffi.NULL:
            return self._batch(batch)
        if ffi.errno in _NOTHING:
            return None
        raise OSError(ffi.errno, "receiving datagrams")

    def take(self, packet: bytes, address: Address, level: Level) -> PacketBatch:
        """The same for one packet that was received in another way.

        Raises ValueError for a wrong address.
        """
        batch = lib.nm_sift_take(
            self._sift, packet, len(packet), address[0].encode(), address[1], level
        )
        if batch == ffi.NULL:
            raise ValueError(f"{address} is no address")
        return self._batch(batch)

    @staticmethod
    def _batch(batch: Any) -> PacketBatch:
        signed = list(_signed(batch)) if batch.signed_count else []
        return PacketBatch(
            batch.received,
            batch.malformed,
            batch.forged,
            batch.throttled,
            batch.strangers_ns,
            signed,
        )


def _signed(batch: Any) -> Iterator[Signed]:
    for index in range(batch.signed_count):
        each = batch.packets[index]
        host = ffi.string(each.host).decode()
        address = (host, each.port, each.flow, each.scope) if each.is_ipv6 else (host, each.port)
        yield Signed(bytes(ffi.buffer(each.bytes, each.size)), address, each.key)
