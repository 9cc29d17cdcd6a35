"""The launch gates' side of the engine: files for grants, beats, readings, the audit of compute.

Knows: when gates are read and beaten, and which event a finding becomes. Must not know: the memory
of a gate (edge/compute), the consequence of a finding (core).

Without a gated process nothing runs here, and no page exists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from nodemgr.core.lifecycle import audit
from nodemgr.core.model import effects, events
from nodemgr.core.model.effects import SendGrant
from nodemgr.core.model.entities import Offence, ProcessKey, Suspension, Uuid
from nodemgr.core.model.events import ComputeFinding
from nodemgr.core.sharing import compute_audit
from nodemgr.core.state import compute
from nodemgr.edge.compute.launch_gate import SLOTS, LaunchGateError, TurnsFault
from nodemgr.edge.compute.overuse import Member, Overuse
from nodemgr.edge.compute.registry import GateFiles, Gates, Reading
from nodemgr.edge.compute.stuck import StuckTurns
from nodemgr.edge.engine.foundation import Foundation
from nodemgr.edge.engine.step_engine import Handlers, StepEngine
from nodemgr.edge.gpu.gpu_inventory import GpuWatcher
from nodemgr.edge.host import stderr_log

BEAT_S = 0.5
"""Between two beats: a closed gate opens by itself 2 s after the last one."""
READ_NS = 950_000_000
"""Between two readings: every second beat."""
SHOWN_NS = 1_000_000_000
"""How far back the driver is asked for samples."""
US = 1_000

Sampled = Mapping[tuple[ProcessKey, Uuid], int]


class ComputeController:
    """Keeps the launch gates, and reports offences to the core."""

    def __init__(
        self,
        base: Foundation,
        engine: StepEngine,
        gpus: GpuWatcher,
        send_grant: Callable[[SendGrant], None],
        has_mps: Callable[[], bool],
    ) -> None:
        """`send_grant` answers a client whose gates were replaced."""
        self._loop, self._clock, self._state = base.loop, base.clock, base.state
        self._journal = base.journal
        self._engine, self._gpus, self._send_grant = engine, gpus, send_grant
        self.gates, self.has_mps = Gates(), has_mps
        self._overuse, self._stuck = Overuse(), StuckTurns()
        self._timer: asyncio.TimerHandle | None = None
        self._read_ns = 0
        self._sensing = False
        """The driver is being asked for samples."""
        self._named: set[ProcessKey] = set()
        """The offenders that the log names."""
        self._told = ""
        """The task whose grant without a gate was logged last."""

    def close(self) -> None:
        """The pages live on in the clients; their gates open by themselves."""
        if self._timer is not None:
            self._timer.cancel()
        self.gates.close()

    # -- grants and steps --

    def files_for(self, grant: SendGrant) -> GateFiles | None:
        """The gates of a gated process's grant; None: it passes none."""
        try:
            self.gates.divide(spatial=self.has_mps())
            files = self.gates.place(grant.task, grant.process, self._clock.kernel_ns())
        except LaunchGateError as error:
            self._missed(grant, str(error))
            return None
        if files is None:
            self._missed(
                grant, f"{SLOTS} processes pass the launch gate of one of its GPUs, the most"
            )
        self._watch()
        return files

    def _missed(self, grant: SendGrant, reason: str) -> None:
        """One line for each task, however many of its processes are granted without a gate."""
        task_id = grant.task.task_id
        if task_id != self._told:
            self._told = task_id
            stderr_log.say(
                f"task {task_id} is granted without a launch gate, so its share is not kept: "
                f"{reason}",
                "raise the limits of the manager (`nodemgr doctor` checks them) or end processes "
                "of its GPUs, then start the task again",
            )
        event = events.GateMissed(grant.process.key, reason, self._clock.wall_ns())
        self._loop.call_soon(self._engine.submit, event)  # a grant is an effect of a step

    def handlers(self) -> Handlers:
        return {effects.SharesChanged: self._shares_changed}

    def _shares_changed(self, effect: effects.SharesChanged) -> None:
        """Before the step's grants: the one that shrinks others finds their gates closed."""
        self.gates.share(effect.task_id, effect.granted_percent)

    def settle(self) -> None:
        """After each step: the words of the slots follow the rows."""
        if self.gates:
            self.gates.settle(self._state)

    # -- once in a while --

    def _watch(self) -> None:
        if self.gates and self._timer is None:
            self._timer = self._loop.call_later(BEAT_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_ns = self._clock.kernel_ns()
        self.gates.beat(now_ns)
        if now_ns - self._read_ns >= READ_NS and not self._sensing:
            self._read_ns = now_ns
            self._read(now_ns)
        self._watch()

    def _read(self, now_ns: int) -> None:
        self.gates.divide(spatial=self.has_mps())
        readings, members = self.gates.read(now_ns), self._members()
        if not self._overuse.needs_driver(readings, members):
            self._judge(readings, {})
            return
        pids = {
            process.pid: process.key
            for one in readings
            if (process := self._state.processes.get(one.process)) and process.pid is not None
        }
        uuids = {one.uuid for one in readings}
        since_us = (self._clock.wall_ns() - SHOWN_NS) // US
        gpus = self._gpus

        def sample() -> Sampled:
            try:
                sensed = gpus.sense(uuids, since_us)
            except Exception as error:  # the thread must go on: it reads the GPUs for grants
                stderr_log.fault("in a reading of samples", error)
                return {}
            return {
                (pids[pid], uuid): percent
                for uuid, one in sensed.items()
                if one.use is not None
                for pid, percent in one.use.percent.items()
                if pid in pids
            }

        def take(sampled: Sampled) -> None:
            self._sensing = False
            self._judge(readings, sampled)

        self._sensing = True
        gpus.call(sample, take)

    def _members(self) -> dict[ProcessKey, Member]:
        """The gated processes that hold leases."""
        state = self._state
        return {
            process.key: Member(
                task.task_id,
                task.granted_percent,
                compute.computes(task) and task.suspension is Suspension.NONE,
            )
            for process in state.processes.values()
            if process.key in self.gates and not process.fenced
            if (task := state.tasks.get(process.task_id)) is not None
        }

    def _judge(self, readings: Iterable[Reading], sampled: Sampled) -> None:
        """Pauses suspects, replaces pages, and reports the offences."""
        now_ns = self._clock.kernel_ns()
        members, separated = self._members(), self.gates.separated
        findings = list(self._overuse.judge(readings, members, sampled, separated))
        if self.gates.pause(self._overuse.paused):
            self.gates.settle(self._state, anew=True)
        moved = self.gates.merge(now_ns)
        for uuid in self._stuck.judge(readings, sampled, self.gates.holders()):
            moved += self._split(uuid, "stuck", now_ns)
        for garbled in self.gates.check(now_ns):
            if garbled.culprit is None:
                moved += self._split(garbled.uuid, garbled.fault.name.lower(), now_ns)
            else:
                found = ComputeFinding(Offence.GARBLED_GATE, garbled.culprit, garbled.uuid)
                findings.append(found)
                self._say_offender(garbled.culprit, garbled.uuid, garbled.fault)
        for key in dict.fromkeys(moved):
            self._grant_again(key)
        if compute_audit.is_news(self._state, findings):
            self._engine.submit(events.ComputeAudited(tuple(findings), self._clock.wall_ns()))

    def _say_offender(self, key: ProcessKey, uuid: Uuid, fault: TurnsFault) -> None:
        """One line for each process."""
        process = self._state.processes.get(key)
        if process is None or key in self._named:
            return
        self._named = {one for one in self._named if one in self._state.processes} | {key}
        stderr_log.say(
            f"process {process.pid} of {process.task_id} (env {process.env}), or another one of "
            f"this env, garbles the launch gate of GPU {self._index(uuid)} ({fault.name.lower()}), "
            f"which no other env has; enforce={audit.policy(self._state, process.env)}"
        )

    def _index(self, uuid: Uuid) -> int | None:
        gpu = self._state.gpus.get(uuid)
        return None if gpu is None else gpu.index

    def _split(self, uuid: Uuid, fault: str, now_ns: int) -> list[ProcessKey]:
        index = self._index(uuid)
        self._journal.note("gate.garbled", gpu=uuid, gpu_index=index, fault=fault)
        stderr_log.say(
            f"the launch gate of GPU {index} had words that no honest process writes, or no turns "
            f"({fault}): each environment has a gate of its own there for now"
        )
        return self.gates.split(uuid, now_ns)

    def _grant_again(self, key: ProcessKey) -> None:
        """Sends a running process its grant with the gates that it has now."""
        state = self._state
        process, connection = state.processes.get(key), state.connections.get(key)
        task = None if process is None else state.tasks.get(process.task_id)
        if process is None or process.fenced or connection is None or task is None:
            return  # it gets them when it comes back
        self._send_grant(
            SendGrant(
                connection,
                process.rid,
                task,
                process,
                tuple(state.gpus[uuid].index for uuid in task.gpus),
                tuple(state.grants[task.env, uuid].limit_bytes for uuid in task.gpus),
            )
        )
