"""Packets as tests read them: a verb, and fields by their types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from nodemgr.edge.rpc import wire


class Packet(NamedTuple):
    verb: str
    fields: Mapping[str, wire.Value]

    def number(self, key: str) -> int | None:
        value = self.fields.get(key)
        return value if isinstance(value, int) else None

    def text(self, key: str) -> str | None:
        value = self.fields.get(key)
        return value if isinstance(value, str) else None


def decode(packet: bytes, direction: wire.Direction = wire.Direction.UP) -> Packet:
    return Packet(*wire.decode(packet, direction))
