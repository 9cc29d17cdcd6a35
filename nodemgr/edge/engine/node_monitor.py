"""The node's side of the engine: reports of its kernel and its driver, and effects on both.

Knows: the deaths and beats of processes, the readings of the GPUs, the gates and limits that follow
the grants. Must not know: packets, the store, the consequence of a report (core).

Its timers wake the core: at the state's next deadline, and to read beat words and GPUs while
processes hold or await a GPU.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Container, Iterable, Iterator, Mapping

from nodemgr.core.lifecycle import audit, timers
from nodemgr.core.manager import State
from nodemgr.core.model import effects, events
from nodemgr.core.model.entities import MS, Gpu, ProcessKey, Task, Uuid
from nodemgr.core.model.values import replace
from nodemgr.edge.containers.env_directories import Envs
from nodemgr.edge.engine.foundation import Foundation
from nodemgr.edge.engine.ledger_controller import OlderLimits
from nodemgr.edge.engine.step_engine import Handlers, StepEngine
from nodemgr.edge.gate.device_gate import Gate
from nodemgr.edge.gpu.context_estimate import ContextSizes
from nodemgr.edge.gpu.driver_limits import DriverLimits
from nodemgr.edge.gpu.gpu_inventory import DriverReading, GpuWatcher
from nodemgr.edge.gpu.usage import Auditor, Figure
from nodemgr.edge.host import stderr_log
from nodemgr.edge.kernel.process_locations import ProcessLocations
from nodemgr.edge.kernel.processes import ProcessTable, pid_of, start_ticks
from nodemgr.edge.ledger.peaks import Peaks
from nodemgr.edge.ledger.registry import Beats, Ledgers

SHOWN_NS = 200_000_000
"""An older reading is not reported as current."""
BEAT_CHECK_S = 1.0
"""Longest time between two readings of the beat words; a stalled process resumes at one."""
MIN_WAKE_S = 0.001
IDLE_PERIOD_S = 10.0
"""Between two readings while no memory is held or awaited: memory without a lease is seen, too."""
FOUND_NS = 60_000_000_000
"""After a find the GPUs are read each beat for this long."""


def _as_read(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """The GPUs as a reading has them: a drain is not the driver's."""
    known = sorted(gpus, key=lambda gpu: gpu.index)
    return tuple([replace(gpu, drained=False) if gpu.drained else gpu for gpu in known])


class KnownProcesses:
    """The living processes that hold, await or have left a lease, by their PID on the node."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._key_of_pid: dict[int, ProcessKey] = {}

    def add(self, pid: int, key: ProcessKey) -> None:
        self._key_of_pid[pid] = key

    def remove(self, key: ProcessKey) -> bool:
        """Returns whether it was known; its PID may be another process's by now."""
        pid = pid_of(key)
        is_known = pid is not None and self._key_of_pid.get(pid) == key
        if pid is not None and is_known:
            del self._key_of_pid[pid]
        return is_known

    def key_of_pid(self, pid: int) -> ProcessKey | None:
        return self._key_of_pid.get(pid)

    def env_of_pid(self, pid: int) -> str | None:
        key = self._key_of_pid.get(pid)
        return None if key is None else self._env_of(key)

    def with_envs(self) -> Iterator[tuple[ProcessKey, str]]:
        for key in self._key_of_pid.values():
            if (env := self._env_of(key)) is not None:
                yield key, env

    def _env_of(self, key: ProcessKey) -> str | None:
        process = self._state.processes.get(key)
        if process is not None:
            return process.env
        request_id = self._state.request_of.get(key)
        return None if request_id is None else self._state.requests[request_id].env


class NodeMonitor:
    """Submits what it reads to the core, and carries out the core's effects on the node."""

    def __init__(
        self,
        base: Foundation,
        engine: StepEngine,
        ledgers: Ledgers,
        peaks: Peaks,
        older_limits: OlderLimits,
        known: KnownProcesses,
        processes: ProcessTable,
        locations: ProcessLocations,
        beats: Beats,
        envs: Envs,
        context_sizes: ContextSizes,
        slow_beats: Callable[[ProcessKey], None],
        env_of_stranger: Callable[[int], str | None],
        watch_gpus: Callable[[Callable[[DriverReading], None]], GpuWatcher],
    ) -> None:
        """`slow_beats`: a process's next beats reach the core.

        `env_of_stranger`: the env of a process that never spoke to the manager, as far as it can be
        proved. `watch_gpus` is called once, with the receiver of each reading.
        """
        state, journal = base.state, base.journal
        self._loop, self._clock, self._state, self._engine = base.loop, base.clock, state, engine
        self._ledgers, self._older_limits, self._peaks = ledgers, older_limits, peaks
        self._known, self._processes = known, processes
        self._locations, self._beats = locations, beats
        self._gate, self._node_gate = base.gate, base.node_gate
        self._envs, self._context_sizes = envs, context_sizes
        self._minors: Mapping[Uuid, int] = {}
        """The numbers of device nodes that the tasks were opened with."""
        self._slow_beats = slow_beats
        self.gpus = gpus = watch_gpus(self._gpus_read)
        self.driver_limits = DriverLimits(
            state,
            self._known.with_envs,
            gpus.limit if gpus.can_limit else None,
            journal.remember,
            journal.meta(),
        )
        self._auditor = Auditor(
            state,
            self._ledgers,
            self._known.key_of_pid,
            env_of_stranger,
            context_sizes.uncharged_bytes,
        )
        self._can_limit = self.driver_limits.can_set
        self._limits_due = False
        """Grants or processes changed, and the driver's own limits must follow."""
        self._audited_ns = 0
        """Time of the last audit against the driver."""
        self._found_ns = -FOUND_NS
        """Time of the last reading that the books did not explain."""
        self._wake: asyncio.TimerHandle | None = None
        self._wake_ns: int | None = None
        self._beat_timer: asyncio.TimerHandle | None = None

    def handlers(self) -> Handlers:
        """The effects on processes, gates and env directories."""
        return {
            effects.Watch: self._watch,
            effects.Unwatch: self._unwatch,
            effects.WatchUnreclaimed: self._watch_unreclaimed,
            effects.Kill: self._kill,
            effects.GpusHeld: self._gpus_held,
        }

    # -- processes --

    def _watch(self, effect: effects.Watch) -> None:
        self._beats.watch(effect.process, self._clock.monotonic_ns(), over_udp=effect.pid is None)
        if effect.pid is not None:
            self.limits_changed()
            self._known.add(effect.pid, effect.process)
            self._locations.expect(effect.process)
            if not self._processes.watch(effect.process, self._process_ended):
                self._loop.call_soon(self._process_ended, effect.process)

    def resume_watching(self, key: ProcessKey, pid: int | None, same_boot: bool) -> bool:
        """After a restart. Returns False if the process has died. Silence counts from now."""
        self._beats.watch(key, self._clock.monotonic_ns(), over_udp=pid is None)
        if pid is None:
            return True
        self._known.add(pid, key)
        self._locations.expect(key)
        return same_boot and self._processes.watch(key, self._process_ended)

    def _unwatch(self, effect: effects.Unwatch) -> None:
        self._slow_beats(effect.process)
        self._beats.unwatch(effect.process)
        self._locations.forget(effect.process)
        self._processes.unwatch(effect.process)
        if self._known.remove(effect.process):
            self.limits_changed()

    def _process_ended(self, key: ProcessKey) -> None:
        """Read the memory that the process left on its GPUs, before it is granted again."""
        process = self._state.processes.get(key)
        if process is None or process.pid is None:
            self._process_gone(key, {})
        else:
            pid = process.pid
            self._auditor.ended(process, self._clock.monotonic_ns())
            self.gpus.read_soon(lambda reading: self._process_gone(key, reading.of_process(pid)))

    def _process_gone(self, key: ProcessKey, unreclaimed_bytes: dict[Uuid, int]) -> None:
        peak_bytes = self._peaks.at_leaving(key)
        wall_ns = self._clock.wall_ns()
        self._engine.submit(events.ProcessGone(key, wall_ns, unreclaimed_bytes, peak_bytes))

    def _kill(self, effect: effects.Kill) -> None:
        if not self._processes.kill(
            effect.process, signal.SIGTERM if effect.gently else signal.SIGKILL
        ):
            stderr_log.say(
                f"process {effect.pid} could not be ended",
                "it is gone already, or not ours to end (a manager of root may end every process)",
            )

    # -- env directories and device gates --

    def _gpus_held(self, effect: effects.GpusHeld) -> None:
        """Opens the granted devices.

        After a failure the grant is still sent, the fault is reported, and the next GPU reading
        retries.
        """
        if self._gate is not None:
            self._move_gate(self._gate, effect.env)

    def _move_gate(self, gate: Gate, env: str) -> None:
        minors = self.gpus.last.minors
        gate.allow(
            env,
            {minors[uuid] for owner, uuid in self._state.grants if owner == env and uuid in minors},
        )

    def settle_gates(self) -> None:
        """Sets each env's gate from its grants, then checks the gate."""
        if self._gate is not None:
            for env in self._state.envs:
                self._move_gate(self._gate, env)
            self._gate.check()
        if self._node_gate.is_on:
            if self.gpus.last.minors != self._minors:
                self._minors = self.gpus.last.minors
                for task in self._state.tasks.values():
                    self._follow(task)
            self._node_gate.check()

    def open_for(self, task: Task, pid: int | None) -> Container[Uuid] | None:
        """Opens a task's GPUs before its process gets its answer.

        Returns the GPUs that a device gate shows to the process, or None: it sees all.
        """
        if self._node_gate.is_on:
            self._follow(task)
            if (shown := self._node_gate.shown(pid)) is not None:
                minors = self.gpus.last.minors
                return {uuid for uuid, minor in minors.items() if minor in shown}
        if self._gate is not None and self._gate.holds(task.env, pid):
            return {uuid for env, uuid in self._state.grants if env == task.env}
        return None

    def follow_tasks(self, saved: Iterable[effects.Save]) -> None:
        """The node's gate after a step that changed tasks."""
        for row in saved if self._node_gate.is_on else ():
            if row.kind == "task":
                if isinstance(row.value, Task):
                    self._follow(row.value)
                else:
                    self._node_gate.forget(row.key)

    def _follow(self, task: Task) -> None:
        minors = self.gpus.last.minors
        self._node_gate.follow(
            task.task_id,
            task.job_id,
            [pid for key in task.processes if (pid := pid_of(key)) is not None],
            [minors[uuid] for uuid in task.gpus if uuid in minors],
        )

    # -- GPUs --

    def _gpus_read(self, reading: DriverReading) -> None:
        """After each reading: updates GPU health, ledgers, unreclaimed memory and gates."""
        if _as_read(self._state.gpus.values()) != reading.gpus:
            self._engine.submit(events.GpusChanged(reading.gpus, self._clock.wall_ns()))
            self._envs.refresh_all()
        self.audit(reading)
        self._read_unreclaimed(reading)
        self.settle_gates()
        self._watch_gpus()

    def when_fresh(self, then: Callable[[], None]) -> None:
        """Call back when `gpus.last` is at most SHOWN_NS old, else after a new reading.

        In both cases the locations of all present processes are known first.
        """
        if self._clock.monotonic_ns() - self.gpus.last.at_ns <= SHOWN_NS:
            self._locations.when_known(then)
        else:
            self.gpus.read_soon(lambda _reading: self._locations.when_known(then))

    def when_audited(self, then: Callable[[], None], reuse: bool = False) -> None:
        """Calls back when a reading is judged: a find is certain after another, a beat later.

        `reuse`: a reading that is fresh will do, for callers that may ask at any rate.
        """

        def judge() -> None:
            if all(found.told for found in self._state.violations.values()):
                then()
            else:
                beat_s = self._state.config.beat_ms / 1_000
                self._loop.call_later(beat_s, self.when_read, then)

        (self.when_fresh if reuse else self.when_read)(judge)

    def when_read(self, then: Callable[[], None]) -> None:
        """Calls back after a reading that begins now has been processed."""
        self.gpus.read_soon(lambda _reading: then())

    def audit(self, reading: DriverReading) -> None:
        """Corrects the ledgers by the driver's figures and submits unexplained memory to the core.

        It skips a reading that was under way at the last audit, and reads again: memory freed
        before that audit would appear unexplained both times.
        """
        if reading.at_ns < self._audited_ns:
            self.when_read(lambda: None)
            return
        state = self._state
        audited = self._auditor.audit(reading, self._clock.wall_ns())
        self._audited_ns = self._clock.monotonic_ns()
        if audit.is_news(state, audited):
            self._found_ns = self._audited_ns
            self._engine.submit(audited)
        if self._auditor.is_waiting:
            self.when_read(lambda: None)
        limits_bytes = {where: grant.limit_bytes for where, grant in state.grants.items()}
        for env in self._context_sizes.learn(
            self._auditor.figures, state.gpus, limits_bytes, state.envs
        ):
            self._envs.refresh(env)

    def audited(self) -> list[Figure]:
        """The processes of the leases at the last audit, by driver and ledger."""
        return self._auditor.figures

    def _watch_unreclaimed(self, effect: effects.WatchUnreclaimed) -> None:
        # each reading compares in _gpus_read
        self._loop.call_soon(self.gpus.read_soon, lambda reading: None)

    def _read_unreclaimed(self, reading: DriverReading) -> None:
        for (key, uuid), unreclaimed in list(self._state.unreclaimed.items()):
            if uuid not in reading.processes or unreclaimed.is_exported:
                continue  # the reading lacks this GPU, or the audit judges it
            now_bytes = self._unreclaimed_bytes(reading, key, uuid, unreclaimed.pid)
            if now_bytes != unreclaimed.memory_bytes or not unreclaimed.told:
                self._engine.submit(
                    events.UnreclaimedChanged(key, uuid, now_bytes, self._clock.wall_ns())
                )

    def _unreclaimed_bytes(
        self, reading: DriverReading, key: ProcessKey, uuid: Uuid, pid: int
    ) -> int:
        """The largest of driver (0 if the PID was reused), ledger and older limit."""
        process = self._state.processes.get(key)
        word_bytes = 0
        if process is not None and process.slot is not None:
            word_bytes = self._ledgers.slot_used(
                process.env, self._state.gpus[uuid].index, process.slot
            )
        ticks = start_ticks(pid)
        is_reused = ticks is not None and key.startswith("unix:") and key != f"unix:{pid}:{ticks}"
        driver_bytes = 0 if is_reused else reading.processes[uuid].get(pid, 0)
        return max(word_bytes, driver_bytes, self._older_limits.of_process(key, uuid))

    def used_bytes(self) -> dict[tuple[str, Uuid], int]:
        """Of each watched grant: the larger of its older limit and its ledger.

        Each driver reading corrects the ledger.
        """
        return {
            (grant.env, grant.uuid): max(
                self._ledgers.used(grant.env, self._state.gpus[grant.uuid].index),
                self._older_limits.of_env(grant.env, grant.uuid),
            )
            for grant in timers.watched_grants(self._state)
        }

    def unkept_bytes(self) -> dict[tuple[str, Uuid], int]:
        """The same beyond what is kept for tasks."""
        return {
            (grant.env, grant.uuid): max(
                self._ledgers.unkept(grant.env, self._state.gpus[grant.uuid].index),
                self._older_limits.of_env(grant.env, grant.uuid) - grant.kept_bytes,
            )
            for grant in timers.watched_grants(self._state)
        }

    # -- the driver's own limits --

    def limits_changed(self) -> None:
        """Request one update per step, after the step's answers and before its events."""
        self._limits_due = self._can_limit

    def settle_due_limits(self, _saved: Iterable[effects.Save] = ()) -> None:
        if self._limits_due:
            self.settle_driver_limits()

    def settle_driver_limits(self) -> None:
        self._limits_due = False
        self.driver_limits.settle()

    # -- timers --

    def set_timers(self) -> None:
        """After each step: what the new state needs read, and when."""
        self._watch_deadline()
        self._watch_gpus()
        self._watch_beats()

    def _watch_deadline(self) -> None:
        """Sets the timer to the state's next deadline, if the deadline changed."""
        wake_ns = self._state.wake_ns()
        if wake_ns == self._wake_ns:
            return
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        self._wake_ns = wake_ns
        if wake_ns is not None:
            delay_s = max(MIN_WAKE_S, (wake_ns - self._clock.monotonic_ns()) / 1e9)
            self._wake = self._loop.call_later(delay_s, self.tick)

    def tick(self) -> None:
        self._wake = self._wake_ns = None
        found = self._beats.silence(self._clock.monotonic_ns(), self._state.config.timeout_ms * MS)
        self._hear(found.woken)
        self._engine.submit(
            events.Tick(
                self._clock.wall_ns(),
                found.silent,
                found.oldest_ns,
                self.used_bytes(),
                self.unkept_bytes(),
            )
        )

    def _watch_gpus(self) -> None:
        """Reads the GPUs each beat while memory is held, requested, unreclaimed or unexplained."""
        state = self._state
        needed = bool(state.tasks or state.requests or state.unreclaimed) or audit.is_acting(state)
        needed = needed or self._clock.monotonic_ns() - self._found_ns < FOUND_NS
        beat_s = state.config.beat_ms / 1_000
        self.gpus.set_period(beat_s if needed else max(beat_s, IDLE_PERIOD_S))

    def _watch_beats(self) -> None:
        """Reads beat words at least once a second while processes in a ledger hold leases."""
        is_needed = bool(self._state.tasks and self._state.members)
        if is_needed and self._beat_timer is None:
            self._beat_timer = self._loop.call_later(
                min(BEAT_CHECK_S, self._state.config.beat_ms / 1_000), self._read_beats
            )
        elif not is_needed and self._beat_timer is not None:
            self._beat_timer.cancel()
            self._beat_timer = None

    def _read_beats(self) -> None:
        self._beat_timer = None
        self._hear(self._beats.woken(self._clock.monotonic_ns()))
        self._watch_beats()

    def _hear(self, woken: Iterable[ProcessKey]) -> None:
        """Submit Heard for each process with a beat word that rises again."""
        for key in woken:
            self._engine.submit(events.Heard(key, self._clock.wall_ns()))
