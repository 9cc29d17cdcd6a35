"""The jobs of a head as a list: those at a node, the queue in the order of service, the others.

Knows: rows, the queue's order, which a pass follows. Must not know: what is shown of a job.

A place in the list is a number, so that a page goes on behind it. Of two jobs in the queue with one
stamp the places are equal; all others differ.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodemgr.core.cluster.entities import ClusterJob
from nodemgr.core.cluster.state import AT_NODE, IN_QUEUE, OFF_QUEUE, QUEUE, ClusterState
from nodemgr.core.model import job_ids
from nodemgr.core.model.entities import CLASS_ORDER
from nodemgr.core.state.work_queue import line_name

PART_BITS, CLASS_BITS, ID_BITS = 66, 62, 32
MOST = ((OFF_QUEUE + 1) << PART_BITS) - 1


def behind(
    state: ClusterState, env: str | None, after: int = 0
) -> Iterator[tuple[int, ClusterJob]]:
    """Those of the environment (None: of all) behind this place, each with its own."""
    since, place = divmod(after, 1 << PART_BITS)
    if since == AT_NODE:
        yield from _by_id(state, AT_NODE, env, place)
    if since <= IN_QUEUE:
        line = line_name(QUEUE, min(2, place >> CLASS_BITS)), place % (1 << CLASS_BITS)
        owners = None if env is None else (env,)
        for job_id, _, _ in state.queue.listed(line if since == IN_QUEUE else None, owners):
            job = state.jobs[job_id]
            place = (CLASS_ORDER[job.task_class] << CLASS_BITS) + job.queued_ns
            yield (IN_QUEUE << PART_BITS) + place, job
        place = 0
    yield from _by_id(state, OFF_QUEUE, env, place)


def _by_id(
    state: ClusterState, part: int, env: str | None, place: int
) -> Iterator[tuple[int, ClusterJob]]:
    """By submission, then by index."""
    for job_id in state.listed[part].behind(env, (place >> ID_BITS, place % (1 << ID_BITS) - 1)):
        number, index = job_ids.listed(job_id)
        yield (part << PART_BITS) + (number << ID_BITS) + index + 1, state.jobs[job_id]
