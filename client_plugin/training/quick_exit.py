"""The end of a worker that leaves: its exit functions run, the interpreter is not taken apart.

The teardown of a process with PyTorch takes seconds on a busy machine, in which nothing happens
that the next user of the GPU could not do without. Must not know: why a worker leaves.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading


def end_quickly() -> None:
    """Called before SystemExit is raised: the script's `finally` and exit functions still run."""
    threading.Thread(target=_await_main, name="nodemgr end").start()


def _await_main() -> None:
    """The interpreter waits for this thread between the script's last line and exit functions.

    Registered last, `_end` runs first, and each other exit function once.
    """
    threading.main_thread().join()
    atexit.register(_end)


def _end() -> None:
    atexit.unregister(_end)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, or its reader is gone
            stream.flush()
    os._exit(0)
