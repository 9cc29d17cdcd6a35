"""Starts the training process when enough new samples are there, and has its result read.

Knows: when a training is due, its time limit. Must not know: how a network is trained.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from nodemgr.core.forecast.learning import LEAST_SAMPLES
from nodemgr.edge.host import stderr_log
from nodemgr.edge.host.module_path import command
from nodemgr.edge.store.database import StoreFailed
from nodemgr.messages import forecast as messages

NEW_PER_MILLE = 100
"""A training is due when the samples have grown by this part, and by at least LEAST_NEW."""
LEAST_NEW = 5
LIMIT_S = 900.0
MAX_LINE_BYTES = 500
MODULE = "nodemgr.edge.forecast.process"


class Trainer:
    """At most one training at a time. All methods are called in the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        weights: Path,
        texts: Callable[[], Sequence[str]],
        trained: Callable[[], None],
    ) -> None:
        """`texts`: all samples as the store has them; `trained`: the file may be a new one."""
        self._loop, self._weights = loop, weights
        self._texts, self._trained = texts, trained
        self._new = 0
        self._pid: int | None = None
        self._descriptor = self._printed = -1
        self._is_late = False
        self._limit: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        """Of the process; None: none runs."""
        return self._pid

    def added(self, count: int) -> None:
        """One more sample is there, of `count`."""
        self._new += 1
        due = max(LEAST_NEW, count * NEW_PER_MILLE // 1000)
        if self._pid is None and self._new >= due and count >= LEAST_SAMPLES:
            self.begin()

    def begin(self) -> None:
        self._new, self._is_late = 0, False
        try:
            self._start("\n".join(self._texts()))
        except (OSError, StoreFailed) as error:
            stderr_log.say(messages.TRAINING_FAILED(fault=error))
            return
        self._loop.add_reader(self._descriptor, self._ended)
        self._limit = self._loop.call_later(LIMIT_S, self._end_late)

    def close(self) -> None:
        """The process is killed: the next manager's begins anew.

        It is not waited for: on a busy node a process of the lowest priority gets its turn to end
        after seconds.
        """
        if self._pid is not None:
            self._kill()
            self._forget()

    def _start(self, text: str) -> None:
        """Raises OSError; then no process is there."""
        source = os.memfd_create("nodemgr samples", os.MFD_CLOEXEC)
        printed = os.memfd_create("nodemgr training", os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(source), "w") as file:
                file.write(text)
            os.lseek(source, 0, os.SEEK_SET)
            pid = os.posix_spawn(
                sys.executable,
                command(MODULE, str(self._weights)),
                {"PATH": os.defpath, "LANG": "C.UTF-8"},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, source, 0),
                    (os.POSIX_SPAWN_DUP2, printed, 1),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
                setsid=True,
            )
            try:
                self._descriptor = os.pidfd_open(pid)
            except OSError:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                raise
        except OSError:
            os.close(printed)
            raise
        finally:
            os.close(source)
        self._pid, self._printed = pid, printed

    def _end_late(self) -> None:
        self._is_late = True
        self._kill()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def _reap(self) -> str | None:
        """The fault of the process that has ended; None: it ended well."""
        assert self._pid is not None
        _, status = os.waitpid(self._pid, 0)
        line = os.pread(self._printed, MAX_LINE_BYTES, 0).decode(errors="replace").strip()
        self._forget()
        code = os.waitstatus_to_exitcode(status)
        if self._is_late and code < 0:
            return f"it ran for more than {LIMIT_S} s"
        if code < 0:
            return f"it was ended by signal {-code}"
        return (line or f"it ended with code {code}") if code else None

    def _forget(self) -> None:
        self._pid = None
        self._loop.remove_reader(self._descriptor)
        if self._limit is not None:
            self._limit.cancel()
        os.close(self._descriptor)
        os.close(self._printed)

    def _ended(self) -> None:
        fault = self._reap()
        if fault is not None:
            stderr_log.say(messages.TRAINING_FAILED(fault=fault))
            return
        self._trained()
