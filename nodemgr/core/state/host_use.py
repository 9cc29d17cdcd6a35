"""CPUs and host memory that jobs reserve: how much those under way have, of an env and of the node.

Knows: the named or default amounts of each job, the quota, the node's size. Must not know: queues,
GPUs, cgroups. Interactive use reserves nothing; the environment's cgroup bounds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from nodemgr.core.model.entities import Config, Quota, Request, RunSpec
from nodemgr.core.state.node_state import State

NODE = ""
"""In place of an env: the host memory of suspended tasks, which no quota counts."""


Reserved = tuple[str, bool]
"""An env or NODE; whether of its memory, else of its processors."""


class Bound(NamedTuple):
    """A bound that leaves too little."""

    env: str
    """The env of the quota; empty: the node."""
    is_memory: bool
    used: int
    most: int
    suspended_bytes: int = 0
    """Of `used`, the GPU memory of suspended tasks."""


def needs(run: RunSpec) -> bool:
    return run.cpus is not None or run.host_memory_bytes is not None


def with_defaults(
    run: RunSpec, gpus: int, config: Config, quota: Quota
) -> Mapping[str, int | None]:
    """The amounts that a job with so many GPUs reserves: those it names, else the defaults.

    A default is at most the quota and the node.
    """

    def of(named: int | None, default: int, *bounds: int | None) -> int | None:
        return named or min([default, *(bound for bound in bounds if bound)]) or None

    return {
        "cpus": of(run.cpus, gpus * config.cpus_per_gpu, quota.cpus, config.node_cpus),
        "host_memory_bytes": of(
            run.host_memory_bytes,
            gpus * config.host_memory_per_gpu_bytes,
            quota.host_memory_bytes,
            config.node_memory_bytes,
        ),
    }


def short_of(book: State, env: str, run: RunSpec, *, when_alone: bool = False) -> Bound | None:
    """The first bound that the job does not fit in now, the env's before the node's; None: it fits.

    `when_alone`: beside no other job, so it never fits.
    """
    for asked, bound in _bounds(book, env, run):
        if asked + (0 if when_alone else bound.used) > bound.most:
            return bound
    return None


def _bounds(book: State, env: str, run: RunSpec) -> Iterator[tuple[int, Bound]]:
    """Each bound of what the job asks for, the env's before the node's."""
    quota, config = book.envs[env].quota, book.config
    for is_memory, asked, mine, table, node in (
        (False, run.cpus, quota.cpus, book.host_cpus, config.node_cpus),
        (True, run.host_memory_bytes, quota.host_memory_bytes, book.host_bytes,
         config.node_memory_bytes),
    ):  # fmt: skip
        if asked is not None and mine is not None:
            yield asked, Bound(env, is_memory, table.get(env) or 0, mine)
        if asked is not None and node:
            yield asked, Bound(NODE, is_memory, sum(table.values()), node, table.get(NODE) or 0)


def keeps(env: str, bound: Bound, run: RunSpec) -> Counter[Reserved]:
    """The amounts that a job keeps which waits at this bound.

    Of its own quota alone, or of that and the node.
    """
    amounts = ((False, run.cpus), (True, run.host_memory_bytes))
    return Counter(
        {(whose, is_memory): n for whose in {env, bound.env} for is_memory, n in amounts if n}
    )


def has_room_beside(book: State, env: str, run: RunSpec, reserved: Mapping[Reserved, int]) -> bool:
    """Whether the job leaves the amounts that earlier jobs keep."""
    return all(
        asked + bound.used + reserved.get((bound.env, bound.is_memory), 0) <= bound.most
        for asked, bound in _bounds(book, env, run)
    )


def beyond(book: State, request: Request) -> Bound | None:
    """The bound that a waiting job exceeds since it was lowered; None: it may fit in."""
    if not needs(request.run):
        return None
    return short_of(book, request.env, request.run, when_alone=True)
