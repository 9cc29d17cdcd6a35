"""Threads beside the loop, none of which takes a signal.

They outlive the handlers of signals: a second SIGTERM must not meet one of them while the manager
ends, since it would end the process there. Knows: the mask of signals. Must not know: the work.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

FAULTS = {signal.SIGBUS, signal.SIGSEGV, signal.SIGILL, signal.SIGFPE}
"""Signals of a thread's own fault stay open: the kernel ends a process that blocks one."""


def start(work: Callable[[], object], name: str) -> threading.Thread:
    """Starts `work` in a thread that the end of the process does not wait for.

    Raises RuntimeError where the system allows no more threads.
    """

    def run() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - FAULTS)
        work()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
