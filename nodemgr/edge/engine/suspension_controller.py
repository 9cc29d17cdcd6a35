"""The suspensions' side of the engine: effects to the suspension process, its answers as events.

Knows: the processes of a task and the bytes of their ledgers' words, the line of each failure. Must
not know: the driver's calls (edge/suspension), when a task is suspended (core).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable

from client_plugin.messages.form import stated
from client_plugin.units import format_size
from nodemgr.core.model import effects, events
from nodemgr.core.model.entities import ProcessKey, Suspension, Uuid
from nodemgr.edge.engine.foundation import Foundation
from nodemgr.edge.engine.host_limits import HostLimits
from nodemgr.edge.engine.step_engine import Handlers, StepEngine
from nodemgr.edge.gpu.gpu_inventory import DriverReading, GpuWatcher
from nodemgr.edge.kernel.processes import pid_of
from nodemgr.edge.ledger.registry import HOLDS, Ledgers
from nodemgr.edge.suspension import host_memory
from nodemgr.edge.suspension.order_lines import Order, OrderEnd, Target
from nodemgr.edge.suspension.suspender import MAX_TRIES, Suspender
from nodemgr.messages import suspension as messages

LOCK_MS = 10_000
"""The longest wait for the end of a process's work on its GPUs."""
ROOM_TRIES, ROOM_RETRY_S = 5, 1.0
"""Readings of the driver that look for the room of a resume, and the pause between two."""
TRY_S = 2 * LOCK_MS / 1_000
"""A try waits behind the order that is under way."""
NO_ANSWER = stated(
    f"the suspension process has not answered for {TRY_S:g} s",
    "look for a hanging driver: `nvidia-smi`, the kernel's log",
)
Answered = Callable[[Order, OrderEnd], None]
WhenEnded = Callable[[str], None]
"""Takes the reason of a failure; empty: it is done."""


class SuspensionController:
    """Orders of the core, and the callers that wait for their end."""

    def __init__(
        self,
        base: Foundation,
        engine: StepEngine,
        ledgers: Ledgers,
        gpus: GpuWatcher,
        limits: HostLimits,
        suspender: Callable[[Answered], Suspender],
        hindrance: Callable[[], str | None],
    ) -> None:
        """`hindrance`: why no process of this node can be suspended; None: the driver can."""
        self._loop, self._clock, self._state = base.loop, base.clock, base.state
        self._ledgers, self._engine, self._gpus, self._limits = ledgers, engine, gpus, limits
        self._suspender = suspender(self._answered)
        self.hindrance = hindrance
        self._waiting: dict[str, list[WhenEnded]] = {}
        """By task."""
        self._tried: list[Callable[[str | None], None]] = []
        self._is_trying = False
        self._try_limit: asyncio.TimerHandle | None = None
        self._out: dict[str, dict[Uuid, int]] = {}
        """Bytes of device memory by task and GPU, as they were before its suspension."""
        self._held: dict[str, str] = {}
        """The tasks whose processes read in their ledger that they are suspended, and their env."""

    @staticmethod
    def most_bytes() -> int | None:
        """The device memory that the host memory of this node could hold; None: unknown."""
        return host_memory.most_of_node()

    def handlers(self) -> Handlers:
        return {
            effects.SuspendProcesses: self._suspend,
            effects.ResumeProcesses: lambda effect: self._resume(effect, ROOM_TRIES),
        }

    def resume(self) -> None:
        """Gives the orders again that an earlier manager left: some calls may have been made."""
        for task in self._state.tasks.values():
            if task.suspension is not Suspension.NONE:
                self._held[task.task_id] = task.env
            if task.suspension is Suspension.SUSPENDING:
                bytes_before = task.suspended_bytes
                self._begin(effects.SuspendProcesses(task.task_id, task.processes, bytes_before))
            elif task.suspension is Suspension.RESUMING:
                self._order("resume", effects.ResumeProcesses(task.task_id, task.processes))

    def settle(self) -> None:
        """After each step: the ledgers follow the rows of the tasks that are or were suspended."""
        for task_id in tuple(self._held):
            task = self._state.tasks.get(task_id)
            for key in () if task is None else task.processes:
                process = self._state.processes[key]
                if task is not None and process.slot is not None:
                    self._ledgers.set_hold(process.env, process.slot, HOLDS[task.suspension])
            if task is None or task.suspension is Suspension.NONE:
                self._limits.settle(self._held.pop(task_id))

    def when_ended(self, task_id: str, then: WhenEnded) -> None:
        """Calls back at the end of the order that is under way for this task."""
        self._waiting.setdefault(task_id, []).append(then)

    def under_way(self) -> str | None:
        """The task whose GPU memory is moved now: a try would wait until it has been moved."""
        order = self._suspender.under_way
        return None if order is None or order.verb == "try" else order.task_id

    def when_tried(self, then: Callable[[str | None], None]) -> None:
        """Calls back with the fault of the suspension process; None: it has loaded the driver."""
        self._tried.append(then)
        if not self._is_trying:
            self._is_trying = True
            self._suspender.order(Order("try", "-", 0, ()))
        if len(self._tried) == 1:
            self._try_limit = self._loop.call_later(TRY_S, self._end_try, NO_ANSWER)

    def close(self) -> None:
        self._suspender.close()

    def _suspend(self, effect: effects.SuspendProcesses) -> None:
        """No call is made where none can succeed: the core uses its next means at once."""
        if effect.memory_bytes is not None:
            self._begin(effect)
            return
        self._held[effect.task_id] = self._state.tasks[effect.task_id].env
        self.settle()  # before the driver holds the first call
        hindrance = self.hindrance() or self._refusal(effect.processes)
        if hindrance is None:
            tasks = self._state.tasks
            self._out = {task: found for task, found in self._out.items() if task in tasks}
            self._out[effect.task_id] = self._bytes_by_gpu(effect.processes)
            self._begin(effect)
        else:
            order = Order("suspend", effect.task_id, LOCK_MS, ())
            self._loop.call_soon(self._ended, order, hindrance, False)

    def _begin(self, effect: effects.SuspendProcesses) -> None:
        """Measures it, or calls the driver once the limits of its cgroups are raised."""
        if effect.memory_bytes is None:
            self._loop.call_soon(self._measure, effect)
        else:
            task = self._state.tasks[effect.task_id]
            self._limits.before_suspension(task.env, lambda: self._order("suspend", effect))

    def _measure(self, effect: effects.SuspendProcesses) -> None:
        memory_bytes = sum(self._bytes_by_gpu(effect.processes).values())
        wall_ns = self._clock.wall_ns()
        self._engine.submit(events.SuspensionMeasured(effect.task_id, memory_bytes, wall_ns))
        if effect.task_id not in self._state.tasks:
            for then in self._waiting.pop(effect.task_id, ()):
                then("")

    def _refusal(self, processes: Iterable[ProcessKey]) -> str | None:
        """By the ledger. After a refusal by the driver, the process is in a state of its choice."""
        for key in processes:
            process = self._state.processes.get(key)
            if process is None or process.slot is None:
                continue
            if self._ledgers.is_unsuspendable(process.env, process.slot):
                return messages.SHARES_MEMORY(pid=str(pid_of(key)))
        return None

    def _resume(self, effect: effects.ResumeProcesses, tries: int) -> None:
        """A restore without room fails for ever. So the driver's own figures are read before it.

        The books know no process that bypasses them. Its memory may be free again soon.
        """

        def read(reading: DriverReading) -> None:
            short = self._without_room(effect, reading)
            if not short:
                self._order("resume", effect)
            elif tries > 1:
                self._loop.call_later(ROOM_RETRY_S, self._resume, effect, tries - 1)
            else:
                reason = (
                    f"other processes use its room on GPU {', '.join(map(str, short))}, by the "
                    "driver's figures, and a restore that fails is final; it waits in the queue"
                )
                order = Order("resume", effect.task_id, LOCK_MS, ())
                self._ended(order, reason, True, again=True)

        self._gpus.read_soon(read)

    def _without_room(self, effect: effects.ResumeProcesses, reading: DriverReading) -> list[int]:
        """The indices of the GPUs that lack room for the memory of these processes."""
        needs = self._out.get(effect.task_id) or self._bytes_by_gpu(effect.processes)
        gpus = self._state.gpus
        return sorted(
            gpus[uuid].index
            for uuid, need_bytes in needs.items()
            if need_bytes > gpus[uuid].memory_total_bytes - reading.used_bytes.get(uuid, 0)
        )

    def _bytes_by_gpu(self, processes: Iterable[ProcessKey]) -> dict[Uuid, int]:
        """By the ledger, and by the driver's last figures where these are higher."""
        found: Counter[Uuid] = Counter()
        for key in processes:
            process, pid = self._state.processes.get(key), pid_of(key)
            if process is None or pid is None:
                continue
            shown = self._gpus.last.of_process(pid)
            for uuid, gpu in self._state.gpus.items():
                slot = process.slot
                booked = (
                    0 if slot is None else self._ledgers.slot_used(process.env, gpu.index, slot)
                )
                found[uuid] += max(booked, shown.get(uuid, 0))
        return found

    def _order(self, verb: str, effect: effects.SuspendProcesses | effects.ResumeProcesses) -> None:
        targets = [self._target(key) for key in effect.processes]
        self._suspender.order(
            Order(verb, effect.task_id, LOCK_MS, tuple(row for row in targets if row is not None))
        )

    def _target(self, key: ProcessKey) -> Target | None:
        pid = pid_of(key)
        if pid is None or key not in self._state.processes:
            return None
        memory_bytes = sum(self._bytes_by_gpu((key,)).values())
        return Target(pid, int(key.rpartition(":")[2]), memory_bytes)

    def _answered(self, order: Order, answer: OrderEnd) -> None:
        if order.verb == "try":
            self._is_trying = False
            self._end_try(line_of(answer) if answer.kind else None)
            return
        self._ended(order, "" if not answer.kind else line_of(answer), answer.is_out)

    def _end_try(self, fault: str | None) -> None:
        if self._try_limit is not None:
            self._try_limit.cancel()
        tried, self._tried = self._tried, []
        for then in tried:
            then(fault)

    def _ended(self, order: Order, reason: str, is_out: bool, again: bool = False) -> None:
        task_id, wall_ns = order.task_id, self._clock.wall_ns()
        if not is_out and order.verb == ("suspend" if reason else "resume"):
            self._out.pop(task_id, None)
        event: events.Event
        if order.verb == "suspend":
            event = (
                events.SuspendFailed(task_id, reason, wall_ns, is_out)
                if reason
                else events.Suspended(task_id, wall_ns)
            )
        else:
            event = (
                events.ResumeFailed(task_id, reason, wall_ns, is_out, again)
                if reason
                else events.Resumed(task_id, wall_ns)
            )
        self._engine.submit(event)
        for then in self._waiting.pop(task_id, ()):
            then(reason)


def line_of(answer: OrderEnd) -> str:
    """Why an order failed, for people."""
    fields = (*answer.fields, "", "", "")
    match answer.kind:
        case "node" | "container":
            need, free = (format_size(int(text) if text.isdecimal() else 0) for text in fields[1:3])
            if answer.kind == "node":
                return f"it needs {need} of host memory, and the node has {free} to spare"
            return (
                f"it needs {need} of host memory, and the limit of the container of process "
                f"{fields[0]} leaves {free}"
            )
        case "driver":
            if fields[0] == "old":
                return messages.OLD_DRIVER()
            return f"the driver could not be used: {fields[0].replace('_', ' ')}"
        case "process":
            return f"the process that suspends tasks ended {MAX_TRIES} times in it"
    pid, call, error = fields[:3]
    match error:
        case "CUDA_ERROR_OUT_OF_MEMORY" if call == "cuCheckpointProcessCheckpoint":
            return (
                f"the host memory for the GPU memory of process {pid} was gone when it was needed"
            )
        case "CUDA_ERROR_NOT_SUPPORTED":
            return messages.SHARES_MEMORY(pid=pid)
        case "CU_PROCESS_STATE_FAILED":
            return (
                f"the driver failed while it moved the GPU memory of process {pid}, which cannot "
                f"go on: end it (kill {pid})"
            )
        case "CUDA_ERROR_NOT_READY":
            return f"the GPU work of process {pid} did not end within {LOCK_MS // 1000} s"
        case "CUDA_ERROR_NOT_INITIALIZED":
            return f"process {pid} has not used CUDA yet"
    return f"{call} of process {pid}: {error}"
