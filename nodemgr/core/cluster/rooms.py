"""The GPUs of one node over time, as a pass uses them up; and what passes keep of a node's rows.

Knows: the rows of one node. Must not know: the order of jobs, the choice of a node.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from nodemgr.core.cluster import gpu_shares
from nodemgr.core.cluster.entities import ClusterJob, ClusterNode, GivenJob
from nodemgr.core.cluster.gpu_rooms import GpuRoom, Held, Want
from nodemgr.core.cluster.state import ClusterDraft
from nodemgr.core.model.entities import MS, WHOLE_PERCENT
from nodemgr.core.scheduler.plan import Profile

NEVER = 1 << 62


def limit_ns(job: ClusterJob | GivenJob) -> int | None:
    return None if job.time_limit_ms is None else job.time_limit_ms * MS


class NodeUse:
    """The use of a node's GPUs, as its rows tell it. No time is in it, so it serves many passes."""

    def __init__(self, draft: ClusterDraft, node: ClusterNode, *, is_stray: bool) -> None:
        """`is_stray`: jobs run there that have no assignment."""
        self.node, self.rows, self.said = node, draft.at(node.name), draft.shares.get(node.name)
        closed = node.pool is not None and not node.pool.pilot
        self.is_open = node.name in draft.sessions and not node.drained and not closed
        self.by_report = gpu_shares.is_unassigned(node, self.said, is_stray=is_stray)
        self.ahead: list[GivenJob] = []
        self.used = dict(node.others)
        self.uses = self.used.copy()
        """By environment: the GPUs there beside those of its assignments, each counted alone."""
        self._held: Held | None = None
        self.is_shared = self.said is not None and (
            self.by_report or any(row.shares for row in self.rows)
        )
        ordered = gpu_shares.by_start(self.rows)
        if self.is_shared:
            self._share(draft, ordered)
        else:
            self._stand(ordered)
        self.terms = [
            (row.began_ns, row.time_limit_ms * MS, row.gpus)
            for row in ordered
            if row.time_limit_ms is not None
            and not (row in self.ahead or (self.is_shared and row.shares))
        ]
        """Of each job with a limit: since when it runs, its limit, its GPUs.

        The end of a job that shares frees no GPU for sure.
        """
        ends = sorted([(limit + (since or 0), gpus) for since, limit, gpus in self.terms])
        self.times = [0] * (self.free + 1) + [end for end, gpus in ends for _ in range(gpus)]
        """By number of GPUs: before this time not so many are free."""

    @property
    def place(self) -> tuple[bool, int]:
        return self.node.pool is not None, self.free

    def _stand(self, rows: list[GivenJob]) -> None:
        free = self.node.gpus - sum(gpus for _, gpus in self.node.others)
        for row in rows:
            self.used[row.env] = self.used.get(row.env, 0) + row.gpus
            if row.began_ns is None and row.gpus > max(0, free):
                self.ahead.append(row)
            else:
                free -= row.gpus
        self.free = max(0, free)

    def _share(self, draft: ClusterDraft, rows: list[GivenJob]) -> None:
        found = self.held(draft)
        assert found is not None
        envs = {row.env for row in rows if self.by_report or row.shares}
        if self.by_report:
            envs |= found.used.keys()
        for env in envs:
            saved = gpu_shares.saved(self.node, rows, found, env)
            self.uses[env] = self.uses.get(env, 0) - saved
        found.counted |= envs
        self.ahead, self.used, self.free = found.ahead, found.used, found.left.empty

    def held(self, draft: ClusterDraft) -> Held | None:
        """The room on each GPU, to be copied. None: the node reports no shares."""
        if self._held is None:
            ordered = gpu_shares.by_start(self.rows)
            self._held = gpu_shares.held(draft, self.node.name, ordered)
        return self._held

    @property
    def envs(self) -> Iterable[str]:
        """Those that may have a further task on a GPU of theirs."""
        return () if self._held is None else self._held.again

    def room(self, draft: ClusterDraft, *, with_shares: bool) -> Room:
        found = self.held(draft) if self.is_shared or with_shares else None
        shares = None if found is None else found.copy()
        used = shares.used if shares is not None and self.is_shared else self.used.copy()
        return Room(self.node, draft.now_ns, self.free, self.terms, self.ahead.copy(), used, shares)


class NodeUses:
    """The use of each node, kept over passes: made anew where a row of the node has changed."""

    def __init__(self, draft: ClusterDraft) -> None:
        self._envs = dict(draft.envs)
        self._strays = set[str]()
        self.of_node: dict[str, NodeUse] = {}
        self.used = Counter[str]()
        """The sum of their `uses`."""
        self.by_free: dict[tuple[bool, int], list[str]] = {}
        """The open nodes that are lent or not, by the number of their free GPUs; in order."""
        self.ahead: set[str] = set()
        """Those where assignments wait."""
        self.of_env: dict[str, set[str]] = {}
        """By environment, open nodes with a GPU on which it may have a further task."""
        self.by_rest: dict[tuple[bool, int, bool], list[str]] = {}
        """The open nodes that are lent or not, by the most compute on one GPU, full or not.

        With `of_env`: of those that `check_shares` has looked at."""
        self.rest_of: dict[str, tuple[bool, int, bool]] = {}
        self._unseen: set[str] = set()

    @classmethod
    def begin(cls, draft: ClusterDraft) -> NodeUses:
        """Of the head's state. A changed environment empties it: its part counts on each node."""
        self: NodeUses | None = draft.node_uses
        strays, opened = {*draft.strays.values(), *draft.unknown.values()}, draft.touches()
        if self is None or self._envs != draft.envs:
            self = draft.node_uses = cls(draft)
            touched = set(draft.nodes)
        else:
            touched = draft.touched | opened | (strays ^ self._strays)
        self._strays, draft.touched = strays, opened  # which may be undone yet
        for name in touched:
            self._leave(name)
            if name in draft.nodes:
                self._enter(NodeUse(draft, draft.nodes[name], is_stray=name in strays))
        return self

    def _enter(self, use: NodeUse) -> None:
        name = use.node.name
        self.of_node[name] = use
        self._count(use, 1)
        if use.is_open:
            insort(self.by_free.setdefault(use.place, []), name)
            self._unseen.add(name)
        if use.is_open and use.ahead:
            self.ahead.add(name)

    def _leave(self, name: str) -> None:
        use = self.of_node.pop(name, None)
        if use is not None:
            self._count(use, -1)
        if use is None or not use.is_open:
            return
        self.ahead.discard(name)
        self._unseen.discard(name)
        names = self.by_free[use.place]
        del names[bisect_left(names, name)]
        if name in self.rest_of:
            names = self.by_rest[self.rest_of.pop(name)]
            del names[bisect_left(names, name)]
            for env in use.envs:
                self.of_env[env].discard(name)

    def _count(self, use: NodeUse, sign: int) -> None:
        for env, gpus in use.uses.items():
            self.used[env] += sign * gpus

    def check_shares(self, draft: ClusterDraft) -> None:
        """At each GPU of the nodes that have changed."""
        for name in self._unseen:
            use = self.of_node[name]
            place = use.room(draft, with_shares=True).place_by_rest
            self.rest_of[name] = place
            insort(self.by_rest.setdefault(place, []), name)
            for env in use.envs:
                self.of_env.setdefault(env, set()).add(name)
        self._unseen.clear()


@dataclass(slots=True)
class Room:
    """The GPUs of one node over time."""

    node: ClusterNode
    now_ns: int
    free: int
    """GPUs that nothing holds now."""
    terms: list[tuple[int | None, int, int]]
    """See NodeUse."""
    ahead: list[GivenJob]
    """Assignments that wait there for GPUs."""
    used: dict[str, int]
    """The GPUs of each environment there, with those of assignments that wait."""
    shares: Held | None
    """The room on each GPU; None until a job that shares GPUs is considered."""
    promised: dict[str, int] = field(default_factory=dict)
    """The same of those that are asked back from other nodes for this one."""
    profile: Profile | None = None
    """Once something is planned here."""
    is_reserved: bool = False
    """A job waits here for an end that nobody knows."""
    reserved_ns: int = NEVER
    """The first time from which GPUs here are kept for a job that waits."""

    def ends(self) -> list[tuple[int, int]]:
        """When how many come free, as far as it is known: an overdue one may end at any time."""
        now = self.now_ns
        found = [(limit + (now if since is None else since), n) for since, limit, n in self.terms]
        return sorted([row for row in found if row[0] > now])

    @property
    def place(self) -> tuple[bool, int]:
        return self.node.pool is not None, self.free

    def plan(self) -> Profile:
        if self.profile is None:
            ends = self.ends()
            self.profile = Profile(self.free + sum([gpus for _, gpus in ends]), self.now_ns)
            for end, gpus in ends:
                self.profile.take(gpus, self.now_ns, end)
        return self.profile

    def first(self, gpus: int) -> int:
        """The earliest time with so many free if nothing else is planned here; NEVER: unknown."""
        free = self.free
        if free >= gpus:
            return self.now_ns
        for end, more in self.ends():
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

    def keep(self, gpus: int, start: int, limit: int | None) -> None:
        """For a job that waits."""
        self.reserved_ns = min(self.reserved_ns, start)
        self.take(gpus, start, limit)

    def take(self, gpus: int, start: int, limit: int | None) -> None:
        self.plan().take(gpus, start, None if limit is None else start + limit)

    def fits(self, gpus: int, limit: int | None) -> bool:
        """Can so many be had from now on for so long, in nobody's way?"""
        if self.is_reserved or gpus > self.free:
            return False
        end = None if limit is None else self.now_ns + limit
        return self.profile is None or self.profile.least(end) >= gpus

    def find(
        self, asked: Want, limit: int | None, *, releases: bool = False
    ) -> list[GpuRoom] | None:
        """The GPUs for a job that shares them, in nobody's way."""
        if self.is_reserved or self.shares is None:
            return None
        if (  # a quick look: such a job needs empty GPUs
            asked.env_bytes is None
            and asked.env not in self.shares.again
            and not self.fits(asked.gpus, limit)
        ):
            return None
        found = self.shares.find(asked, releases=releases)
        if found is None:
            return None
        fresh = sum([not gpu.tasks for gpu in found])
        is_short = limit is not None and self.now_ns + limit <= self.reserved_ns
        if fresh < len(found) and self.reserved_ns != NEVER and not is_short:
            return None
        return found if not fresh or self.fits(fresh, limit) else None

    @property
    def place_by_rest(self) -> tuple[bool, int, bool]:
        """By the most compute that a job with a share may have on one GPU."""
        if self.shares is None:
            rest = WHOLE_PERCENT if self.free else 0
        else:
            rest = self.shares.left.rest_percent
        return self.node.pool is not None, rest, not self.free
