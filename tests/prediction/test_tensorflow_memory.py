"""Graphs of TensorFlow as a device runs them, against the allocator of this processor.

Each mechanism of the forecast is a small function; the peak above what was there before it is
measured, and forecast.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.limits import WAIT_LIMIT_S

pytestmark = pytest.mark.frameworks
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, os, sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/bench", sys.argv[1] + "/bench/forecast"]
import tensorflow as tf
import keras_memory
from client_plugin.prediction import bfc_allocator
from client_plugin.prediction.tensorflow import flat_graph, rewriting

tf.config.threading.set_inter_op_parallelism_threads(1)
memory = tf.config.experimental
variable = tf.Variable(tf.zeros((256, 256)))
square, images = tf.ones((256, 256)), tf.ones((4, 32, 32, 8))
filters = tf.ones((3, 3, 8, 16))
region = tf.raw_ops.Empty(shape=[1 << 29], dtype=tf.uint8)
del region  # there is room: every chunk is split to its size

def a_chain():
    return tf.matmul(tf.matmul(tf.matmul(square, square), square), square)

def in_place():
    return tf.nn.relu(tf.sin(tf.matmul(square, square)))

def update():
    variable.assign_sub(0.0 * tf.matmul(variable, variable))

def replace():
    variable.assign(0.0 * tf.matmul(variable, variable))

def update_of_a_value_in_use():
    old = variable.read_value()
    with tf.control_dependencies([variable.assign_sub(0.0 * tf.matmul(old, old))]):
        return tf.matmul(old, old)

def filter_gradient():
    with tf.GradientTape() as tape:
        tape.watch(filters)
        found = tf.nn.conv2d(images, filters, 1, "SAME")
    return tape.gradient(found, filters)

def image_gradient():
    with tf.GradientTape() as tape:
        tape.watch(images)
        found = tf.nn.conv2d(images, filters, 1, "SAME")
    return tape.gradient(found, images)

def pooling():
    with tf.GradientTape() as tape:
        tape.watch(images)
        found = tf.nn.max_pool2d(images, 2, 2, "SAME")
    return tape.gradient(found, images)

found = {}
for function in (a_chain, in_place, update, replace, update_of_a_value_in_use, filter_gradient,
                 image_gradient, pooling):
    compiled = tf.function(function)
    concrete = compiled.get_concrete_function()
    for _ in range(2):
        compiled()
    before = memory.get_memory_info("CPU:0")["current"]
    memory.reset_memory_stats("CPU:0")
    kept = compiled()
    peak = memory.get_memory_info("CPU:0")["peak"] - before
    graph = flat_graph.flatten(concrete, device=rewriting.PROCESSOR)
    there = sum(-(-graph.sizes[name].bytes // 256) * 256 for name in graph.lasting)
    forecast = bfc_allocator.replay(keras_memory.storages(concrete))
    found[function.__name__] = peak, forecast.live_peak_bytes - there
orders = {}
for device in (rewriting.GPU, rewriting.PROCESSOR):
    graph = flat_graph.flatten(tf.function(filter_gradient).get_concrete_function(), device=device)
    orders[device.kind] = [one.attributes["data_format"] for one in graph.operators
                           if one.kind == "Conv2DBackpropFilter"]
print(json.dumps([found, orders]))
"""
ONE = 4 * 256 * 256
IMAGES, FILTERS = 4 * 4 * 32 * 32 * 8, 4 * 3 * 3 * 8 * 16
UNIT = 32 * 32 * 72 + 32 * 32 * 16 + 72 * 16
UNFOLDED = -(-(30 << 18) // UNIT) * 4 * 32 * 32 * 72
POOLED = IMAGES // 4
EXPECTED = {
    "a_chain": 2 * ONE,
    "in_place": ONE,
    "update": ONE,
    "replace": ONE,
    "update_of_a_value_in_use": 2 * ONE,
    "filter_gradient": FILTERS + UNFOLDED,
    "image_gradient": IMAGES + UNFOLDED,
    "pooling": POOLED + IMAGES + 2 * POOLED,
}
ROUNDED_BYTES = 1_024
"""Tensors of a few elements have chunks of 256 bytes."""
PACKED_BYTES = {"image_gradient": 128 << 10}
"""The processor's product of matrices packs blocks of them; the forecast leaves these out."""


@pytest.fixture(scope="module")
def measured() -> Any:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(ROOT)], timeout=WAIT_LIMIT_S,
        stdin=subprocess.DEVNULL, capture_output=True, check=False,
        env={**os.environ, "TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_ENABLE_ONEDNN_OPTS": "0",
             "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_a_forecast_has_the_bytes_that_were_measured(measured: Any, name: str) -> None:
    peak, forecast = measured[0][name]
    assert forecast == pytest.approx(EXPECTED[name], abs=ROUNDED_BYTES)
    packed = PACKED_BYTES.get(name, 0)
    assert EXPECTED[name] <= peak <= EXPECTED[name] + packed + ROUNDED_BYTES


@pytest.mark.slow
def test_images_are_in_the_order_of_the_device(measured: Any) -> None:
    assert measured[1] == {"GPU": ["NCHW"], "CPU": ["NHWC"]}
