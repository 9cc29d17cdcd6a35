"""Elastic training by PyTorch on one device: results, bad input, checkpoints."""

from __future__ import annotations

import contextlib
import random
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_plugin.training.plan import SamplePlan
from tests.training import programs
from tests.training.agent import Agent
from tests.training.programs import torch

pytestmark = pytest.mark.frameworks

PLAN = SamplePlan(programs.SAMPLES, programs.BATCH, programs.MOST, 5, programs.SEED)
CLOSE = 1e-5


def begun(**options: Any) -> Any:
    """A run on one device, with its model."""
    model, optimizer, _ = programs.parts(options.pop("kind", "sgd"))
    options = {"global_batch": 64, "max_per_gpu": 64, "seed": programs.SEED, **options}
    dataset = options.pop("dataset", programs.data())
    return programs.client().elastic(model, optimizer, dataset, **options), model


def finish(run: Any, model: Any, most: int = 10**9) -> list[float]:
    """The losses of the steps that are left; a crash after `most` of them."""
    losses: list[float] = []
    with run, contextlib.suppress(Crash):
        for inputs, classes, _ in run:
            before = run.step
            run.backward(programs.cost(model, inputs, classes))
            losses += [run.loss] if run.step > before else []
            if len(losses) == most:
                raise Crash
    return losses


class Crash(Exception):
    """The end of a training before its end."""


# -- results --


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_accumulation_has_the_results_of_the_whole_batch(kind: str) -> None:
    losses, model = programs.plain(kind, 12, PLAN)
    own, other, run = programs.train({}, kind, 12)
    assert own == pytest.approx(losses, abs=CLOSE)
    assert programs.numbers_of(other) == pytest.approx(programs.numbers_of(model), abs=CLOSE)
    assert (run.rank, run.size, run.is_main) == (0, 1, True)


def test_epochs_are_separate_and_whole() -> None:
    run, model = begun(epochs=3)
    seen = []
    with run:
        for epoch in run.epochs():
            for inputs, classes, own in run:
                seen.append((epoch, own.tolist()))
                run.backward(programs.cost(model, inputs, classes))
    assert [epoch for epoch, _ in seen] == [0] * 6 + [1] * 6 + [2] * 6
    plan = PLAN._replace(epochs=3)
    assert [samples for _, samples in seen] == [plan.samples_of(step) for step in range(18)]


class Noisy:
    """A dataset with augmentation."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, number: int) -> Any:
        return {"number": number, "noise": torch.rand(2), "more": random.random()}


@pytest.mark.parametrize("most", [16, 3])
def test_augmentation_does_not_depend_on_the_division(most: int) -> None:
    run, model = begun(dataset=Noisy(), global_batch=16, max_per_gpu=most)
    noise = {}
    with run:
        for batch in run:
            for number, *values in zip(
                batch["number"].tolist(),
                batch["noise"].tolist(),
                batch["more"].tolist(),
                strict=True,
            ):
                noise[run.step, number] = values
            run.backward(model(torch.zeros(1, programs.FEATURES)).sum() * 0)
    if most == 16:
        NOISE.update(noise)
    assert noise == (NOISE or noise)


NOISE: dict[Any, Any] = {}


def test_an_unused_parameter_gets_no_gradient_and_no_decay() -> None:
    model = torch.nn.ModuleDict({"used": torch.nn.Linear(4, 1), "other": torch.nn.Linear(4, 1)})
    before = model["other"].weight.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    data = (torch.randn(8, 4),)
    with programs.client().elastic(model, optimizer, data, global_batch=4, max_per_gpu=4) as run:
        for (inputs,) in run:
            run.backward(model["used"](inputs).mean())
    assert torch.equal(model["other"].weight, before)


def test_a_scaler_and_a_largest_norm() -> None:
    model, optimizer, _ = programs.parts("sgd")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    options = {"global_batch": 64, "max_per_gpu": 16, "seed": programs.SEED, "clip_norm": 0.5}
    run = programs.client().elastic(model, optimizer, programs.data(), scaler=scaler, **options)
    with_scaler = finish(run, model)
    model, optimizer, _ = programs.parts("sgd")
    run = programs.client().elastic(model, optimizer, programs.data(), **options)
    assert finish(run, model) == pytest.approx(with_scaler, abs=CLOSE)


# -- bad input --


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"global_batch": 401}, "the dataset has 400 samples, fewer than the global batch of 401"),
        ({"global_batch": 0}, "global_batch is 0; it must be a whole number above 0"),
        ({"max_per_gpu": 2.5}, "max_per_gpu is 2.5"),
        ({"epochs": -1}, "epochs is -1"),
        ({"epochs": True}, "epochs is True"),
        ({"virtual_workers": 65}, "65 virtual workers for a global batch of 64"),
        ({"virtual_workers": -1}, "-1 virtual workers for"),
        ({"virtual_workers": "4"}, "virtual_workers is '4'"),
    ],
)
def test_wrong_numbers_are_refused_in_one_line(options: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match="elastic: ") as refused:
        begun(**options)
    assert line.partition(";")[0] in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_dataset_without_samples_by_index_is_refused() -> None:
    with pytest.raises(TypeError, match="a generator has no length"):
        begun(dataset=(number for number in range(9)))
    with pytest.raises(TypeError, match="a set has no length or no samples by index"):
        begun(dataset={1, 2})


def test_a_thing_that_is_no_model_is_refused() -> None:
    with pytest.raises(TypeError, match="int is no model"):
        programs.client().elastic(3, None, [], global_batch=1, max_per_gpu=1)


def test_a_loop_in_the_wrong_order_is_refused() -> None:
    run, _ = begun()
    with pytest.raises(RuntimeError, match="outside of its block"):
        next(iter(run))
    with run:
        with pytest.raises(RuntimeError, match="without a batch of the loop"):
            run.backward(torch.zeros(()))
        batches = iter(run)
        next(batches)
        with pytest.raises(RuntimeError, match="asked for the next batch before"):
            next(batches)


def test_a_sparse_gradient_is_refused() -> None:
    model = torch.nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = (torch.arange(4),)
    run = programs.client().elastic(model, optimizer, data, global_batch=4, max_per_gpu=4)
    with run:
        [numbers] = next(iter(run))
        with pytest.raises(ValueError, match="the gradient of weight is sparse"):
            run.backward(model(numbers).sum())


def test_layers_that_depend_on_the_division_are_named() -> None:
    lines = programs.lines_said()
    programs.client()._module("stderr")._said.clear()
    begun(kind="noisy sgd")
    assert [line for line in lines if "BatchNorm1d, Dropout depend on how" in line]


def test_parameters_that_differ_are_found_at_the_join(tmp_path: Path) -> None:
    with Agent(tmp_path, programs.train, "sgd", 6, differ=True) as agent:
        agent.enter(agent.spawn(2))
        agent.until_all_ended()
    losses, _ = programs.plain("sgd", 6, PLAN)
    done = {each["worker"]: each for each in agent.reports if each.get("done")}
    assert not [line for line in done[0]["lines"] if "differed" in line]
    assert [line for line in done[1]["lines"] if "worker 1 differed from those of worker 0" in line]
    own = [each["loss"] for each in agent.reports if each["worker"] == 1 and not each.get("done")]
    assert own == pytest.approx(losses, abs=CLOSE)


# -- checkpoints --


def test_a_training_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "state"
    whole = finish(*begun(kind="noisy adamw", epochs=3, virtual_workers=4))
    options = {"kind": "noisy adamw", "epochs": 3, "virtual_workers": 4, "checkpoint": str(path)}
    assert finish(*begun(**options, checkpoint_every_s=0.0), 7) == pytest.approx(whole[:7])
    step = torch.load(path, weights_only=True)["step"]
    assert 1 <= step <= 7
    lines = programs.lines_said()
    torch.manual_seed(99)
    assert finish(*begun(**options)) == pytest.approx(whole[step:], abs=CLOSE)
    assert [line for line in lines if f"goes on from {path} at step {step} of 18" in line]
    assert finish(*begun(**options)) == []
    assert {each.name for each in tmp_path.iterdir()} == {"state", "state.before"}


def test_checkpoints_are_written_in_the_background(tmp_path: Path) -> None:
    path = tmp_path / "state"
    run, model = begun(epochs=2, checkpoint=str(path), checkpoint_every_s=0.0)
    with run:
        for inputs, classes, _ in run:
            run.backward(programs.cost(model, inputs, classes))
            if run.step == 5:
                run._checkpoints.settle()
                written = torch.load(path, weights_only=True)["step"]
                assert 1 <= written <= 5
    assert torch.load(path, weights_only=True)["step"] == 12


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "state"
    finish(*begun(checkpoint=str(path), checkpoint_every_s=0.0), 2)
    step = torch.load(path, weights_only=True)["step"]
    old = path.read_bytes()
    lines = programs.lines_said()
    programs.client()._module("stderr")._said.clear()
    run, model = begun(checkpoint=str(path), checkpoint_every_s=0.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(old) // 2, hard))
    try:
        losses = finish(run, model)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(losses) == 6 - step
    assert path.read_bytes() == old
    assert {each.name for each in tmp_path.iterdir()} == {"state", "state.before"}
    assert len([line for line in lines if "no checkpoint at" in line]) == 1


@pytest.mark.parametrize("contents", [b"", b"not a checkpoint", b"PK\x03\x04broken"])
def test_an_unreadable_checkpoint_is_refused_in_one_line(tmp_path: Path, contents: bytes) -> None:
    path = tmp_path / "state"
    path.write_bytes(contents)
    run, _ = begun(checkpoint=str(path))
    with pytest.raises(ValueError, match="cannot be read") as refused:
        run.__enter__()
    assert "\n" not in str(refused.value)


def cut(contents: bytes) -> bytes:
    return contents[: len(contents) // 2]


def one_byte(contents: bytes) -> bytes:
    """Of a weight; torch.load reads such a file without a word."""
    place = contents.index(b"data/0") + 100
    return contents[:place] + bytes([contents[place] ^ 1]) + contents[place + 1 :]


@pytest.mark.parametrize("damage", [cut, one_byte, lambda contents: b""])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "state"
    options: dict[str, Any] = {"checkpoint": str(path), "checkpoint_every_s": 0.0}
    whole = finish(*begun(epochs=3))
    run, model = begun(epochs=3, **options)
    with run:
        for inputs, classes, _ in run:
            run.backward(programs.cost(model, inputs, classes))
            run._checkpoints.settle()  # each step is written
            if run.step == 8:
                break
    path.write_bytes(damage(path.read_bytes()))
    lines = programs.lines_said()
    assert finish(*begun(epochs=3, **options)) == pytest.approx(whole[8:], abs=CLOSE)
    assert "the one before it" in lines[0]
    assert "at step 8 of 18" in lines[1]
    assert not any("cannot be read" in line for line in lines[1:])


def test_a_directory_without_second_names_keeps_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: str) -> None:
        raise PermissionError

    monkeypatch.setattr("os.link", refuse)
    path = tmp_path / "state"
    finish(*begun(checkpoint=str(path)))
    first = path.read_bytes()
    finish(*begun(epochs=2, checkpoint=str(path)))
    assert (tmp_path / "state.before").read_bytes() == first


def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    finish(*begun(checkpoint=str(path)))
    run, _ = begun(checkpoint=str(path), seed=4)
    with pytest.raises(ValueError, match="belongs to another model"):
        run.__enter__()


def test_files_of_the_program_are_renamed_into_place(tmp_path: Path) -> None:
    run, model = begun()
    with run:
        run.save(str(tmp_path / "weights"))
        run.save(str(tmp_path / "own"), {"a": 1})
    assert set(torch.load(tmp_path / "weights")) == set(model.state_dict())
    assert torch.load(tmp_path / "own") == {"a": 1}
