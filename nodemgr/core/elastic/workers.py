"""Processes that join an elastic task: its leader, and workers that are bound to one GPU each.

Knows: which of them may join. Must not know: how a process becomes a member (leases/begins.py).
"""

from __future__ import annotations

from client_plugin.messages.form import stated
from nodemgr.core.lifecycle import resizing
from nodemgr.core.model.entities import Task, Transport, WorkerBinding
from nodemgr.core.model.events import Acquire
from nodemgr.core.model.values import replace
from nodemgr.core.state import elastic_leases
from nodemgr.core.state.draft import Draft


def refused(draft: Draft, event: Acquire, task: Task | None) -> str | None:
    """Why the process cannot ask so; `task`: the one that it belongs to. None: it can."""
    lease = None if task is None else elastic_leases.of_task(draft, task.task_id)
    is_elastic = lease is not None or (
        task is None and event.run.gpu_range is not None and event.run.gpu_range.is_elastic
    )
    if is_elastic and event.caller.transport is Transport.UDP:
        return stated(
            "an elastic task cannot hold GPUs over UDP",
            "run it on the node itself, or without --elastic",
        )
    if event.worker_gpu is None:
        return None
    if task is None or lease is None:
        return stated(
            "NODEMGR_WORKER_GPU is set, and the process belongs to no elastic task",
            "start it by `nodemgr run --elastic`, or unset the variable",
        )
    if event.worker_gpu not in task.gpus:
        return stated(
            f"NODEMGR_WORKER_GPU names {event.worker_gpu}, which is not in the lease of "
            f"{task.task_id}",
            "its leader starts workers on GPUs of the lease alone",
        )
    return None


def joins(draft: Draft, event: Acquire, task: Task) -> None:
    """Binds a worker, or notes the leader, before the process gets its grant."""
    lease, process = elastic_leases.of_task(draft, task.task_id), event.caller.process
    if lease is None:
        return
    if event.worker_gpu is not None:
        bound = WorkerBinding(process, event.worker_gpu)
        draft.put_elastic(replace(lease, workers=(*lease.workers, bound)))
    elif event.run.gpu_range is not None and event.run.gpu_range.is_elastic:
        draft.put_elastic(replace(lease, leader=process))


def joined(draft: Draft, event: Acquire, task: Task) -> None:
    """A process without a place in the ledger is no worker; a leader gets what is open."""
    lease, process = elastic_leases.of_task(draft, task.task_id), event.caller.process
    if lease is None:
        return
    if process not in task.processes:
        workers = tuple(worker for worker in lease.workers if worker.process != process)
        leader = "" if lease.leader == process else lease.leader
        draft.put_elastic(replace(lease, workers=workers, leader=leader))
    elif lease.leader == process:
        resizing.say_again(draft, lease)
        draft.wake_scheduler()
