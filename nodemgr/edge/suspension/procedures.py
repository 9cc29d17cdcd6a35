"""The order of the driver's calls on all processes of a task: suspend, and resume.

Knows: the states of a process, and how a failure is undone. Must not know: ctypes, sockets.

Each procedure begins with the states that it finds. So a caller that was killed between any two
calls is followed by one that continues. Of several processes all are locked before the first
checkpoint. After a failure all go back to where they were. A process that the driver reports as
failed can do neither: it is named, and the others go on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

from nodemgr.edge.suspension.driver_calls import CallFailed, Calls, ProcessState

FAILED = "CU_PROCESS_STATE_FAILED"


class Outcome(NamedTuple):
    """The end of a procedure."""

    fault: CallFailed | None
    """The first call that failed; None: all is done."""
    is_out: bool
    """No process has device memory. False also if that is not known for one of them."""


class Procedures:
    """Suspends and resumes the processes of one task at a time."""

    def __init__(self, calls: Calls, is_alive: Callable[[int], bool], lock_ms: int) -> None:
        """`is_alive`: a process that has ended is left out. `lock_ms`: the wait for its work."""
        self._calls, self._is_alive, self._lock_ms = calls, is_alive, lock_ms

    def suspend(self, pids: Iterable[int]) -> Outcome:
        """All are locked, then their memory goes to the host."""
        pids = tuple(pids)
        try:
            for pid in pids:
                self._step(pid, ProcessState.RUNNING, self._lock)
            for pid in pids:
                self._step(pid, ProcessState.LOCKED, self._calls.checkpoint)
        except CallFailed as fault:
            is_out = self.give_up_suspension(pids)
            return Outcome(self._failed(pids) or fault, is_out)
        return Outcome(None, True)

    def resume(self, pids: Iterable[int]) -> Outcome:
        """All get their memory back, then all go on."""
        pids = tuple(pids)
        try:
            for pid in pids:
                self._step(pid, ProcessState.CHECKPOINTED, self._calls.restore)
            for pid in pids:
                self._step(pid, ProcessState.LOCKED, self._calls.unlock)
        except CallFailed as fault:
            failed = self._failed(pids)
            if failed is not None:
                self._bring_back(pids)
                return Outcome(failed, False)
            for pid in pids:
                self._try(pid, ProcessState.LOCKED, self._calls.checkpoint)
            return Outcome(fault, self._are_out(pids))
        return Outcome(None, False)

    def give_up_suspension(self, pids: Iterable[int]) -> bool:
        """Brings all back that an earlier caller began to suspend. Returns whether all are out."""
        pids = tuple(pids)
        self._bring_back(pids)
        return self._are_out(pids)

    def _bring_back(self, pids: tuple[int, ...]) -> None:
        for pid in pids:
            self._try(pid, ProcessState.CHECKPOINTED, self._calls.restore)
        for pid in pids:
            self._try(pid, ProcessState.LOCKED, self._calls.unlock)

    def _lock(self, pid: int) -> None:
        self._calls.lock(pid, self._lock_ms)

    def _try(self, pid: int, state: ProcessState, call: Callable[[int], None]) -> None:
        with contextlib.suppress(CallFailed):
            self._step(pid, state, call)

    def _step(self, pid: int, state: ProcessState, call: Callable[[int], None]) -> None:
        """One call, if the process is in the state for it. One that has ended needs none."""
        try:
            found = self._calls.state(pid)
            if found is ProcessState.FAILED:
                raise CallFailed("cuCheckpointProcessGetState", pid, FAILED)
            if found is state:
                call(pid)
        except CallFailed:
            if self._is_alive(pid):
                raise

    def _failed(self, pids: tuple[int, ...]) -> CallFailed | None:
        """The first that the driver reports as failed."""
        for pid in pids:
            with contextlib.suppress(CallFailed):
                if self._calls.state(pid) is ProcessState.FAILED:
                    return CallFailed("cuCheckpointProcessGetState", pid, FAILED)
        return None

    def _are_out(self, pids: tuple[int, ...]) -> bool:
        return all(self._is_out(pid) for pid in pids)

    def _is_out(self, pid: int) -> bool:
        try:
            return self._calls.state(pid) is ProcessState.CHECKPOINTED
        except CallFailed:
            return not self._is_alive(pid)
