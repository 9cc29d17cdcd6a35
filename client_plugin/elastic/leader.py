"""The leader of an elastic task: carries out the orders of its plan.

One thread: it waits for the lease, the workers' words and ends, signals and the plan's time; each
becomes an event. Knows: the edge's parts. Must not decide.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from client_plugin import stderr
from client_plugin.messages.form import Message, Notice

from .channel import WorkerSockets, members_message
from .checkpoints import CheckpointWatch
from .command import ElasticTask
from .host_memory import free_bytes, resident_bytes
from .lease_events import Lease, LeaseEnded, Offered, Recalled, Rejoined, Withdrawn
from .orders import (
    NO_CHECKPOINT,
    Accept,
    Checkpoint,
    Decline,
    Died,
    EndAsked,
    Finish,
    Formed,
    GiveGpu,
    GpuOffered,
    GpuRecalled,
    GpuWithdrawn,
    LeaseRejoined,
    Left,
    Members,
    NoRoom,
    Over,
    PlanEvent,
    PlanOrder,
    Report,
    Signal,
    StartWorker,
    TaskLost,
    TimePassed,
)
from .plan import ElasticPlan
from .ports import HeldPorts
from .relay import Relay
from .workers import Workers, free_port, variables

GRACE_S = {signal.SIGINT: 1.0, signal.SIGTERM: 10.0, signal.SIGHUP: 10.0}
"""A signal that ends the task, and the time that its workers have."""
STOPS = {signal.SIGTSTP: signal.SIGSTOP, signal.SIGCONT: signal.SIGCONT}
"""A signal to the leader, and the one that its workers get."""

REPORTS = {
    "SIZE": Notice("elastic: the training runs on {size} GPU{s}"),
    "ENDED": Message(
        "elastic: worker {worker} ended with {how}", "its own lines above have the reason"
    ),
    "RESTARTED": Message(
        "elastic: all workers start again from the checkpoint, since one ended with {how}",
        "the lines of the worker have the reason",
    ),
    "BEGUN_ANEW": Message(
        "elastic: all workers start anew, without a checkpoint, since one ended with {how}",
        "the lines of the worker have the reason",
    ),
    "RESUMED": Message(
        "elastic: the last worker with the training's state has ended, and the training goes on "
        "from its checkpoint",
        "the lines of the worker have the reason",
    ),
    "GAVE_UP": Message(
        "elastic: the script is not started again after {size} restarts in a row",
        "the lines of the workers have the reason",
    ),
    "NOT_YET": Message(
        "elastic: the script keeps its {size} GPU{s} until its first checkpoint",
        "name the path that the script writes by --checkpoint",
    ),
    "KEEPS_SIZE": Message(
        "elastic: the script keeps its {size} GPU{s}, since it has no checkpoint to start again "
        "from",
        "name its checkpoint by --checkpoint, or use nodemgr_client.elastic in it",
    ),
    "TAKEN": Message(
        "elastic: worker {worker} was killed, since GPU {gpu} was asked back and there is no new "
        "checkpoint",
        "save checkpoints more often, and name them by --checkpoint",
    ),
    "TOO_LATE": Message(
        "elastic: worker {worker} was killed, since it did not leave GPU {gpu} in time",
        "make steps shorter than the time of a recall (setting recall_ms)",
    ),
    "GIVEN_BACK": Message(
        "elastic: GPU {gpu} is given back, since {size:d} workers in a row ended before they "
        "trained",
        "read their own lines above",
    ),
    "STUCK": Message(
        "elastic: worker {worker} was killed, since it did not join the others",
        "its lines have the reason",
    ),
    "BROKEN": Message(
        "elastic: the collectives of the workers break again and again",
        "the lines of the workers have the reason",
    ),
    "SAME_STEP": Message(
        "elastic: {size} workers in a row have failed at the same step",
        "the lines of the workers have the reason",
    ),
    "NO_GPU_LEFT": Message(
        "elastic: no GPU is left to start the script on", "start the task again"
    ),
    "EARLY": Notice(
        "elastic: worker {worker} was ended, since GPU {gpu} was asked back before elastic(...) "
        "was reached: it had nothing to lose, and the others go on"
    ),
    "FEWER": Message(
        "elastic: all workers start anew on the GPUs that are left, since one was asked back and "
        "the script does not reach elastic(...)",
        "use nodemgr_client.elastic in it, or name its checkpoint by --checkpoint",
    ),
}
"""The rows of the plan's reports, which name them by key."""


def lead(task: ElasticTask, lease: Lease) -> int:
    """Run the task to its end; its exit code."""
    if task.unused is not None:
        unused = ", ".join(task.unused) or "no option"
        stderr.say(f"elastic: starts the script itself in place of torchrun; not used: {unused}")
    signals = _caught_signals()
    try:
        channel = WorkerSockets()
    except OSError as error:
        lease.release()
        stderr.say(
            f"elastic: no directory for the sockets of the workers ({error.strerror or error})",
            "free space in /tmp, or set TMPDIR to a short path",
        )
        return 1
    leader = Leader(task, lease, channel, signals)
    try:
        code = leader.run()
    finally:
        leader.close()
    return _end(code)


def _end(code: int) -> int:
    """The exit code; a leader that a signal has ended ends by it."""
    if -code in GRACE_S:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return 128 - code if code < 0 else code


def _caught_signals() -> Tuple[socket.socket, socket.socket]:
    """From now on signals become bytes on the first socket; the second is their writer."""
    reader, writer = socket.socketpair()
    for end in (reader, writer):
        end.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    for number in (*GRACE_S, *STOPS, signal.SIGCHLD):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reader, writer


class Leader:
    """The processes, sockets and the lease of one task, and its plan."""

    def __init__(
        self,
        task: ElasticTask,
        lease: Lease,
        channel: WorkerSockets,
        signals: Tuple[socket.socket, socket.socket],
    ) -> None:
        """`signals`: as `_caught_signals` returns them."""
        self._task = task
        self._lease = lease
        self._channel = channel
        self._relay = Relay()
        self._workers = Workers(task.script, self._relay)
        self._living: Set[int] = set()
        self._round = -1
        self._held = HeldPorts()
        self._ports: List[int] = []
        self._code: Optional[int] = None
        self._failed_starts: List[PlanEvent] = []
        self._reason = ""
        self._indexes: Dict[str, int] = {}
        gpus = tuple(self._uuids())
        self._watch = CheckpointWatch(task.checkpoint, self._unreadable)
        self._plan = ElasticPlan(
            gpus, time.monotonic(), checkpoints=task.checkpoint is not None, most_gpus=task.maximum
        )
        self._selector = selectors.DefaultSelector()
        self._signals, self._writer = signals
        for source, kind in ((lease, "lease"), (channel.listener, "listener")):
            self._selector.register(source, selectors.EVENT_READ, kind)
        self._selector.register(self._signals, selectors.EVENT_READ, "signals")

    def run(self) -> int:
        self._carry_out(self._plan.begin(self._checkpoint()))
        while self._code is None:
            for event in [*self._events(), TimePassed()]:
                self._take(event)
        return self._code

    def close(self) -> None:
        """End every process, remove the directory, give the lease back."""
        self._workers.clear()
        self._relay.end()
        self._held.close()
        self._channel.close()
        self._lease.release()

    # -- events --

    def _take(self, event: PlanEvent) -> None:
        pending = [event]
        while pending:
            now_s = time.monotonic()
            self._carry_out(self._plan.step(pending.pop(0), now_s, self._checkpoint()))
            pending += self._failed_starts
            self._failed_starts = []

    def _events(self) -> List[PlanEvent]:
        """Events, after a wait for one: words before ends."""
        wake_s = self._plan.wake_s()
        wait_s = None if wake_s is None else max(0.0, wake_s - time.monotonic())
        ready = [(key.data, key.fileobj) for key, _ in self._selector.select(wait_s)]
        events: List[PlanEvent] = []
        for kind, source in ready:
            if kind == "listener":
                self._accept()
            elif kind == "worker":
                events += self._words(source)
            elif kind == "signals":
                events += self._caught()
            elif kind == "lease":
                events += self._of_lease()
        for number, code in self._workers.reap():
            events += self._ended(number, code)
        for number, pid in self._workers.stopped():
            if number in self._living:
                stderr.say(
                    f"elastic: worker {number} was stopped by a signal, and the training waits for "
                    "it",
                    f"continue it: kill -CONT {pid}",
                )
        return events

    def _accept(self) -> None:
        connection = self._channel.accept()
        if connection is not None:
            self._selector.register(connection, selectors.EVENT_READ, "worker")

    def _words(self, connection: Any) -> List[PlanEvent]:
        words = self._channel.read(connection)
        if words is None:
            self._drop(connection)
        return words or []

    def _drop(self, connection: Optional[socket.socket]) -> None:
        if connection is not None and connection.fileno() >= 0:
            self._selector.unregister(connection)
            connection.close()

    def _ended(self, number: int, code: int) -> List[PlanEvent]:
        words = self._channel.words_of(number)
        self._drop(self._channel.forget(number))
        self._living.discard(number)
        self._relay.lead(min(self._living, default=0))
        return [*words, Died(number, code)]

    def _of_lease(self) -> List[PlanEvent]:
        events: List[PlanEvent] = []
        for word in self._lease.events():
            if isinstance(word, Offered):
                self._indexes[word.gpu.uuid] = word.gpu.index
                events.append(GpuOffered(word.gpu.uuid))
            elif isinstance(word, Recalled):
                reason = word.reason or "another request waits for it"
                stderr.say(f"elastic: GPU {self._name(word.gpu)} is asked back: {reason}")
                events.append(GpuRecalled(word.gpu, word.deadline))
            elif isinstance(word, Withdrawn):
                stderr.say(f"elastic: GPU {self._name(word.gpu)} stays with this task")
                events.append(GpuWithdrawn(word.gpu))
            elif isinstance(word, Rejoined):
                events.append(LeaseRejoined(tuple(self._uuids())))
            elif isinstance(word, LeaseEnded):
                stderr.say(
                    f"elastic: the task has lost its GPUs: {word.reason}", "start the task again"
                )
                events.append(TaskLost())
        return events

    def _uuids(self) -> List[str]:
        gpus = self._lease.gpus()
        self._indexes.update({gpu.uuid: gpu.index for gpu in gpus})
        return [gpu.uuid for gpu in gpus]

    def _caught(self) -> List[PlanEvent]:
        events: List[PlanEvent] = []
        for number in self._signals.recv(4_096):
            if number in GRACE_S:
                grace_s = GRACE_S[signal.Signals(number)]
                events.append(EndAsked(number, grace_s))
            elif number in STOPS:
                self._workers.pause(STOPS[signal.Signals(number)])
            if number == signal.SIGTSTP:
                os.kill(os.getpid(), signal.SIGSTOP)
        return events

    # -- orders --

    def _carry_out(self, orders: List[PlanOrder]) -> None:
        for order in orders:
            if isinstance(order, StartWorker):
                self._start(order)
            elif isinstance(order, GiveGpu):
                self._channel.send(order.worker, {"is": "gpu", "gpu": order.gpu})
                self._living.add(order.worker)
            elif isinstance(order, Members):
                self._send_members(order)
            elif isinstance(order, Formed):
                self._channel.clean(order.generation)
            elif isinstance(order, Over):
                self._channel.send(order.worker, {"is": "over", "phase": order.phase})
            elif isinstance(order, Signal):
                self._workers.send(order.worker, order.signal)
            elif isinstance(order, Report):
                self._report(order)
            elif isinstance(order, Finish):
                self._code = order.code
            else:
                self._answer(order)

    def _start(self, order: StartWorker) -> None:
        if not order.gpu and not self._has_room():
            self._failed_starts.append(NoRoom(order.worker))
            return
        try:
            if order.round != self._round:
                self._ports = self._held.renew(1 + order.size)
                self._round = order.round
            environment = variables(
                os.environ, order, token=self._lease.token, path=self._channel.path,
                ports=self._ports,
            )  # fmt: skip
            self._workers.start(order.worker, environment)
        except OSError as error:
            program = self._task.script[0] if self._task.script else ""
            stderr.say(
                f"elastic: {program} could not be started ({error.strerror})",
                "name another command",
            )
            self._failed_starts.append(Died(order.worker, 127))
            return
        if order.gpu:
            self._living.add(order.worker)
            self._relay.lead(min(self._living))

    def _has_room(self) -> bool:
        """Whether the host has memory for one more worker, and as much again."""
        most_bytes = max((resident_bytes(pid) for pid in self._workers.pids()), default=0)
        return free_bytes() > 2 * most_bytes

    def _send_members(self, order: Members) -> None:
        message = members_message(order, self._channel.store(order.generation), free_port())
        for worker in order.receivers:
            if not self._channel.send(worker, message):
                self._workers.send(worker, signal.SIGKILL)

    def _answer(self, order: PlanOrder) -> None:
        if isinstance(order, Accept):
            self._lease.accepted(order.gpu)
        elif isinstance(order, Decline):
            self._lease.decline(order.gpu)
        elif isinstance(order, Left):
            self._lease.left(order.gpu)

    def _report(self, order: Report) -> None:
        how = (
            f"signal {signal.Signals(-order.code).name}"
            if order.code < 0
            else f"exit code {order.code}"
        )
        stderr.say(
            REPORTS[order.key](
                worker=order.worker, gpu=self._name(order.gpu), how=how, size=order.size,
                s="s" * (order.size != 1),
            )
        )  # fmt: skip

    def _name(self, gpu: str) -> str:
        return str(self._indexes.get(gpu, gpu))

    def _checkpoint(self) -> Checkpoint:
        if self._plan.inline:
            return NO_CHECKPOINT
        return self._watch.check(time.monotonic(), time.time())

    def _unreadable(self, reason: str) -> None:
        path = self._task.checkpoint
        stderr.say(
            f"elastic: the checkpoint {path} cannot be read ({reason}), so the script keeps its "
            "GPUs",
            "make it readable, or name another path by --checkpoint",
        )
