"""Forecasts of TensorFlow's memory against peaks that were measured.

    python bench/forecast/keras_memory.py [--models N] [--short]

Each model of Keras trains on the processor, whose allocator is TensorFlow's own of GPUs
(TF_CPU_ALLOCATOR_USE_BFC) and reports the peak of its chunks in a step, less what was there before
the model: the median of several steps, since their order differs. The forecast is made of the
traced step, as `nodemgr predict` does it, for this processor in place of a GPU: TensorFlow rewrites
the graph for it, and kernels take its buffers (processor_kernels.py). Needs tensorflow. The last
line counts the trainings that take more than is filled in,
by the margin of client_plugin/prediction/features.py.

A row for each model: the peak, the forecast, the error in percent (below zero: too little was
forecast), the forecast for a GPU, which is held against nothing, and the seconds of the processor
that the latter took after the trace.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import keras_zoo
from keras_zoo import Training
from processor_kernels import of_processor

from arguments import parse
from client_plugin.prediction import features
from node import against_target, at_least, finish

GOAL_MEDIAN, GOAL_TAIL, GOAL_WITHIN, GOAL_LOW, GOAL_SURPLUS = 5.0, 15.0, 90.0, 1.0, 60.0


STEPS = 5
"""The first of them has yet to make the optimizer's variables its own."""


def rows(is_held_out: bool, count: int) -> list[tuple[str, Training]]:
    """So many trainings from all over the list; 0: all."""
    known = list((keras_zoo.HELD_OUT if is_held_out else keras_zoo.KNOWN).items())
    return known[:: max(1, len(known) // count)][:count] if count else known


def peak_bytes(run: Callable[[], Any], steps: int) -> int:
    """The median of the peaks of the steps that follow the first."""
    import tensorflow as tf

    memory = tf.config.experimental
    run()
    peaks = []
    for _ in range(steps):
        memory.reset_memory_stats("CPU:0")
        run()
        peaks.append(memory.get_memory_info("CPU:0")["peak"])
    return int(statistics.median(peaks))


def storages(concrete: Any) -> list[Any]:
    """The events of the forecast, for this processor in place of a GPU."""
    from client_plugin.prediction import dataflow
    from client_plugin.prediction.tensorflow import step
    from client_plugin.prediction.tensorflow.flat_graph import flatten
    from client_plugin.prediction.tensorflow.rewriting import PROCESSOR

    flow = step.flow_of(flatten(concrete, device=PROCESSOR), of_processor)
    return dataflow.lives(flow)[0]


def child(chosen: list[tuple[str, Training]], steps: int) -> None:
    import keras
    import tensorflow as tf

    from client_plugin.prediction import bfc_allocator
    from client_plugin.prediction.tensorflow import step

    tf.config.threading.set_inter_op_parallelism_threads(1)
    for name, training in chosen:
        keras.backend.clear_session()
        gc.collect()
        # earlier models leave constants
        before = tf.config.experimental.get_memory_info("CPU:0")["current"]
        keras.mixed_precision.set_global_policy(training.precision)
        model = training.make()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(training.optimizer, loss, jit_compile=False)
        model.optimizer.build(model.trainable_variables)  # as `fit` does it
        data = tf.zeros((training.batch, *training.shape)), tf.zeros((training.batch,), tf.int32)
        train = tf.function(model.train_step)
        concrete = train.get_concrete_function(data)
        start_s = time.process_time()
        gpu = step.outcome_of(concrete)["allocated_peak_bytes"]
        seconds = time.process_time() - start_s
        guess = bfc_allocator.replay(storages(concrete)).allocated_peak_bytes
        peak = peak_bytes(functools.partial(train, data), steps) - before
        print(json.dumps([name, peak, guess, gpu, seconds]), flush=True)
        del model, train, concrete, data


class Measured(NamedTuple):
    """One training: its peak, the forecast, that for a GPU, the time that the latter took."""

    name: str
    peak_bytes: int
    guess_bytes: int
    gpu_bytes: int
    seconds: float

    @property
    def surplus_percent(self) -> float:
        """After the margin that is filled in, without its part for the GPU's context."""
        filled_bytes = self.guess_bytes * (1000 + features.GRAPH_PER_MILLE) // 1000
        return 100 * (filled_bytes - self.peak_bytes) / self.peak_bytes

    @property
    def error_percent(self) -> float:
        return 100 * (self.guess_bytes - self.peak_bytes) / self.peak_bytes


def measured(is_held_out: bool, count: int, steps: int) -> list[Measured]:
    """In a process of its own, with TensorFlow's own allocator. Raises SystemExit."""
    variables = {**os.environ, "TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_ENABLE_ONEDNN_OPTS": "0",
                 "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}  # fmt: skip
    command = [sys.executable, "-W", "ignore", __file__, "--child", "--models", str(count),
               "--steps", str(steps), *(["--held-out"] if is_held_out else [])]  # fmt: skip
    done = subprocess.run(command, capture_output=True, check=False, env=variables)
    if done.returncode:
        sys.exit(done.stderr.decode())
    return [Measured(*json.loads(line)) for line in done.stdout.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=0, help="so many trainings; 0: all")
    parser.add_argument("--steps", type=int, default=STEPS, help="that are measured")
    parser.add_argument("--held-out", action="store_true", help="trainings that were not looked at")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parse(parser, models=2, steps=1)
    if options.child:
        child(rows(options.held_out, options.models), options.steps)
        return
    found = measured(options.held_out, options.models, options.steps)
    for row in found:
        peak, guess, gpu = (
            size / 2**20 for size in (row.peak_bytes, row.guess_bytes, row.gpu_bytes)
        )
        print(f"{row.name:28} {peak:8.1f} MiB {guess:8.1f} MiB {row.error_percent:7.1f} %"
              f" {gpu:8.1f} MiB {row.seconds:6.2f} s")  # fmt: skip
    errors, spent = [row.error_percent for row in found], [row.seconds for row in found]
    within = 100 * sum(abs(error) <= GOAL_TAIL for error in errors) / len(errors)
    below = 100 * sum(error < -GOAL_TAIL for error in errors) / len(errors)
    print(f"{len(errors)} trainings: median error {statistics.median(map(abs, errors)):.1f} %, "
          f"within {GOAL_TAIL:.0f} %: {within:.0f} %, more below: {below:.0f} %, "
          f"median {statistics.median(spent):.1f} s")  # fmt: skip
    with_margin = [row.surplus_percent for row in found]
    low, surplus = sum(one < 0 for one in with_margin), statistics.median(with_margin)
    print(f"with the manager's margin: {low} too low, median surplus {surplus:.0f} %")
    against_target("median error", statistics.median(map(abs, errors)), GOAL_MEDIAN, "%")
    at_least(f"within {GOAL_TAIL:.0f} %", within, GOAL_WITHIN, "%")
    against_target("too low after the margin", 100 * low / len(found), GOAL_LOW, "%")
    against_target("median surplus", surplus, GOAL_SURPLUS, "%")
    finish(options)


if __name__ == "__main__":
    main()
