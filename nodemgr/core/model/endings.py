"""The ends of an attempt and their consequences for its job: one table; and the pause after one.

The pause comes before the next attempt.

Knows: causes. Must not know: how a cause is found out (lifecycle/jobs.py, the edge's factories),
how a job is queued (lifecycle/jobs.py). docs/jobs.md shows the same table to users.
"""

from __future__ import annotations

import enum

from nodemgr.core.model.entities import MS, Cause, Config


class Next(enum.Enum):
    RETRY = "retry"
    """The job failed: it goes to the end of its queue, or ends if it has no restart left."""
    FAIL = "fail"
    """The job failed, and another attempt would fail in the same way: it is over."""
    PAUSE = "pause"
    """Not the job's fault: after a pause it goes back to its place. It uses up no restart."""
    RETURN = "return"
    """Not the job's fault, and over: it goes back to its place at once. It uses up no restart."""


NEXT: dict[Cause, Next] = {
    Cause.OWN: Next.RETRY,
    Cause.TIME_LIMIT: Next.FAIL,
    Cause.CANNOT_RUN: Next.FAIL,
    Cause.HOST_MEMORY: Next.RETRY,
    Cause.GPU_MEMORY: Next.RETRY,
    Cause.GPU_LOST: Next.PAUSE,
    Cause.SUPERVISOR_LOST: Next.PAUSE,
    Cause.NODE_DOWN: Next.RETURN,
    Cause.CONTAINER_STOPPED: Next.PAUSE,
    Cause.NOT_STARTED: Next.PAUSE,
    Cause.POLICY: Next.FAIL,
    Cause.PREEMPTED: Next.PAUSE,
}


GPU_REPORT_NS = 2_000 * MS
"""An attempt that used a GPU and failed is judged after this time.

The driver reports the fault of a GPU up to a second after the program's calls have failed by it.
"""


def pause_ns(config: Config, interruptions: int) -> int:
    """The pause after so many interruptions in a row: it doubles each time, up to a bound.

    The last interruption is counted.
    """
    doubled_ms = config.requeue_pause_ms << min(max(0, interruptions - 1), 40)
    return min(doubled_ms, config.max_requeue_pause_ms) * MS


def interruptions(config: Config, before: int, ran_ns: int) -> int:
    """The count with one more.

    An attempt that ran for as long as the longest pause begins the count anew.
    """
    return 1 if ran_ns >= config.max_requeue_pause_ms * MS else before + 1
