"""Programs that leave the straight path: a right result, or one clear line."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client_plugin.training.plan import SamplePlan
from tests.training import programs
from tests.training.agent import Agent
from tests.training.programs import torch
from tests.training.test_pytorch import begun, finish

pytestmark = pytest.mark.frameworks

PLAN = SamplePlan(programs.SAMPLES, programs.BATCH, programs.MOST, 5, programs.SEED)
CLOSE = 1e-5


def raises_one_line(kind: type[BaseException], text: str) -> Any:
    return pytest.raises(kind, match=rf"^elastic: [^\n]*{text}[^\n]*$")


# -- the block --


def test_a_block_inside_another_is_refused() -> None:
    run, _ = begun()
    other, _ = begun()
    with run, raises_one_line(RuntimeError, "inside the block of another"):
        other.__enter__()
    with raises_one_line(RuntimeError, "was entered before"):
        run.__enter__()


def test_a_block_that_could_not_begin_is_in_nobodys_way(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"not a checkpoint")
    run, _ = begun(checkpoint=str(path))
    with raises_one_line(ValueError, "cannot be read"):
        run.__enter__()
    assert len(finish(*begun())) == 6


def test_two_blocks_one_after_the_other_train_one_model() -> None:
    losses, other = programs.plain("sgd", 6, PLAN._replace(seed=1))
    model, optimizer, scheduler = programs.parts("sgd")
    found = []
    for _ in range(2):
        run = programs.client().elastic(
            model, optimizer, programs.data(), global_batch=64, max_per_gpu=8, seed=1,
            scheduler=scheduler,
        )  # fmt: skip
        found.append(finish(run, model))
    assert found[0] == pytest.approx(losses, abs=CLOSE)
    assert found[1][-1] < found[0][0]
    assert programs.numbers_of(model) != programs.numbers_of(other)


# -- the loop --


@pytest.mark.parametrize("with_backward", [True, False])
def test_a_break_in_the_middle_of_a_step_makes_the_step_again(with_backward: bool) -> None:
    losses, _ = programs.plain("sgd", 6, PLAN)
    run, model = begun(max_per_gpu=16)
    found = []
    with run:
        for inputs, classes, _ in run:
            if with_backward:
                run.backward(programs.cost(model, inputs, classes))
            break
        samples: list[int] = []
        for inputs, classes, own in run:
            samples += own.tolist()
            before = run.step
            run.backward(programs.cost(model, inputs, classes))
            if run.step > before:
                assert samples == PLAN.samples_of(before)
                found.append(run.loss)
                samples = []
    assert found[0] == pytest.approx(losses[0], abs=CLOSE)
    assert len(found) == 6


def test_a_break_out_of_the_block_leaves_the_state_of_the_last_whole_step(tmp_path: Path) -> None:
    path = tmp_path / "state"
    options = {"kind": "noisy sgd", "virtual_workers": 4, "max_per_gpu": 16}
    run, model = begun(**options, checkpoint=str(path))
    with run:
        for inputs, classes, _ in run:
            run.backward(programs.cost(model, inputs, classes))
            if run.step == 2 and run._pieces and len(run._pieces) == 2:
                break
    assert torch.load(path, weights_only=True)["step"] == 2
    assert all(each.grad is None for each in model.parameters())
    whole = finish(*begun(**options))
    assert finish(*begun(**options, checkpoint=str(path))) == pytest.approx(whole[2:], abs=CLOSE)


def test_gradients_from_before_the_block_do_not_count() -> None:
    run, model = begun()
    inputs, classes, _ = programs.data()
    programs.cost(model, inputs, classes).backward()
    assert finish(run, model) == pytest.approx(finish(*begun()), abs=CLOSE)


def test_an_interrupt_leaves_a_model_that_trains_on() -> None:
    model, optimizer, _ = programs.parts("sgd")

    def begin() -> Any:
        return programs.client().elastic(
            model, optimizer, programs.data(), global_batch=64, max_per_gpu=16, seed=1
        )

    run = begin()
    with contextlib.suppress(KeyboardInterrupt), run:
        for inputs, classes, _ in run:
            run.backward(programs.cost(model, inputs, classes))
            if run.step == 1 and len(run._pieces) == 2:
                raise KeyboardInterrupt
    assert all(each.grad is None for each in model.parameters())
    assert len(finish(begin(), model)) == 6


class Broken:
    """A dataset that raises for one sample."""

    def __init__(self, error: type[Exception]) -> None:
        self._error = error

    def __len__(self) -> int:
        return 64

    def __getitem__(self, number: int) -> Any:
        if number == 7:
            raise self._error("sample 7 is broken")
        return torch.zeros(programs.FEATURES)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_the_dataset_reaches_the_program(workers: int) -> None:
    run, _ = begun(dataset=Broken(OSError), loader_workers=workers)
    with pytest.raises(OSError, match="sample 7 is broken"), run:
        next(iter(run))
    run, _ = begun(dataset=Broken(StopIteration), loader_workers=workers)
    with pytest.raises(RuntimeError, match="raised StopIteration for sample 7"), run:
        next(iter(run))


@pytest.mark.parametrize(
    ("loss", "found"),
    [
        (lambda loss: loss.item(), "float"),
        (lambda loss: torch.stack([loss, loss]), r"a tensor of shape \(2,\)"),
        (lambda loss: None, "NoneType"),
    ],
)
def test_a_loss_that_is_not_one_number_is_one_line(loss: Any, found: str) -> None:
    run, model = begun()
    with run:
        inputs, classes, _ = next(iter(run))
        with raises_one_line(ValueError, found):
            run.backward(loss(programs.cost(model, inputs, classes)))
        run.backward(programs.cost(model, inputs, classes).reshape(1))
        assert run.step == 1


# -- the model --


@pytest.mark.parametrize("kind", ["float64", "float16", "bfloat16"])
def test_models_of_other_precision_train(kind: str) -> None:
    run, model = begun(max_per_gpu=16)
    dtype = getattr(torch, kind)
    model.to(dtype)
    with run:
        for inputs, classes, _ in run:
            run.backward(programs.cost(model, inputs.to(dtype), classes))
    assert {each.dtype for each in model.parameters()} == {dtype}
    assert run.loss == pytest.approx(finish(*begun(max_per_gpu=16))[-1], abs=0.05)


def test_gradients_without_a_number_go_through() -> None:
    run, model = begun()
    with run:
        for inputs, classes, _ in run:
            run.backward(programs.cost(model, inputs * float("nan"), classes))
    assert run.step == 6
    assert run.loss != run.loss


def test_a_scaler_skips_the_same_steps_as_without_the_library() -> None:
    def scaled(step: int) -> float:
        return float("inf") if step in (1, 4) else 1.0

    model, optimizer, _ = programs.parts("sgd")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    inputs, classes, _ = programs.data()
    plan = PLAN._replace(epochs=1)
    for step in range(6):
        own = plan.samples_of(step)
        optimizer.zero_grad()
        cost = programs.cost(model, inputs[own], classes[own]) * scaled(step)
        scaler.scale(cost).backward()
        scaler.step(optimizer)
        scaler.update()
    mine, optimizer, _ = programs.parts("sgd")
    other = torch.amp.GradScaler("cpu", init_scale=1024.0)
    run = programs.client().elastic(
        mine, optimizer, programs.data(), global_batch=64, max_per_gpu=16, seed=programs.SEED,
        scaler=other,
    )  # fmt: skip
    with run:
        for inputs, classes, _ in run:
            run.backward(programs.cost(mine, inputs, classes) * scaled(run.step))
    assert other.get_scale() == scaler.get_scale() == 256.0
    assert programs.numbers_of(mine) == pytest.approx(programs.numbers_of(model), abs=CLOSE)


def test_shared_and_frozen_parameters() -> None:
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 4), "b": torch.nn.Linear(4, 4)})
    model["b"].weight = model["a"].weight
    model["b"].bias.requires_grad_(False)
    frozen = model["b"].bias.detach().clone()
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], 0.1)
    run = programs.client().elastic(
        model, optimizer, (torch.ones(8, 4),), global_batch=8, max_per_gpu=2, epochs=2
    )
    before = model["a"].weight.detach().clone()
    with run:
        for (inputs,) in run:
            run.backward(model["b"](model["a"](inputs)).square().mean())
    assert model["b"].weight is model["a"].weight
    assert not torch.equal(model["a"].weight, before)
    assert torch.equal(model["b"].bias, frozen)


def unfrozen(variables: dict[str, str], only: int = -1) -> None:
    """A worker whose first layer is trained from step 2 on, and frozen again from step 4 on."""
    import os

    os.environ.update(variables)
    reporter: Any = None
    if variables:
        from tests.training.agent import Reporter

        reporter = Reporter(variables)
    model, optimizer, _ = programs.parts("sgd")
    own = int(variables.get("NODEMGR_WORKER", "0"))
    lines, error = programs.lines_said(), ""
    try:
        with programs.client().elastic(
            model, optimizer, programs.data(), global_batch=64, max_per_gpu=16, seed=programs.SEED
        ) as run:
            for inputs, classes, _ in run:
                if only in (-1, own):
                    model[0].requires_grad_(2 <= run.step < 4)
                run.backward(programs.cost(model, inputs, classes))
    except RuntimeError as failed:
        error = str(failed)
    numbers = programs.numbers_of(model)
    if reporter is None:
        FOUND.append(numbers)
        return
    reporter.report(
        run, step=run.step, numbers=numbers, lines=lines, error=error, rank=1, done=True
    )


FOUND: list[Any] = []


def test_layers_may_be_frozen_and_trained_inside_the_block(tmp_path: Path) -> None:
    unfrozen({})
    with Agent(tmp_path, unfrozen) as agent:
        agent.enter(agent.spawn(2))
        agent.until_all_ended()
    for each in agent.reports:
        assert each["error"] == ""
        assert each["numbers"] == pytest.approx(FOUND[-1], abs=CLOSE)
    assert len(agent.reports) == 2


def test_layers_that_are_frozen_on_one_worker_alone_are_one_line(tmp_path: Path) -> None:
    with Agent(tmp_path, unfrozen, 1) as agent:
        agent.enter(agent.spawn(2))
        agent.until(lambda: len(agent.reports) == 2)
    for each in agent.reports:
        assert "requires_grad of the parameters differs between the workers" in each["error"]


def with_scaler(variables: dict[str, str]) -> None:
    programs.train(
        variables, "sgd", 6, virtual_workers=1, scaler=torch.amp.GradScaler("cpu", init_scale=64.0)
    )


def test_a_worker_without_samples_steps_its_scaler_too(tmp_path: Path) -> None:
    with Agent(tmp_path, with_scaler) as agent:
        agent.enter(agent.spawn(2))
        agent.until_all_ended()
    assert agent.gone == {0: 0, 1: 0}


# -- files --


@contextlib.contextmanager
def small_files() -> Iterator[None]:
    """A file may have 100 bytes; the output of pytest may be a file, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    run, _ = begun()
    path = tmp_path / "weights"
    path.write_bytes(b"old")
    with run, raises_one_line(OSError, "was not written"), small_files():
        run.save(path)
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["weights"]


def test_a_file_of_a_relative_path_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run, model = begun()
    with run:
        run.save("weights")
        run.save(Path("own"), {"a": 1})
    assert set(torch.load(tmp_path / "weights")) == set(model.state_dict())
    assert torch.load(tmp_path / "own") == {"a": 1}
