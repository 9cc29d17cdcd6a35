"""transformers, accelerate and Lightning as torchrun scripts with their own checkpoints.

    python bench/elastic/published.py [--only accelerate,lightning,transformers] [--json FILE]

Each is restarted from its checkpoint by `run --elastic --checkpoint`: from 1 GPU to 2, and back.
pip install accelerate lightning transformers; they are in no extra. Printed for each change: the
steps that are made again; the learning rate before and after; the samples of the epochs that are
taken twice, and those of the first epoch that are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import itertools

from managed import ManagedTask

from arguments import parse
from node import finish

KINDS = ("accelerate", "lightning", "transformers")
SAMPLES = 480
"""Of the scripts' datasets."""
BEFORE, BETWEEN = 45, 25
"""Steps before a change: a checkpoint is written each 20."""


def main() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parse(parser, only="accelerate")
    found = {}
    for kind in options.only.split(","):
        if importlib.util.find_spec(kind) is None:
            print(f"skipped: {kind} is not installed")
            continue
        found[kind] = changed(kind)
        print(f"{kind}:", json.dumps(found[kind]), flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(found, indent=1) + "\n")
    print(f"load of the machine: {os.getloadavg()[0]:.0f}, {os.cpu_count()} cores")
    return options


def changed(kind: str) -> dict[str, Any]:
    task = ManagedTask(f"with_{kind}.py", "--checkpoint", "{}")
    task.checkpoint.mkdir()
    lines = Path(f"{task.steps.path}.samples")
    try:
        for _ in range(2):
            task.take()
        task.start()
        first = _await_step(task, 1, BEFORE, 0.0)
        freed_s = task.free(1)
        grown = task.steps.await_size(2, freed_s)
        _await_step(task, 2, max(first, grown.step) + BETWEEN, freed_s)
        asked_s = task.take()
        shrunk = task.steps.await_size(1, asked_s)
        _await_step(task, 1, shrunk.step + BETWEEN, asked_s)
    except SystemExit:
        print(task.log()[-3_000:], file=sys.stderr)
        raise
    finally:
        made = [json.loads(line) for line in lines.read_text().splitlines()]
        task.close()
    return judged(made)


def _await_step(task: ManagedTask, size: int, step: int, since_s: float) -> int:
    while (found := task.steps.await_size(size, since_s)).step < step:
        since_s = time.monotonic()
    return found.step


def judged(made: list[dict[str, Any]]) -> dict[str, Any]:
    """`made`: each step of each worker, in the order of time."""
    rounds: list[list[dict[str, Any]]] = [[]]
    for each in made:
        if rounds[-1] and each["size"] != rounds[-1][-1]["size"]:
            rounds.append([])
        rounds[-1].append(each)
    again = [
        max(each["step"] for each in old) + 1 - min(each["step"] for each in new)
        for old, new in itertools.pairwise(rounds)
    ]
    rates = [(old[-1]["step"], old[-1]["rate"], new[0]["step"], new[0]["rate"])
             for old, new in itertools.pairwise(rounds)]  # fmt: skip
    kept: list[int] = []
    for number, each in enumerate(rounds):
        later = [one["step"] for other in rounds[number + 1 :] for one in other]
        first_later = min(later, default=10**9)
        for one in each:
            kept += one["samples"] if one["step"] < first_later else []
    epoch = Counter(kept[:SAMPLES])
    return {
        "steps made again": again, "step and rate before, after": rates,
        "samples taken": len(kept),
        "left out of the first 480 taken": SAMPLES - len(epoch),
        "taken twice of the first 480": sum(count - 1 for count in epoch.values()),
    }  # fmt: skip


if __name__ == "__main__":
    finish(main())
