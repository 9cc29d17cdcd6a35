"""The output of jobs: read in pieces by a cursor; a reader may wait until the log has grown.

Knows: logs' descriptors, the number of the attempt that runs. Must not know: the right to read a
job's log, the way on which a piece travels.

No descriptor of a log leaves the manager: a reader that has one can write to the file, if it is
root of a container, and turn it into a program of root's. Readers of one log are woken together,
after a pause in which it may grow on, and answered at a pace that leaves time to others.
"""

from __future__ import annotations

import binascii
import os
from collections import deque
from functools import partial
from typing import Any, NamedTuple

from client_plugin.ways import log_pieces
from nodemgr.core.model.entities import ConnectionId, Job, JobState, Transport
from nodemgr.edge.clients.client_sessions import Session
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.host.file_events import Growth
from nodemgr.edge.rpc.operation import Later, OperationError, Reply

LOG_READ_NS = 1_000_000
"""The cost of a read for its environment, with the packets of its question and answer."""
LOG_BYTE_NS = 50
"""The cost of each byte: it travels in small packets, 20 MB a second at most."""
PAUSE_S = 0.25
"""From a log's growth until its readers are answered."""
PACE_S = 0.002
"""Between the answers to two readers that waited: a thousand readers come back one by one."""
UNWATCHED_PAUSE_S = 1.0
"""As PAUSE_S, where the kernel does not report growth."""
_Log = tuple[str, int]
"""A job and the number of its attempt."""


class _Reader(NamedTuple):
    session: Session | None
    job: Job
    log: _Log
    offset: int
    reply: Reply


class OutputReads:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._growth = Growth(daemon.loop)
        self._waiting: dict[_Log, list[_Reader]] = {}
        self._waits_at: dict[ConnectionId, _Log] = {}
        self._stirred: set[_Log] = set()
        """Logs whose readers are woken soon."""
        self._due: deque[_Reader] = deque()
        daemon.jobs.on_attempt_end.append(self._ended)
        daemon.jobs.on_final.append(self._ended)

    def read(
        self, session: Session | None, job: Job, number: int, offset: int, is_patient: bool
    ) -> dict[str, Any] | Later:
        """The next piece from `offset` on, its place, and the log's size.

        `is_patient`: where there is less than a piece, the answer waits a while for more, and
        without any until there is some or the attempt has ended. (Over UDP it does not: an answer
        can be lost.) Raises OperationError.
        """
        log = (job.job_id, number)
        is_lossy = session is not None and session.transport is not Transport.UNIX
        if is_patient and not is_lossy and self._is_running(log) and self._is_near(log, offset):
            return Later(lambda reply: self._wait(_Reader(session, job, log, offset, reply)))
        return self._piece(session, job, log, offset)[0]

    def closed(self, session: Session) -> None:
        """Forgets a reader that is gone."""
        log = self._waits_at.pop(session.connection, None)
        if log in self._waiting:
            self._waiting[log] = [one for one in self._waiting[log] if one.session is not session]

    def close(self) -> None:
        self._growth.close()

    def __len__(self) -> int:
        """The readers that wait."""
        return sum(map(len, self._waiting.values()))

    def _is_running(self, log: _Log) -> bool:
        job = self._daemon.state.jobs.get(log[0])
        return (
            job is not None
            and job.attempt == log[1]
            and job.state in (JobState.STARTING, JobState.RUNNING, JobState.STOPPING)
        )

    def _open(self, log: _Log) -> int | None:
        try:
            return self._daemon.jobs.factory.logs(*log)
        except FileNotFoundError:
            return None

    def _is_near(self, log: _Log, offset: int) -> bool:
        """Whether a reader at this offset has read all but the newest output."""
        descriptor = self._open(log)
        if descriptor is None:
            return False
        try:
            return 0 <= os.fstat(descriptor).st_size - offset < log_pieces.PIECE_BYTES
        finally:
            os.close(descriptor)

    def _piece(
        self, session: Session | None, job: Job, log: _Log, offset: int
    ) -> tuple[dict[str, Any], bool]:
        """The answer, and whether there is no output at `offset` now. Raises OperationError."""
        job_id, number = log
        answer = {"job": job_id, "attempt": number, "living": job_id in self._daemon.state.jobs}
        descriptor = self._open(log)
        if descriptor is None:
            tails = (attempt.log_tail for attempt in job.attempts if attempt.number == number)
            if (tail := next(tails, None)) is None:
                raise OperationError(
                    f"{job_id} has no log of a start {number}",
                    f"`nodemgr history {job_id}` lists its starts",
                    "not_found",
                )
            return {**answer, "tail": tail}, False
        try:
            piece = log_pieces.read(descriptor, offset)
            size_bytes = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        if session is not None:
            session.spend(len(piece.data) * LOG_BYTE_NS)
        data = binascii.b2a_base64(piece.data, newline=False).decode()
        answer |= {"at": piece.at, "data": data, "size_bytes": size_bytes}
        return answer, not piece.data and piece.at == offset

    # -- readers that wait --

    def _wait(self, reader: _Reader) -> None:
        log = reader.log
        is_first = log not in self._waiting
        self._waiting.setdefault(log, []).append(reader)
        if reader.session is not None:
            self._waits_at[reader.session.connection] = log
        descriptor = self._open(log)
        if descriptor is None:
            self._grown(log)
            return
        try:
            if is_first and not self._growth.when(descriptor, partial(self._grown, log)):
                self._daemon.loop.call_later(UNWATCHED_PAUSE_S, self._wake, log)
            if os.fstat(descriptor).st_size != reader.offset:
                self._grown(log)  # before the kernel watched it
        finally:
            os.close(descriptor)

    def _grown(self, log: _Log) -> None:
        if log in self._waiting and log not in self._stirred:
            self._stirred.add(log)
            self._daemon.loop.call_later(PAUSE_S, self._wake, log)

    def _ended(self, job_id: str) -> None:
        for log in [log for log in self._waiting if log[0] == job_id]:
            self._wake(log)

    def _wake(self, log: _Log) -> None:
        self._stirred.discard(log)
        if not self._due:
            self._daemon.loop.call_soon(self._answer_next)
        self._due.extend(self._waiting.pop(log, ()))

    def _answer_next(self) -> None:
        if not self._due:
            return
        reader = self._due.popleft()
        if self._due:
            self._daemon.loop.call_later(PACE_S, self._answer_next)
        session = reader.session
        if session is not None:
            self._waits_at.pop(session.connection, None)
            if not self._daemon.hub.knows(session):
                return
        clock = self._daemon.clock
        began_ns = clock.monotonic_ns()
        try:
            answer, is_empty = self._piece(session, reader.job, reader.log, reader.offset)
            if is_empty and self._is_running(reader.log):
                self._wait(reader)
            else:
                reader.reply(answer)
        except OperationError as error:
            reader.reply(error)
        if session is not None:
            session.took(clock.monotonic_ns() - began_ns)
