"""Finds tasks that use more compute than their share while others want the GPU.

Knows: the gates' readings, the driver's samples, the shares. Must not know: pages, clocks, the
consequence of a finding (core/sharing/compute_audit.py).

A client can write any figure about itself and any wait, so no figure proves an offence, and a
process that pretends to wait could have another one accused. So the gate of a suspect is closed
until its use is down to its share. The work of an honest process ends meanwhile, since each launch
waits, and the process still gets its share. Work that goes on bypasses the gate: this is an
offence.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from nodemgr.core.model.entities import WHOLE_PERCENT, Offence, ProcessKey, Uuid
from nodemgr.core.model.events import ComputeFinding
from nodemgr.edge.compute.registry import Reading

TaskGpu = tuple[str, Uuid]
EXCESS_NS, EXCESS_PERCENT = 100_000_000, 10
"""A task is suspect when it is this far beyond its share in one reading."""
OVERDUE_NS = 100_000_000
"""A wait in the gate without progress ends within 25 ms; a longer one has a reason."""
UNTOLD_PERCENT = 20
"""The driver's figure is believed where it is this far above the process's own."""
STILL_PERCENT = 10
"""A closed gate lets no more through."""
DRAIN_READINGS = 1
"""Work in flight may end while the gate is closed: this many readings do not count."""
BUSY_PART = 4
"""A task that uses this part of its share is busy, where envs have a page each."""
LONG_READINGS = 20
"""Work in flight that takes longer counts as work of new launches."""
MOST_EXCESS_NS = 10_000_000_000
"""No gate is closed longer for an excess than until this much is paid back."""


class Member(NamedTuple):
    """A process in a launch gate."""

    task_id: str
    granted_percent: int | None
    """None: a plain task."""
    wants_compute: bool = True
    """False: its task is suspended or stalled, and waits for something else than compute."""


@dataclass(slots=True)
class _Suspect:
    """A task that has used more than its share."""

    excess_ns: int = 0
    is_closed: bool = False
    """Its gate is closed while its share of a reading pays a part of the excess back."""
    readings: int = 0
    """Since its gate was closed."""

    def add(self, use: _Use, share: int) -> None:
        """Counts one reading."""
        self.excess_ns = min(MOST_EXCESS_NS, self.excess_ns + _excess_ns(use, share))
        was_closed, self.is_closed = self.is_closed, self.excess_ns >= share * use.elapsed_ns // 100
        self.readings = self.readings + 1 if was_closed else 0


class _Use(NamedTuple):
    """A task on one GPU."""

    percent: int
    """As far as it can be believed."""
    told_percent: int
    elapsed_ns: int
    in_flight: bool
    waited_ns: int
    process: ProcessKey
    """The one with the most use."""


class Overuse:
    """The suspects between readings."""

    def __init__(self) -> None:
        self._suspects: dict[TaskGpu, _Suspect] = {}

    @property
    def paused(self) -> frozenset[TaskGpu]:
        """Their gates are to be closed."""
        return frozenset(key for key, suspect in self._suspects.items() if suspect.is_closed)

    def needs_driver(
        self, readings: Iterable[Reading], members: Mapping[ProcessKey, Member]
    ) -> bool:
        """Whether the driver's samples are needed.

        They are while a suspect's gate is closed, or where one of several tasks on a GPU is active:
        another one may hide its use.
        """
        if self.paused:
            return True
        tasks: dict[Uuid, set[str]] = {}
        active: set[Uuid] = set()
        for one in readings:
            member = members.get(one.process)
            if member is not None and member.wants_compute:
                tasks.setdefault(one.uuid, set()).add(member.task_id)
                if one.used_ns or one.in_flight or one.waited_ns:
                    active.add(one.uuid)
        return any(len(tasks[uuid]) > 1 for uuid in active)

    def judge(
        self,
        readings: Iterable[Reading],
        members: Mapping[ProcessKey, Member],
        sampled: Mapping[tuple[ProcessKey, Uuid], int],
        separated: Container[Uuid] = (),
    ) -> tuple[ComputeFinding, ...]:
        """The offences of this reading.

        `sampled`: the driver's percent where it has one. `separated`: GPUs whose envs have a page
        each.
        """
        uses = _uses(readings, members, sampled)
        granted = {member.task_id: member.granted_percent for member in members.values()}
        found = []
        for key in self._suspects.keys() - uses.keys():
            del self._suspects[key]
        for key, use in uses.items():
            share = granted[key[0]]
            suspect = self._suspects.get(key)
            if share is None or (share > 0 and not _others_are_active(key, uses)):
                self._suspects.pop(key, None)  # no task lacks what it uses
            elif suspect is not None and suspect.is_closed:
                suspect.add(use, share)
                if _goes_on(suspect, use):
                    found.append(
                        ComputeFinding(Offence.OVER_SHARE, use.process, key[1], use.percent, share)
                    )
                elif share == 0 and use.percent <= STILL_PERCENT:
                    del self._suspects[key]
            elif _is_suspect(key, use, share, uses) or (
                key[1] in separated and _takes_from_others(key, use, share, uses, granted)
            ):
                self._suspects.setdefault(key, _Suspect()).add(use, share)
            elif suspect is not None:
                del self._suspects[key]
        return tuple(found)


def _goes_on(suspect: _Suspect, use: _Use) -> bool:
    """Whether the work of a task goes on behind its closed gate."""
    if suspect.readings <= DRAIN_READINGS:
        return False
    if use.in_flight and suspect.readings <= LONG_READINGS:
        return False
    return use.percent > STILL_PERCENT


def _excess_ns(use: _Use, share: int) -> int:
    """Below zero: it has used less than its share."""
    return (use.percent - share) * use.elapsed_ns // 100


def _is_suspect(key: TaskGpu, use: _Use, share: int, uses: Mapping[TaskGpu, _Use]) -> bool:
    if not _is_beyond(use, share):
        return False
    if share == 0:
        return True  # its gate is closed
    if any(one.waited_ns >= OVERDUE_NS for one in _others(key, uses)):
        return True
    return use.percent > use.told_percent and _others_are_active(key, uses)


def _others(key: TaskGpu, uses: Mapping[TaskGpu, _Use]) -> list[_Use]:
    """The other tasks on its GPU."""
    return [one for other, one in uses.items() if other[1] == key[1] and other[0] != key[0]]


def _others_are_active(key: TaskGpu, uses: Mapping[TaskGpu, _Use]) -> bool:
    return any(one.percent or one.in_flight or one.waited_ns for one in _others(key, uses))


def _takes_from_others(
    key: TaskGpu,
    use: _Use,
    share: int,
    uses: Mapping[TaskGpu, _Use],
    granted: Mapping[str, int | None],
) -> bool:
    """Whether it is beyond its share while another task is busy.

    Envs with a page each take no turns with each other. Where work of another one is under way, or
    has taken a good part of its share, the driver divides the GPU between them.
    """
    return _is_beyond(use, share) and any(
        one.in_flight or BUSY_PART * one.percent >= (granted[task_id] or WHOLE_PERCENT)
        for (task_id, uuid), one in uses.items()
        if uuid == key[1] and task_id != key[0]
    )


def _is_beyond(use: _Use, share: int) -> bool:
    return use.percent - share >= EXCESS_PERCENT and _excess_ns(use, share) >= EXCESS_NS


def _uses(
    readings: Iterable[Reading],
    members: Mapping[ProcessKey, Member],
    sampled: Mapping[tuple[ProcessKey, Uuid], int],
) -> dict[TaskGpu, _Use]:
    """The use of each task on each GPU, of all its processes there."""
    uses: dict[TaskGpu, _Use] = {}
    most: dict[TaskGpu, int] = {}
    for one in readings:
        member = members.get(one.process)
        if member is None:
            continue
        if not member.wants_compute:
            one = one._replace(in_flight=False, waited_ns=0)
        key = member.task_id, one.uuid
        told = round(100 * one.used_ns / one.elapsed_ns)
        seen = sampled.get((one.process, one.uuid), 0)
        percent = seen if seen >= told + UNTOLD_PERCENT else told
        before = uses.get(key)
        if before is None:
            uses[key] = _Use(
                percent, told, one.elapsed_ns, one.in_flight, one.waited_ns, one.process
            )
            most[key] = percent
            continue
        uses[key] = _Use(
            before.percent + percent,
            before.told_percent + told,
            max(before.elapsed_ns, one.elapsed_ns),
            before.in_flight or one.in_flight,
            max(before.waited_ns, one.waited_ns),
            one.process if percent > most[key] else before.process,
        )
        most[key] = max(most[key], percent)
    return uses
