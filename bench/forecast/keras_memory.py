"""Forecasts of TensorFlow's memory against peaks that were measured.

    python bench/forecast/keras_memory.py [--models N] [--short]

Each model of Keras makes three training steps on the processor, whose allocator is TensorFlow's own
of GPUs (TF_CPU_ALLOCATOR_USE_BFC) and reports the peak of its chunks in the last two, less what was
there before the model. The forecast is made of the traced step, as `nodemgr predict` does it.
Operators of the processor keep other buffers than those of a GPU, and run on several threads in
another order. Needs tensorflow.

A row for each model: the peak, the forecast, the error in percent (below zero: too little was
forecast), and the seconds that the forecast took after the trace.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from arguments import parse

GOAL_MEDIAN, GOAL_TAIL = 5.0, 15.0


def convolutions(depth: int, width: int, norm: bool) -> Any:
    import keras

    layers = keras.layers
    inputs = x = keras.Input((32, 32, 3))
    for stage in range(3):
        for _ in range(depth):
            x = layers.Conv2D(width << stage, 3, padding="same", use_bias=not norm)(x)
            x = layers.BatchNormalization()(x) if norm else x
            x = layers.ReLU()(x)
        x = layers.MaxPooling2D()(x)
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def residual(depth: int, width: int) -> Any:
    import keras

    layers = keras.layers
    inputs = keras.Input((32, 32, 3))
    x = layers.Conv2D(width, 3, padding="same")(inputs)
    for _ in range(depth):
        y = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same")(x)))
        x = layers.Add()([x, layers.Conv2D(width, 3, padding="same")(y)])
    return keras.Model(inputs, layers.Dense(10)(layers.Flatten()(layers.AveragePooling2D(4)(x))))


def dense(depth: int, width: int) -> Any:
    import keras

    layers = keras.layers
    body = [layers.Dense(width, activation="relu") for _ in range(depth)]
    return keras.Sequential([keras.Input((32, 32, 3)), layers.Flatten(), *body, layers.Dense(10)])


def attention(depth: int, width: int) -> Any:
    import keras

    layers = keras.layers
    inputs = keras.Input((32, 32, 3))
    x = layers.Reshape((64, -1))(layers.Conv2D(width, 4, 4)(inputs))
    for _ in range(depth):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, width // 4)(y, y)
        y = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(width)(y)
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


def separable(depth: int, width: int) -> Any:
    import keras

    layers = keras.layers
    inputs = x = keras.Input((32, 32, 3))
    for stage in range(depth):
        x = layers.SeparableConv2D(width << stage, 3, padding="same")(x)
        x = layers.ReLU(6.0)(layers.BatchNormalization()(x))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


MODELS: dict[str, Any] = {
    "vgg 1x16": lambda: convolutions(1, 16, False),
    "vgg 2x16": lambda: convolutions(2, 16, False),
    "vgg 2x32": lambda: convolutions(2, 32, False),
    "vgg with norm 1x16": lambda: convolutions(1, 16, True),
    "vgg with norm 2x32": lambda: convolutions(2, 32, True),
    "resnet 2x16": lambda: residual(2, 16),
    "resnet 4x16": lambda: residual(4, 16),
    "resnet 3x32": lambda: residual(3, 32),
    "mlp 2x512": lambda: dense(2, 512),
    "mlp 4x1024": lambda: dense(4, 1_024),
    "mlp 8x256": lambda: dense(8, 256),
    "vit 2x64": lambda: attention(2, 64),
    "vit 4x128": lambda: attention(4, 128),
    "separable 2x32": lambda: separable(2, 32),
    "separable 3x16": lambda: separable(3, 16),
}
VARIANTS = ((128, "adam"), (32, "sgd"))


def child(count: int) -> None:
    import keras
    import tensorflow as tf

    from client_plugin.prediction.tensorflow import step

    memory = tf.config.experimental
    tf.config.threading.set_inter_op_parallelism_threads(1)
    rows = [(name, batch, kind) for name in MODELS for batch, kind in VARIANTS]
    for name, batch, kind in rows[:: max(1, len(rows) // count)][:count] if count else rows:
        keras.backend.clear_session()
        gc.collect()
        before = memory.get_memory_info("CPU:0")["current"]  # earlier models leave constants
        model = MODELS[name]()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(kind, loss, jit_compile=False)
        data = tf.zeros((batch, 32, 32, 3)), tf.zeros((batch,), tf.int32)
        train = tf.function(model.train_step)
        concrete = train.get_concrete_function(data)
        start_s = time.perf_counter()
        found = step.outcome_of(concrete)
        seconds = time.perf_counter() - start_s
        train(data)
        memory.reset_memory_stats("CPU:0")
        train(data)
        train(data)
        peak = memory.get_memory_info("CPU:0")["peak"] - before
        guess = found["allocated_peak_bytes"]
        print(json.dumps([f"{name}, {batch}, {kind}", peak, guess, seconds]), flush=True)
        del model, train, concrete, data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=0, help="so many trainings; 0: all")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parse(parser, models=2)
    if options.child:
        child(options.models)
        return
    variables = {**os.environ, "TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_ENABLE_ONEDNN_OPTS": "0",
                 "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}  # fmt: skip
    command = [sys.executable, "-W", "ignore", __file__, "--child", "--models", str(options.models)]
    done = subprocess.run(command, capture_output=True, check=False, env=variables)
    if done.returncode:
        sys.exit(done.stderr.decode())
    errors, spent = [], []
    for name, peak, guess, seconds in map(json.loads, done.stdout.splitlines()):
        errors.append(100 * (guess - peak) / peak)
        spent.append(seconds)
        print(f"{name:28} {peak / 2**20:8.1f} MiB {guess / 2**20:8.1f} MiB {errors[-1]:7.1f} %"
              f" {seconds:6.2f} s")  # fmt: skip
    within = 100 * sum(abs(error) <= GOAL_TAIL for error in errors) / len(errors)
    below = 100 * sum(error < -GOAL_TAIL for error in errors) / len(errors)
    print(f"{len(errors)} trainings: median error {statistics.median(map(abs, errors)):.1f} %, "
          f"within {GOAL_TAIL:.0f} %: {within:.0f} %, more below: {below:.0f} %, "
          f"median {statistics.median(spent):.1f} s")  # fmt: skip


if __name__ == "__main__":
    main()
