"""Keras's `fit` over the batches of a run, with Keras 3 and with tf_keras.

`fit` calls the model's `train_function`; here this is a function that makes steps of the run. The
model's own `train_step` is traced with an optimizer that keeps the gradients: the loop sums them
over the workers, and applies the sum. The metrics are summed with them.

Knows: what `fit` calls, in which order. Must not know: the agent, generations.
"""

from __future__ import annotations

import contextlib
import math
import sys
from typing import Any, Dict, Iterator, List, Optional

import numpy as np
import tensorflow as tf

from ...messages.form import stated
from ..loop import Run
from ..plan import MicroBatch, SamplePlan
from .global_batches import GlobalBatches
from .variables import VariableParts, VariableTraining, array_of

OPTIONS = ("callbacks", "verbose", "validation_data", "validation_freq", "validation_steps",
           "validation_batch_size")  # fmt: skip
"""Of `fit`; the data, their batches and epochs are those of `elastic(...)`."""
KERAS = ("keras", "tf_keras")
STATE = ("wait", "cooldown_counter", "best", "best_weights", "best_epoch", "stopped_epoch")
"""Of a callback: what it has counted and seen."""


class FittedTraining(VariableTraining):
    """A compiled model with its own optimizer.

    `is_fit_near`: the step is traced at once, before other workers wait for this one. A large model
    takes seconds, which a plain loop does not need; a `fit` that comes unforeseen traces it then.
    """

    def __init__(self, parts: VariableParts, plan: SamplePlan, is_fit_near: bool) -> None:
        super().__init__(parts, plan)
        self._model = parts.model
        self._before: Optional[List[Any]] = None
        """The metrics before the step under way."""
        self._pending: Any = None
        """A snapshot whose metrics and callbacks are put in place at the next turn."""
        self._callbacks: List[Any] = []
        self._ended_epochs = 0
        self._place = 0
        """The step at the end of the turn."""
        self._traced: Any = None
        if is_fit_near:
            with contextlib.suppress(Exception):  # it comes again in `fit`
                self._traced = self._trace()

    def _trace(self) -> Any:
        """The gradients of a batch."""
        dataset = self._parts.dataset
        is_read = isinstance(dataset, GlobalBatches)
        one = dataset.shapes if is_read else self._batch(0, MicroBatch(0, True, True, (0,)))
        shapes = tf.nest.map_structure(
            lambda each: tf.TensorSpec([None, *each.shape[1:]], each.dtype), one
        )
        traced = tf.function(self._gradients_of, input_signature=[shapes])
        traced.get_concrete_function()
        return traced

    def _gradients_of(self, batch: Any) -> Any:
        """The loss (NaN: the train_step has no compute_loss), and a gradient or None for each."""
        with _caught(self._model, self._parts.optimizer) as found:
            self._model.train_step(batch)
        if len(found["pairs"]) != 1:
            raise TypeError(
                stated(
                    f"elastic: the train_step of {type(self._model).__name__} applies gradients "
                    f"{len(found['pairs'])} times by its optimizer",
                    "run.fit needs one time; write the loop instead",
                )
            )
        by_variable = {id(variable): gradient for gradient, variable in found["pairs"][0]}
        loss = found["losses"][0] if len(found["losses"]) == 1 else tf.constant(math.nan)
        return loss, [by_variable.get(id(each)) for each in self._trained]

    # -- fit --

    def fit(self, run: Run, options: Dict[str, Any]) -> Any:
        for name in set(options).difference(OPTIONS):
            raise TypeError(stated(f"elastic: run.fit has no {name}", f"it has {OPTIONS}"))
        self._traced = self._traced or self._trace()
        self._run, self._batches = run, iter(run)
        self._callbacks = list(options.get("callbacks") or [])
        options["verbose"] = options.get("verbose", "auto") if run.is_main else 0
        begin = _package_of(self._model).callbacks.LambdaCallback(on_epoch_begin=self._begin_epoch)
        started = run.plan.epochs if run.is_over else self._first_epoch()
        model = self._model
        model.train_function = self._turn
        try:
            history = model.fit(
                tf.data.Dataset.range(run.plan.steps_per_epoch),  # counts the turns
                epochs=run.plan.epochs,
                initial_epoch=started,
                shuffle=False,  # the turns' order is fixed; Keras warns at its default
                **{**options, "callbacks": [begin, *self._callbacks]},
            )
        finally:
            model.train_function = None
        if run.step >= run.plan.steps:
            self._ended_epochs = run.plan.epochs
            next(self._batches, None)  # until the others have completed the last step
        else:
            run.end()
        return history

    def _first_epoch(self) -> int:
        """An epoch of which a snapshot has all steps, and not the end, is ended here."""
        if self._pending is not None and "fit" in self._pending:
            return int(self._pending["fit"]["ended_epochs"])
        return self._run.epoch

    def _begin_epoch(self, epoch: int, logs: Any = None) -> None:
        self._ended_epochs = epoch
        self._place = epoch * self._plan.steps_per_epoch

    def _turn(self, _iterator: Any) -> Any:
        """`steps_per_execution` steps of the epoch; those before this worker's are skipped."""
        self._settle()
        run, last = self._run, (self._ended_epochs + 1) * self._plan.steps_per_epoch
        self._place = min(self._place + _steps_at_once(self._model), last)
        while run.step < self._place:
            batch = next(self._batches, None)
            if batch is None:
                self._model.stop_training = run.step < self._plan.steps
                break
            loss, gradients = self._traced(batch)
            run.backward(loss, _Gradients(gradients))
        if self._pending is not None and self._pending["fit"]["ended_epochs"] == self._ended_epochs:
            self._settle()
        return self._model.get_metrics_result()

    def _settle(self) -> None:
        """Puts in place again: `fit` has reset it since the snapshot came."""
        pending, self._pending = self._pending, None
        if pending is None or "fit" not in pending:
            return
        super().restore(pending)
        self._put(pending["fit"]["metrics"])
        for callback, state in zip(self._callbacks, pending["fit"]["callbacks"]):
            vars(callback).update(state)

    # -- a step --

    def begin(self, piece: MicroBatch, seed: int) -> None:
        if self._before is None:
            self._before = self._metrics()
        super().begin(piece, seed)

    def extra(self) -> List[Any]:
        now = self._metrics()
        added = [after - before for after, before in zip(now, self._before or now)]
        return [*super().extra(), *added]

    def take_extra(self, sums: Any) -> None:
        super().take_extra(sums)
        before = self._before or self._metrics()
        offset, values = len(sums) - sum(each.size for each in before), []
        for each in before:
            added = sums[offset : offset + each.size].reshape(each.shape)
            values.append((each + added).astype(each.dtype))
            offset += each.size
        self._before = None
        self._put(values)

    def drop(self) -> None:
        super().drop()
        before, self._before = self._before, None
        if before is not None:
            self._put(before)

    def _counted(self) -> List[Any]:
        """The variables of all metrics: sums and counts."""
        found = [each for metric in self._model.metrics for each in metric.variables]
        return list({id(each): each for each in found}.values())

    def _metrics(self) -> List[Any]:
        return [array_of(each) for each in self._counted()]

    def _put(self, values: Any) -> None:
        for variable, each in zip(self._counted(), values):
            variable.assign(each)

    # -- state --

    def snapshot(self) -> Any:
        states = [_state_of(each) for each in self._callbacks]
        fit = {"ended_epochs": self._ended_epochs, "metrics": self._metrics(), "callbacks": states}
        return {**super().snapshot(), "fit": fit}

    def restore(self, snapshot: Any) -> None:
        super().restore(snapshot)
        self._pending = snapshot


class _Gradients:
    """In place of the tape that recorded the loss."""

    def __init__(self, gradients: Any) -> None:
        self._found = gradients

    def gradient(self, _loss: Any, _sources: Any) -> Any:
        return self._found


@contextlib.contextmanager
def _caught(model: Any, optimizer: Any) -> Iterator[Dict[str, List[Any]]]:
    """Inside, the optimizer applies nothing: its pairs are kept, and so are the losses."""
    found: Dict[str, List[Any]] = {"pairs": [], "losses": []}
    compute_loss = model.compute_loss

    def apply_gradients(pairs: Any, *_rest: Any, **_options: Any) -> None:
        found["pairs"].append(list(pairs))

    def apply(gradients: Any, variables: Any = None) -> None:
        found["pairs"].append(list(zip(gradients, variables or model.trainable_variables)))

    def noted_loss(*values: Any, **options: Any) -> Any:
        found["losses"].append(compute_loss(*values, **options))
        return found["losses"][-1]

    shadows = ((optimizer, "apply_gradients", apply_gradients), (optimizer, "apply", apply),
               (model, "compute_loss", noted_loss))  # fmt: skip
    for owner, name, shadow in shadows:
        vars(owner)[name] = shadow
    try:
        yield found
    finally:
        for owner, name, _shadow in shadows:
            del vars(owner)[name]


def _package_of(model: Any) -> Any:
    """keras or tf_keras: the one that the model is of."""
    roots = [kind.__module__.partition(".")[0] for kind in type(model).__mro__]
    return sys.modules[next(each for each in roots if each in KERAS)]


def _steps_at_once(model: Any) -> int:
    found = getattr(model, "steps_per_execution", getattr(model, "_steps_per_execution", None))
    return 1 if found is None else int(found)


def _state_of(callback: Any) -> Dict[str, Any]:
    """The counts of EarlyStopping, say; min_delta and its like are the callback's own."""
    state = {}
    for name in STATE:
        value = vars(callback).get(name)
        value = value.item() if isinstance(value, np.generic) else value
        is_list = isinstance(value, list) and all(isinstance(each, np.ndarray) for each in value)
        if is_list or isinstance(value, (int, float)):
            state[name] = value
    return state
