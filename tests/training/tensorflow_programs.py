"""Programs of workers: small trainings by TensorFlow, with the library and without it."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from client_plugin.training.plan import SamplePlan
from tests.support.installed import later
from tests.training.programs import BATCH, CLASSES, FEATURES, MOST, SAMPLES, SEED, client, epochs_of

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
tf = later("tensorflow")
keras = later("keras")


def data() -> tuple[Any, Any, Any]:
    numbers = np.random.default_rng(3)
    inputs = numbers.standard_normal((SAMPLES, FEATURES)).astype(np.float32)
    classes = (inputs @ numbers.standard_normal((FEATURES, CLASSES))).argmax(1)
    return inputs, classes, np.arange(SAMPLES)


def parts(kind: str) -> tuple[Any, Any]:
    keras.utils.set_random_seed(1)
    noisy = (
        [keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)] if "noisy" in kind else []
    )
    model = keras.Sequential(
        [keras.Input((FEATURES,)), keras.layers.Dense(16, use_bias=not noisy), *noisy,
         keras.layers.Activation("tanh"), keras.layers.Dense(CLASSES)]
    )  # fmt: skip
    rate = keras.optimizers.schedules.CosineDecay(0.05, 300)
    if "adamw" in kind:
        return model, keras.optimizers.AdamW(rate)
    return model, keras.optimizers.SGD(rate, momentum=0.9)


def cost(model: Any, inputs: Any, classes: Any) -> Any:
    logits = model(inputs, training=True)
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(classes, logits)
    return tf.reduce_mean(each)


def plain(kind: str, steps: int, plan: Any) -> tuple[list[float], Any]:
    """The same training without the library, each global batch at once."""
    model, optimizer = parts(kind)
    inputs, classes, _ = data()
    losses = []
    for step in range(steps):
        samples = plan.samples_of(step)
        with tf.GradientTape() as tape:
            loss = cost(model, inputs[samples], classes[samples])
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        losses.append(float(loss))
    return losses, model


def reference(kind: str, steps: int) -> tuple[list[float], list[float]]:
    """Losses and numbers of `plain`."""
    losses, model = plain(kind, steps, SamplePlan(SAMPLES, BATCH, BATCH, epochs_of(steps), SEED))
    return losses, numbers_of(model)


def numbers_of(model: Any) -> list[float]:
    return [float(np.square(each).sum()) for each in model.get_weights()]


def train(variables: dict[str, str], kind: str, steps: int, **options: Any) -> Any:
    """One worker; without variables, the training on one device."""
    reporter: Any = None
    os.environ.update(variables)
    if variables:
        from tests.training.agent import Reporter

        reporter = Reporter(variables)
    model, optimizer = parts(kind)
    options = {
        "virtual_workers": 4 if "noisy" in kind else 0, "epochs": epochs_of(steps),
        "max_per_gpu": MOST, "seed": SEED, **options,
    }  # fmt: skip
    losses: list[float] = []
    with client().elastic(model, optimizer, data(), global_batch=BATCH, **options) as run:
        _loop(run, model, steps, reporter, losses)
    if reporter is not None:
        reporter.report(
            run, done=True, step=run.step, loss=run.loss, is_main=run.is_main,
            numbers=numbers_of(model),
        )  # fmt: skip
    return losses, model


def compiled(kind: str) -> Any:
    model, optimizer = parts(kind)
    cost = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, cost, metrics=["accuracy"])
    return model


def fit(variables: dict[str, str], kind: str, steps: int, **options: Any) -> None:
    """One worker whose steps are those of Keras's fit."""
    os.environ.update(variables)
    from tests.training.agent import Reporter

    reporter = Reporter(variables)
    model, inputs = compiled(kind), data()
    options = {
        "virtual_workers": 4 if "noisy" in kind else 0, "epochs": epochs_of(steps),
        "max_per_gpu": MOST, "seed": SEED, **options,
    }  # fmt: skip
    with client().elastic(model, model.optimizer, inputs[:2], global_batch=BATCH, **options) as run:

        before = 0

        def begin(_batch: int, logs: Any = None) -> None:
            nonlocal before
            before = run.step

        def report(_batch: int, logs: Any = None) -> None:
            if run.step == before:
                return  # fit counts the steps before this worker's first, too
            answer = reporter.report(run, step=run.step - 1, loss=run.loss, rank=run.rank,
                                     size=run.size)  # fmt: skip
            if answer == "stop":
                run.stop()

        told = keras.callbacks.LambdaCallback(on_train_batch_begin=begin, on_train_batch_end=report)
        history = run.fit(verbose=0, callbacks=[told])
    reporter.report(
        run, done=True, step=run.step, loss=run.loss, is_main=run.is_main,
        numbers=numbers_of(model), history=history.history,
    )  # fmt: skip


def _loop(run: Any, model: Any, steps: int, reporter: Any, losses: list[float]) -> None:
    samples: list[int] = []
    for inputs, classes, own in run:
        before = run.step, run.rank, run.size
        samples += own.numpy().tolist()
        with tf.GradientTape() as tape:
            loss = cost(model, inputs, classes)
        if before[0] == steps - 1:
            run.stop()
        run.backward(loss, tape)
        if run.step == before[0] + 1:
            losses.append(run.loss)
            if reporter is not None:
                answer = reporter.report(
                    run, step=before[0], rank=before[1], size=before[2], samples=samples,
                    loss=run.loss,
                )  # fmt: skip
                if answer == "stop":
                    run.stop()
            samples = []
        elif not run._pieces:
            samples = []


def load() -> None:
    """Import everything before workers are forked, without an operation of TensorFlow."""
    for each in (tf.Variable, keras.Sequential, keras.optimizers.AdamW):
        assert each is not None
    client()._module("training.tensorflow.entry")
