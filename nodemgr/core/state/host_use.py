"""CPUs and host memory that jobs reserve: how much those under way have, of an env and of the node.

Knows: the named or default amounts of each job, the quota, the node's size. Must not know: queues,
GPUs, cgroups. Interactive use reserves nothing; the environment's cgroup bounds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from nodemgr.core.model.entities import Config, Env, Quota, Request, RunSpec
from nodemgr.core.state.node_state import Readable


class HostUseTables(Protocol):
    @property
    def config(self) -> Config: ...
    @property
    def envs(self) -> Readable[str, Env]: ...
    @property
    def host_cpus(self) -> Readable[str, int]: ...
    @property
    def host_bytes(self) -> Readable[str, int]: ...


class Bound(NamedTuple):
    """A bound that leaves too little."""

    env: str
    """The env of the quota; empty: the node."""
    is_memory: bool
    used: int
    most: int


def needs(run: RunSpec | Request) -> bool:
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


def short_of(
    book: HostUseTables, env: str, run: RunSpec | Request, *, when_alone: bool = False
) -> Bound | None:
    """The first bound that the job does not fit in now, the env's before the node's; None: it fits.

    `when_alone`: beside no other job, so it never fits.
    """
    quota, config = book.envs[env].quota, book.config
    for is_memory, asked, mine, table, node in (
        (False, run.cpus, quota.cpus, book.host_cpus, config.node_cpus),
        (True, run.host_memory_bytes, quota.host_memory_bytes, book.host_bytes,
         config.node_memory_bytes),
    ):  # fmt: skip
        if asked is None:
            continue
        used = 0 if when_alone else table.get(env) or 0
        if mine is not None and used + asked > mine:
            return Bound(env, is_memory, used, mine)
        every = 0 if when_alone else sum(table.values())
        if node and every + asked > node:
            return Bound("", is_memory, every, node)
    return None


def beyond(book: HostUseTables, request: Request) -> Bound | None:
    """The bound that a waiting job exceeds since it was lowered; None: it may fit in."""
    if not needs(request):
        return None
    return short_of(book, request.env, request, when_alone=True)
