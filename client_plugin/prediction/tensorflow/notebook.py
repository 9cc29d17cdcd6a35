"""`nodemgr_client.predict` for a model of Keras: one training step is traced and not run.

The optimizer of the step is a copy, and no weight changes. A model without weights gets them, as by
its first call. Knows: the form of a training step. Must not know: the manager.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

import tensorflow as tf

from ...messages import prediction as messages
from .. import findings, outcome
from ..watch import Watched
from . import step


def predict(
    model: Any,
    batch: Any,
    optimizer: Any = None,
    loss: Optional[Callable[[Any, Any], Any]] = None,
    steps: int = 0,
) -> Dict[str, Any]:
    """`memory_bytes`, `features`, `reason`, `notes`; see nodemgr_client.predict."""
    try:
        batch = tf.nest.map_structure(tf.convert_to_tensor, batch)
        inputs, targets = batch if isinstance(batch, tuple) and len(batch) == 2 else (batch, None)
        with tf.device("/CPU:0"):
            model(inputs)
            own = _copied(model, optimizer or getattr(model, "optimizer", None))
        train = tf.function(lambda x, y: _train(model, x, y, own, loss))
        found = step.outcome_of(train.get_concrete_function(inputs, targets))
        found = {**found, "iterations": 0, "not_saved": []}
    except Exception as error:
        why = messages.STEP_FAILED_HERE(error=findings.exception_line(error))
        found = outcome.abstention(why, is_certain=True)
    return findings.told(findings.find(Watched({"step": found}, 0, "", [], ""), 0.0, steps))


def _copied(model: Any, optimizer: Any) -> Any:
    """An optimizer of the same kind with variables of its own."""
    if optimizer is None:
        return None
    own = type(optimizer).from_config(optimizer.get_config())
    own.build(model.trainable_variables)
    return own


def _train(model: Any, inputs: Any, targets: Any, own: Any, loss: Any) -> Any:
    with tf.GradientTape() as tape:
        found = model(inputs, training=True)
        value = _cost(model, inputs, targets, found, loss)
        total = tf.add_n([tf.reduce_mean(value), *map(tf.reduce_mean, model.losses)])
    weights = model.trainable_variables
    gradients = tape.gradient(total, weights)
    if own is not None:
        own.apply_gradients(zip(gradients, weights))
        return total
    return total, gradients


def _cost(model: Any, inputs: Any, targets: Any, found: Any, loss: Any) -> Any:
    if loss is not None:
        return loss(targets, found)
    if targets is not None and getattr(model, "compiled", False):
        return model.compute_loss(x=inputs, y=targets, y_pred=found)
    return tf.reduce_mean(tf.cast(tf.nest.flatten(found)[0], tf.float32))
