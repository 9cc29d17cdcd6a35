"""The training of the series by PyTorch and gloo: `with_gloo.py CHECKPOINT LINES`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.elastic.kills import problem
from tests.elastic.kills.worker import StepLines


class Momentum:
    """Descent with momentum in the form of an optimizer.

    The first optimizer of torch.optim in a process imports for 2 s of processor time.
    """

    def __init__(self, model: Any) -> None:
        self.param_groups = [{"params": list(model.parameters())}]
        self._speeds = [torch.zeros_like(each) for each in model.parameters()]

    def step(self) -> None:
        with torch.no_grad():
            for parameter, speed in zip(self.param_groups[0]["params"], self._speeds, strict=True):
                speed.mul_(problem.MOMENTUM).add_(parameter.grad)
                parameter.sub_(speed, alpha=problem.RATE)

    def state_dict(self) -> dict[str, Any]:
        return {"speeds": self._speeds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._speeds = [each.clone() for each in state["speeds"]]


def main() -> None:
    from nodemgr_client import elastic

    lines = StepLines(sys.argv[2])
    torch.set_num_threads(1)
    model = torch.nn.Linear(problem.FEATURES, 1, bias=False, dtype=torch.float64)
    torch.nn.init.zeros_(model.weight)
    data = tuple(torch.from_numpy(each) for each in problem.data())
    sizes = {"global_batch": problem.BATCH, "max_per_gpu": problem.MOST, "epochs": problem.EPOCHS}
    kept = {"checkpoint": sys.argv[1], "checkpoint_every_s": problem.CHECKPOINT_S}
    own = {"device": "cpu", "seed": problem.SEED}  # the GPUs are simulated
    with elastic(model, Momentum(model), data, **own, **sizes, **kept) as run:
        lines.use_gpu()
        for inputs, targets in run:
            step, rank, size = run.step, run.rank, run.size
            run.backward(torch.nn.functional.mse_loss(model(inputs).squeeze(1), targets))
            if run.step > step:
                lines.write(run, step, rank, size)


if __name__ == "__main__":
    main()
