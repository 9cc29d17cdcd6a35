"""Peaks of memory: the most that a job's task had on one of its GPUs, by its env's ledger.

And whether it was refused more: its processes note that in the same words.

Knows: the slots of a task's processes. Must not know: what becomes of the figure (core).

Each process keeps its own peak on each GPU in its slot, which is cleared after its death. So the
figure goes into the core with the event that takes a process out of its task. Of several
processes on one GPU at once it is the sum of their peaks, each at its own time. A process over UDP
has no slot, and a ledger may be lost with a manager: then the figure is None.
"""

from __future__ import annotations

from nodemgr.core.model.entities import Process, ProcessKey, Task
from nodemgr.core.state.node_state import State
from nodemgr.edge.ledger.registry import Ledgers


class Peaks:
    """Reads the ledgers of one manager."""

    def __init__(self, state: State, ledgers: Ledgers) -> None:
        self._state, self._ledgers = state, ledgers
        self._refused: set[str] = set()
        """Jobs' tasks of which a process that has left was refused memory."""

    def of_task(self, task_id: str | None) -> int | None:
        """Of the processes that the task has now; 0: it has none."""
        task = self._state.tasks.get(task_id or "")
        return 0 if task is None else self._of(task.env, self._members(task))

    def take_refusal(self, task_id: str | None) -> bool:
        """Whether a process of the job's task, which ends now, was refused memory."""
        task = self._state.tasks.get(task_id or "")
        had_left = task_id in self._refused
        self._refused.discard(task_id or "")
        return had_left or (task is not None and any(map(self._was_refused, self._members(task))))

    def _was_refused(self, process: Process) -> bool:
        return process.slot is not None and self._ledgers.was_refused(
            process.env, process.slot, process.generation
        )

    def at_leaving(self, key: ProcessKey) -> int | None:
        """Of its job's task, now that this process leaves it; 0: it had no memory, or no job.

        A process that left its task before adds what it had alone.
        """
        process = self._state.processes.get(key)
        task = None if process is None else self._state.tasks.get(process.task_id)
        if process is None or task is None or task.job_id is None:
            return 0
        if self._was_refused(process):
            self._refused.add(task.task_id)
        own_bytes = self._of(process.env, [process])
        if not own_bytes or process.fenced:
            return own_bytes
        return self._of(task.env, self._members(task))

    def _members(self, task: Task) -> list[Process]:
        return [self._state.processes[key] for key in task.processes]

    def _of(self, env: str, members: list[Process]) -> int | None:
        slots = [member.slot for member in members if member.slot is not None]
        if len(slots) < len(members):
            return None
        generations = [member.generation for member in members]
        return self._ledgers.peak(env, slots, generations) if slots else 0
