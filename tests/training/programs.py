"""Programs of workers: small trainings by PyTorch, with the library and without it."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

from tests.support.installed import later

torch = later("torch")
ROOT = Path(__file__).resolve().parents[2]
SITE = str(ROOT / "sitecustomize")
SAMPLES, BATCH, MOST, SEED = 400, 64, 8, 7
FEATURES, CLASSES = 10, 4


def client() -> Any:
    if SITE not in sys.path:
        sys.path.insert(0, SITE)
    import nodemgr_client

    return nodemgr_client


def data() -> tuple[Any, Any, Any]:
    """Inputs, classes, and each sample's own index."""
    numbers = torch.Generator().manual_seed(3)
    inputs = torch.randn(SAMPLES, FEATURES, generator=numbers)
    weights = torch.randn(FEATURES, CLASSES, generator=numbers)
    return inputs, (inputs @ weights).argmax(1), torch.arange(SAMPLES)


def parts(kind: str, seed: int = 0) -> tuple[Any, Any, Any]:
    """A model, an optimizer and a scheduler.

    No bias stands before a BatchNorm: its gradient is rounding alone, which Adam makes large.
    """
    torch.manual_seed(seed)
    noisy = [torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3)] if "noisy" in kind else []
    model = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 16, bias=not noisy),
        *noisy,
        torch.nn.Tanh(),
        torch.nn.Linear(16, CLASSES),
    )
    if "adamw" in kind:
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.01)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=300)
    return model, optimizer, scheduler


def cost(model: Any, inputs: Any, classes: Any) -> Any:
    return torch.nn.functional.cross_entropy(model(inputs), classes)


def plain(kind: str, steps: int, plan: Any) -> tuple[list[float], Any]:
    """The same training without the library: each global batch at once, on one device."""
    model, optimizer, scheduler = parts(kind)
    inputs, classes, _ = data()
    losses = []
    for step in range(steps):
        samples = plan.samples_of(step)
        optimizer.zero_grad()
        loss = cost(model, inputs[samples], classes[samples])
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses, model


def epochs_of(steps: int) -> int:
    return -(-steps // (SAMPLES // BATCH))


def numbers_of(model: Any) -> list[float]:
    tensors = [*model.parameters(), *model.buffers()]
    return [float(tensor.detach().double().square().sum()) for tensor in tensors]


def lines_said() -> list[str]:
    """The lines that the library prints from now on, in place of stderr."""
    lines: list[str] = []
    client()._module("stderr").write = lines.append
    return lines


def train(variables: dict[str, str], kind: str, steps: int, **options: Any) -> Any:
    """One worker; without variables, the training on one device outside of an environment."""
    torch.set_num_threads(1)
    os.environ.update(variables)
    reporter: Any = None
    if variables:
        from tests.training.agent import Reporter

        reporter = Reporter(variables)
    lines = lines_said()
    own = int(variables.get("NODEMGR_WORKER", "0"))
    model_seed = own if options.pop("differ", False) else 0
    model, optimizer, scheduler = parts(kind, model_seed)
    options = {
        "virtual_workers": 4 if "noisy" in kind else 0, "scheduler": scheduler,
        "epochs": epochs_of(steps), "max_per_gpu": MOST, "seed": SEED, **options,
    }  # fmt: skip
    losses: list[float] = []
    with client().elastic(model, optimizer, data(), global_batch=BATCH, **options) as run:
        _loop(run, model, steps, reporter, losses)
    if reporter is not None:
        reporter.report(
            run, done=True, step=run.step, loss=run.loss, numbers=numbers_of(model),
            is_main=run.is_main, lines=lines,
        )  # fmt: skip
    return losses, model, run


def _loop(run: Any, model: Any, steps: int, reporter: Any, losses: list[float]) -> None:
    samples: list[int] = []
    for inputs, classes, own in run:
        before = run.step, run.rank, run.size
        samples += own.tolist()
        loss = cost(model, inputs, classes)
        if before[0] == steps - 1:
            run.stop()
        run.backward(loss)
        if run.step == before[0] + 1:
            losses.append(run.loss)
            if reporter is not None:
                answer = reporter.report(
                    run, step=before[0], rank=before[1], size=before[2], samples=samples,
                    loss=run.loss,
                )  # fmt: skip
                if answer == "stop":
                    run.stop()
            samples = []
        elif not run._pieces:
            samples = []


def example(variables: dict[str, str], name: str, *arguments: str) -> None:
    """A program of examples/ as a worker."""
    torch.set_num_threads(1)
    os.environ.update(variables)
    client()
    sys.argv = [name, *arguments]
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")


def load() -> None:
    """Import everything before workers are forked: a first optimizer imports much of PyTorch."""
    parts("adamw")
    client()._module("training.pytorch.entry")
