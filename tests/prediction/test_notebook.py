"""`nodemgr_client.predict`: two steps of a notebook's own model, which stays as it is."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.limits import WAIT_LIMIT_S

pytestmark = pytest.mark.frameworks

ROOT = Path(__file__).resolve().parents[2]

NOTEBOOK = """
import copy, json, sys
sys.path.insert(0, sys.argv[1])
import torch, torch.nn as nn, nodemgr_client

class Net(nn.Module):  # of the notebook itself: no other process could import it
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
    def forward(self, inputs):
        return self.body(inputs)

net = Net()
optimizer = torch.optim.AdamW(net.parameters())
batch = torch.randn(64, 256), torch.randint(0, 10, (64,))
cost = nn.functional.cross_entropy
cost(net(batch[0]), batch[1]).backward()  # a notebook that was at work already
optimizer.step()
optimizer.zero_grad()
before = copy.deepcopy(net.state_dict())
answers = [
    nodemgr_client.predict(net, batch, optimizer, cost, steps=500),
    nodemgr_client.predict(net, batch[0]),
    nodemgr_client.predict(net, torch.randn(64, 255), optimizer),
]
assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
assert not torch.cuda.is_available() and net.body[0].weight.device.type == "cpu"
cost(net(batch[0]), batch[1]).backward()
print(json.dumps(answers))
"""


def test_a_model_of_a_notebook_has_a_prediction() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", NOTEBOOK, str(ROOT / "sitecustomize")],
        capture_output=True,
        text=True,
        timeout=WAIT_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    whole, bare, wrong = json.loads(done.stdout)
    elements = 257 * 512 + 513 * 10
    assert whole["features"]["framework"].split()[2] == "hybrid"
    assert whole["features"]["execution"] == {"batchsize": 64, "iteration": 500, "input": 256}
    assert whole["features"]["richer"]["parameters"] == elements
    assert whole["memory_bytes"] >= 4 * 4 * elements, "weights, gradients and two moments"
    assert whole["memory_bytes"] > bare["memory_bytes"] > 0
    assert (whole["reason"], bare["reason"]) == (None, None)
    assert (wrong["memory_bytes"], wrong["features"]) == (None, None)
    assert "a training step failed (RuntimeError: " in wrong["reason"]


WITHOUT_TORCH = """
import sys
sys.path.insert(0, sys.argv[1])
import nodemgr_client
print(nodemgr_client.predict(None, None))
"""


INTERRUPTED = """
import os, signal, sys, threading, time
sys.path.insert(0, sys.argv[1])
import torch, nodemgr_client

class Endless(torch.nn.Linear):
    def forward(self, inputs):
        os.write(int(sys.argv[2]), b"x")
        while True:
            time.sleep(1)

def end():
    os.read(int(sys.argv[3]), 1)
    os.kill(os.getpid(), int(sys.argv[4]))

threading.Thread(target=end, daemon=True).start()
try:
    nodemgr_client.predict(Endless(4, 4), torch.zeros(2, 4))
except KeyboardInterrupt:
    print(os.path.exists(f"/proc/self/task/{os.getpid()}/children")
        and open(f"/proc/self/task/{os.getpid()}/children").read().split())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_prediction_leaves_no_process(number: int) -> None:
    """The child has the writing end of `alive`: its end is that of the file."""
    reading, writing = os.pipe()
    alive, held = os.pipe()
    os.set_inheritable(held, True)
    words = [str(ROOT / "sitecustomize"), str(writing), str(reading), str(int(number))]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", INTERRUPTED, *words],
        stdout=subprocess.PIPE,
        timeout=WAIT_LIMIT_S,
        check=False,
        pass_fds=(reading, writing, held),
    )
    for descriptor in (reading, writing, held):
        os.close(descriptor)
    ready, _, _ = select.select([alive], [], [], WAIT_LIMIT_S)
    assert (ready, os.read(alive, 1)) == ([alive], b"")
    os.close(alive)
    if number == signal.SIGINT:
        assert (done.returncode, done.stdout) == (0, b"[]\n")


def test_without_a_framework_the_answer_is_a_reason() -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-c", WITHOUT_TORCH, str(ROOT / "sitecustomize")],
        capture_output=True,
        text=True,
        timeout=WAIT_LIMIT_S,
        check=False,
    )
    assert "no prediction, because PyTorch cannot be imported in this process (No module" in (
        done.stdout
    ), done.stderr


MANY = """
import sys
sys.path.insert(0, sys.argv[1])
import torch, nodemgr_client
model, batch = torch.nn.Linear(8, 8), torch.ones(2, 8)
answers = [nodemgr_client.predict(model, batch) for _ in range(8)]
print({one["features"]["framework"].split()[2] for one in answers})
"""


@pytest.mark.slow
def test_each_of_many_predictions_is_on_the_fake_gpu() -> None:
    """Threads of the backward pass raced for the pool after a fork: one of four was on `meta`."""
    command = [sys.executable, "-c", MANY, str(ROOT / "sitecustomize")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=True)
    assert ran.stdout.strip() == "{'hybrid'}"
