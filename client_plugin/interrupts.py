"""Exceptions that end a wait inside a driver call are raised behind that call.

Such an exception may not cross the driver's C code. It comes from a signal handler of the user;
Ctrl-C is the most frequent.

Knows: threads and frames. Must not know: the reason of the wait.

The frame that called into C is traced until its next event. This event is the error of the failed
call, and the exception is raised in its place before any handler sees it; or it is the instruction
behind the call. If a debugger already traces, or C code continues for long, the exception is raised
from outside. The traceback ends at the program's call (from Python 3.11 on; before, it shows frames
of this package).
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import time
from types import CodeType, FrameType
from typing import Any

from . import stderr

TRACED_S = 1.0  # the time for a thread to return to the frame that called into C

_deferred: dict[int, BaseException] = {}  # by thread
_delivering = threading.Lock()
_usual_interval_s: float | None = (
    None  # the program's own switch interval, while a delivery has shortened it
)


def defer(error: BaseException, code: CodeType) -> None:
    """Raise `error` in this thread once it has left `code` and the driver's call.

    `code` is the function that the driver called.
    """
    error.__traceback__ = None
    thread, raised = threading.get_ident(), threading.Event()
    _deferred[thread] = error
    traced = _trace(_caller_of(code), thread, raised)
    try:
        threading.Thread(
            target=_deliver,
            args=(thread, code, raised if traced else None),
            name="nodemgr-interrupt",
            daemon=True,
        ).start()
    except RuntimeError:  # no thread can start: the two other ways remain, and a line reports it
        stderr.say(
            f"the wait for GPUs was ended by {type(error).__name__}, which may not be raised: no "
            "thread can be started"
        )


def _caller_of(code: CodeType) -> FrameType | None:
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    frame = frame.f_back if frame is not None else None
    while frame is not None and frame.f_globals.get("__package__") == "_ctypes":
        frame = frame.f_back  # PyPy's ctypes, on both sides of the driver's call
    return frame


def _trace(caller: FrameType | None, thread: int, raised: threading.Event) -> bool:
    """Whether what is kept for this thread will be raised at the next event of `caller`."""
    if caller is None or sys.gettrace() is not None or caller.f_trace is not None:
        return False

    by_instruction = caller.f_trace_opcodes

    def raise_here(frame: FrameType, _event: str, _argument: Any) -> None:
        frame.f_trace = None
        frame.f_trace_opcodes = by_instruction
        sys.settrace(None)
        error = _deferred.pop(thread, None)
        if error is not None:
            raised.set()
            try:
                raise error
            except BaseException:
                error.__traceback__ = None
                raise  # adds no frame of its own

    caller.f_trace = raise_here
    caller.f_trace_opcodes = True
    # new frames are not traced: they may be the driver's own callbacks
    sys.settrace(lambda *_: None)
    return True


def raise_deferred() -> None:
    error = _deferred.pop(threading.get_ident(), None)
    if error is not None:
        raise error


def forget() -> None:
    """In a forked child: drop the exception.

    It belongs to the parent, and the thread that would have delivered it is there.
    """
    global _delivering
    _delivering = threading.Lock()
    _deferred.clear()
    _calm()


def _deliver(thread: int, code: CodeType, raised: threading.Event | None) -> None:
    if raised is not None and raised.wait(TRACED_S):
        return
    with _delivering:
        _hurry()
        try:
            while thread in _deferred and _runs(sys._current_frames().get(thread), code):
                time.sleep(0)
            _raise_in(thread, _deferred.pop(thread, None))
        finally:
            _calm()


def _raise_in(thread: int, error: BaseException | None) -> None:
    if (
        isinstance(error, KeyboardInterrupt)
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):
        # raises the same again, and ends a system call too
        signal.pthread_kill(thread, signal.SIGINT)
    elif error is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread), ctypes.py_object(type(error))
        )


def _hurry() -> None:
    """Let threads take turns at once.

    The other thread is then met right behind the driver's call, not 5 ms of its program later.
    """
    global _usual_interval_s
    _usual_interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)


def _calm() -> None:
    global _usual_interval_s
    if _usual_interval_s is not None:
        sys.setswitchinterval(_usual_interval_s)
        _usual_interval_s = None


def _runs(frame: FrameType | None, code: CodeType) -> bool:
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False
