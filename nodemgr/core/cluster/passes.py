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
- A job that needs more than its environment's quota, which was lowered since, waits until it is
  raised again: its nodes would refuse it.
- A head whose store is a copy gives no job (answers.py), nor one that is being restored.
- A latency-sensitive job that fits nowhere goes to a node where it fits with what best-effort jobs
  hold: the node has them yield.
- A job with a share of GPUs (gpu_shares.py) goes where its share is left: a latency-sensitive one
  to the node with the most on one GPU, ties by name; any other to the one with the least that is
  enough. Forecasts of run times are the nodes': the head has none. On a node that does not report
  shares, and where it waits, the job counts as one of whole GPUs. It takes no part of a GPU on a
  node that is kept for another job, unless it ends before.
- Nodes without a session or drained get nothing; what they hold counts. So it is with a node of a
  pool that holds no pilot: Slurm has it.
- Own nodes come before those that Slurm lends. There a job with a time limit ends before the node
  goes back.

Config.backfill_depth jobs keep nodes. The cost grows with the nodes that have changed and with the
jobs considered; of equal jobs that wait for their environment's total one is considered.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from itertools import chain
from operator import le
from typing import TypeVar

from nodemgr.core.cluster import draining, events, gpu_rooms, gpu_shares
from nodemgr.core.cluster.entities import (
    ClusterJob,
    ClusterNode,
    ClusterStage,
    GivenJob,
    StageEvent,
)
from nodemgr.core.cluster.gpu_rooms import Want
from nodemgr.core.cluster.rooms import NEVER, NodeUses, Room, limit_ns
from nodemgr.core.cluster.state import ClusterDraft, may_have
from nodemgr.core.model import array_rows
from nodemgr.core.model.entities import TaskClass
from nodemgr.core.model.values import replace

K = TypeVar("K")

MAX_GIVEN = 150
"""The jobs that start by one pass: so it ends within 50 ms when thousands of GPUs come at once."""


class Rooms(dict[str, Room]):
    """The open nodes that a pass has looked at."""

    def __init__(self, draft: ClusterDraft, uses: NodeUses) -> None:
        self.draft, self.uses = draft, uses
        self.with_shares = False

    def __missing__(self, name: str) -> Room:
        found = self.uses.of_node[name].room(self.draft, with_shares=self.with_shares)
        self[name] = found
        return found


def copied(names: dict[K, list[str]]) -> dict[K, list[str]]:
    return {key: found.copy() for key, found in names.items() if found}


class ClusterPass:
    """The rooms of one pass, and what it has found so far."""

    def __init__(self, draft: ClusterDraft) -> None:
        self.draft = draft
        self.uses = NodeUses.begin(draft)
        self.rooms = Rooms(draft, self.uses)
        self.used = self.uses.used.copy()
        """By environment: the GPUs of interactive tasks, without those that its jobs share."""
        self.by_free = copied(self.uses.by_free)
        """The nodes that are lent or not, by the number of their free GPUs; in order."""
        self.most_free = max([free for _, free in self.by_free], default=0)
        self.kinds = sorted({is_lent for is_lent, _ in self.by_free})
        """Own nodes, and then those that are lent, as far as there are."""
        self.full: list[tuple[int, int]] = []
        """So many GPUs for so long fit nowhere: rooms become smaller only."""
        self.firsts: dict[int, list[tuple[int, str]]] = {}
        """By number of GPUs, the nodes by the time at which so many may come free."""
        self.by_rest: dict[tuple[bool, int, bool], list[str]] = {}
        """The nodes that are lent or not, by the most compute on one GPU, full or not; in order."""
        self.of_env: dict[str, set[str]] = {}
        """The nodes where an environment may have a further task on a GPU of its."""
        self._wants: tuple[ClusterJob | GivenJob, Want] | None = None
        self.in_vain: dict[tuple[object, ...], list[tuple[int, ...]]] = {}
        """Demands of jobs that share GPUs, and fit nowhere: rooms become smaller only.

        By environment and kind of demand; True: also with what best effort would give up.
        """
        self.reserved = self.given = 0
        self.owned = [node for node in draft.nodes.values() if node.user]

    def avoided(self, job: ClusterJob) -> tuple[str, ...]:
        """The nodes that it may not have."""
        if not self.owned:
            return job.avoids
        return (*job.avoids, *(node.name for node in self.owned if not may_have(node, job)))

    def total(self, env: str) -> int:
        """The GPUs that the environment uses."""
        return self.used[env] + (self.draft.env_gpus.get(env) or 0)

    def room_in_total(self, job: ClusterJob) -> bool:
        """Of a job that shares GPUs each node decides (room_on_node)."""
        env = self.draft.envs.get(job.env)
        if env is None or gpu_shares.above_share(env, job) is not None:
            return False
        if job.shares:
            self._begin_shares()
            return True
        return self.total(job.env) + job.gpus <= env.gpus

    def want(self, job: ClusterJob | GivenJob) -> Want:
        """Of one job it is asked for at each node."""
        if self._wants is None or self._wants[0] is not job:
            self._wants = job, gpu_shares.want(self.draft, job)
        return self._wants[1]

    def more_gpus(self, job: ClusterJob | GivenJob, room: Room) -> int:
        """The GPUs by which its environment's use grows there."""
        if not job.shares or room.shares is None:
            return job.gpus
        shares, env = room.shares, job.env
        used = shares.used.get(env, 0)
        before = used
        if env not in shares.counted:
            before = gpu_shares.alone(room.node, self.draft.at(room.node.name), env)
        return used + gpu_rooms.more_gpus(used, self.want(job), shares.count) - before

    def room_on_node(self, job: ClusterJob | GivenJob, room: Room) -> bool:
        """Within the environment's part of one node, which the node holds by itself."""
        if not ends_in_time(job, room.node, self.draft.now_ns):
            return False
        if job.shares:
            env = self.draft.envs[job.env]
            if self.total(job.env) + self.more_gpus(job, room) > env.gpus:
                return False
            asked = self.want(job)
            if room.shares is not None:
                return room.shares.could_hold(asked)
            named_bytes = job.memory_bytes or 0
            if named_bytes > asked.grant_bytes(named_bytes, room.node.gpus):
                return False
        most = self.draft.envs[job.env].per_node
        used = room.used.get(job.env, 0) + room.promised.get(job.env, 0)
        return most is None or used + job.gpus <= most

    def room_on_any(self, job: ClusterJob) -> bool:
        names = chain.from_iterable(self.by_free.values())
        return any(self.room_on_node(job, self.rooms[name]) for name in names)

    def is_full(self, gpus: int, limit: int | None) -> bool:
        """Whether so many GPUs for so long fit on no node."""
        time = NEVER if limit is None else limit
        if any(less <= gpus and shorter <= time for less, shorter in self.full):
            return True
        if any(self.rooms[name].fits(gpus, limit) for name in self._with_free(gpus)):
            return False
        self.full.append((gpus, time))
        return True

    def _with_free(self, gpus: int) -> Iterator[str]:
        """Nodes with so many free GPUs or more, those with the fewest first."""
        for is_lent in self.kinds:
            for free in range(gpus, self.most_free + 1):
                yield from self.by_free.get((is_lent, free), ())

    def best(self, job: ClusterJob) -> Room | None:
        """The room that fits best now."""
        if job.shares:
            self._begin_shares()
            return self._first_of(self._by_share(job), job)
        avoids, limit = self.avoided(job), limit_ns(job)
        if self.is_full(job.gpus, limit):
            return None
        for name in self._with_free(job.gpus):
            room = self.rooms[name]
            if name not in avoids and room.fits(job.gpus, limit) and self.room_on_node(job, room):
                return room
        return None

    def _yields(self, room: Room) -> int:
        """GPUs of best-effort jobs there, which yield to a latency-sensitive one."""
        draft = self.draft
        return sum([
            row.gpus
            for row in draft.at(room.node.name)
            if row.began_ns is not None
            and not row.shares
            and draft.jobs[row.job_id].task_class is TaskClass.BEST_EFFORT
        ])  # fmt: skip

    def _begin_shares(self) -> None:
        """Looks at each GPU of each node, at the first job that needs it."""
        if self.rooms.with_shares:
            return
        self.uses.check_shares(self.draft)
        for env, near in self.uses.of_env.items():
            self.of_env.setdefault(env, set()).update(near)
        self.by_rest = copied(self.uses.by_rest)
        self.rooms.with_shares = True
        for name, room in self.rooms.items():
            names = self.by_rest[self.uses.rest_of[name]]
            del names[bisect_left(names, name)]
            if room.shares is None:  # with the jobs that this pass has given to it
                rows = gpu_shares.by_start(self.draft.at(name))
                room.shares = gpu_shares.held(self.draft, name, rows)
            insort(self.by_rest.setdefault(room.place_by_rest, []), name)

    def _first_of(
        self, names: Iterable[str], job: ClusterJob, *, releases: bool = False
    ) -> Room | None:
        percent, memory, limit = job.compute_percent, job.memory_bytes, job.time_limit_ms
        # of lent nodes one may take a job without a limit, and none with one
        unlimited = True in self.kinds and limit is None
        kind = job.env, releases, percent is None, memory is None, unlimited
        demand = percent or 0, memory or 0, job.gpus, NEVER if limit is None else limit
        failed = self.in_vain.setdefault(kind, [])
        if any(all(map(le, one, demand)) for one in failed):
            return None
        avoids = self.avoided(job)
        for name in names:
            room = self.rooms[name]
            if (
                name not in avoids
                and not (releases and room.ahead)
                and self.finds(room, job, releases=releases)
                and self.room_on_node(job, room)
            ):
                return room
        if not avoids:
            failed.append(demand)
        return None

    def _by_share(self, job: ClusterJob, least: int | None = None) -> Iterator[str]:
        """The nodes in the order of its class, with at least so much compute on one GPU."""
        least = (job.compute_percent or 0) if least is None else least
        has_whole = self.draft.envs[job.env].memory_bytes is None
        near = self.of_env.get(job.env, set())
        is_full = has_whole and self.is_full(1, limit_ns(job))
        is_first = job.task_class is TaskClass.LATENCY_SENSITIVE
        for is_lent in self.kinds:
            rests = {rest for lent, rest, _ in self.by_rest if lent is is_lent and rest >= least}
            for rest in sorted(rests, reverse=is_first):
                names: Iterable[str] = self.by_rest.get((is_lent, rest, True), ())
                others = self.by_rest.get((is_lent, rest, False), ()) if is_first else ()
                names = near.intersection(names) if has_whole else names
                yield from sorted([*names, *(near.intersection(others) if is_full else others)])
            if not is_first:  # a whole GPU is broken last, where the fewest are left
                for count in range(1, self.most_free + 1):
                    names = self.by_free.get((is_lent, count), ())
                    yield from sorted(near.intersection(names)) if is_full else names

    def finds(self, room: Room, job: ClusterJob, *, releases: bool = False) -> bool:
        limit = limit_ns(job)
        if room.shares is None:
            return not releases and room.fits(job.gpus, limit)
        return room.find(self.want(job), limit, releases=releases) is not None

    def yielding(self, job: ClusterJob) -> Room | None:
        """The room in which the fewest GPUs of best-effort jobs have to yield."""
        if job.task_class is not TaskClass.LATENCY_SENSITIVE:
            return None
        if job.shares:
            return self._first_of(self._by_share(job, least=0), job, releases=True)
        avoids = self.avoided(job)
        for room in self._emptiest():
            if (
                room.free < job.gpus <= room.node.gpus
                and not (room.is_reserved or room.ahead or room.node.name in avoids)
                and self.room_on_node(job, room)
                and job.gpus <= room.free + self._yields(room)
            ):
                return room
        return None

    def _emptiest(self) -> Iterator[Room]:
        """Those with the most free GPUs first, ties by name."""
        for free in range(self.most_free, -1, -1):
            names = [name for lent in self.kinds for name in self.by_free.get((lent, free), ())]
            yield from map(self.rooms.__getitem__, sorted(names))

    def occupy(self, room: Room, job: ClusterJob, *, is_new: bool = False) -> None:
        """Its GPUs are taken from now on."""
        names, name, limit = self.by_free[room.place], room.node.name, limit_ns(job)
        del names[bisect_left(names, name)]
        if self.rooms.with_shares:
            names = self.by_rest[room.place_by_rest]
            del names[bisect_left(names, name)]
        self.charge(room, job, is_new=is_new)
        gpus = job.gpus if room.shares is None else self._take(room, job)
        room.take(gpus, self.draft.now_ns, limit)
        room.free -= gpus
        insort(self.by_free.setdefault(room.place, []), name)
        if self.rooms.with_shares:
            insort(self.by_rest.setdefault(room.place_by_rest, []), name)

    def _take(self, room: Room, job: ClusterJob) -> int:
        """On each GPU. Returns how many more hold a task."""
        assert room.shares is not None
        if not job.shares:
            room.shares.take_whole(job.gpus, job.env)
            return job.gpus
        asked = self.want(job)
        found = room.find(asked, limit_ns(job)) or []
        fresh = sum([not gpu.tasks for gpu in found])
        room.shares.take(found, asked)
        return fresh

    def charge(self, room: Room, job: ClusterJob, *, is_new: bool = True) -> None:
        """To its environment; the sum of all assignments counts all GPUs of each."""
        if not is_new:  # the room is kept for it
            room.promised[job.env] = room.promised.get(job.env, 0) + job.gpus
            return
        self.used[job.env] -= job.gpus - self.more_gpus(job, room)
        shares, more = room.shares, job.gpus
        if shares is not None:
            if job.shares:
                used = shares.used.get(job.env, 0)
                more = gpu_rooms.more_gpus(used, self.want(job), shares.count)
                shares.counted.add(job.env)
            shares.use(job.env, more)
        if shares is None or room.used is not shares.used:
            room.used[job.env] = room.used.get(job.env, 0) + more
        self.of_env.setdefault(job.env, set()).add(room.node.name)

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
            true = room.start(job.gpus, limit)
            if true > time:
                if true < NEVER:
                    heapq.heappush(heap, (true, name))
                continue
            passed.append((time, name))
            if name not in avoids and ends_in_time(job, room.node, true):
                found = room
                room.keep(job.gpus, true, limit)
                break
        for row in passed:
            heapq.heappush(heap, row)
        return found or self._keep_unknown(job, avoids)

    def _firsts(self, gpus: int) -> list[tuple[int, str]]:
        heap = self.firsts.get(gpus)
        if heap is None:
            uses = [use for use in self.uses.of_node.values() if use.is_open]
            heap = [(use.times[gpus], use.node.name) for use in uses if len(use.times) > gpus]
            heapq.heapify(heap)
            self.firsts[gpus] = heap
        return heap

    def _keep_unknown(self, job: ClusterJob | GivenJob, avoids: tuple[str, ...]) -> Room | None:
        """The one with the most free GPUs: nobody else gets there."""
        for room in self._emptiest():
            if (
                not room.is_reserved
                and room.node.gpus >= job.gpus
                and room.node.name not in avoids
                and self.room_on_node(job, room)
            ):
                room.is_reserved = True
                return room
        return None


def ends_in_time(job: ClusterJob | GivenJob, node: ClusterNode, start_ns: int) -> bool:
    """A job with a time limit must end before the node goes back to Slurm."""
    if node.pool is None or node.pool.closes_ns is None:
        return True
    limit = limit_ns(job)
    return limit is None or start_ns + limit <= node.pool.closes_ns


def run(draft: ClusterDraft, _event: events.Pass) -> None:
    if draft.head.is_copy or draft.head.is_restoring:
        return
    going = ClusterPass(draft)
    later = _ahead_of_time(draft, going)
    walk = draft.queue.walk()
    for job_id in walk:
        job = draft.jobs[job_id]
        if not going.room_in_total(job):
            walk.drop(walk.group)
            continue
        room = going.best(job)
        if room is not None:
            going.occupy(room, job, is_new=True)
            assign(draft, job, room.node)
            going.given += 1
            if going.given == MAX_GIVEN:
                break  # the next pass goes on: its reason is that these jobs have changed
        elif (room := going.yielding(job)) is not None:
            going.charge(room, job)
            room.is_reserved = True
            room.ahead.append(assign(draft, job, room.node))
        elif going.reserved >= draft.config.backfill_depth or not going.room_on_any(job):
            walk.drop(walk.group)
        elif (room := going.keep(job, going.avoided(job))) is not None:
            going.reserved += 1
            if not room.ahead:
                going.charge(room, job)
                room.ahead.append(assign(draft, job, room.node))
        else:
            walk.drop(walk.group)  # no node has so many GPUs
    for row in later:
        job = draft.jobs[row.job_id]
        room = going.best(job) if job.stage is ClusterStage.ASSIGNED else None
        if room is not None and room.node.name != row.node:
            going.occupy(room, job)
            draining.ask_back(draft, job)


def _ahead_of_time(draft: ClusterDraft, going: ClusterPass) -> list[GivenJob]:
    """Jobs that wait at a node: they keep it, or are asked back for a node that has room now.

    Those with a place behind the first of the queue come after it, and are returned. Else a job
    that was asked back and one that waits at a node would take the room from each other for ever.
    """
    later = []
    first = next(iter(draft.queue.walk()), None)
    first_ns = None if first is None else draft.jobs[first].queued_ns
    for row, job in waiting(draft, going):
        is_later = first_ns is not None and job.queued_ns > first_ns
        if is_later:
            later.append(row)
        room = None if is_later else going.best(job)
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
                own.keep(row.gpus, time, limit_ns(row))
    return later


def waiting(draft: ClusterDraft, going: ClusterPass) -> list[tuple[GivenJob, ClusterJob]]:
    rows = [row for name in going.uses.ahead for row in going.uses.of_node[name].ahead]
    pairs = [(row, draft.jobs[row.job_id]) for row in rows]
    return sorted(pairs, key=lambda pair: (pair[1].queued_ns, pair[0].number))


def assign(draft: ClusterDraft, job: ClusterJob, node: ClusterNode) -> GivenJob:
    """The commit of the assignment comes before the node hears of it."""
    job = draft.with_row(draft.living(array_rows.first(job))[0] if job.indices else job)
    head = replace(draft.head, number=draft.head.number + 1)
    draft.put_head(head)
    attempt = job.attempt + 1
    row = GivenJob(
        head.number, f"{head.name}/{head.generation}/{job.job_id}/{attempt}", job.job_id, job.env,
        node.name, node.generation, job.gpus, job.time_limit_ms,
        compute_percent=job.compute_percent, memory_bytes=job.memory_bytes,
    )  # fmt: skip
    draft.put_assignment(row)
    draft.move(job, StageEvent.ASSIGN, ClusterStage.ASSIGNED, attempt=attempt, assigned=row.number)
    return row
