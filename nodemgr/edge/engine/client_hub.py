"""The clients' side of the engine: their messages become events, the core's answers packets.

Knows: the open sessions, the handler of each verb, the effects that answer a client. Must not know:
sockets and frames (edge/clients), the order of a step, the reason of a decision.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from client_plugin.messages.form import notice, stated
from nodemgr.core.model import effects, events
from nodemgr.core.model.entities import (
    ConnectionId,
    DenyCode,
    Process,
    ProcessKey,
    Task,
    TaskState,
    Transport,
    Uuid,
)
from nodemgr.core.sharing import progress
from nodemgr.core.state.driver_numbers import driver_numbers
from nodemgr.edge.clients import client_sessions
from nodemgr.edge.clients.client_sessions import Session
from nodemgr.edge.clients.descriptor_filter import close_all
from nodemgr.edge.compute.registry import GateFiles
from nodemgr.edge.containers.env_directories import Envs
from nodemgr.edge.engine.foundation import Foundation
from nodemgr.edge.engine.ledger_controller import LedgerController
from nodemgr.edge.engine.step_engine import Handlers, StepEngine
from nodemgr.edge.gpu.gpu_inventory import GpuWatcher
from nodemgr.edge.kernel.processes import Credentials, Identity
from nodemgr.edge.ledger.peaks import Peaks
from nodemgr.edge.rpc.wire import Fields

NO_TASKS = frozenset({client_sessions.ADMINS, client_sessions.PAGES})
FRESH_NS = 2_000_000_000
"""No grant is made on an older GPU reading: the node was idle, and the GPUs are read first."""


class _Verb(NamedTuple):
    """How a client's message is handled."""

    handler: Callable[[ClientHub, Session, Fields], None]
    guarded: bool = False
    """It needs access to the env.

    A process that already holds a lease may continue and release it.
    """


def _runners_verb(verb: str) -> _Verb:
    """A message of a runner, or of a supervisor in a container."""

    def handle(hub: ClientHub, session: Session, fields: Fields) -> None:
        hub._on_runner(session, verb, fields)

    return _Verb(handle, guarded=True)


def _elastic_word(verb: str) -> _Verb:
    """A word of an elastic task about a GPU of its lease."""

    def handle(hub: ClientHub, session: Session, fields: Fields) -> None:
        wall_ns = hub._clock.wall_ns()
        event = client_sessions.elastic_word(session, verb, fields, wall_ns)
        hub._step_for(session, fields, event)

    return _Verb(handle)


class ClientHub:
    """Implements client_sessions.Hub for the transports, and the answers for the core."""

    def __init__(
        self, base: Foundation, engine: StepEngine, last_beat_ns: dict[ProcessKey, int]
    ) -> None:
        self._clock, self._state, self._journal = base.clock, base.state, base.journal
        self._engine = engine
        self.last_beat_ns = last_beat_ns
        self.counters: Counter[str] = Counter()
        self._sessions: dict[ConnectionId, Session] = {}
        self._held_back: dict[ConnectionId, list[tuple[str, Fields, list[int]]]] = {}
        self._connections = itertools.count(1)

    def begin(
        self,
        envs: Envs,
        gpus: GpuWatcher,
        ledgers: LedgerController,
        peaks: Peaks,
        gate_files: Callable[[effects.SendGrant], GateFiles | None],
        job_of: Callable[[Sequence[int]], str | None],
        open_for: Callable[[Task, int | None], Container[Uuid] | None],
    ) -> None:
        """The parts that a client's message reaches, once, before the first message.

        `gate_files`: the launch gates of a gated process's grant; None: it passes none. `job_of`:
        the job that runs below one of these processes. `open_for` opens a task's GPUs to its
        process, and returns the GPUs that it sees, or None: all.
        """
        self._envs, self._gpus, self._ledgers, self._peaks = envs, gpus, ledgers, peaks
        self._gate_files, self._job_of, self._open_for = gate_files, job_of, open_for

    def serve(
        self,
        on_ask: Callable[[Session, Fields], None],
        on_runner: Callable[[Session, str, Fields], None],
        on_closed: tuple[Callable[[Session], None], ...],
        expected_ms: Callable[[str, str, int | None], int | None],
    ) -> None:
        """Names the receivers of messages that the core does not see, and of ended sessions.

        `on_ask`: questions and orders. `on_runner`: of runners, which start jobs in containers.
        `expected_ms`: the time that earlier runs took, by environment, token and GPUs.
        """
        self._on_ask, self._on_runner, self._on_closed = on_ask, on_runner, on_closed
        self._expected_ms = expected_ms

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
            self._engine.submit(events.Disconnected(session.connection, self._clock.wall_ns()))

    def knows(self, session: Session) -> bool:
        """Whether the session is open."""
        return self._sessions.get(session.connection) is session

    def may_enter(self, env: str, who: Identity | Credentials) -> bool:
        return self._envs.may_enter(env, who)

    def entitled(self, env: str) -> tuple[frozenset[int], frozenset[int]]:
        return self._envs.entitled(env)

    def expects_files(self, env: str) -> bool:
        return self._ledgers.is_pending(env)

    # -- messages --

    def received(self, session: Session, verb: str, fields: Fields, fds: list[int]) -> None:
        """Handles one authentic message.

        An ACQUIRE waits for a fresh GPU reading, and later messages wait behind it.
        """
        waiting = self._held_back.get(session.connection)
        if waiting is not None:
            waiting.append((verb, fields, fds))
        elif verb == "ACQUIRE" and self._clock.monotonic_ns() - self._gpus.last.at_ns > FRESH_NS:
            self._held_back[session.connection] = [(verb, fields, fds)]
            self._gpus.read_soon(lambda _reading: self._let_through(session))
        else:
            self._handle(session, verb, fields, fds)

    def _let_through(self, session: Session) -> None:
        for verb, fields, fds in self._held_back.pop(session.connection, ()):
            self._handle(session, verb, fields, fds)

    def _handle(self, session: Session, verb: str, fields: Fields, fds: list[int]) -> None:
        held = session.key in self._state.processes
        try:
            row = self._verbs[verb]
            if session.env in NO_TASKS and verb != "ASK":
                reason = stated(
                    "this socket takes orders alone",
                    "a process asks for GPUs on the socket of its environment",
                )
                self._deny(session, fields, DenyCode.UNKNOWN_ENV, reason)
            elif row.guarded and not held and not session.may_enter():
                reason = stated(
                    f"{session.user} may not enter {session.env}",
                    "an administrator names who may (nodemgr quota set --user)",
                )
                self._deny(session, fields, DenyCode.FORBIDDEN_USER, reason)
            else:
                if verb == "REJOIN":
                    fds = self._ledgers.offer(session.env, fds)
                row.handler(self, session, fields)
        finally:
            if fds:
                close_all(fds)

    def _rejoin(self, session: Session, fields: Fields) -> None:
        self._step_for(
            session, fields, client_sessions.rejoin(session, fields, self._clock.wall_ns())
        )

    def _acquire(self, session: Session, fields: Fields) -> None:
        self._note_beat(session)  # over UDP a repeated request is a beat
        session.asks(fields)
        if absurd := client_sessions.absurd(fields):
            self._deny(session, fields, DenyCode.BAD_REQUEST, absurd)
            return
        unkept: Mapping[Uuid, int] = {}
        if "memory" in fields or session.transport is Transport.UDP:
            unkept = self._ledgers.unkept_by(session.env)
        if not session.has_kin and self._may_have_kin(session.env, fields["task"]):
            session.find_kin(self._job_of)
        expected_ms = self._expected_ms(session.env, fields["task"], fields.get("gpus"))
        event = client_sessions.acquire(session, fields, self._clock.wall_ns(), unkept, expected_ms)
        self._step_for(session, fields, event)

    def _may_have_kin(self, env: str, token: str) -> bool:
        """Whether /proc must be read for the process's kin.

        It need not if the token names a running task or a request, or if no kin can exist.
        """
        state = self._state
        if not state.env_tasks.get(env) and not state.requests:
            return False
        task = state.tasks.get(state.task_of_token.get((env, token), ""))
        if task is None:
            return (env, token) not in state.request_of_token
        return task.state is not TaskState.RUNNING

    def _beat(self, session: Session, fields: Fields) -> None:
        state = self._state
        member = state.processes.get(session.key)
        task = None if member is None or member.fenced else state.tasks.get(member.task_id)
        self._note_beat(session)
        if task is None and session.key in state.request_of:
            session.beats_fast(True)  # it waits
        elif task is None or task.state is TaskState.STALLED:
            self._step_for(
                session, fields, client_sessions.beat(session, fields, self._clock.wall_ns())
            )
            return
        else:
            session.beats_fast("rid" not in fields)
        if session.transport is Transport.UDP:
            session.answer("ACK", rid=client_sessions.rid_of(fields))

    def _progress(self, session: Session, fields: Fields) -> None:
        """A report that comes too soon after the last one is dropped before it costs a step."""
        member = self._state.processes.get(session.key)
        if member is not None and progress.is_due(
            self._state, member.task_id, self._clock.monotonic_ns()
        ):
            self._engine.submit(client_sessions.progressed(session, fields, self._clock.wall_ns()))

    def _note_beat(self, session: Session) -> None:
        if session.key in self.last_beat_ns:
            self.last_beat_ns[session.key] = self._clock.monotonic_ns()

    def _cancel(self, session: Session, fields: Fields) -> None:
        self._step_for(
            session, fields, client_sessions.cancel(session, fields, self._clock.wall_ns())
        )

    def _release(self, session: Session, fields: Fields) -> None:
        peak_bytes = self._peaks.at_leaving(session.key)
        event = client_sessions.release(session, fields, self._clock.wall_ns(), peak_bytes)
        self._step_for(session, fields, event)

    def _ask(self, session: Session, fields: Fields) -> None:
        self._on_ask(session, fields)

    _verbs: dict[str, _Verb] = {  # noqa: RUF012 - a table
        "ACQUIRE": _Verb(_acquire, guarded=True),
        "ASK": _Verb(_ask, guarded=True),
        "REJOIN": _Verb(_rejoin, guarded=True),
        "RUNNER": _runners_verb("RUNNER"),
        "CLAIM": _runners_verb("CLAIM"),
        "RUNNING": _runners_verb("RUNNING"),
        "OUTPUT": _runners_verb("OUTPUT"),
        "ENDED": _runners_verb("ENDED"),
        "FAILED": _runners_verb("FAILED"),
        **{verb: _elastic_word(verb) for verb in client_sessions.WORDS},
        "BEAT": _Verb(_beat),
        "PROGRESS": _Verb(_progress),
        "CANCEL": _Verb(_cancel),
        "RELEASE": _Verb(_release),
        "HELLO": _Verb(lambda *_: None),
    }

    def _step_for(self, session: Session, fields: Fields, event: events.Event) -> None:
        session.asked = True
        if not self._engine.submit(event) and isinstance(event, events.Acquire):
            self._deny(
                session,
                fields,
                DenyCode.STORE_FULL,
                notice(f"the manager cannot store a grant now: {self._journal.refused}"),
            )

    @staticmethod
    def _deny(session: Session, fields: Fields, code: DenyCode, reason: str) -> None:
        session.answer(
            "DENY",
            rid=client_sessions.rid_of(fields),
            code=code.value,
            reason=client_sessions.line(reason),
        )

    # -- answers --

    def handlers(self) -> Handlers:
        """The effects that answer a client."""
        return {
            effects.SendGrant: self.send_grant,
            effects.SendWait: self._sender(client_sessions.answer_wait),
            effects.SendDeny: self._sender(client_sessions.answer_deny),
            effects.SendFence: self._sender(client_sessions.answer_fence),
            effects.SendNote: self._sender(client_sessions.answer_note),
            effects.SendAck: self._sender(client_sessions.answer_ack),
            effects.SendOffer: self._sender(client_sessions.answer_offer),
            effects.SendRecall: self._sender(client_sessions.answer_recall),
            effects.SendWithdrawn: self._sender(client_sessions.answer_withdrawn),
        }

    def _sender(self, answer: Callable[[Session, Any], None]) -> Callable[[Any], None]:
        def send(effect: Any) -> None:
            session = self._sessions.get(effect.connection)
            if session is not None:
                answer(session, effect)

        return send

    def send_grant(self, effect: effects.SendGrant) -> None:
        session = self._sessions.get(effect.connection)
        if session is None or self._ledgers.holds_back(session, effect):
            return
        fds: tuple[int, ...] = ()
        gates: tuple[int, ...] | None = None
        threads: int | None = None
        if session.transport is Transport.UNIX:
            fds = self._ledgers.files_of(effect.task.env)
            files = self._gate_files(effect) if effect.process.gated else None
            if files is not None:
                fds, gates, threads = (*fds, *files.fds), files.slots, files.threads
        beat_ms = self._state.config.beat_ms
        visible, seen = None, self._open_for(effect.task, session.pid)
        if session.by_index:
            visible = driver_numbers(self._state, effect.task.gpus, seen)
        client_sessions.answer_grant(session, effect, beat_ms, fds, gates, threads, visible)

    # -- beats --

    def slow_beats(self, saved: Iterable[effects.Save]) -> None:
        """Ends fast beats of stalled tasks and fenced processes: the core handles their beats."""
        for row in saved:
            value = row.value
            if isinstance(value, Task) and value.state is TaskState.STALLED:
                for key in value.processes:
                    self.slow_beats_of(key)
            elif isinstance(value, Process) and value.fenced:
                self.slow_beats_of(value.key)

    def slow_beats_of(self, key: ProcessKey) -> None:
        session = self._sessions.get(self._state.connections.get(key, 0))
        if session is not None:
            session.beats_fast(False)
