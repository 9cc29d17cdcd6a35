"""Ctrl-C while a program of this package starts or ends: it ends at once, without a traceback.

An import that KeyboardInterrupt breaks off may print frames even where the exception is caught.
Knows: the disposition of SIGINT. Must not know: the work of a program. `_signal` is built into the
interpreter: `signal` itself would be an import of some milliseconds, in which Ctrl-C may come.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]


def end_at_once() -> None:
    """From now on SIGINT ends the process by itself.

    An ignored or blocked SIGINT stays so, and a handler of the program stays.
    """
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)


def interrupt() -> None:
    """From now on SIGINT raises KeyboardInterrupt again, as in any program of Python."""
    if _signal.getsignal(_signal.SIGINT) == _signal.SIG_DFL:
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)


def wait() -> None:
    """From now on SIGINT waits, in a program that this process becomes too: for `waited`."""
    _signal.pthread_sigmask(_signal.SIG_BLOCK, (_signal.SIGINT,))


def waited() -> None:
    """SIGINT comes again, and the one that has waited comes now."""
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (_signal.SIGINT,))
