"""The events that the manager publishes and stores: each name once, with what it reports.

Knows: names. Must not know: an event's fields, which stand where it is published.
"""

from __future__ import annotations

EVENT_NAMES = {
    "audit.ended": "A process no longer uses more than it may.",
    "audit.killed": "A process that went round its quota was ended.",
    "audit.violation": "A process uses a GPU without a lease, or more memory than it may.",
    "connections.full": "An environment, or a user, has all the connections that it may have.",
    "entry.set_aside": "The decision about a waiting entry failed; all others go on without it.",
    "env.rekeyed": "An environment has a new key for its clients over UDP.",
    "gate.failed": "A device gate could not be set as it should be.",
    "gate.garbled": "A launch gate had impossible words or no turns; each environment has its own.",
    "gate.mended": "A device gate is as it should be again.",
    "gate.restored": "A device gate was taken off a container, and is there again.",
    "gpu.drained": "A GPU gets no new task: by order, or because it fails again and again.",
    "gpu.failed": "A failure of a GPU was recorded.",
    "gpu.flapping": "A GPU fails again and again, and stays in use: it is the last one.",
    "gpu.lost": "A GPU is missing or ill.",
    "gpu.repaired": "A GPU was repaired: its failures no longer count, and it gets tasks again.",
    "gpu.restored": "A GPU is back.",
    "gpu.resumed": "A drained GPU gets tasks again.",
    "grant.changed": "A task's memory on a GPU was changed with its quota.",
    "job.ended": "A job ended, well or not.",
    "job.freed": "A held job may start again.",
    "job.held": "A job was held back.",
    "job.moved": "A job was moved to another queue or place.",
    "job.paused": (
        "A start of a job ended by no fault of the job: the job goes back to its place after a"
        " pause."
    ),
    "job.queued": "A job came into its queue.",
    "job.requeued": "A job was put into its queue again by order.",
    "job.started": "A job's process runs.",
    "job.starting": "A job's turn came; its process is being started.",
    "job.stopping": "A job is being ended.",
    "job.submitted": "A job was submitted.",
    "job.unbegun": "A job's process could not be started; it keeps its place.",
    "job.unknown": "Jobs run here, or have run, that the store does not know.",
    "job.withdrawn": "A job was withdrawn.",
    "manager.started": "The manager started.",
    "manager.stopping": "The manager ends.",
    "memory.residue": "The driver still has memory of a process that is gone.",
    "place.down": "Jobs cannot be started there now.",
    "place.up": "Jobs can be started there again.",
    "queue.removed": "A queue was removed.",
    "queue.set": "A queue was made or changed.",
    "quota.removed": "An environment was removed.",
    "quota.set": "A quota was set or changed.",
    "request.denied": "A request for GPUs was refused.",
    "request.withdrawn": "A process no longer waits for GPUs.",
    "rundir.lost": "A part of the run directory is gone, and is made again.",
    "store.failed": "The manager's store cannot be written.",
    "store.lost": "The store lacks what it had before the manager's start.",
    "store.low": "The disk has less than its reserve left: jobs are refused.",
    "store.recovered": "The manager's store can be written again.",
    "store.roomy": "The disk has room again: jobs are taken.",
    "task.ended": "A task gave its GPUs back.",
    "task.grown": "An elastic task was given one more GPU.",
    "task.recalled": "An elastic task was asked to leave a GPU.",
    "task.shrunk": "An elastic task has one GPU less.",
    "task.fenced": "A task lost its GPUs.",
    "task.granted": "A task got GPUs.",
    "task.joined": "A process joined its task.",
    "task.left": "A process left its task.",
    "task.restored": "A suspended task has its GPU memory again.",
    "task.resumed": "A stalled task goes on.",
    "task.recall_withdrawn": "An elastic task may keep a GPU that it was asked to leave.",
    "task.share": "A task's share of its GPUs' compute was changed.",
    "task.stalled": "A task is silent, and lives.",
    "task.suspended": "The GPU memory of a task is in host memory, and its room is free.",
    "task.suspension_failed": "A task could not be suspended, or not resumed.",
    "task.waiting": "A task waits for GPUs.",
    "web.revoked": "Tokens of the web page were revoked.",
    "web.token": "A token of the web page was made.",
}
FAMILIES = tuple(sorted({name.partition(".")[0] for name in EVENT_NAMES}))
"""The part of an event's name before the dot."""


def is_known(name: str) -> bool:
    """An event, or a family of events."""
    return name in EVENT_NAMES or name in FAMILIES
