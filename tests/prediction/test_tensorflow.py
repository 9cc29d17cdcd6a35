"""Trainings by TensorFlow without a GPU: unmodified programs, ended at their first step."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client_plugin.messages import prediction as prediction_messages
from client_plugin.prediction import findings
from nodemgr.core.forecast import features as manager
from tests.support.limits import WAIT_LIMIT_S

from .forked import HOOK, Forks, forks
from .test_phases import followed
from .test_pytorch import found, run

pytestmark = pytest.mark.frameworks


@pytest.fixture(scope="module")
def programs() -> Iterator[Forks]:
    with forks("tensorflow", "keras", limit_s=WAIT_LIMIT_S) as started:
        yield started


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def figures(answer: Any) -> dict[str, int]:
    assert answer.features is not None, answer.reason
    read = manager.parse(answer.features)
    return {
        **dict(zip(manager.GRAPH, read.graph, strict=True)),
        **dict(zip(manager.RICHER, read.richer, strict=True)),
        **dict(zip(manager.EXECUTION, read.execution, strict=True)),
        "peak": read.peak_bytes,
    }


FIT = """
import numpy, tensorflow
gpus = tensorflow.config.list_physical_devices("GPU")
assert len(gpus) == 1
tensorflow.config.experimental.set_memory_growth(gpus[0], True)
from tensorflow import keras
layers = keras.layers
model = keras.Sequential([
    keras.Input((16, 16, 3)), layers.Conv2D(8, 3, activation="relu"), layers.BatchNormalization(),
    layers.MaxPooling2D(), layers.AveragePooling2D(2), layers.Flatten(), layers.Dropout(0.5),
    layers.Dense(10),
    layers.Softmax(),
])
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
images = numpy.zeros((100, 16, 16, 3), "float32")
model.fit(images, numpy.zeros(100), batch_size=32, epochs=5, verbose=0)
raise SystemExit("it was not stopped")
"""


def test_the_step_of_fit_becomes_features(tmp_path: Path) -> None:
    answer = findings.find(run(FIT, tmp_path), WAIT_LIMIT_S)
    seen = figures(answer)
    assert answer.features is not None
    name, version, method = answer.features["framework"].split()
    assert (name, method) == ("tensorflow", "graph")
    assert version[0].isdigit()
    assert (seen["batchsize"], seen["iteration"], seen["input"]) == (32, 4 * 5, 16 * 16 * 3)
    assert seen["conv2d"] == 32 * 16 * 16 * 3
    assert seen["relu"] == seen["maxpool"] == seen["biasadd"] == 32 * 14 * 14 * 8
    assert seen["avgpool"] == 32 * 7 * 7 * 8
    assert seen["matmul"] == 32 * 72
    assert seen["softmax"] == 32 * 10
    assert seen["depth"] == 2
    assert seen["parameters"] == (27 + 1) * 8 + 2 * 8 + (72 + 1) * 10
    products = 3 * 2 * 32 * 720 + 2 * 2 * 32 * 196 * 8 * 27
    precise = sum(row[2] for row in answer.features["work"] if row[0] == "tf32")
    assert precise == products, "the image needs no gradient"
    assert seen["peak"] >= 4 * (4 * seen["relu"] + seen["parameters"] * 3)


VARIANTS = {
    "jit_compile=False": [],
    "steps_per_execution=2": [
        "XLA compiles the step; the memory is that of its operators one by one"
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("option", VARIANTS)
def test_options_of_compile(tmp_path: Path, programs: Forks, option: str) -> None:
    answer = found(FIT.replace('"adam",', f'"adam", {option}, loss='), tmp_path, programs)
    seen = figures(answer)
    assert (seen["batchsize"], seen["iteration"], seen["input"]) == (32, 4 * 5, 16 * 16 * 3)
    *notes, experimental = [str(note) for note in answer.notes]
    assert experimental == prediction_messages.EXPERIMENTAL()
    assert len(notes) == len(VARIANTS[option])
    assert all(line in note for line, note in zip(VARIANTS[option], notes, strict=True))


EPOCHS = """
import keras, numpy
model = keras.Sequential([keras.Input((None, 4)), keras.layers.Dense(512), keras.layers.Dense(1)])
model.compile("adam", "mse")
class Lines(keras.utils.PyDataset):
    def __init__(self, *sizes):
        super().__init__()
        self.sizes = sizes
    def __len__(self):
        return len(self.sizes)
    def __getitem__(self, place):
        size = self.sizes[place]
        return numpy.zeros((8, size, 4), "float32"), numpy.zeros((8, size, 1), "float32")
model.{call}
raise SystemExit("its end")
"""


@pytest.mark.parametrize(
    ("call", "validates", "shapes"),
    [
        ("fit(Lines(16, 8, 64, *[8] * 97), validation_data=Lines(4_000), {often})", True, 3),
        ("fit(Lines(16, 64), {often})", False, 2),
    ],
)
def test_the_watch_goes_on_to_larger_batches_and_the_validation(
    tmp_path: Path, programs: Forks, call: str, validates: bool, shapes: int
) -> None:
    code = EPOCHS.format(call=call.format(often="epochs=9, shuffle=False"))
    early, first = followed(tmp_path, programs, code, 0)
    assert (early["steps"], early["validation"], early["is_margin_wider"]) == (1, False, False)
    phases, later = followed(tmp_path, programs, code, WAIT_LIMIT_S)
    assert (phases["steps"], phases["validation"]) == (1, validates)
    assert sorted(size for _, size, _ in phases["batch_shapes"]) == [8, 16, 64][-shapes:]
    grown_bytes = later["memory"]["peak_bytes"] - first["memory"]["peak_bytes"]
    largest = 4_000 - 16 if validates else 64 - 16
    assert grown_bytes >= 8 * largest * 512 * 4 // 2
    assert later["graph"] == first["graph"], "features are those of the first step"


LOOP = """
import nodemgr_client, tensorflow as tf
weight = tf.Variable(tf.zeros((64, 32)))
optimizer = tf.keras.optimizers.Adam()
data = tf.data.Dataset.from_tensor_slices(tf.zeros((100, 64))).batch(16)

@tf.function(input_signature=[tf.TensorSpec((None, 64))])
def evaluate(x):
    return tf.reduce_sum(x @ weight)

@tf.function(jit_compile=True)
def inner(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.relu(x @ weight))
    optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
    return loss

@tf.function
def step(iterator):
    return inner(next(iterator))

nodemgr_client.progress(total=70)
with tf.device("/GPU:0"):
    print(float(evaluate(tf.ones((3, 64)))))
    batches = iter(data)
    while True:
        step(batches)
"""


def test_a_function_with_gradients_is_the_step(tmp_path: Path, programs: Forks) -> None:
    seen = figures(found(LOOP, tmp_path, programs))
    assert (seen["batchsize"], seen["iteration"], seen["input"]) == (16, 70, 64)
    assert (seen["matmul"], seen["relu"]) == (64 * 32, 16 * 32)
    assert seen["parameters"] == 64 * 32


TAPE = """
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weight * weight)
    gradient = tape.gradient(loss, weight)
"""
REASONS = {
    "the program ended without a backward pass": "tf.keras.Sequential([]).summary()",
    "the program computes gradients outside of tf.function": f"""
while True:
{TAPE}
    weight.assign_sub(gradient)
""",
    "the function that computes gradients changes no variable": f"""
@tf.function
def step():
{TAPE}
    return gradient
while True:
    weight.assign_sub(step())
""",
    "the training step is in a loop of TensorFlow's graph": f"""
@tf.function
def step(times):
    for _ in tf.range(times):
{textwrap.indent(TAPE, "    ")}
        weight.assign_sub(gradient)
step(tf.constant(1000))
""",
    "the program trains on the processor": f"""
tf.config.set_visible_devices([], "GPU")
@tf.function
def step():
{TAPE}
    weight.assign_sub(gradient)
step()
""",
    "the program trains on the processor:": f"""
@tf.function
def step():
{TAPE}
    weight.assign_sub(gradient @ weight)
with tf.device("/CPU:0"):
    step()
""",
    "the program computes gradients outside of tf.function:": """
model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])
model.compile("sgd", "mse", run_eagerly=True)
model.fit(tf.zeros((8, 4)), tf.zeros((8, 2)), verbose=0)
""",
    "the strategy has 2 replicas, and a forecast is of one GPU": """
strategy = tf.distribute.MirroredStrategy(["GPU:0", "GPU:1"])
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])
    model.compile("sgd", "mse")
model.fit(tf.zeros((8, 4)), tf.zeros((8, 2)), verbose=0)
""",
    "exit code 1 before a training step (FileNotFoundError": "open('absent')",
}


@pytest.mark.slow
@pytest.mark.parametrize("reason", REASONS)
def test_a_program_without_a_step_has_a_reason(
    tmp_path: Path, programs: Forks, reason: str
) -> None:
    code = "import tensorflow as tf\nweight = tf.Variable(tf.ones((8, 8)))\n" + REASONS[reason]
    answer: Any = found(code, tmp_path, programs)
    assert answer.features is None
    assert reason in answer.reason


NOTEBOOK = """
import json, sys
sys.path.insert(0, sys.argv[1])
import keras, numpy, nodemgr_client
model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(64, activation="relu"),
                          keras.layers.BatchNormalization(), keras.layers.Dense(3)])
batch = numpy.zeros((32, 20), "float32"), numpy.zeros((32,), "int32")
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
before = [one.numpy().copy() for one in model.variables]
bare = nodemgr_client.predict(model, batch[0])
named = nodemgr_client.predict(model, batch, keras.optimizers.Adam(), loss, steps=500)
model.compile(keras.optimizers.Adam(), loss)
compiled = nodemgr_client.predict(model, batch)
assert all((a == b.numpy()).all() for a, b in zip(before, model.variables))
assert not model.optimizer.built and model.optimizer.iterations.numpy() == 0
wrong = nodemgr_client.predict(model, (batch[0][:, :5], batch[1]))
print(json.dumps([bare, named, compiled, wrong]))
"""


def test_a_notebook_s_model_of_keras_stays_as_it_is(tmp_path: Path) -> None:
    program = tmp_path / "notebook.py"
    program.write_text(NOTEBOOK)
    done = subprocess.run(
        [sys.executable, str(program), str(HOOK)],
        stdin=subprocess.DEVNULL, capture_output=True, timeout=WAIT_LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    bare, named, compiled, wrong = json.loads(done.stdout.splitlines()[-1])
    assert bare["reason"] is None
    assert named["features"]["execution"] == {"batchsize": 32, "iteration": 500, "input": 20}
    assert named["features"]["graph"] == compiled["features"]["graph"]
    assert named["memory_bytes"] == compiled["memory_bytes"] >= 1 << 20
    assert wrong["features"] is None
    assert wrong["reason"].startswith("no prediction, because a training step failed (")
