"""Forecasts for unmodified scripts, in the style of published examples.

    python bench/forecast/scripts.py [--only siamese,upscaling] [--short]

The scripts of bench/forecast/examples take a GPU where there is one. Each runs to its end on the
processor, where the peak of live bytes is measured (PyTorch's profiler; TensorFlow's own allocator
of GPUs), and `nodemgr predict` watches it. The forecast is of segments of a caching allocator, in
steps of 2 and 20 MiB, and of kernels of a GPU, so it is above the peak where a script is small. A
script of Keras is watched once more for this processor in place of a GPU, with the buffers of its
kernels (processor_kernels.py): that column is of the same graph as the peak. The tests run one of
the scripts, in the short form. Needs torch and tensorflow.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from arguments import parse
from node import against_target, finish

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = Path(__file__).resolve().parent / "examples"
MIB = 1 << 20
PYTORCH = ("language_model", "siamese", "graph_network")
KERAS = ("text_transformer", "digits_autoencoder", "upscaling")


def of_pytorch(script: Path) -> int:
    """The peak of live bytes of the processor's allocator."""
    import torch

    torch.set_num_threads(1)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        runpy.run_path(str(script), run_name="__main__")
    live = peak = 0
    events = profile.profiler.kineto_results.events()
    memory = [event for event in events if event.name() == "[memory]"]
    for event in sorted(memory, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def of_keras(script: Path) -> int:
    """The peak of TensorFlow's allocator, with its chunks."""
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(1)
    runpy.run_path(str(script), run_name="__main__")
    return int(tf.config.experimental.get_memory_info("CPU:0")["peak"])


def watch_for_processor(script: Path, directory: str) -> None:
    """Watch it as `predict` does, with this processor in place of a GPU; ends the process."""
    from processor_kernels import of_processor

    from client_plugin.prediction import bfc_allocator, graph_workspaces
    from client_plugin.prediction.tensorflow import rewriting, session, step

    changed: Any = step
    changed.flatten = partial(step.flatten, device=rewriting.PROCESSOR)
    graph_workspaces.of_gpu = of_processor
    bfc_allocator.needed = bfc_allocator.replay
    session.start(directory)
    runpy.run_path(str(script), run_name="__main__")


def for_processor(name: str) -> int:
    """The forecast's bytes for this processor. Raises SystemExit."""
    with tempfile.TemporaryDirectory() as directory:
        text = child(name, directory)
        for found in Path(directory).glob("*.tensorflow.json"):
            return int(json.loads(found.read_text())["allocated_peak_bytes"])
    sys.exit(text)


def child(name: str, directory: str = "") -> str:
    """The output of a process of its own. Raises SystemExit."""
    variables = {**os.environ, "TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_ENABLE_ONEDNN_OPTS": "0",
                 "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}  # fmt: skip
    command = [sys.executable, "-W", "ignore", __file__, "--child", name, "--watched", directory]
    done = subprocess.run(command, capture_output=True, text=True, env=variables)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def measured(name: str) -> int:
    """Of a process of its own. Raises SystemExit."""
    return int(child(name).splitlines()[-1])


def forecast(name: str) -> tuple[int | None, str]:
    """The bytes, or the reason why there are none."""
    command = [sys.executable, "-m", "nodemgr", "predict", "--json", "--limit", "3min", "--",
               sys.executable, str(EXAMPLES / f"{name}.py")]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        sys.exit(done.stderr)
    return answer["memory_bytes"], answer["reason"] or ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join((*PYTORCH, *KERAS)))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--watched", default="", help=argparse.SUPPRESS)
    options = parse(parser, only="siamese")
    if options.child:
        script = EXAMPLES / f"{options.child}.py"
        if options.watched:
            watch_for_processor(script, options.watched)
        print((of_pytorch if options.child in PYTORCH else of_keras)(script))
        return
    print(f"{'script':22}{'processor':>14}{'forecast':>14}{'ratio':>8}{'seconds':>9}"
          f"{'for this processor':>22}{'ratio':>8}")  # fmt: skip
    refused = 0
    for name in options.only.split(","):
        peak_bytes, begin = measured(name), time.monotonic()
        found, reason = forecast(name)
        seconds = time.monotonic() - begin
        if found is None:
            refused += 1
            print(f"{name:22}{peak_bytes / MIB:10.0f} MiB  none: {reason}", flush=True)
            continue
        print(f"{name:22}{peak_bytes / MIB:10.0f} MiB{found / MIB:10.0f} MiB"
              f"{found / peak_bytes:8.2f}{seconds:9.0f}", end="", flush=True)  # fmt: skip
        own_bytes = 0 if name in PYTORCH else for_processor(name)
        own = f"{own_bytes / MIB:18.0f} MiB{own_bytes / peak_bytes:8.2f}" if own_bytes else ""
        print(own, flush=True)
    print(f"load {os.getloadavg()[0]:.0f}")
    against_target("without a forecast", refused, 0, "scripts")
    finish(options)


if __name__ == "__main__":
    main()
