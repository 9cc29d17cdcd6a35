"""The last sign of life of each process: a packet, or its word in its env's ledger.

Knows: beat words, the times of packets, which process has which slot. Must not know: the
consequence of a silence.

A process in a ledger raises its word there each beat and sends nothing. A UDP client sends packets,
as does a process that waits. The words are a client's: any change of a word counts as a sign of
life.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from nodemgr.core.model.entities import ProcessKey
from nodemgr.core.state.node_state import State
from nodemgr.edge.ledger.registry import Ledgers

Slots = dict[str, list[int]]
"""Slots of ledgers, by env."""


class Silence(NamedTuple):
    """The result of one reading."""

    silent: frozenset[ProcessKey]
    """Not heard for the timeout."""
    oldest_ns: int | None
    """When the first of the others was heard; None: there are none."""
    woken: list[ProcessKey]
    """Members of stalled tasks with a word that has moved since the last reading."""


class Beats:
    """Of every process that holds or waits."""

    def __init__(self, state: State, ledgers: Ledgers) -> None:
        self._state = state
        self._ledgers = ledgers
        self.packets: dict[ProcessKey, int] = {}
        """When the watch of each process began, or its last packet. The transports write here."""
        self._over_udp: set[ProcessKey] = set()

    def watch(self, key: ProcessKey, now_ns: int, *, over_udp: bool) -> None:
        self.packets[key] = now_ns
        if over_udp:
            self._over_udp.add(key)

    def unwatch(self, key: ProcessKey) -> None:
        self.packets.pop(key, None)
        self._over_udp.discard(key)

    def get(self, key: ProcessKey, default: int) -> int:
        """When it was last heard, as of the last reading."""
        packet_ns = self.packets.get(key, default)
        process = self._state.processes.get(key)
        if process is None or process.slot is None:
            return packet_ns
        word_ns = self._ledgers.heard_ns(process.env, process.slot)
        return word_ns if word_ns > packet_ns else packet_ns

    def woken(self, now_ns: int) -> list[ProcessKey]:
        """Looks at all words; see Silence.woken."""
        return self._keys(self._read(now_ns, 0)[0])

    def silence(self, now_ns: int, timeout_ns: int) -> Silence:
        """Looks at all words and at the packets of those that have no word."""
        before_ns = now_ns - timeout_ns + 1
        woken, still, oldest_ns = self._read(now_ns, before_ns)
        # a process in a ledger may have sent packets instead
        by_packet = [
            *self._keys(still),
            *self._over_udp,
        ]
        heard_ns = [(self.packets.get(key, now_ns), key) for key in by_packet]
        silent = frozenset([key for last_ns, key in heard_ns if last_ns < before_ns])
        others_ns = [last_ns for last_ns, _ in heard_ns if last_ns >= before_ns]
        if oldest_ns is not None:
            others_ns.append(oldest_ns)
        return Silence(silent, min(others_ns, default=None), self._keys(woken))

    def _read(self, now_ns: int, before_ns: int) -> tuple[Slots, Slots, int | None]:
        """(moved slots of stalled tasks, slots unmoved since before_ns, oldest other move)."""
        woken: Slots = {}
        still: Slots = {}
        oldest_ns: int | None = None
        for env, reading in self._ledgers.read_beats(now_ns, before_ns):
            if reading.woken:
                woken[env] = reading.woken
            if reading.still:
                still[env] = reading.still
            if reading.oldest_ns is not None:
                oldest_ns = (
                    reading.oldest_ns if oldest_ns is None else min(oldest_ns, reading.oldest_ns)
                )
        return woken, still, oldest_ns

    def _keys(self, slots: Mapping[str, list[int]]) -> list[ProcessKey]:
        """The processes of these slots: one pass over all processes, only if there are slots."""
        if not slots:
            return []
        wanted = {(env, slot) for env, some in slots.items() for slot in some}
        return [
            process.key
            for process in self._state.processes.values()
            if (process.env, process.slot) in wanted
        ]
