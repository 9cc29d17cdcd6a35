"""Training throughput on a real GPU, with the shim and without, in turn.

The models are a small transformer and a small CNN.

    python bench/gpu_training.py [--rounds 5] [--seconds 8]

Prints a table of steps per second (median of the rounds) and the ratio, and NVML's figure for the
process against the ledger's. Needs the CUDA build of PyTorch; changes no setting of the GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from arguments import parse

ROOT = Path(__file__).resolve().parent.parent

TRAINING = """
import json, sys, time
import torch
from torch import nn

kind, seconds = sys.argv[1], float(sys.argv[2])
torch.manual_seed(0)
if kind == "transformer":
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, device="cuda")
    model = nn.TransformerEncoder(layer, 4)
    batch, labels = torch.randn(16, 256, 512, device="cuda"), None
else:
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(),
        nn.Conv2d(64, 128, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(128, 256, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10),
    ).cuda()
    batch = torch.randn(128, 3, 64, 64, device="cuda")
    labels = torch.randint(10, (128,), device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

def step():
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        out = model(batch)
        loss = out.square().mean() if labels is None else nn.functional.cross_entropy(out, labels)
    loss.backward()
    optimizer.step()

for _ in range(20):
    step()
torch.cuda.synchronize()
start, steps = time.perf_counter(), 0
while time.perf_counter() - start < seconds:
    for _ in range(10):
        step()
    torch.cuda.synchronize()
    steps += 10
elapsed = time.perf_counter() - start
reserved = torch.cuda.memory_reserved()
print(json.dumps({"steps_per_second": steps / elapsed, "reserved": reserved}), flush=True)
sys.stdin.readline()
"""


def nodemgr(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "nodemgr", *arguments]


def driver_bytes(pid: int) -> int:
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    return sum(
        p.usedGpuMemory or 0
        for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        if p.pid == pid
    )


class Node:
    """A private manager on this machine's GPUs."""

    def __init__(self, directory: Path) -> None:
        self.environment = {
            **os.environ,
            "NODEMGR_RUN_DIR": str(directory / "run"),
            "NODEMGR_STATE_DIR": str(directory / "state"),
        }
        self.process = subprocess.Popen(
            nodemgr("serve"), cwd=ROOT, env=self.environment, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if "ready on" in line:
                break
        else:
            raise SystemExit("the manager did not start")
        self.run("quota", "set", "bench", "--gpus", "1")

    def run(self, *arguments: str) -> str:
        return subprocess.run(
            nodemgr(*arguments),
            cwd=ROOT,
            env=self.environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def missing_requirement() -> str | None:
    """The first requirement of a training that is not met here; None: all are met."""
    try:
        import torch
    except ImportError:
        return "there is no torch in this Python"
    return None if torch.cuda.is_available() else "torch finds no GPU here"


def train(node: Node, script: Path, kind: str, seconds: float, *, shim: bool) -> tuple[float, str]:
    """Steps per second, and the figures of driver and ledger at the end."""
    command = [sys.executable, str(script), kind, str(seconds)]
    if shim:
        command = nodemgr("run", "--env", "bench", "--", *command)
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=node.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    found = json.loads(process.stdout.readline())
    figures = ""
    if shim:
        time.sleep(2)  # one beat for the manager's reading of the driver
        gpu, *_ = json.loads(node.run("status", "--json"))["gpus"]
        figures = (
            f"NVML {driver_bytes(process.pid):,}, ledger {gpu['memory_used_bytes']:,}, torch"
            f" reserved {found['reserved']:,}"
        )
    process.communicate()
    return float(found["steps_per_second"]), figures


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8)
    options = parse(parser, rounds=1, seconds=1)
    if (lacking := missing_requirement()) is not None:
        print(f"skipped: {lacking}")
        return
    with tempfile.TemporaryDirectory(prefix="nmb", dir="/tmp") as directory:
        script = Path(directory) / "training.py"
        script.write_text(TRAINING)
        node = Node(Path(directory))
        try:
            print(f"{'model':<12} {'bare/s':>10} {'shim/s':>10} {'shim/bare':>10}")
            for kind in ("transformer", "cnn"):
                bare, shim, figures = [], [], ""
                for _ in range(options.rounds):
                    bare.append(train(node, script, kind, options.seconds, shim=False)[0])
                    speed, figures = train(node, script, kind, options.seconds, shim=True)
                    shim.append(speed)
                ratio = statistics.median(s / b for s, b in zip(shim, bare, strict=True))
                print(
                    f"{kind:<12} {statistics.median(bare):>10.2f} {statistics.median(shim):>10.2f}"
                    f" {ratio:>10.4f}   bytes: {figures}"
                )
        finally:
            node.close()


if __name__ == "__main__":
    main()
