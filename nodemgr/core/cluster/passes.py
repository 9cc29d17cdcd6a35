"""A head's pass: which queued jobs get a node now, in the order of service.

Knows: the GPUs that each node has, that others hold there, that assignments hold, and until when.
Must not know: a GPU, a node's own queue.

- A job goes to the node that fits best: the fewest GPUs free there, then the node's name.
- A job that fits no node keeps one: the one where it can start first, by time limits; where no end
  is known, the one with the most free GPUs. Nothing that would delay it there goes to that node. It
  is also given to that node ahead of its time, one for each node, so that the node begins it itself
  when GPUs come free there. A later job goes on another node, or on this one if its time limit ends
  before.
- A job that is ahead of its time at one node, and could begin at another now, is asked back first;
  the room at the other node is kept for it meanwhile.
- The GPUs of an environment's assignments and of its interactive tasks never exceed its total by an
  assignment. A job that does not fit the total lets others pass.
- On each node an environment gets at most its part of one node, which the node would hold back.
- A head whose store is a copy gives no job (answers.py), nor one that is being restored.
- Nodes without a session or drained get nothing; what they hold counts.

Config.backfill_depth jobs keep nodes. The cost grows with the nodes and with the jobs considered;
of equal jobs that wait for their environment's total one is considered.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from nodemgr.core.cluster import draining, events
from nodemgr.core.cluster.entities import (
    ClusterJob,
    ClusterNode,
    ClusterStage,
    GivenJob,
    StageEvent,
)
from nodemgr.core.cluster.state import ClusterDraft
from nodemgr.core.model.entities import MS
from nodemgr.core.model.values import replace
from nodemgr.core.scheduler.plan import Profile

NEVER = 1 << 62


def limit_ns(job: ClusterJob | GivenJob) -> int | None:
    return None if job.time_limit_ms is None else job.time_limit_ms * MS


@dataclass(slots=True)
class Room:
    """The GPUs of one node over time."""

    node: ClusterNode
    now_ns: int
    free: int = 0
    """GPUs that nothing holds now."""
    ends: list[tuple[int, int]] = field(default_factory=list)
    """When how many come free, as far as it is known."""
    ahead: list[GivenJob] = field(default_factory=list)
    """Assignments that wait there for GPUs."""
    used: dict[str, int] = field(default_factory=dict)
    """The GPUs of each environment there, with those of assignments that wait."""
    profile: Profile | None = None
    """Once something is planned here."""
    is_reserved: bool = False
    """A job waits here for an end that nobody knows."""

    def holds(self, rows: Iterable[GivenJob]) -> None:
        self.free = self.node.gpus - sum(gpus for _, gpus in self.node.others)
        self.used = dict(self.node.others)
        for row in sorted(rows, key=lambda row: (row.began_ns is None, row.number)):
            self.used[row.env] = self.used.get(row.env, 0) + row.gpus
            if row.began_ns is None and row.gpus > max(0, self.free):
                self.ahead.append(row)
                continue
            self.free -= row.gpus
            limit = limit_ns(row)
            if limit is not None:
                end = (self.now_ns if row.began_ns is None else row.began_ns) + limit
                if end > self.now_ns:  # an overdue one may end at any time
                    self.ends.append((end, row.gpus))
        self.ends.sort()
        self.free = max(0, self.free)

    def plan(self) -> Profile:
        if self.profile is None:
            known = sum(gpus for _, gpus in self.ends)
            self.profile = Profile(self.free + known, self.now_ns)
            for end, gpus in self.ends:
                self.profile.take(gpus, self.now_ns, end)
        return self.profile

    def first(self, gpus: int) -> int:
        """The earliest time with so many free if nothing else is planned here; NEVER: unknown."""
        free = self.free
        if free >= gpus:
            return self.now_ns
        for end, more in self.ends:
            free += more
            if free >= gpus:
                return end
        return NEVER

    def start(self, gpus: int, limit: int | None) -> int:
        """The earliest time beside all that is planned here; NEVER: unknown."""
        if self.is_reserved:
            return NEVER
        if self.profile is None:
            return self.first(gpus)
        time = self.profile.earliest(gpus, limit)
        return NEVER if time is None else time

    def take(self, gpus: int, start: int, limit: int | None) -> None:
        self.plan().take(gpus, start, None if limit is None else start + limit)

    def fits(self, gpus: int, limit: int | None) -> bool:
        """Can so many be had from now on for so long, in nobody's way?"""
        if self.is_reserved or gpus > self.free:
            return False
        end = None if limit is None else self.now_ns + limit
        return self.profile is None or self.profile.least(end) >= gpus


class ClusterPass:
    """The rooms of one pass, and what it has found so far."""

    def __init__(self, draft: ClusterDraft) -> None:
        self.draft = draft
        self.rooms: dict[str, Room] = {}
        for node in draft.nodes.values():
            if node.name in draft.sessions and not node.drained:
                room = self.rooms[node.name] = Room(node, draft.now_ns)
                room.holds(draft.at(node.name))
        self.by_free: dict[int, dict[str, Room]] = {}
        for name in sorted(self.rooms):
            self.by_free.setdefault(self.rooms[name].free, {})[name] = self.rooms[name]
        self.widest = max((room.node.gpus for room in self.rooms.values()), default=0)
        self.firsts: dict[int, list[tuple[int, str]]] = {}
        """By number of GPUs, the nodes by the time at which so many may come free."""
        self.used: dict[str, int] = {}
        for node in draft.nodes.values():
            for env, gpus in node.others:
                self.used[env] = self.used.get(env, 0) + gpus
        self.reserved = 0

    def room_in_total(self, job: ClusterJob) -> bool:
        env = self.draft.envs.get(job.env)
        used = self.used.get(job.env, 0) + (self.draft.env_gpus.get(job.env) or 0)
        return env is not None and used + job.gpus <= env.gpus

    def room_on_node(self, job: ClusterJob | GivenJob, room: Room) -> bool:
        """Within the environment's part of one node, which the node holds by itself."""
        most = self.draft.envs[job.env].per_node
        return most is None or room.used.get(job.env, 0) + job.gpus <= most

    def room_on_any(self, job: ClusterJob) -> bool:
        if self.draft.envs[job.env].per_node is None:
            return True
        return any(self.room_on_node(job, room) for room in self.rooms.values())

    def best(self, job: ClusterJob) -> Room | None:
        """The room that fits best now."""
        for free in range(job.gpus, self.widest + 1):
            found = [
                name
                for name, room in self.by_free.get(free, {}).items()
                if name not in job.avoids
                and room.fits(job.gpus, limit_ns(job))
                and self.room_on_node(job, room)
            ]
            if found:
                return self.rooms[min(found)]
        return None

    def occupy(self, room: Room, job: ClusterJob | GivenJob) -> None:
        """Its GPUs are taken from now on."""
        del self.by_free[room.free][room.node.name]
        room.take(job.gpus, self.draft.now_ns, limit_ns(job))
        room.free -= job.gpus
        room.used[job.env] = room.used.get(job.env, 0) + job.gpus
        self.by_free.setdefault(room.free, {})[room.node.name] = room

    def keep(self, job: ClusterJob | GivenJob, avoids: tuple[str, ...] = ()) -> Room | None:
        """The room that a job keeps that cannot start now; None: no node has so many GPUs."""
        limit, heap, passed = limit_ns(job), self._firsts(job.gpus), []
        found: Room | None = None
        while heap:
            time, name = heapq.heappop(heap)
            room = self.rooms[name]
            if room.is_reserved:
                continue
            if not self.room_on_node(job, room):
                passed.append((time, name))
                continue
            if time == NEVER:
                passed.append((time, name))
                break
            true = time if room.profile is None else room.start(job.gpus, limit)
            if true > time:
                heapq.heappush(heap, (true, name))
                continue
            passed.append((time, name))
            if name not in avoids:
                found = room
                room.take(job.gpus, true, limit)
                break
        for row in passed:
            heapq.heappush(heap, row)
        return found or self._keep_unknown(job, avoids)

    def _firsts(self, gpus: int) -> list[tuple[int, str]]:
        heap = self.firsts.get(gpus)
        if heap is None:
            rooms = [room for room in self.rooms.values() if room.node.gpus >= gpus]
            heap = self.firsts[gpus] = [(room.first(gpus), room.node.name) for room in rooms]
            heapq.heapify(heap)
        return heap

    def _keep_unknown(self, job: ClusterJob | GivenJob, avoids: tuple[str, ...]) -> Room | None:
        """The one with the most free GPUs: nobody else gets there."""
        left = [
            room
            for room in self.rooms.values()
            if not room.is_reserved
            and room.node.gpus >= job.gpus
            and room.node.name not in avoids
            and self.room_on_node(job, room)
        ]
        found = min(left, key=lambda room: (-room.free, room.node.name), default=None)
        if found is not None:
            found.is_reserved = True
        return found


def run(draft: ClusterDraft, _event: events.Pass) -> None:
    if draft.head.is_copy or draft.head.is_restoring:
        return
    going = ClusterPass(draft)
    _ahead_of_time(draft, going)
    walk = draft.state.queue.walk()
    for job_id in walk:
        job = draft.jobs[job_id]
        if not (going.room_in_total(job) and going.room_on_any(job)):
            walk.drop(walk.group)
            continue
        room = going.best(job)
        if room is not None:
            going.occupy(room, job)
            assign(draft, job, room.node)
        elif going.reserved >= draft.config.backfill_depth:
            walk.drop(walk.group)
        elif (room := going.keep(job, job.avoids)) is not None:
            going.reserved += 1
            if not room.ahead:
                room.ahead.append(assign(draft, job, room.node))
        else:
            walk.drop(walk.group)  # no node has so many GPUs


def _ahead_of_time(draft: ClusterDraft, going: ClusterPass) -> None:
    """Jobs that wait at a node: they keep it, or are asked back for a node that has room now."""
    for row, job in _waiting(draft, going.rooms.values()):
        room = going.best(job)
        if room is not None and job.then is not ClusterStage.WITHDRAWN:
            going.occupy(room, job)
            room.ahead.append(row)  # no other one goes there ahead of its time: it would be first
            if job.stage is ClusterStage.ASSIGNED and room.node.name != row.node:
                draining.ask_back(draft, job)
        elif job.stage is ClusterStage.ASSIGNED:
            own = going.rooms[row.node]
            time = own.start(row.gpus, limit_ns(row))
            if time == NEVER:
                own.is_reserved = True
            else:
                own.take(row.gpus, time, limit_ns(row))


def _waiting(draft: ClusterDraft, rooms: Iterable[Room]) -> Iterator[tuple[GivenJob, ClusterJob]]:
    rows = [(row, draft.jobs[row.job_id]) for room in rooms for row in room.ahead]
    return iter(sorted(rows, key=lambda pair: (pair[1].queued_ns, pair[0].number)))


def assign(draft: ClusterDraft, job: ClusterJob, node: ClusterNode) -> GivenJob:
    """The commit of the assignment comes before the node hears of it."""
    head = replace(draft.head, number=draft.head.number + 1)
    draft.put_head(head)
    attempt = job.attempt + 1
    row = GivenJob(
        head.number, f"{head.name}/{head.generation}/{job.job_id}/{attempt}", job.job_id, job.env,
        node.name, node.generation, job.gpus, job.time_limit_ms,
    )  # fmt: skip
    draft.put_assignment(row)
    draft.move(job, StageEvent.ASSIGN, ClusterStage.ASSIGNED, attempt=attempt, assigned=row.number)
    return row
