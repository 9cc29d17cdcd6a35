"""Forecasts of memory against peaks that were measured.

    python bench/forecast/memory.py [--trainings N] [--short]

Each training of bench/forecast/zoo.py makes two steps twice: really, on the processor, where
PyTorch's profiler reports each allocation and free of the processor's allocator; and on a fake GPU,
as `nodemgr predict` watches it. Compared is the peak of live bytes. Kernels of the processor keep
other buffers than those of a GPU (attention, convolutions), so an error of zero is not to be
expected. Needs torch.

- a row for each family: trainings, median and worst error in percent of the measured peak (above
  zero: too much was forecast), and the median time of a watched training without the imports.
- all: the same, and the part of all trainings within 15 %.

The caching allocator's segments on a real GPU are not measured here.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from arguments import parse
from node import against_target, at_least, finish

GOAL_MEDIAN, GOAL_TAIL, GOAL_WITHIN = 5.0, 15.0, 90.0


def measured(training: Any) -> int:
    """The peak of live bytes of the processor's allocator."""
    import torch
    import zoo

    gc.collect()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        zoo.train(training, "cpu")
    events = profile.profiler.kineto_results.events()
    live = peak = 0
    memory = [event for event in events if event.name() == "[memory]"]
    for event in sorted(memory, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def forecast(training: Any, hybrid: Any) -> int:
    import zoo

    from client_plugin.prediction.caching_allocator import replay
    from client_plugin.prediction.pytorch.recorder import Recorder

    gc.collect()
    hybrid.recorder = recorder = Recorder()
    zoo.train(training, "cuda")
    return replay(recorder.events).live_peak_bytes


def child(kind: str, count: int) -> None:
    """A line for each training: its name, peak and seconds."""
    import torch

    hybrid: Any = None
    if kind == "forecast":
        import torch._dynamo

        from client_plugin.prediction.pytorch import device, stubs
        from client_plugin.prediction.pytorch.hybrid import Hybrid
        from client_plugin.prediction.pytorch.recorder import Recorder

        hybrid = Hybrid(Recorder())
        device.install()
        stubs.install(hybrid, lambda name: None, lambda reason: sys.exit(str(reason)))
        hybrid.__enter__()
    torch.set_num_threads(1)
    for training in chosen(count):
        start_s = time.perf_counter()
        peak = measured(training) if hybrid is None else forecast(training, hybrid)
        seconds = time.perf_counter() - start_s
        print(json.dumps([training.name, training.family, peak, seconds]), flush=True)


def chosen(count: int) -> list[Any]:
    """So many, from all families."""
    import zoo

    known = list(zoo.trainings())
    return known[:: max(1, len(known) // count)][:count] if count else known


def rows_of(kind: str, count: int) -> list[list[Any]]:
    command = [sys.executable, "-W", "ignore", __file__, "--child", kind, "--trainings", str(count)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        sys.exit(done.stderr.decode())
    return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainings", type=int, default=0, help="so many; 0: all")
    parser.add_argument("--child", choices=("measured", "forecast"), help=argparse.SUPPRESS)
    options = parse(parser, trainings=2)
    if options.child:
        child(options.child, options.trainings)
        return
    truth, guesses = (rows_of(kind, options.trainings) for kind in ("measured", "forecast"))
    errors: dict[str, list[float]] = {}
    seconds: dict[str, list[float]] = {}
    for (name, family, peak, _), (_, _, guess, spent_s) in zip(truth, guesses, strict=True):
        error = 100 * (guess - peak) / peak
        for key in (family, "all"):
            errors.setdefault(key, []).append(error)
            seconds.setdefault(key, []).append(spent_s)
        if not options.short and abs(error) > GOAL_TAIL:
            print(f"  {name}: {peak / 2**20:.0f} MiB, forecast {guess / 2**20:.0f} MiB")
    everything = errors.pop("all")
    print(f"{'':12} trainings   median %    worst %   seconds")
    for key, found in [*errors.items(), ("all", everything)]:
        middle = statistics.median(map(abs, found))
        worst = max(found, key=abs)
        spent = statistics.median(seconds[key])
        print(f"{key:12} {len(found):9} {middle:10.1f} {worst:10.1f} {spent:9.1f}")
    within = 100 * sum(abs(error) <= GOAL_TAIL for error in everything) / len(everything)
    below = 100 * sum(error < -GOAL_TAIL for error in everything) / len(everything)
    print(f"within {GOAL_TAIL:.0f} %: {within:.0f} % of all; more below: {below:.0f} %")
    against_target("median error", statistics.median(map(abs, everything)), GOAL_MEDIAN, "%")
    at_least(f"within {GOAL_TAIL:.0f} %", within, GOAL_WITHIN, "% of all")
    finish(options)


if __name__ == "__main__":
    main()
