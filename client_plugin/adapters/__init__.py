"""One adapter per framework: its first calls of CUDA (gates) and its questions about CUDA.

An adapter offers
    DEFAULTS           variables that the framework is given unless the user has set them
    FIRST_USE_UNSEEN   whether only the shim can see its first use of CUDA (without the shim it
                       acquires at load)
    adapt(module)      wraps its calls; called when the framework is loaded, again after a reload

Knows: how to wrap a call once. Must not know: any framework.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

from .. import faults, interrupts, lease

_MARK = "_nodemgr_wrapped"


def member(root: Any, path: str) -> Any:
    """root.a.b for "a.b"; None where this version or build of the framework lacks a part."""
    for part in path.split(".") if path else ():
        root = getattr(root, part, None)
        if root is None:
            return None
    return root


def gate(
    owner: Any,
    name: str,
    applies: Callable[..., bool],
    prepare: Callable[..., None] | None = None,
    refusal: type[Exception] = RuntimeError,
    refused: Callable[[], Any] | None = None,
) -> None:
    """Let owner.name hold a lease before it runs, or raise `refusal` with a line of reason.

    `applies` gets the call's arguments and returns whether the call uses CUDA for the first time.
    `prepare` gets the same arguments once the lease is held. `refused` returns the value for a
    function that raises nothing; the line is printed then. An exception that ends the wait is
    raised from the program's call: the traceback has no frame of this package (from Python 3.11
    on).
    """

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def gated(*args: Any, **kwargs: Any) -> Any:
            if not applies(*args, **kwargs):
                return original(*args, **kwargs)
            reason = ""
            try:
                if refused is None:
                    lease.require(refusal)
                else:
                    reason = lease.acquire()
            except BaseException as error:
                error.__traceback__ = None
                raise
            if reason and refused is not None:
                faults.say_once(reason)
                return refused()
            if prepare is not None:
                prepare(*args, **kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                interrupts.raise_deferred()

        return gated

    _replace(owner, name, make)


def question(
    owner: Any, name: str, reply: Callable[[int], Any], applies: Callable[[], bool]
) -> None:
    """Let owner.name return reply(GPUs that a request would get) while no lease is held.

    The driver is not touched.
    """

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def asked(*args: Any, **kwargs: Any) -> Any:
            gpus = lease.expected_gpus() if applies() else None
            return original(*args, **kwargs) if gpus is None else reply(gpus)

        return asked

    _replace(owner, name, make)


def _replace(
    owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    original = getattr(owner, name, None)
    if original is None or hasattr(original, _MARK):
        return
    made = make(original)
    setattr(made, _MARK, True)
    static = isinstance(owner, type) and isinstance(owner.__dict__.get(name), staticmethod)
    setattr(owner, name, staticmethod(made) if static or name == "__new__" else made)
