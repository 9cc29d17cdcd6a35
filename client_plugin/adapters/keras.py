"""Keras: the batches of `fit` are counted, and the steps of optimizers in eager loops.

A worker of an elastic task prints one line if it calls `fit`, which divides no batch among workers.

Knows: the callbacks that `fit` calls, with any backend. Must not know: CUDA (the backend's adapter
does). A step inside tf.function is traced once and runs without Python: it is not seen. `fit` calls
Python once for each batch.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any, Callable

from .. import hook, progress, stderr

DEFAULTS: dict[str, str] = {}
FIRST_USE_UNSEEN = False
USES_CUDA = False

ELASTIC = "NODEMGR_ELASTIC"
"""Set in the workers of an elastic task."""
_SEEN = "_nodemgr_batches"
_fits = 0


def adapt(keras: ModuleType) -> None:
    callbacks: Any = hook.member(keras, "callbacks.CallbackList")
    if callbacks is None:
        return
    if ELASTIC in os.environ:
        hook.replace(callbacks, "on_train_begin", _after(_undivided))
    if not progress.wanted():
        return
    hook.replace(callbacks, "on_train_begin", _after(lambda _list: _fit(1)))
    hook.replace(callbacks, "on_train_end", _after(lambda _list: _fit(-1)))
    hook.replace(callbacks, "on_epoch_begin", _after(_epoch))
    hook.replace(callbacks, "on_train_batch_end", _after(_batch))
    hook.replace(hook.member(keras, "optimizers.Optimizer"), "apply_gradients", _after(_eager_step))


def _after(then: Callable[..., None]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The method, and `then` with the same arguments behind it."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            then(self, *args[:1])
            return result

        counted.__name__, counted.__doc__ = original.__name__, original.__doc__
        return counted

    return make


def _undivided(callbacks: Any, *_rest: Any) -> None:
    """One line of the first worker; none if a strategy of TensorFlow divides the batches."""
    strategy = getattr(getattr(callbacks, "model", None), "distribute_strategy", None)
    size = os.environ.get("WORLD_SIZE", "1")
    if os.environ.get("RANK", "0") != "0" or getattr(strategy, "num_replicas_in_sync", 1) > 1:
        return
    loop = sys.modules.get(f"{__package__.rpartition('.')[0]}.training.loop")
    if loop is not None and loop.is_fitting():
        return
    if loop is not None and loop.is_inside():
        stderr.say_once(
            "elastic: model.fit inside the block of elastic(...) trains on this worker alone, "
            "and its GPUs stay until it ends",
            "call run.fit in its place",
        )
    elif size == "1":
        stderr.say_once(
            "elastic: model.fit does not divide its batches among workers, so it does not use "
            "more than the GPU of its worker",
            "use run.fit of nodemgr_client.elastic, or run it without --elastic",
        )
    else:
        stderr.say_once(
            "elastic: model.fit does not divide its batches among workers, so each of the "
            f"{size} workers trains a model of its own",
            "use run.fit of nodemgr_client.elastic, or run it without --elastic",
        )


def _fit(more: int) -> None:
    global _fits
    _fits += more


def _epoch(callbacks: Any, epoch: int = 0, *_rest: Any) -> None:
    setattr(callbacks, _SEEN, 0)
    params = getattr(callbacks, "params", None) or {}
    if params.get("steps") and params.get("epochs"):
        progress.expect(params["steps"] * max(0, params["epochs"] - epoch))


def _batch(callbacks: Any, batch: int = 0) -> None:
    """`batch` is the last one of those that ran together (steps_per_execution)."""
    progress.count(max(0, batch + 1 - getattr(callbacks, _SEEN, 0)))
    setattr(callbacks, _SEEN, batch + 1)


def _eager_step(_optimizer: Any, *_rest: Any) -> None:
    tensorflow = sys.modules.get("tensorflow")
    if _fits == 0 and tensorflow is not None and tensorflow.executing_eagerly():
        progress.count(1)
