"""TensorFlow with the three lines: `three_lines_tensorflow.py RECORD CHECKPOINT`.

A spare waits at the first operation of TensorFlow, which looks for GPUs: before the model.
"""

from __future__ import annotations

import sys

import keras
import numpy as np
import tensorflow as tf
from common import BATCH, CLASSES, FEATURES, HIDDEN, SAMPLES, StepRecord
from nodemgr_client import elastic

record = StepRecord(sys.argv[1])
numbers = np.random.default_rng(1)
data = (
    numbers.standard_normal((SAMPLES, FEATURES), np.float32),
    numbers.integers(0, CLASSES, SAMPLES),
)
record.ready()
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
keras.utils.set_random_seed(1)
model = keras.Sequential(
    [
        keras.Input((FEATURES,)),
        keras.layers.Dense(HIDDEN, activation="relu"),
        keras.layers.Dense(CLASSES),
    ]
)
optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
cost = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
with elastic(
    model, optimizer, data, global_batch=BATCH, max_per_gpu=BATCH, epochs=1_000_000,
    checkpoint=sys.argv[2], checkpoint_every_s=2.0,
) as run:  # fmt: skip
    for inputs, classes in run:
        step, rank, size = run.step, run.rank, run.size
        with tf.GradientTape() as tape:
            loss = cost(classes, model(inputs, training=True))
        run.backward(loss, tape)
        if run.step > step:
            record.step(step, rank, size)
