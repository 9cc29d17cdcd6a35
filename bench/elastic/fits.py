"""Keras's fit that grows from 1 GPU to 2 and shrinks again, beside the same fit in one process.

    python bench/elastic/fits.py [--models dense,conv,lstm] [--packages keras,tf_keras]
        [--json FILE]

TensorFlow on the processor, GPUs of the simulator, a real manager and leader. The largest
difference of the epochs' losses, of the other figures of the History and of the weights is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from managed import TRAININGS, ManagedTask

from arguments import parse
from node import finish, miss

MODELS, PACKAGES = ("dense", "conv", "lstm"), ("keras", "tf_keras")
END_S = 900.0
"""The longest time of a training on a busy machine."""
BEFORE = 10
"""The steps before the first change."""
FAR = 1e-5
"""The largest difference of a loss."""


def main() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--packages", default=",".join(PACKAGES))
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parse(parser, models="dense", packages="keras")
    found: dict[str, dict[str, Any]] = {}
    for package in options.packages.split(","):
        for model in options.models.split(","):
            found[f"{package}, {model}"] = compared(package, model)
            print(f"{package}, {model}:", json.dumps(found[f"{package}, {model}"]), flush=True)
            if options.json is not None:
                options.json.write_text(json.dumps(found, indent=1) + "\n")
    print(f"load of the machine: {os.getloadavg()[0]:.0f}, {os.cpu_count()} cores")
    for name, each in found.items():
        if not each["loss"] <= FAR:  # NaN, too
            miss(f"ABOVE the target: {name}: a loss, {each['loss']:.1e}, at most {FAR:g}")
    return options


def compared(package: str, model: str) -> dict[str, Any]:
    """The differences between the elastic fit and the plain one."""
    task = ManagedTask("fit.py", words=(model, package, "{}/elastic.npz"))
    steps, directory = task.steps, task.node.directory
    try:
        for _ in range(2):
            task.take()
        task.start()
        while steps.await_size(1, time.monotonic()).step < BEFORE:
            continue
        freed_s = task.free(1)
        grown = steps.await_size(2, freed_s)
        asked_s = task.take()
        shrunk = steps.await_size(1, asked_s)
        assert task.leader is not None
        if task.leader.wait(END_S):
            raise SystemExit(task.log()[-3_000:])
        plain = directory / "plain.npz"
        words = [str(directory / "unused"), "-", model, package, str(plain), "--plain"]
        subprocess.run([sys.executable, str(TRAININGS / "fit.py"), *words], check=True)
        with np.load(directory / "elastic.npz") as mine, np.load(plain) as theirs:
            far = {name: float(np.abs(mine[name] - theirs[name]).max()) for name in theirs}
            epochs = len(theirs["loss"])
    except SystemExit:
        print(task.log()[-3_000:], file=sys.stderr)
        raise
    finally:
        task.close()
    losses = max(far.pop("loss"), far.pop("val_loss"))
    weights = max(far.pop(name) for name in list(far) if name.startswith("weight"))
    return {
        "resizes": f"{grown.step}, {shrunk.step}", "epochs": epochs, "loss": losses,
        "others": max(far.values()), "weights": weights,
        "pause_s": round(steps.pause_s(freed_s, grown.at_s), 2),
    }  # fmt: skip


if __name__ == "__main__":
    finish(main())
