"""One watched training with TensorFlow: its first step is traced, and the program ends there.

A step is the function of Keras that `fit` calls for each batch, or the first `tf.function` of the
program's own that computes gradients. Knows: when functions are called, the form of the outcome.
Must not know: how memory is computed.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
from typing import Any, Dict, List

import tensorflow as tf
from tensorflow.python.eager import context

from ...messages import prediction as messages
from .. import outcome, planned
from . import step, stubs
from .later_batches import LaterBatches

ENOUGH_GRADIENTS = 3
"""So often a program computes gradients outside of any function before it is given up."""


class GraphWatch:
    """The counts of one process."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.pid = os.getpid()
        self.gradients = 0
        self.is_distributed = False
        self.replicas = 1
        self.reason = ""
        """Why a step that was seen was not taken."""
        self._is_written = self._is_busy = self._is_fitted = False
        self._later = LaterBatches(self._write, _leave)
        self._followed: List[Any] = []

    def begin(self) -> None:
        self._note_phase()
        self.gpus = stubs.install()
        self._watch_functions(type(tf.function(lambda: None)))
        self._watch_gradients()
        self._watch_strategies()
        atexit.register(self._ended)
        if "keras" in sys.modules:  # TensorFlow imports it
            self.follow_keras(sys.modules["keras"])

    def _watch_functions(self, kind: Any) -> None:
        call = kind.__call__

        @functools.wraps(call)
        def called(function: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_outermost():
                self._examine(function, args, kwargs)
            return call(function, *args, **kwargs)

        kind.__call__ = called

    def _is_outermost(self) -> bool:
        return (
            not self._is_busy
            and os.getpid() == self.pid
            and tf.executing_eagerly()
            and not tf.inside_function()
        )

    def _examine(self, function: Any, args: Any, kwargs: Any) -> None:
        self._is_busy = True
        try:
            concrete = function.get_concrete_function(*args, **kwargs)
            given = tf.nest.flatten((args, kwargs))
        except Exception:
            return  # the call itself raises it
        finally:
            self._is_busy = False
        if step.is_training(concrete):
            tensors = [one for one in given if tf.is_tensor(one)]
            self.take(concrete, tensors, _first_batch(given))

    def _watch_gradients(self) -> None:
        compute = tf.GradientTape.gradient

        @functools.wraps(compute)
        def computed(tape: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_outermost():
                self.gradients += 1
                self.reason = self.reason or messages.TRAINS_EAGERLY()
                self._note_phase()
                if self.gradients >= ENOUGH_GRADIENTS:
                    self.abstain(self.reason)
            return compute(tape, *args, **kwargs)

        setattr(tf.GradientTape, "gradient", computed)  # noqa: B010

    def _watch_strategies(self) -> None:
        run = tf.distribute.Strategy.run
        default = type(tf.distribute.get_strategy())

        @functools.wraps(run)
        def ran(strategy: Any, *args: Any, **kwargs: Any) -> Any:
            self.is_distributed |= type(strategy) is not default
            self.replicas = max(self.replicas, strategy.num_replicas_in_sync)
            return run(strategy, *args, **kwargs)

        tf.distribute.Strategy.run = ran

    def take(
        self,
        concrete: Any,
        tensors: Any = (),
        batch: Any = (),
        is_compiled: bool = False,
        fitted: Any = None,
    ) -> None:
        """A function with gradients. It is the step, unless its place says something else.

        `fitted`: the batch that `fit` gave it; None: the program has a loop of its own.
        """
        if tf.config.functions_run_eagerly():
            self.abstain(messages.TRAINS_EAGERLY())
        if self.replicas > 1:
            self.abstain(
                f"the strategy has {self.replicas} replicas, and a forecast is of one GPU: name "
                "one device for it"
            )
        if self.gpus.are_hidden or os.environ.get("CUDA_VISIBLE_DEVICES") == "-1":
            self.abstain(messages.TRAINS_ON_PROCESSOR())
        if not self.is_distributed and step.is_on_processor(concrete, _scope()):
            self.abstain(messages.TRAINS_ON_PROCESSOR())
        if step.has_loop(concrete):
            self.abstain(
                "the training step is in a loop of TensorFlow's graph: call it from a loop of "
                "Python"
            )
        if not step.updates_weights(concrete):
            self.gradients += 1
            self.reason = messages.NO_UPDATE()
            if self.gradients >= ENOUGH_GRADIENTS:
                self.abstain(self.reason)
            return
        found = {
            **step.outcome_of(concrete, tensors, batch),
            "iterations": planned.iterations,
            "not_saved": [],
            "compiled": is_compiled or step.is_compiled(concrete),
        }
        if not self._later.begin(found, fitted):
            self._later.end()

    def follow_keras(self, keras: Any) -> None:
        """`fit` and `train_on_batch` call the model's train_function for each batch."""
        kinds = getattr(keras, "Model", type(None)).__mro__
        owner: Any = next((one for one in kinds if "make_train_function" in vars(one)), None)
        if owner is None or owner in self._followed:
            return
        self._followed.append(owner)
        for verb in ("fit", "save", "save_weights"):
            self._notice(owner if verb == "fit" else keras.Model, verb)
        self._replace(owner, "train_function", self._step_of_keras)
        self._replace(owner, "test_function", self._validation_of_keras)
        self._count_batches(getattr(getattr(keras, "callbacks", None), "CallbackList", None))

    def _notice(self, owner: Any, verb: str) -> None:
        plain = getattr(owner, verb)

        @functools.wraps(plain)
        def noticed(model: Any, *args: Any, **kwargs: Any) -> Any:
            self._later.has_saved |= verb != "fit"
            self._is_fitted |= verb == "fit"
            return plain(model, *args, **kwargs)

        setattr(owner, verb, noticed)

    def _replace(self, owner: Any, name: str, instead: Any) -> None:
        """The function that Keras makes for its batches."""
        make = getattr(owner, f"make_{name}")

        @functools.wraps(make)
        def made(model: Any, *args: Any, **kwargs: Any) -> Any:
            plain = make(model, *args, **kwargs) or getattr(model, name)
            own = functools.partial(instead, model, plain)
            setattr(model, name, own)
            return own

        setattr(owner, f"make_{name}", made)

    def _count_batches(self, callbacks: Any) -> None:
        if callbacks is None:
            return
        plain = callbacks.set_params

        @functools.wraps(plain)
        def set_params(self: Any, params: Any) -> None:
            plain(self, params)
            if not planned.iterations and params:
                steps, epochs = params.get("steps"), params.get("epochs")
                planned.report(total=int(steps) * int(epochs) if steps and epochs else 0)

        callbacks.set_params = set_params

    def _step_of_keras(self, model: Any, _plain: Any, batches: Any) -> Any:
        trace = functools.partial(self._trace, model, model.train_step)
        if self._later.is_begun:
            return self._later.trained(model, batches, trace)
        data = tf.nest.map_structure(_without_optional, next(iter(batches)))
        self._is_busy = True
        if getattr(model, "run_eagerly", False):
            self.abstain(messages.TRAINS_EAGERLY())
        self.take(
            trace(data),
            is_compiled=bool(getattr(model, "jit_compile", False)),
            fitted=data if self._is_fitted else None,
        )
        if not self._later.is_begun:
            self.abstain(messages.NO_UPDATE())
        return {}

    def _validation_of_keras(self, model: Any, plain: Any, batches: Any) -> Any:
        if self._later.is_begun:
            trace = functools.partial(self._trace, model, model.test_step)
            self._later.validated(model, batches, trace)
        return plain(batches)

    def _trace(self, model: Any, of_batch: Any, batch: Any) -> Any:
        strategy = getattr(model, "distribute_strategy", None) or tf.distribute.get_strategy()
        data = tf.nest.map_structure(_without_optional, batch)

        def ran(one: Any) -> Any:
            return strategy.run(of_batch, args=(one,))

        return tf.function(ran).get_concrete_function(data)

    def _note_phase(self) -> None:
        self._write({"phase": {"backwards": self.gradients, "on_gpu": False}})

    def _ended(self) -> None:
        """The program's own end came first."""
        if self._later.is_begun and os.getpid() == self.pid:
            self._write(self._later.result())
        elif not self._is_written and os.getpid() == self.pid:
            reason = self.reason or messages.NO_TRAINING_STEP()
            self._write(outcome.abstention(reason))

    def abstain(self, reason: str) -> None:
        self._write(outcome.abstention(reason, is_certain=True))
        _leave()

    def _write(self, found: Dict[str, Any]) -> None:
        self._is_written = "phase" not in found
        outcome.write(self.path, found)


def _first_batch(given: List[Any]) -> List[Any]:
    """The tensors of the batch that the first iterator among the arguments has."""
    iterator = next((one for one in given if isinstance(one, tf.data.Iterator)), None)
    return [] if iterator is None else tf.nest.flatten(next(iterator, ()))


def _scope() -> str:
    """The device that `tf.device` names around this call."""
    return context.context().device_name or ""


def _without_optional(one: Any) -> Any:
    return None if isinstance(one, tf.experimental.Optional) else one


def _leave() -> None:
    """End here: neither handlers of the program nor finalizers run."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(0)


_watches: List[GraphWatch] = []


def start(directory: str) -> None:
    """Watch this process; the outcome goes to a file of it in `directory`."""
    watch = GraphWatch(os.path.join(directory, f"{os.getpid()}.tensorflow.json"))
    _watches.append(watch)
    try:
        watch.begin()
    except Exception as error:
        watch.abstain(messages.NOT_FOLLOWED(framework="TensorFlow", version=tf.__version__,
                                            error=error))  # fmt: skip


def follow_keras(keras: Any) -> None:
    """Nothing where Keras runs on another framework."""
    for watch in _watches:
        watch.follow_keras(keras)
