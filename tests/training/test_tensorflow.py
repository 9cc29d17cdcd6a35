"""Elastic training by TensorFlow: one device, workers that come and go, checkpoints."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_plugin.training.plan import SamplePlan
from client_plugin.training.tensorflow import arrays
from tests.training import programs
from tests.training import tensorflow_programs as own
from tests.training.agent import Agent
from tests.training.tensorflow_programs import tf

PLAN = SamplePlan(programs.SAMPLES, programs.BATCH, programs.MOST, 7, programs.SEED)
CLOSE = 1e-5
SPAWNED = multiprocessing.get_context("spawn")
"""A process with TensorFlow in it cannot be forked."""


class Crash(Exception):
    """The end of a training before its end."""


def begun(kind: str = "sgd", **options: Any) -> Any:
    model, optimizer = own.parts(kind)
    options = {"global_batch": 64, "max_per_gpu": 64, "seed": programs.SEED, **options}
    return programs.client().elastic(model, optimizer, own.data(), **options), model


def finish(run: Any, model: Any, most: int = 10**9) -> list[float]:
    losses: list[float] = []
    with run, contextlib.suppress(Crash):
        for inputs, classes, _ in run:
            before = run.step
            with tf.GradientTape() as tape:
                loss = own.cost(model, inputs, classes)
            run.backward(loss, tape)
            losses += [run.loss] if run.step > before else []
            if len(losses) == most:
                raise Crash
    return losses


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_accumulation_has_the_results_of_the_whole_batch(kind: str) -> None:
    losses, _ = own.train({}, kind, 12)
    assert losses == pytest.approx(own.plain(kind, 12, PLAN)[0], abs=CLOSE)


def test_random_numbers_and_batch_statistics_are_the_same_again() -> None:
    first, model = own.train({}, "noisy sgd", 4, max_per_gpu=16)
    second, other = own.train({}, "noisy sgd", 4, max_per_gpu=16)
    assert first == pytest.approx(second, abs=CLOSE)
    for mine, theirs in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=CLOSE)


def test_a_training_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "state"
    options = {"kind": "noisy adamw", "epochs": 1, "virtual_workers": 2}
    whole = finish(*begun(**options))
    finish(*begun(**options, checkpoint=str(path), checkpoint_every_s=0.0), 3)
    step = arrays.read(path)["step"]
    assert 1 <= step <= 3
    rest = finish(*begun(**options, checkpoint=str(path)))
    assert rest == pytest.approx(whole[step:], abs=CLOSE)


def test_a_backward_without_a_tape_is_refused() -> None:
    run, model = begun()
    with run:
        inputs, classes, _ = next(iter(run))
        with pytest.raises(TypeError, match="without the tape"):
            run.backward(own.cost(model, inputs, classes))


def test_the_model_is_saved_by_its_main_worker(tmp_path: Path) -> None:
    run, model = begun()
    with run:
        run.save(str(tmp_path / "model.keras"))
        run.save(str(tmp_path / "own"), {"a": np.arange(3)})
    assert len(own.keras.models.load_model(tmp_path / "model.keras").weights) == len(model.weights)
    assert arrays.read(tmp_path / "own")["a"].tolist() == [0, 1, 2]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model.keras", "own"]


@pytest.mark.slow
def test_workers_join_leave_and_are_killed(tmp_path: Path) -> None:
    with Agent(tmp_path, own.train, "noisy sgd", 12, max_per_gpu=16, context=SPAWNED) as agent:
        first, later = agent.spawn(2), agent.spawn(1)

        def change(report: dict[str, Any]) -> None:
            if report.get("done") or not agent.is_formed:
                return
            if report["step"] >= 1 and agent.generation == 1:
                agent.enter(first + later)
            elif report["step"] >= 3 and agent.generation == 2:
                agent.enter([*later, first[1]])
            elif report["step"] >= 6 and agent.generation == 3 and report["rank"] == 1:
                agent.kill(later[0])

        agent.on_step = change
        agent.enter(first)
        agent.until_all_ended()
    losses, _ = own.train({}, "noisy sgd", 12, max_per_gpu=16)
    assert agent.gone == {first[0]: 0, first[1]: 0, later[0]: -9}
    found = {each["step"]: each["loss"] for each in agent.reports}
    assert [found[step] for step in range(12)] == pytest.approx(losses, abs=CLOSE)


def test_a_group_of_sockets_adds_and_breaks(tmp_path: Path) -> None:
    """Three members on threads; one goes, and the others' sum fails instead of hanging."""
    from client_plugin.training.channel import GenerationMembers
    from client_plugin.training.tensorflow.socket_group import SocketGroup

    class Direct:
        def call(self, work: Any) -> Any:
            return work()

        def leave(self) -> None:
            pass

    membership = GenerationMembers(1, [5, 6, 7], str(tmp_path / "store"))
    given = np.random.default_rng(0).standard_normal((3, 1000)).astype(np.float32)
    found: dict[int, Any] = {}
    broken: list[int] = []

    def member(rank: int) -> None:
        direct: Any = Direct()
        group = SocketGroup(membership, rank, direct)
        sums = [group.sum(given[rank]), group.gather([rank, 2**53 + rank])]
        if rank == 1:
            group.send(2, {"a": np.arange(4), "b": [1, None]})
            group.close(True)
            found[rank] = sums
            return
        if rank == 2:
            sums.append(group.receive(1))
        found[rank] = sums
        try:
            group.sum(given[rank])
        except OSError:
            broken.append(rank)
            group.close(True)

    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank in range(3):
        assert found[rank][0].tobytes() == found[0][0].tobytes()
        np.testing.assert_allclose(found[rank][0], given.sum(0), atol=CLOSE)
        assert found[rank][1] == [[each, 2**53 + each] for each in range(3)]
    assert found[2][2]["a"].tolist() == [0, 1, 2, 3]
    assert found[2][2]["b"] == [1, None]
    assert sorted(broken) == [0, 2]
