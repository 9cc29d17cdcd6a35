"""The rules by which tasks stand together on the GPUs of a node, as a head repeats them.

Knows: what a node reports of each GPU, the demand of a task, the node's own rules
(core/scheduler/allocator.py), as far as the head has their numbers. Must not know: the rows of a
head, a GPU by its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import NamedTuple

from nodemgr.core.cluster.entities import AgainSums, GivenJob, GpuSums, NodeGpu, NodeShares
from nodemgr.core.model.entities import WHOLE_PERCENT


class Want(NamedTuple):
    """The demand of a job that shares GPUs."""

    env: str
    gpus: int
    percent: int | None
    """None: a plain task."""
    memory_bytes: int | None
    """On each GPU, if it is named."""
    most_first: bool
    """It gets the GPU with the most compute left."""
    part: int
    """The most GPUs that its environment has on one node."""
    env_bytes: int | None
    """The memory that its environment has on one node; None: whole GPUs."""

    def grant_bytes(self, gpu_bytes: int, gpus: int) -> int:
        """The memory of a fresh grant, on a node of so many GPUs."""
        part = min(self.part, gpus)
        if self.env_bytes is None or part == 0:
            return gpu_bytes
        return min(gpu_bytes, self.env_bytes // part)


@dataclass(slots=True)
class GpuRoom:
    """The room on one GPU."""

    memory_bytes: int
    room_bytes: int
    percent: int
    is_plain: bool
    best_effort_percent: int
    tasks: int
    most: int
    """The most tasks."""
    envs: dict[str, int] = field(default_factory=dict)
    """By environment with a task there: the bytes of its grant that a further one may name."""

    @classmethod
    def of(cls, said: NodeGpu | GpuRoom) -> GpuRoom:
        return cls(
            said.memory_bytes, said.room_bytes, said.percent, said.is_plain,
            said.best_effort_percent, said.tasks, said.most, dict(said.envs),
        )  # fmt: skip

    @property
    def rest_percent(self) -> int:
        """The compute that a task with a share may have."""
        return 0 if self.is_plain else WHOLE_PERCENT - self.percent

    def has_compute(self, asked: Want, *, releases: bool) -> bool:
        """`releases`: with what best-effort tasks would give up."""
        if asked.percent is None:
            return self.percent == 0
        more = self.best_effort_percent if releases else 0
        return asked.percent <= self.rest_percent + (0 if self.is_plain else more)

    def take(self, asked: Want, gpus: int) -> None:
        named_bytes = asked.memory_bytes
        if asked.env in self.envs:
            self.envs[asked.env] -= named_bytes or 0
        else:
            grant_bytes = asked.grant_bytes(self.memory_bytes, gpus)
            self.room_bytes -= grant_bytes
            self.envs[asked.env] = 0 if named_bytes is None else grant_bytes - named_bytes
        self.tasks += 1
        if asked.percent is None:
            self.is_plain = True
        else:
            self.percent += asked.percent

    def take_whole(self, env: str) -> None:
        self.room_bytes, self.is_plain, self.tasks = 0, True, self.tasks + 1
        self.envs[env] = 0


def find(
    gpus: Sequence[GpuRoom], asked: Want, *, releases: bool = False, may_be_fresh: bool = True
) -> list[GpuRoom] | None:  # fmt: skip
    """The GPUs that the node would choose: fresh ones first, within the environment's part.

    Of one environment only tasks that name their memory share a GPU.
    """
    fresh = _fresh(gpus, asked, releases=releases) if may_be_fresh else []
    missing = asked.gpus - len(fresh)
    if missing and asked.memory_bytes is not None:
        env, named_bytes = asked.env, asked.memory_bytes
        again = [
            gpu
            for gpu in gpus
            if env in gpu.envs
            and named_bytes <= gpu.envs[env]
            and gpu.tasks < gpu.most
            and gpu.has_compute(asked, releases=releases)
        ]
        again.sort(key=_spread)
        fresh += again[:missing]
    return fresh if len(fresh) == asked.gpus else None


def _fresh(gpus: Sequence[GpuRoom], asked: Want, *, releases: bool) -> list[GpuRoom]:
    env, part = asked.env, min(asked.part, len(gpus))
    slots = part - sum([env in gpu.envs for gpu in gpus])
    if slots <= 0:
        return []
    found, named_bytes = [], asked.memory_bytes or 0
    for gpu in gpus:
        if env not in gpu.envs and gpu.tasks < gpu.most:
            grant_bytes = asked.grant_bytes(gpu.memory_bytes, len(gpus))
            if named_bytes <= grant_bytes <= gpu.room_bytes:
                found += [gpu] if gpu.has_compute(asked, releases=releases) else []
    found.sort(key=_most_first if asked.most_first else _spread)
    return found[: min(slots, asked.gpus)]


def _most_first(gpu: GpuRoom) -> tuple[int, ...]:
    return (-gpu.rest_percent, *_spread(gpu))


def _spread(gpu: GpuRoom) -> tuple[int, ...]:
    return (-gpu.room_bytes, gpu.tasks)


def more_gpus(used: int, asked: Want, gpus: int) -> int:
    """By so many GPUs the environment's use on a node of `gpus` GPUs grows at most."""
    return max(0, min(asked.part, gpus, used + asked.gpus) - used)


def left_of(gpus: Sequence[NodeGpu] | Sequence[GpuRoom]) -> GpuSums:
    return GpuSums(
        sum([not gpu.tasks for gpu in gpus]),
        max([0 if gpu.is_plain else WHOLE_PERCENT - gpu.percent for gpu in gpus] or [0]),
        True in [gpu.room_bytes >= gpu.memory_bytes for gpu in gpus],
        max([gpu.room_bytes for gpu in gpus] or [0]),
    )


def reported(gpus: tuple[NodeGpu, ...]) -> NodeShares:
    used: dict[str, int] = {}
    for gpu in gpus:
        for env, _ in gpu.envs:
            used[env] = used.get(env, 0) + 1
    listed = frozenset([number for gpu in gpus for number in gpu.numbers])
    others = sum(used.values()) - sum([bool(gpu.numbers) for gpu in gpus])
    again = _again([(gpu, gpu.envs) for gpu in gpus])
    return NodeShares(gpus, used, listed, left_of(gpus), others, again)


def _again(rows: Iterable[tuple[GpuRoom | NodeGpu, Iterable[tuple[str, int]]]]) -> AgainSums:
    found: AgainSums = {}
    for gpu, envs in rows:
        firm_percent = 0 if gpu.is_plain else gpu.percent - gpu.best_effort_percent
        if firm_percent >= WHOLE_PERCENT or gpu.tasks >= gpu.most:
            continue
        rest = 0 if gpu.is_plain else WHOLE_PERCENT - gpu.percent
        for env, room_bytes in envs:
            if room_bytes > 0:
                most = found.get(env, (0, 0))
                found[env] = max(most[0], rest), max(most[1], room_bytes)
    return found


class Held:
    """A node's GPUs, with what is assigned there and is not in its report."""

    def __init__(self, said: NodeShares) -> None:
        self._said, self._gpus = said.gpus, list[GpuRoom]()
        self._left: GpuSums | None = said.left
        self._again: AgainSums | None = said.again
        self._copied: Held | None = None
        self.count = len(said.gpus)
        self.used = said.used.copy()
        """The GPUs of each environment, with those of assignments that wait."""
        self.counted: set[str] = set()
        """The environments whose use of the node is counted so, and not by GPUs of each job."""
        self.ahead: list[GivenJob] = []
        """Assignments that wait there for GPUs."""

    def copy(self) -> Held:
        made = copy(self)
        made._copied, made._gpus, made.used = self, [], self.used.copy()
        made.counted, made.ahead = self.counted.copy(), self.ahead.copy()
        return made

    @property
    def left(self) -> GpuSums:
        if self._left is None:
            self._left = left_of(self.gpus)
        return self._left

    @property
    def again(self) -> AgainSums:
        if self._again is None:
            self._again = _again([(gpu, gpu.envs.items()) for gpu in self.gpus])
        return self._again

    @property
    def gpus(self) -> list[GpuRoom]:
        """To be read. Made when one is looked at: most nodes of a pass are not."""
        if self._copied is not None:
            return self._copied.gpus
        if not self._gpus:
            self._gpus = list(map(GpuRoom.of, self._said))
        return self._gpus

    def _own(self, gpus: Sequence[GpuRoom]) -> list[GpuRoom]:
        """The same GPUs, to be changed."""
        self._left = self._again = None
        if self._copied is None:
            return list(gpus)
        before, self._copied = self._copied.gpus, None
        self._gpus = list(map(GpuRoom.of, before))
        pairs = zip(before, self._gpus, strict=True)
        return [own for was, own in pairs if any(was is gpu for gpu in gpus)]

    def use(self, env: str, more: int) -> None:
        self.used[env] = self.used.get(env, 0) + more

    def take(self, gpus: Sequence[GpuRoom], asked: Want) -> None:
        for gpu in self._own(gpus):
            gpu.take(asked, self.count)
        self.used.setdefault(asked.env, 0)

    def take_whole(self, count: int, env: str) -> int:
        """Returns the number that was empty."""
        found = [gpu for gpu in self.gpus if not gpu.tasks][:count]
        for gpu in self._own(found):
            gpu.take_whole(env)
        return len(found)

    def could_hold(self, asked: Want) -> bool:
        """Whether it fits there once all tasks have ended."""
        named_bytes = asked.memory_bytes or 0
        if named_bytes > asked.grant_bytes(named_bytes, self.count):
            return False
        large = sum([named_bytes <= gpu.memory_bytes for gpu in self._said])
        return asked.gpus <= min(large, asked.part)

    def _may_share(self, asked: Want, *, releases: bool) -> bool:
        """Beside tasks of its environment."""
        if asked.memory_bytes is None:
            return False
        rest, room_bytes = self.again.get(asked.env, (0, -1))
        return asked.memory_bytes <= room_bytes and (releases or (asked.percent or 0) <= rest)

    def find(self, asked: Want, *, releases: bool = False) -> list[GpuRoom] | None:
        """See `find` above. That it does not fit most nodes show at once."""
        if not releases and (asked.percent or 0) > self.left.rest_percent:
            return None
        may_be_fresh, part = self.left.has_whole, min(asked.part, self.count)
        if asked.env_bytes is not None and part > 0:
            may_be_fresh |= self.left.room_bytes >= asked.env_bytes // part
        if not (may_be_fresh or self._may_share(asked, releases=releases)):
            return None
        return find(self.gpus, asked, releases=releases, may_be_fresh=may_be_fresh)
