"""Causes as codes: why a lease ended, why a request waits. Each with its meaning, for the docs.

Knows: the codes. Must not know: the reasons in words (scheduler/reasons.py), when a cause applies.
"""

from __future__ import annotations

import enum

from client_plugin.messages.form import Reason, placed, reason_fields
from nodemgr.core.model.values import value


class LeaseEnd(enum.StrEnum):
    """Why a lease ended: the field `cause` of the event task.ended."""

    PROCESS_ENDED = "process_ended"
    RELEASED = "released"
    CANCELLED = "cancelled"
    SILENT = "silent"
    NOT_RESUMED = "not_resumed"
    TAKEN_BACK = "taken_back"
    QUOTA_REMOVED = "quota_removed"
    AUDIT = "audit"
    JOB_ENDED = "job_ended"
    JOB_NOT_STARTED = "job_not_started"
    NO_SLOT = "no_slot"


class WaitCause(enum.StrEnum):
    """Why a request waits."""

    NODE = "node"
    OWN_GPUS = "own_gpus"
    QUOTA_MEMORY = "quota_memory"
    LEDGER = "ledger"
    COMPUTE = "compute"
    BEHIND_OWN = "behind_own"
    ABOVE_QUOTA = "above_quota"
    ABOVE_NODE = "above_node"
    CPU_JOBS = "cpu_jobs"
    HOST = "host"
    PLACE_DOWN = "place_down"
    AWAY = "away"
    NEXT = "next"
    SET_ASIDE = "set_aside"
    UNCONFIRMED = "unconfirmed"


@value
class Standing:
    """The place of a waiting request, and why it waits."""

    queue: str
    position: int
    """In its queue, from 1."""
    ahead: int
    """The number in other queues that are served before it."""
    cause: WaitCause
    why: Reason
    """Without the place."""

    @property
    def line(self) -> str:
        """The line that its processes print."""
        return placed(self.queue, self.position, self.ahead, self.why)

    @property
    def row(self) -> dict[str, object]:
        """The fields of a queue row and of an event; the queue's name is not among them."""
        return {
            "position": self.position, "ahead": self.ahead, "cause": self.cause.value,
            **reason_fields(self.why),
        }  # fmt: skip


LEASE_ENDS: dict[LeaseEnd, str] = {
    LeaseEnd.PROCESS_ENDED: "Its last process ended.",
    LeaseEnd.RELEASED: "Its own process gave it back.",
    LeaseEnd.CANCELLED: "Its process gave up waiting while the grant was on its way.",
    LeaseEnd.SILENT: "Its processes, over UDP, were silent for too long.",
    LeaseEnd.NOT_RESUMED: "It was stopped, and its GPUs went to others or were lost meanwhile.",
    LeaseEnd.TAKEN_BACK: "A user or an administrator took it back (`nodemgr release`).",
    LeaseEnd.QUOTA_REMOVED: "Its environment was removed.",
    LeaseEnd.AUDIT: "The audit fenced it: it used more than it may.",
    LeaseEnd.JOB_ENDED: "Its job ended.",
    LeaseEnd.JOB_NOT_STARTED: "Its job could not be started.",
    LeaseEnd.NO_SLOT: "The ledger of its environment had no slot for its process.",
}
WAIT_CAUSES: dict[WaitCause, str] = {
    WaitCause.NODE: "Other tasks hold the GPUs that it needs.",
    WaitCause.OWN_GPUS: "The tasks of its own environment use the GPUs of the quota.",
    WaitCause.QUOTA_MEMORY: "The tasks of its own environment use the memory of the quota.",
    WaitCause.LEDGER: "It needs memory on GPUs that its environment holds, which is in use.",
    WaitCause.COMPUTE: "It needs compute of GPUs that its environment holds, which others have.",
    WaitCause.BEHIND_OWN: "An earlier request of its own environment comes first.",
    WaitCause.ABOVE_QUOTA: "It needs more than the quota, which was lowered since.",
    WaitCause.ABOVE_NODE: "It needs more GPUs than are in service: others are drained or lost.",
    WaitCause.CPU_JOBS: "As many jobs without a GPU run as may.",
    WaitCause.HOST: "Other jobs reserve the CPUs or the host memory that it needs.",
    WaitCause.PLACE_DOWN: "Jobs cannot be started at its place now.",
    WaitCause.AWAY: "Its process is disconnected.",
    WaitCause.NEXT: "It has its turn at once.",
    WaitCause.SET_ASIDE: "The decision about it failed by a fault of the manager.",
    WaitCause.UNCONFIRMED: "Its cluster's head has not said again that it may start.",
}
