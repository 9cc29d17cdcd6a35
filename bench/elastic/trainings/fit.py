"""Keras's fit: `fit.py RECORD CHECKPOINT MODEL PACKAGE RESULT [--plain]`.

By `run.fit` of the three lines, or plain in one process. The dataset is a seeded tf.data.Dataset,
and a callback lowers the learning rate by the validation loss. RESULT gets the History of the main
worker and its weights.
"""

from __future__ import annotations

import importlib
import sys
import time

import numpy as np
import tensorflow as tf
from common import CLASSES, StepRecord

BATCH, SAMPLES, EPOCHS, STEP_S = 32, 320, 12, 0.2
LENGTH, FEATURES, SIDE = 12, 32, 8
record_path, _checkpoint, kind, package, result = sys.argv[1:6]
record = StepRecord(record_path)
keras = importlib.import_module(package)
layers = keras.layers


def made() -> tuple[np.ndarray, np.ndarray]:
    """Inputs and classes that a model can learn."""
    numbers = np.random.default_rng(1)
    shape = {"dense": (FEATURES,), "conv": (SIDE, SIDE, 1), "lstm": (LENGTH, 8)}[kind]
    inputs = numbers.standard_normal((SAMPLES, *shape)).astype(np.float32)
    flat = inputs.reshape(SAMPLES, -1)
    return inputs, (flat @ numbers.standard_normal((flat.shape[1], CLASSES))).argmax(1)


def network() -> list:
    if kind == "dense":
        return [layers.Dense(64, activation="relu"), layers.Dense(CLASSES)]
    if kind == "conv":
        return [layers.Conv2D(8, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten(),
                layers.Dense(CLASSES)]  # fmt: skip
    return [layers.LSTM(16), layers.Dense(CLASSES)]


inputs, classes = made()
record.ready()
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
keras.utils.set_random_seed(1)
data = tf.data.Dataset.from_tensor_slices((inputs, classes)).shuffle(SAMPLES, seed=2)
data = data.batch(BATCH, drop_remainder=True)
model = keras.Sequential(network())
model.build((None, *inputs.shape[1:]))
model.compile(
    keras.optimizers.SGD(0.05, momentum=0.9) if kind == "conv" else keras.optimizers.Adam(3e-3),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
options = {
    "validation_data": (inputs[:200], classes[:200]), "verbose": 0,
    "callbacks": [keras.callbacks.ReduceLROnPlateau("val_loss", 0.5, 1)],
}  # fmt: skip
is_main = True
if "--plain" in sys.argv:
    steps = SAMPLES // BATCH
    history = model.fit(data.repeat(), steps_per_epoch=steps, epochs=EPOCHS, **options)
else:
    from nodemgr_client import elastic

    with elastic(
        model, model.optimizer, data, global_batch=BATCH, max_per_gpu=BATCH, epochs=EPOCHS
    ) as run:

        def step(batch: int, logs: dict) -> None:
            record.step(run.step - 1, run.rank, run.size)
            time.sleep(STEP_S)

        options["callbacks"].append(keras.callbacks.LambdaCallback(on_train_batch_end=step))
        history = run.fit(**options)
        is_main = run.is_main
if is_main:
    lists = {name: np.array(values) for name, values in history.history.items()}
    weights = {f"weight {n}": each for n, each in enumerate(model.get_weights())}
    np.savez(result, **lists, **weights)
