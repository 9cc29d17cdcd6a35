"""An exception that ended a wait inside a call of the driver: it may not cross the C code there, so it is raised behind it.

Knows: threads and frames. Must not know: what was waited for. Which exceptions: those of the user's signal handlers, Ctrl-C first.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import time
from types import CodeType, FrameType

from . import faults

_kept: dict[int, BaseException] = {}  # by thread
_delivering = threading.Lock()
_usual_interval_s: float | None = None  # the program's own switch interval, while a delivery has shortened it


def keep(error: BaseException, code: CodeType) -> None:
    """To be raised in this thread once it has left `code` (the function the driver called): by raise_kept(), else from outside."""
    thread = threading.get_ident()
    _kept[thread] = error
    try:
        threading.Thread(target=_deliver, args=(thread, code), name="nodemgr-interrupt", daemon=True).start()
    except RuntimeError:  # no thread to be had: raise_kept() may still come by, and nothing is silent
        faults.say(f"the wait for GPUs was ended by {type(error).__name__}")


def raise_kept() -> None:
    error = _kept.pop(threading.get_ident(), None)
    if error is not None:
        raise error


def forget() -> None:
    """In a forked child: the exception was the parent's, and so is the thread that would have delivered it."""
    global _delivering
    _delivering = threading.Lock()
    _kept.clear()
    _calm()


def _deliver(thread: int, code: CodeType) -> None:
    with _delivering:
        _hurry()
        try:
            while thread in _kept and _runs(sys._current_frames().get(thread), code):
                time.sleep(0)
            _raise_in(thread, _kept.pop(thread, None))
        finally:
            _calm()


def _raise_in(thread: int, error: BaseException | None) -> None:
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.pthread_kill(thread, signal.SIGINT)  # raises the same again, and ends a system call too
    elif error is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(type(error)))


def _hurry() -> None:
    """Let threads take turns at once, so that the other is met right behind the driver's call, not 5 ms of its program later."""
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
