"""Has the views of `top` read as they change, and carries out the orders of its keys.

Knows: when views are read again. Must not know: how it is drawn.
"""

from __future__ import annotations

import threading
import time
from functools import partial

from client_plugin.messages.form import Notice
from client_plugin.verbs.presentation import tables
from client_plugin.verbs.reading.job_log import open_log
from client_plugin.verbs.reading.top_reading import read, read_cluster
from client_plugin.ways.choice import AdminWay, UserWay
from client_plugin.ways.control import ControlConnection
from client_plugin.ways.event_stream import EventSignals
from client_plugin.ways.faults import Away, Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List

    from client_plugin.verbs.picture.model import KeyOrder, TopModel
    from client_plugin.verbs.reading.job_log import Log
    from client_plugin.ways.choice import Way

PERIOD_S, CLUSTER_PERIOD_S = 1.0, 5.0
"""Figures are read so often; of a cluster all nodes are asked."""
LEAST_S = 0.25
"""Between two readings, however many events come."""
WHOLE_S = 20.0
"""The whole view is read so often without an event: estimates change with time."""
LOG_TAIL_BYTES = 2**16
"""So much of a log is read at first."""
LOG_PIECES = 16
"""The most pieces of a log in one turn."""
LOG_PERIOD_S = 0.5
DONE = {
    "release": Notice("{subject} is released"),
    "withdraw": Notice("{subject} is withdrawn"),
    "hold": Notice("{subject} is held"),
    "unhold": Notice("{subject} waits again"),
}
JOB_ORDERS = {"withdraw": "job_withdraw", "hold": "job_hold", "unhold": "job_free"}


class TopFeed:
    """Reads in a thread of its own; hands everything to the model by `call`."""

    def __init__(
        self,
        way: Way,
        model: TopModel,
        call: Callable[[Callable[[], None]], None],
        *,
        is_cluster: bool = False,
    ) -> None:
        """`call`: has the drawing thread do some work."""
        self._read = read_cluster if is_cluster else read
        self._period_s = CLUSTER_PERIOD_S if is_cluster else PERIOD_S
        self._is_cluster = is_cluster
        self._way = way
        self._model = model
        self._call = call
        self._has_stream = isinstance(way, AdminWay) and not is_cluster
        stream = way.run_dir if isinstance(way, AdminWay) and not is_cluster else None
        self._signals = EventSignals(stream)
        self._log_turn = 0

    def _hand_over(self, work: Callable[[], None]) -> None:
        """Returns when the work is done: at most one view waits for a terminal that stops reading.

        Where the picture ends meanwhile it never returns; the thread ends with the process.
        """
        done = threading.Event()

        def noted() -> None:
            try:
                work()
            finally:
                done.set()

        self._call(noted)
        done.wait()

    def start(self) -> None:
        """The thread ends with the process."""
        self._begin(self._run)

    def _begin(self, work: Callable[..., None], *arguments: object) -> None:
        """An error of ours ends the picture; otherwise it would stay as it is for ever."""

        def guarded() -> None:
            try:
                work(*arguments)
            except Exception as error:
                self._call(partial(_raise, error))

        threading.Thread(target=guarded, daemon=True).start()

    def _run(self) -> None:
        self._signals.wait(0)  # subscribed before the next reading: no event is missed
        whole_s = 0.0
        while True:
            began_s = time.monotonic()
            is_whole = not self._has_stream or began_s - whole_s >= WHOLE_S
            try:
                if is_whole or not self._take_figures():
                    view = self._read(self._way)
                    self._hand_over(partial(self._model.take, view))
                    whole_s = began_s
            except Fault as fault:
                whole_s = 0.0
                self._hand_over(partial(self._model.fail, self._failure(fault)))
            if self._signals.wait(self._period_s):
                whole_s = 0.0
                time.sleep(max(0.0, began_s + LEAST_S - time.monotonic()))

    def _failure(self, fault: Fault) -> str:
        view = self._model.view
        if view is None or not isinstance(fault, Away):
            return fault.message
        clock = tables.local_time("%H:%M:%S", view.at_s)
        return f"No manager answers: the picture is of {clock}, and goes on when one does."

    def _take_figures(self) -> bool:
        """Whether they are of the tasks that the picture has. Raises Fault."""
        view, figures = self._model.view, self._way.figures()
        if view is None or not view.has_tasks_of(figures):
            return False
        self._hand_over(partial(self._model.take_figures, figures))
        return True

    # -- orders --

    def perform(self, order: KeyOrder) -> None:
        """Its outcome is shown when it is known."""
        if order.kind == "log":
            self._log_turn += 1
            self._begin(self._follow, order.subject, self._log_turn)
        else:
            self._begin(self._order, order)

    def _order(self, order: KeyOrder) -> None:
        try:
            if order.kind == "release" and self._is_cluster:
                node, _, task = order.subject.partition(":")
                raise Fault(f"{task} is of {node}", f"nodemgr release {task} on {node}")
            if order.kind != "release":
                self._way.ask(JOB_ORDERS[order.kind], job=order.subject)
            elif isinstance(self._way, UserWay):
                self._way.question("release", order.subject)
            elif isinstance(self._way, AdminWay):
                ControlConnection(self._way.run_dir).call("release", task=order.subject)
            text, is_failure = str(DONE[order.kind](subject=order.subject)), False
        except Fault as fault:
            text, is_failure = fault.message, True
        self._call(partial(self._model.answered, text, is_failure))

    def _follow(self, job: str, turn: int) -> None:
        """The log of a job, while it is in the picture."""
        log = None
        while turn == self._log_turn and self._model.log_of == job:
            try:
                if log is None:
                    log = open_log(self._way, job, None)
                    log.skip_to_tail(LOG_TAIL_BYTES)
                self._add_log(job, log)
            except Away:
                pass  # the picture says so
            except Fault as fault:
                self._hand_over(partial(self._model.answered, fault.message, True))
            time.sleep(LOG_PERIOD_S)
        if log is not None:
            log.close()

    def _add_log(self, job: str, log: Log) -> None:
        pieces: List[bytes] = []
        while len(pieces) < LOG_PIECES and (data := log.read().data):
            pieces.append(data)
        if pieces:
            self._hand_over(partial(self._model.add_log, job, b"".join(pieces)))


def _raise(error: Exception) -> None:
    raise error
