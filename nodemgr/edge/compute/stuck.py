"""Finds GPUs on which turns do not go on, though no word of their page is impossible.

Knows: the gates' readings, the driver's samples, the holders of the tokens. Must not know: pages,
the consequence of a finding (compute_controller.py).

A client that takes the token again and again, and launches nothing, delays each launch of others by
up to 25 ms. Each word that it writes could be right. But honest processes that wait keep their GPU
busy, and an honest holder without work gives the token back within 10 ms. No process is accused:
each env gets a page of its own, in which such a client delays its own env alone.

A process counts as delayed if it was in the reading before too, or if the holder was. Short
programs that follow each other are in their first tenth of a second in many readings: they load
their work, and use little of the GPU then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nodemgr.core.model.entities import ProcessKey, Uuid
from nodemgr.edge.compute.registry import Reading

STUCK_READINGS = 3
"""One reading may show a process between two turns."""
WAITED_NS = 3_000_000
"""Behind an honest holder that computes little, a wait is shorter."""
BUSY_PERCENT = 50
IDLE_PERCENT = 1
FULL_PERCENT = 95
"""A client that delays each launch of others leaves them less of the GPU."""


class StuckTurns:
    """The readings in a row that show a GPU so."""

    def __init__(self) -> None:
        self._readings: dict[Uuid, int] = {}
        self._known: frozenset[ProcessKey] = frozenset()
        """The processes of the reading before."""

    def judge(
        self,
        readings: Iterable[Reading],
        sampled: Mapping[tuple[ProcessKey, Uuid], int],
        holders: Mapping[Uuid, ProcessKey | None],
    ) -> list[Uuid]:
        """`holders`: of each GPU whose page several envs have."""
        by_gpu: dict[Uuid, list[Reading]] = {uuid: [] for uuid in holders}
        for one in readings:
            if one.uuid in by_gpu:
                by_gpu[one.uuid].append(one)
        known = self._known
        self._known = frozenset(one.process for there in by_gpu.values() for one in there)
        found = []
        counts: dict[Uuid, int] = {}
        for uuid, there in by_gpu.items():
            uses = {one.process: _percent(one, sampled) for one in there}
            holder, lasting = holders[uuid], [one for one in there if one.process in known]
            delayed = there if holder in known else lasting
            if _is_idle_while_one_waits(lasting, uses) or _is_held_idle(delayed, uses, holder):
                counts[uuid] = self._readings.get(uuid, 0) + 1
                if counts[uuid] == STUCK_READINGS:
                    found.append(uuid)
        self._readings = {uuid: count for uuid, count in counts.items() if uuid not in found}
        return found


def _percent(one: Reading, sampled: Mapping[tuple[ProcessKey, Uuid], int]) -> int:
    """By the driver where it has a sample: a client may tell any figure."""
    told = round(100 * one.used_ns / one.elapsed_ns)
    return sampled.get((one.process, one.uuid), told)


def _is_idle_while_one_waits(delayed: list[Reading], uses: Mapping[ProcessKey, int]) -> bool:
    waits = any(one.is_open and one.waited_ns >= WAITED_NS for one in delayed)
    return waits and sum(uses.values()) < BUSY_PERCENT


def _is_held_idle(
    delayed: list[Reading], uses: Mapping[ProcessKey, int], holder: ProcessKey | None
) -> bool:
    if holder is None or uses.get(holder, 0) >= IDLE_PERCENT:
        return False
    if sum(uses.values()) >= FULL_PERCENT:  # on a busy machine a holder may not run for long
        return False
    return any(one.process != holder and (one.used_ns or one.waited_ns) for one in delayed)
