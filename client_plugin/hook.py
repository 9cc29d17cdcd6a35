"""The hooks around a framework: at its load, and around its calls that use CUDA first.

At the load, the task gets its token and the adapter wraps the framework's calls with gate() and
question(). The `import` mode acquires at the load.

Knows: the adapters, the lease, client.conf's `acquire`. Must not know: how modules are found and
loaded, any framework. Only exceptions that belong to the user are raised here: Ctrl-C, and those
that the user's own signal handlers raise during a wait.
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any, Callable

from . import interrupts, lease, stderr
from .prediction import closure, run_report

_MARK = "_nodemgr_wrapped"


def before_load(name: str, adapter: str) -> None:
    """Run before the framework's own code: it and its children see the token.

    A wait that is cancelled here leaves no half-imported module.
    """
    try:
        closure.follow()
        rules = _adapter(adapter)
        prepare = getattr(rules, "prepare", None)
        if prepare is not None:
            prepare()
        if not _uses_cuda(rules) or not lease.start():
            return
        lease.share_token()
        run_report.begin(asks_now=_asks_at_load(rules))
        lease.share_defaults(rules.DEFAULTS)
    except Exception as error:
        stderr.report(f"the import hook for {name}", error)
        return
    _acquire_at_load(rules)


def after_load(module: ModuleType, adapter: str) -> None:
    try:
        rules = _adapter(adapter)
        if lease.serving() or not _uses_cuda(rules):
            rules.adapt(module)
    except Exception as error:
        stderr.report(f"the adapter for {module.__name__}", error)


def _acquire_at_load(rules: Any) -> None:
    """By policy, or because nothing of ours would see this framework's first use.

    A refusal does not fail the import.
    """
    if _asks_at_load(rules):
        refusal = lease.acquire()
        if refusal and _is_unseen(rules):
            lease.hide_gpus()
            stderr.say_once(refusal)


def _asks_at_load(rules: Any) -> bool:
    return _is_unseen(rules) or lease.setting("acquire") == "import"


def _is_unseen(rules: Any) -> bool:
    return rules.FIRST_USE_UNSEEN and not lease.preloaded()


def _uses_cuda(rules: Any) -> bool:
    return bool(getattr(rules, "USES_CUDA", True))


def _adapter(name: str) -> Any:
    return importlib.import_module(f"{__package__}.adapters.{name}")


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
                stderr.say_once(reason)
                return refused()
            if prepare is not None:
                prepare(*args, **kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                interrupts.raise_deferred()

        return gated

    replace(owner, name, make)


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

    replace(owner, name, make)


def replace(
    owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    original = getattr(owner, name, None)
    if original is None or hasattr(original, _MARK):
        return
    made = make(original)
    setattr(made, _MARK, True)
    static = isinstance(owner, type) and isinstance(owner.__dict__.get(name), staticmethod)
    setattr(owner, name, staticmethod(made) if static or name == "__new__" else made)
