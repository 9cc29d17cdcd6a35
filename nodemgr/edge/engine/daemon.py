"""The centre of the manager: it steps the core and carries out the core's effects.

Knows: the order of a step (store it, answer, apply it to the state, then the other effects) and the
edge that carries out each effect. Must not know: the reason of a decision (core), the format of a
packet, a row or a ledger (the other edges).

All code here runs in the loop's thread and never blocks. Slow work (NVML, checkpoints) has its own
thread.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from nodemgr.core.lifecycle import audit, timers
from nodemgr.core.manager import Draft, State, Transition, step
from nodemgr.core.model import effects, events
from nodemgr.core.model.entities import (
    MS,
    ConnectionId,
    DenyCode,
    Process,
    ProcessKey,
    Task,
    TaskState,
    Transport,
    Uuid,
)
from nodemgr.core.model.transitions import TransitionRefused
from nodemgr.edge.clients import client_sessions
from nodemgr.edge.clients.client_server import ClientServer
from nodemgr.edge.clients.client_sessions import Session
from nodemgr.edge.clients.udp import UdpServer
from nodemgr.edge.containers.env_directories import Envs
from nodemgr.edge.engine.informer import QUEUE_CHANGED, ClusterInformer, News
from nodemgr.edge.engine.job_controller import JobPorts, Jobs
from nodemgr.edge.engine.ledger_recovery import OlderLimits, Recovery
from nodemgr.edge.engine.scheduler_loop import EventLoop
from nodemgr.edge.gate.device_gate import Gate
from nodemgr.edge.gpu.context_estimate import ContextSizes
from nodemgr.edge.gpu.driver_limits import DriverLimits
from nodemgr.edge.gpu.gpu_inventory import DriverReading, GpuWatcher
from nodemgr.edge.gpu.usage import Auditor
from nodemgr.edge.host import stderr_log
from nodemgr.edge.host.clock import Clock
from nodemgr.edge.kernel.process_locations import ProcessLocations
from nodemgr.edge.kernel.processes import Credentials, Identity, ProcessTable, pid_of, start_ticks
from nodemgr.edge.ledger.native_ledger import LedgerError, SlotState
from nodemgr.edge.ledger.registry import Beats, LedgerFiles, LedgerRow, Ledgers, Slot
from nodemgr.edge.rpc.wire import Message
from nodemgr.edge.store.journal import Journal

FRESH_NS = 2_000_000_000
"""No grant is made on an older GPU reading: the node was idle, and the GPUs are read first."""
SHOWN_NS = 200_000_000
"""An older reading is not reported as current."""
STORE_RETRY_S = 1.0
BEAT_CHECK_S = 1.0
"""Longest time between two readings of the beat words; a stalled process resumes at one."""
MIN_WAKE_S = 0.001
LEDGER_META = "ledger:"
"""Prefix of the store's key for an env's ledger files; the env's name follows."""
SLOT_STATES = {"live": SlotState.LIVE, "stalled": SlotState.STALLED, "fenced": SlotState.FENCED}


class _Verb(NamedTuple):
    """How a client's message is handled."""

    handler: Callable[[Daemon, Session, Message, Mapping[str, Any]], None]
    guarded: bool = False
    """It needs access to the env.

    A process that already holds a lease may continue and release it.
    """


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The parts of the edge that report to the daemon and that it acts on."""

    gpus: GpuWatcher
    clients: ClientServer
    udp: UdpServer | None
    envs: Envs
    context_sizes: ContextSizes
    driver_limits: DriverLimits
    auditor: Auditor
    on_ask: Callable[[Session, Mapping[str, Any]], None]
    """Receives the questions and orders of clients."""
    on_runner: Callable[[Session, Message], None]
    """Receives the messages of runners, which start jobs in containers."""
    on_closed: tuple[Callable[[Session], None], ...]
    """Called with each session that has ended."""


class Daemon:
    """Implements sessions.Hub for the transports and the effects for the core."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        state: State,
        journal: Journal,
        ledgers: Ledgers,
        job_ports: JobPorts,
        surroundings: Callable[[Daemon], Surroundings],
        gate: Gate | None = None,
        no_gate: str = "",
    ) -> None:
        """`surroundings` is called once, here.

        Its parts may keep the daemon as their port, and may call it once this constructor has
        returned. `no_gate`: the reason if `gate` is None.
        """
        self.loop, self.clock, self.state = loop, clock, state
        self.journal, self.ledgers = journal, ledgers
        self.processes = ProcessTable(loop, self._process_ended)
        self.process_locations = ProcessLocations(loop)
        self.older_limits = OlderLimits(state)
        self.recovery = Recovery(loop, ledgers, self._ledger_ready, self._ledger_lost)
        self.gate, self.no_gate = gate, no_gate
        self._limits_settle = False
        self._audited_ns = 0
        """Time of the last audit against the driver."""
        self.beats = Beats(state, ledgers)
        self.last_beat_ns = self.beats.packets
        self.counters: Counter[str] = Counter()
        self.jobs = Jobs(
            loop, clock, state, journal, self.submit, self.match, self._read_gpus, job_ports
        )
        self.event_loop = EventLoop(self.jobs)
        self.informer = ClusterInformer(lambda: self.gpus.read_soon(lambda _reading: None))
        self.informer.subscribe(self.event_loop.news)
        self._figures_due = False
        """The next pass needs the used bytes of the watched grants."""
        self._sessions: dict[ConnectionId, Session] = {}
        self._wake: asyncio.TimerHandle | None = None
        self._wake_ns: int | None = None
        self._beat_timer: asyncio.TimerHandle | None = None
        self._store_retry: asyncio.TimerHandle | None = None
        self._key_of_pid: dict[int, ProcessKey] = {}
        self._held_back: dict[ConnectionId, list[tuple[Message, list[int]]]] = {}
        self._connections = itertools.count(1)
        self._stepping = False
        self._stored: Transition | None = None
        """The current step's stored transition, until it is applied to the state."""
        self._news: list[News] = []
        """Resources that the applied step added, changed or removed."""
        self._draft: Draft | None = None
        """The next step's draft, made after the last step's answers."""
        self._connect(surroundings(self))
        self._effects = self._effect_table()
        loop.call_soon(ledgers.make_spare)
        journal.subscribe(self._retry_store_later, self._store_recovered)
        if journal.fault is not None:
            self._retry_store_later()

    def _connect(self, around: Surroundings) -> None:
        """The last part of the constructor."""
        self.gpus, self.auditor = around.gpus, around.auditor
        self.context_sizes, self.driver_limits = around.context_sizes, around.driver_limits
        self.clients, self.udp, self.envs = around.clients, around.udp, around.envs
        self._on_ask, self._on_runner, self._on_closed = (
            around.on_ask, around.on_runner, around.on_closed,
        )  # fmt: skip

    def _effect_table(self) -> dict[type, Callable[[Any], None]]:
        """Maps each kind of effect to the method that carries it out."""
        return {
            effects.SendGrant: self.send_grant,
            effects.SendWait: self._sender(client_sessions.answer_wait),
            effects.SendDeny: self._sender(client_sessions.answer_deny),
            effects.SendFence: self._sender(client_sessions.answer_fence),
            effects.SendNote: self._sender(client_sessions.answer_note),
            effects.SendAck: self._sender(client_sessions.answer_ack),
            effects.OpenLedger: self._open_ledger,
            effects.CloseLedger: self._close_ledger,
            effects.SetLimit: self._set_limit,
            effects.BeginSlot: lambda effect: self.ledgers.begin_slot(
                effect.env, effect.slot, effect.generation
            ),
            effects.SetSlot: self._set_slot,
            effects.ClearSlot: lambda effect: self.ledgers.clear_slot(
                effect.env, effect.slot, effect.generation
            ),
            effects.Watch: self._watch,
            effects.Unwatch: self._unwatch,
            effects.WatchUnreclaimed: self._watch_unreclaimed,
            effects.Kill: self._kill,
            effects.EnvChanged: self._env_changed,
            effects.GpusHeld: self._gpus_held,
            effects.StartJob: lambda effect: self.jobs.begin(effect),
            effects.StopJob: lambda effect: self.jobs.stop(effect),
            effects.ForgetJob: lambda effect: self.jobs.forget(effect),
            effects.SubmitAnswered: lambda effect: self.jobs.answered(effect),
        }

    # -- steps --

    def submit(self, event: events.Event) -> bool:
        """Step the core.

        Returns False if the store cannot be written, or the core refused its own change of a state.
        """
        assert not self._stepping, "an effect steps the core"
        self._stepping = True
        try:
            draft, self._draft = self._draft, None
            try:
                transition = step(self.state, event, self.clock.monotonic_ns(), draft)
            except TransitionRefused as error:  # a fault of the core must not end the manager
                stderr_log.fault(f"in the step of {type(event).__name__}", error)
                return False
            if not self.journal.write(
                transition.saved,
                transition.published,
                must_hold=transition.must_apply,
                durable=transition.durable,
                reserved=transition.reserve,
                facts=self._ledger_facts(transition.effects),
            ):
                self.ledgers.drop_prepared()
                return False
            self._stored = transition
            starts: list[effects.Effect] = []
            for effect in transition.effects:
                if type(effect) is effects.StartJob:
                    starts.append(effect)
                    continue
                if type(effect) not in effects.PROMPT:
                    self._take_over()
                self._do(effect)
            self._take_over()
            self._slow_beats(transition.saved)
        finally:
            self._stepping = False
        if self._limits_settle:
            self.settle_driver_limits()
        self.journal.publish()
        if transition.then is not None:
            self._figures_due = self._figures_due or transition.then.used_bytes is not None
            self._news.append(QUEUE_CHANGED)
        news, self._news = self._news, []
        self.informer.notify(type(event).__name__, news)
        self._sleep()
        self._watch_gpus()
        self._read_beats_later()
        if self._draft is None:
            self._draft = Draft(self.state)
        for start in starts:  # last: their files take time, and clients wait for answers
            self._do(start)
        return True

    def _take_over(self) -> None:
        """Apply the stored step to the state, once.

        This precedes the first effect that may read the state.
        """
        stored, self._stored = self._stored, None
        if stored is not None:
            self._news = self.informer.news(self.state, stored.saved)
            stored.apply()

    def match(self) -> None:
        """Grants free memory to waiting requests. The event loop calls it."""
        figures = self._watched_figures() if self._figures_due else None
        self._figures_due = False
        self.submit(events.Match(self.clock.wall_ns(), figures))

    def _do(self, effect: effects.Effect) -> None:
        kind = type(effect)
        try:
            self._effects[kind](effect)
        except (OSError, LedgerError) as error:  # one failed effect must not prevent the others
            stderr_log.say(f"{kind.__name__} failed: {error}")
        except Exception as error:
            stderr_log.fault(f"in {kind.__name__}", error)

    def _slow_beats(self, saved: Iterable[effects.Save]) -> None:
        """Ends fast beats of stalled tasks and fenced processes: the core handles their beats."""
        for row in saved:
            value = row.value
            if isinstance(value, Task) and value.state is TaskState.STALLED:
                for key in value.processes:
                    self._beats_fast(key, False)
            elif isinstance(value, Process) and value.fenced:
                self._beats_fast(value.key, False)

    def _store_recovered(self) -> None:
        self.event_loop.wake("store recovered")
        self.loop.call_soon(self.jobs.settle)

    def _retry_store_later(self) -> None:
        if self._store_retry is None:
            self._store_retry = self.loop.call_later(STORE_RETRY_S, self._retry_store)

    def _retry_store(self) -> None:
        self._store_retry = None
        if not self.journal.retry():
            self._retry_store_later()

    # -- sessions (sessions.Hub) --

    def next_connection(self) -> ConnectionId:
        return next(self._connections)

    def opened(self, session: Session) -> None:
        self._sessions[session.connection] = session

    def closed(self, session: Session) -> None:
        self._sessions.pop(session.connection, None)
        for closed in self._on_closed:
            closed(session)
        if session.asked:
            self.submit(events.Disconnected(session.connection))

    def knows(self, session: Session) -> bool:
        """Whether the session is open."""
        return self._sessions.get(session.connection) is session

    def may_enter(self, env: str, who: Identity | Credentials) -> bool:
        return self.envs.may_enter(env, who)

    def entitled(self, env: str) -> tuple[frozenset[int], frozenset[int]]:
        return self.envs.entitled(env)

    def expects_files(self, env: str) -> bool:
        return self.recovery.is_pending(env)

    def received(self, session: Session, message: Message, fds: list[int]) -> None:
        """Handles one authentic message.

        An ACQUIRE waits for a fresh GPU reading, and later messages wait behind it.
        """
        waiting = self._held_back.get(session.connection)
        if waiting is not None:
            waiting.append((message, fds))
        elif (
            message.verb == "ACQUIRE"
            and self.clock.monotonic_ns() - self.gpus.last.at_ns > FRESH_NS
        ):
            self._held_back[session.connection] = [(message, fds)]
            self.gpus.read_soon(lambda _reading: self._let_through(session))
        else:
            self._handle(session, message, fds)

    def _let_through(self, session: Session) -> None:
        for message, fds in self._held_back.pop(session.connection, ()):
            self._handle(session, message, fds)

    def _handle(self, session: Session, message: Message, fds: list[int]) -> None:
        fields: Mapping[str, Any] = message.fields
        held = session.key in self.state.processes
        try:
            verb = self._verbs[message.verb]
            if verb.guarded and not held and not session.may_enter():
                reason = (
                    f"{session.user} may not enter {session.env}: an administrator names who may"
                    " (nodemgr quota set --user)"
                )
                self.deny(session, message, DenyCode.FORBIDDEN_USER, reason)
            else:
                if message.verb == "REJOIN":
                    fds = self.recovery.offer(session.env, fds)
                verb.handler(self, session, message, fields)
        finally:
            self.recovery.close_all(fds)

    def _rejoin(self, session: Session, message: Message, fields: Mapping[str, Any]) -> None:
        self._step_for(
            session, message, client_sessions.rejoin(session, fields, self.clock.wall_ns())
        )

    def _acquire(self, session: Session, message: Message, fields: Mapping[str, Any]) -> None:
        self._note_beat(session)  # over UDP a repeated request is a beat
        if absurd := client_sessions.absurd(fields):
            self.deny(session, message, DenyCode.BAD_REQUEST, absurd)
            return
        used: dict[Uuid, int] = {}
        if "memory" in fields or session.transport is Transport.UDP:
            used = {
                uuid: self.ledgers.used(session.env, gpu.index)
                for uuid, gpu in self.state.gpus.items()
            }
        if not session.has_kin and self._may_have_kin(session.env, fields["task"]):
            session.find_kin(self.jobs.factory.job_of)
        self._step_for(
            session, message, client_sessions.acquire(session, fields, self.clock.wall_ns(), used)
        )

    def _may_have_kin(self, env: str, token: str) -> bool:
        """Whether /proc must be read for the process's kin.

        It need not if the token names a running task or a request, or if no kin can exist.
        """
        if not self.state.env_tasks.get(env) and not self.state.requests:
            return False
        task = self.state.tasks.get(self.state.task_of_token.get((env, token), ""))
        if task is None:
            return (env, token) not in self.state.request_of_token
        return task.state is not TaskState.RUNNING

    def _beat(self, session: Session, message: Message, fields: Mapping[str, Any]) -> None:
        member = self.state.processes.get(session.key)
        task = None if member is None or member.fenced else self.state.tasks.get(member.task_id)
        self._note_beat(session)
        if task is None and session.key in self.state.request_of:
            session.beats_fast(True)  # it waits
        elif task is None or task.state is TaskState.STALLED:
            self._step_for(
                session, message, client_sessions.beat(session, fields, self.clock.wall_ns())
            )
            return
        else:
            session.beats_fast("rid" not in fields)
        if session.transport is Transport.UDP:
            session.answer("ACK", rid=client_sessions.rid_of(message))

    def _note_beat(self, session: Session) -> None:
        if session.key in self.last_beat_ns:
            self.last_beat_ns[session.key] = self.clock.monotonic_ns()

    def _cancel(self, session: Session, message: Message, fields: Mapping[str, Any]) -> None:
        self._step_for(
            session, message, client_sessions.cancel(session, fields, self.clock.wall_ns())
        )

    def _release(self, session: Session, message: Message, fields: Mapping[str, Any]) -> None:
        self._step_for(
            session, message, client_sessions.release(session, fields, self.clock.wall_ns())
        )

    def _ask(self, session: Session, message: Message, fields: Mapping[str, Any]) -> None:
        self._on_ask(session, fields)

    def _run(self, session: Session, message: Message, _fields: Mapping[str, Any]) -> None:
        self._on_runner(session, message)

    _verbs: dict[str, _Verb] = {  # noqa: RUF012 - a table
        "ACQUIRE": _Verb(_acquire, guarded=True),
        "ASK": _Verb(_ask, guarded=True),
        "REJOIN": _Verb(_rejoin, guarded=True),
        "RUNNER": _Verb(_run, guarded=True),
        "CLAIM": _Verb(_run, guarded=True),
        "RUNNING": _Verb(_run, guarded=True),
        "FAILED": _Verb(_run, guarded=True),
        "BEAT": _Verb(_beat),
        "CANCEL": _Verb(_cancel),
        "RELEASE": _Verb(_release),
        "HELLO": _Verb(lambda *_: None),
    }

    def _step_for(self, session: Session, message: Message, event: events.Event) -> None:
        session.asked = True
        if not self.submit(event) and isinstance(event, events.Acquire):
            self.deny(
                session,
                message,
                DenyCode.STORE_FULL,
                f"the manager cannot store a grant now: {self.journal.refused}",
            )

    @staticmethod
    def deny(session: Session, message: Message, code: DenyCode, reason: str) -> None:
        session.answer(
            "DENY",
            rid=client_sessions.rid_of(message),
            code=code.value,
            reason=client_sessions.line(reason),
        )

    def _sender(self, answer: Callable[[Session, Any], None]) -> Callable[[Any], None]:
        def send(effect: Any) -> None:
            session = self._sessions.get(effect.connection)
            if session is not None:
                answer(session, effect)

        return send

    def send_grant(self, effect: effects.SendGrant) -> None:
        session = self._sessions.get(effect.connection)
        if session is None or self.recovery.holds_back(session, effect):
            return
        ledger = None
        if session.transport is Transport.UNIX:
            env = effect.task.env
            if env not in self.ledgers:
                # it could not be made in time: no descriptor was free
                self._take_over()
                self.ledgers.open(env)
                self._ledger_ready(env, [])
            ledger = self.ledgers.get(env)
        client_sessions.answer_grant(
            session, effect, self.state.config.beat_ms, ledger.fds if ledger is not None else ()
        )

    def _beats_fast(self, key: ProcessKey, fast: bool) -> None:
        session = self._sessions.get(self.state.connections.get(key, 0))
        if session is not None:
            session.beats_fast(fast)

    # -- processes --

    def _watch(self, effect: effects.Watch) -> None:
        self.beats.watch(effect.process, self.clock.monotonic_ns(), over_udp=effect.pid is None)
        if effect.pid is not None:
            self._settle_driver_limits()
            self._key_of_pid[effect.pid] = effect.process
            self.process_locations.expect(effect.process)
            if not self.processes.watch(effect.process):
                self.loop.call_soon(self._process_ended, effect.process)

    def resume_watching(self, key: ProcessKey, pid: int | None, same_boot: bool) -> bool:
        """After a restart. Returns False if the process has died. Silence counts from now."""
        self.beats.watch(key, self.clock.monotonic_ns(), over_udp=pid is None)
        if pid is None:
            return True
        self._key_of_pid[pid] = key
        self.process_locations.expect(key)
        return same_boot and self.processes.watch(key)

    def _unwatch(self, effect: effects.Unwatch) -> None:
        self._beats_fast(effect.process, False)
        self.beats.unwatch(effect.process)
        self.process_locations.forget(effect.process)
        self.processes.unwatch(effect.process)
        pid = pid_of(effect.process)
        if pid is not None and self._key_of_pid.get(pid) == effect.process:
            del self._key_of_pid[pid]
            self._settle_driver_limits()

    def _process_ended(self, key: ProcessKey) -> None:
        """Read the memory that the process left on its GPUs, before it is granted again."""
        process = self.state.processes.get(key)
        if process is None or process.pid is None:
            self._process_gone(key, {})
        else:
            pid = process.pid
            self.gpus.read_soon(lambda reading: self._process_gone(key, reading.of_process(pid)))

    def _process_gone(self, key: ProcessKey, unreclaimed_bytes: dict[Uuid, int]) -> None:
        self.submit(events.ProcessGone(key, self.clock.wall_ns(), unreclaimed_bytes))

    def _kill(self, effect: effects.Kill) -> None:
        if not self.processes.kill(
            effect.process, signal.SIGTERM if effect.gently else signal.SIGKILL
        ):
            stderr_log.say(
                f"process {effect.pid} could not be ended: it is gone already, or not ours to end"
            )

    # -- ledgers --

    def _ledger_facts(self, planned: Iterable[effects.Effect]) -> dict[str, str | None]:
        """The store's facts about the ledgers that a step opens and closes.

        They are part of its commit, because a second one would delay the client.
        """
        facts: dict[str, str | None] = {}
        for effect in planned:
            if type(effect) is effects.CloseLedger:
                facts[LEDGER_META + effect.env] = None
            elif type(effect) is effects.OpenLedger and not self.recovery.is_pending(effect.env):
                files = self.ledgers.prepare(effect.env)
                if files is not None:
                    facts[LEDGER_META + effect.env] = files.to_json()
        return facts

    def _open_ledger(self, effect: effects.OpenLedger) -> None:
        if not self.recovery.is_pending(effect.env):
            self.ledgers.open(effect.env)
            self.loop.call_soon(self.ledgers.make_spare)

    def _close_ledger(self, effect: effects.CloseLedger) -> None:
        self.recovery.give_up(effect.env)
        self.ledgers.close(effect.env)

    def recover(self, files: dict[str, LedgerFiles], gone: set[ProcessKey]) -> None:
        """After a restart: recover or replace the ledger of each env with living processes.

        Only processes on the UNIX socket count.
        """
        living: dict[str, list[int]] = {}
        for process in self.state.processes.values():
            if process.slot is not None and process.pid is not None and process.key not in gone:
                living.setdefault(process.env, []).append(process.pid)
        holders = (
            p
            for p in self.state.processes.values()
            if p.slot is not None and not p.fenced and p.key not in gone
        )
        self.older_limits.begin(holders)
        for env, pids in living.items():
            if env in files:
                self.recovery.begin(env, files[env], pids, self.state.config.timeout_ms / 1_000)
            else:  # killed between lease and ledger: no client has either
                self.ledgers.open(env)
                self._ledger_ready(env, [])
        for env in files.keys() - living.keys():
            self.journal.remember(LEDGER_META + env, None)
        self.ledgers.refuse_rest()

    def _ledger_ready(self, env: str, grants: list[effects.SendGrant]) -> None:
        state = self.state
        rows = [
            LedgerRow(
                state.gpus[uuid].index, uuid, state.gpus[uuid].memory_total_bytes, grant.limit_bytes
            )
            for (owner, uuid), grant in state.grants.items()
            if owner == env
        ]
        slots = [
            Slot(p.slot, p.generation, self._slot_state(p))
            for p in state.processes.values()
            if p.env == env and p.slot is not None
        ]
        self.ledgers.rebuild(env, rows, slots)
        self.loop.call_soon(self.envs.refresh, env)  # its clients need not send it any more
        for grant in grants:
            self.send_grant(grant)

    def _slot_state(self, process: Process) -> SlotState:
        if process.fenced:
            return SlotState.FENCED
        stalled = self.state.tasks[process.task_id].state is TaskState.STALLED
        return SlotState.STALLED if stalled else SlotState.LIVE

    def _ledger_lost(self, env: str, grants: list[effects.SendGrant]) -> None:
        """No process sent the ledger.

        Its tasks are fenced, because nothing can enforce their grants.
        """
        stderr_log.say(
            f"the memory ledger of env {env} is lost: its running tasks are fenced, new ones begin"
            " with a new ledger"
        )
        unheard = {grant.process.key for grant in grants}
        members = (
            p
            for p in self.state.processes.values()
            if p.env == env and p.slot is not None and not p.fenced
        )
        lost = {member.task_id for member in members if member.key not in unheard}
        self.ledgers.open(env)
        self._ledger_ready(env, [grant for grant in grants if grant.task.task_id not in lost])
        by = "the manager, which lost the memory ledger when it was restarted"
        for task_id in lost:
            self.submit(events.ReleaseTask(task_id, by, self.clock.wall_ns()))

    def _set_limit(self, effect: effects.SetLimit) -> None:
        self._settle_driver_limits()
        self.ledgers.set_limit(
            effect.env, LedgerRow(effect.row, effect.uuid, effect.total_bytes, effect.limit_bytes)
        )

    def _set_slot(self, effect: effects.SetSlot) -> None:
        self.ledgers.set_slot(
            effect.env, Slot(effect.slot, effect.generation, SLOT_STATES[effect.state])
        )

    def _env_changed(self, effect: effects.EnvChanged) -> None:
        self.envs.refresh(effect.env)

    # -- the device gate --

    def _gpus_held(self, effect: effects.GpusHeld) -> None:
        """Opens the granted devices.

        After a failure the grant is still sent, the fault is reported, and the next GPU reading
        retries.
        """
        if self.gate is not None:
            self._move_gate(self.gate, effect.env)

    def _move_gate(self, gate: Gate, env: str) -> None:
        minors = self.gpus.last.minors
        gate.allow(
            env,
            {minors[uuid] for owner, uuid in self.state.grants if owner == env and uuid in minors},
        )

    def settle_gates(self) -> None:
        """Sets each env's gate from its grants, then checks the gate."""
        if self.gate is not None:
            for env in self.state.envs:
                self._move_gate(self.gate, env)
            self.gate.check()

    # -- GPUs --

    def _watch_gpus(self) -> None:
        """Read the GPUs periodically while memory is held, requested or unreclaimed.

        An audit that acts needs it, too.
        """
        needed = bool(
            self.state.tasks or self.state.requests or self.state.unreclaimed
        ) or audit.is_acting(self.state)
        self.gpus.set_period(self.state.config.beat_ms / 1_000 if needed else None)

    def gpus_read(self, reading: DriverReading) -> None:
        """After each reading: updates GPU health, ledgers, unreclaimed memory and gates."""
        if reading.gpus != tuple(sorted(self.state.gpus.values(), key=lambda gpu: gpu.index)):
            self.submit(events.GpusChanged(reading.gpus, self.clock.wall_ns()))
            self.envs.refresh_all()
        self.audit(reading)
        self._read_unreclaimed(reading)
        self.settle_gates()

    def _read_gpus(self, then: Callable[[], None]) -> None:
        """Calls back after a reading that begins now has been processed."""
        self.gpus.read_soon(lambda _reading: then())

    def when_fresh(self, then: Callable[[], None]) -> None:
        """Call back when `gpus.last` is at most SHOWN_NS old, else after a new reading.

        In both cases the locations of all present processes are known first.
        """
        if self.clock.monotonic_ns() - self.gpus.last.at_ns <= SHOWN_NS:
            self.process_locations.when_known(then)
        else:
            self.gpus.read_soon(lambda _reading: self.process_locations.when_known(then))

    def audit(self, reading: DriverReading) -> None:
        """Corrects the ledgers by the driver's figures and submits unexplained memory to the core.

        It skips a reading that was under way at the last audit: memory freed before that audit
        would appear unexplained both times.
        """
        if reading.at_ns < self._audited_ns:
            return
        audited = self.auditor.audit(reading, self.clock.wall_ns())
        self._audited_ns = self.clock.monotonic_ns()
        if audit.is_news(self.state, audited):
            self.submit(audited)
        limits_bytes = {where: grant.limit_bytes for where, grant in self.state.grants.items()}
        for env in self.context_sizes.learn(
            self.auditor.figures, self.state.gpus, limits_bytes, self.state.envs
        ):
            self.envs.refresh(env)

    def key_of_pid(self, pid: int) -> ProcessKey | None:
        """The living process of this PID that holds, awaits or has left a lease."""
        return self._key_of_pid.get(pid)

    def known(self) -> Iterator[tuple[ProcessKey, str]]:
        """All such processes, with their envs."""
        for key in self._key_of_pid.values():
            if (env := self._env_of(key)) is not None:
                yield key, env

    def env_of_known(self, pid: int) -> str | None:
        key = self._key_of_pid.get(pid)
        return None if key is None else self._env_of(key)

    def _env_of(self, key: ProcessKey) -> str | None:
        process = self.state.processes.get(key)
        if process is not None:
            return process.env
        request_id = self.state.request_of.get(key)
        return None if request_id is None else self.state.requests[request_id].env

    def _watch_unreclaimed(self, effect: effects.WatchUnreclaimed) -> None:
        # each reading compares in gpus_read
        self.loop.call_soon(self.gpus.read_soon, lambda reading: None)

    def _read_unreclaimed(self, reading: DriverReading) -> None:
        for (key, uuid), unreclaimed in list(self.state.unreclaimed.items()):
            if uuid not in reading.processes:
                continue  # the reading lacks this GPU
            now_bytes = self._unreclaimed_bytes(reading, key, uuid, unreclaimed.pid)
            if now_bytes != unreclaimed.memory_bytes or not unreclaimed.told:
                self.submit(events.UnreclaimedChanged(key, uuid, now_bytes, self.clock.wall_ns()))

    def _unreclaimed_bytes(
        self, reading: DriverReading, key: ProcessKey, uuid: Uuid, pid: int
    ) -> int:
        """The largest of driver (0 if the PID was reused), ledger and older limit."""
        process = self.state.processes.get(key)
        word_bytes = 0
        if process is not None and process.slot is not None:
            word_bytes = self.ledgers.slot_used(
                process.env, self.state.gpus[uuid].index, process.slot
            )
        ticks = start_ticks(pid)
        is_reused = ticks is not None and key.startswith("unix:") and key != f"unix:{pid}:{ticks}"
        driver_bytes = 0 if is_reused else reading.processes[uuid].get(pid, 0)
        return max(word_bytes, driver_bytes, self.older_limits.of_process(key, uuid))

    def _settle_driver_limits(self) -> None:
        """Request one update per step, after the step's answers and before its events."""
        self._limits_settle = self.driver_limits.can_set

    def settle_driver_limits(self) -> None:
        self._limits_settle = False
        self.driver_limits.settle()

    # -- time --

    def _sleep(self) -> None:
        """Sets the timer to the state's next deadline, if the deadline changed."""
        wake_ns = self.state.wake_ns()
        if wake_ns == self._wake_ns:
            return
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        self._wake_ns = wake_ns
        if wake_ns is not None:
            delay_s = max(MIN_WAKE_S, (wake_ns - self.clock.monotonic_ns()) / 1e9)
            self._wake = self.loop.call_later(delay_s, self.tick)

    def tick(self) -> None:
        self._wake = self._wake_ns = None
        found = self.beats.silence(self.clock.monotonic_ns(), self.state.config.timeout_ms * MS)
        self._hear(found.woken)
        self.submit(
            events.Tick(
                self.clock.wall_ns(), found.silent, found.oldest_ns, self._watched_figures()
            )
        )

    def _read_beats_later(self) -> None:
        """At least once a second, while processes in a ledger hold leases."""
        is_needed = bool(self.state.tasks and self.state.members)
        if is_needed and self._beat_timer is None:
            self._beat_timer = self.loop.call_later(
                min(BEAT_CHECK_S, self.state.config.beat_ms / 1_000), self._read_beats
            )
        elif not is_needed and self._beat_timer is not None:
            self._beat_timer.cancel()
            self._beat_timer = None

    def _read_beats(self) -> None:
        self._beat_timer = None
        self._hear(self.beats.woken(self.clock.monotonic_ns()))
        self._read_beats_later()

    def _hear(self, woken: Iterable[ProcessKey]) -> None:
        """Submit Heard for each process with a beat word that rises again."""
        for key in woken:
            self.submit(events.Heard(key, self.clock.wall_ns()))

    def _watched_figures(self) -> dict[tuple[str, Uuid], int]:
        """The larger of the older limit and the ledger, which each driver reading corrects."""
        used = {}
        for grant in timers.watched_grants(self.state):
            ledger_bytes = self.ledgers.used(grant.env, self.state.gpus[grant.uuid].index)
            used[grant.env, grant.uuid] = max(
                ledger_bytes, self.older_limits.of_env(grant.env, grant.uuid)
            )
        return used
