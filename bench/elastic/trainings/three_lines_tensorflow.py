"""TensorFlow with the three lines: `three_lines_tensorflow.py RECORD CHECKPOINT`."""

from __future__ import annotations

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras
import numpy as np
import tensorflow as tf
from common import BATCH, CLASSES, FEATURES, HIDDEN, SAMPLES, StepRecord
from nodemgr_client import elastic

record = StepRecord(sys.argv[1])
keras.utils.set_random_seed(1)
numbers = np.random.default_rng(1)
data = (
    numbers.standard_normal((SAMPLES, FEATURES)).astype(np.float32),
    numbers.integers(0, CLASSES, SAMPLES),
)
model = keras.Sequential(
    [keras.Input((FEATURES,)), keras.layers.Dense(HIDDEN, "relu"), keras.layers.Dense(CLASSES)]
)
optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
record.built()
with elastic(
    model, optimizer, data, global_batch=BATCH, max_per_gpu=BATCH, epochs=1_000_000,
    checkpoint=sys.argv[2], checkpoint_every_s=2.0,
) as run:  # fmt: skip
    for inputs, classes in run:
        step, rank, size = run.step, run.rank, run.size
        with tf.GradientTape() as tape:
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(classes, model(inputs))
            loss = tf.reduce_mean(each)
        run.backward(loss, tape)
        if run.step > step:
            record.step(step, rank, size)
