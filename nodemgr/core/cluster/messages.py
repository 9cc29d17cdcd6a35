"""The words of a head to a node: they follow from the rows, and are said until they do not.

Knows: which word each row asks for. Must not know: when it was said last, how it gets there.
No word is kept: a head that is killed says the same after its restart.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodemgr.core.cluster.entities import COMES_BACK, ClusterStage, GivenJob
from nodemgr.core.cluster.pilots import COMING
from nodemgr.core.cluster.state import ClusterState
from nodemgr.core.model.values import value


@value
class Assign:
    """Take the job, or (said again) begin it if it waits for the head's word."""

    row: GivenJob
    refuse: bool = False
    """The job is not wanted any more: a node that does not know the key answers with a refusal."""


@value
class GiveBack:
    """End the job of this key."""

    key: str
    if_waiting: bool = False
    """A job that has begun stays."""


@value
class ExpectPilots:
    """To a lent node without a pilot: it opens for these alone."""

    numbers: tuple[int, ...]


HeadWord = Assign | GiveBack | ExpectPilots


def to_say(state: ClusterState, node: str) -> Iterator[HeadWord]:
    """Nothing to a node without a session, or about keys that another store of it was told.

    Nothing from a head that does not know yet what it said after its store was copied.
    """
    if node not in state.sessions or state.counters[""].is_restoring:
        return
    generation, pool = state.nodes[node].generation, state.nodes[node].pool
    if pool is not None and not pool.pilot and (numbers := _coming(state, node)):
        yield ExpectPilots(numbers)
    for number in sorted(state.of_node.get(node, ())):
        row = state.assignments[number]
        job = state.jobs[row.job_id]
        stops = job.stage is ClusterStage.STOPPING
        if row.node_generation != generation:
            continue
        if not row.answered:
            yield Assign(row, refuse=stops)
        elif stops:
            yield GiveBack(row.key, if_waiting=job.then in COMES_BACK)
        elif row.key in state.to_confirm:
            yield Assign(row)
    for key, holder in state.strays.items():
        if holder == node:
            yield GiveBack(key)


def _coming(state: ClusterState, node: str) -> tuple[int, ...]:
    rows = (row for row in state.pilots.values() if row.stage in COMING)
    return tuple(sorted(row.number for row in rows if row.node in ("", node)))
