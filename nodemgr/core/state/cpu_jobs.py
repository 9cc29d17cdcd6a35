"""Jobs that take no GPU: how many of them run at once, of an env and on the node.

Knows: the two limits of Config, and how many are under way. Must not know: queues, leases, what
such a job does. They take nothing that is granted, so nothing else bounds them: an array of ten
thousand would be ten thousand processes at once.
"""

from __future__ import annotations

from typing import NamedTuple

from nodemgr.core.state.node_state import State


class Limit(NamedTuple):
    """A limit that is reached."""

    whose: str
    running: int
    setting: str


def limit(book: State, env: str) -> Limit | None:
    """Why one more of this env does not start now; None: it may."""
    mine, every = book.cpu_jobs.get(env) or 0, sum(book.cpu_jobs.values())
    if mine >= book.config.max_env_cpu_jobs:
        return Limit(env, mine, "max_env_cpu_jobs")
    return Limit("this node", every, "max_cpu_jobs") if every >= book.config.max_cpu_jobs else None
