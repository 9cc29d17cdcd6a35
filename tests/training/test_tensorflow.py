"""Elastic training by TensorFlow: one device, workers that come and go, checkpoints."""

from __future__ import annotations

import contextlib
import multiprocessing
import resource
import socket
import sys
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

pytestmark = pytest.mark.frameworks

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


def said_once() -> set[str]:
    """The client's lines in this process: stderr may have been another test's when it began."""
    stderr = sys.modules.get("_nodemgr_client_plugin.stderr")
    return set() if stderr is None else {*stderr._said}


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_an_embedding_is_exact_or_one_line_says_that_it_is_not(name: str) -> None:
    """Keras's Adam squares each word's gradient by itself, where the words of a batch repeat."""
    before = said_once()
    words = np.random.default_rng(1).integers(0, 50, (programs.SAMPLES, 4))
    classes = words.sum(1) % programs.CLASSES
    plan = PLAN._replace(epochs=1)
    weights = []
    for is_plain in (True, False):
        own.keras.utils.set_random_seed(1)
        model = own.keras.Sequential([
            own.keras.Input((4,)), own.keras.layers.Embedding(50, 8), own.keras.layers.Flatten(),
            own.keras.layers.Dense(programs.CLASSES),
        ])  # fmt: skip
        optimizer = getattr(own.keras.optimizers, name)(0.01)
        options = {"global_batch": 64, "max_per_gpu": 16, "seed": programs.SEED, "epochs": 1}
        data = (words, classes)
        if is_plain:
            for step in range(plan.steps):
                samples = plan.samples_of(step)
                with tf.GradientTape() as tape:
                    loss = own.cost(model, words[samples], classes[samples])
                gradients = tape.gradient(loss, model.trainable_variables)
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        else:
            with programs.client().elastic(model, optimizer, data, **options) as run:
                for inputs, expected in run:
                    with tf.GradientTape() as tape:
                        loss = own.cost(model, inputs, expected)
                    run.backward(loss, tape)
        weights.append(model.get_weights())
    is_exact = bool(np.abs(weights[0][0] - weights[1][0]).max() < CLOSE)
    assert is_exact is (name == "SGD")
    said = said_once() - before
    assert len(said) == (0 if is_exact else 1), said
    assert all("Adam gets one summed gradient of" in line for line in said)


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


def test_a_layer_that_is_frozen_inside_the_block_does_not_change() -> None:
    run, model = begun("adamw", max_per_gpu=32)
    kept: Any = None
    with run:
        for inputs, classes, _ in run:
            if run.step == 3:
                model.layers[0].trainable = False
                kept = kept or [np.array(each) for each in model.layers[0].get_weights()]
            with tf.GradientTape() as tape:
                loss = own.cost(model, inputs, classes)
            run.backward(loss, tape)
    for before, after in zip(kept, model.layers[0].get_weights(), strict=True):
        assert np.array_equal(before, after)
    snapshot = run._snapshot()
    model.layers[0].trainable = True
    run._restore(snapshot)
    assert not model.layers[0].trainable
    assert model.layers[-1].trainable


def test_a_layer_that_becomes_trainable_inside_the_block_is_one_line() -> None:
    model, optimizer = own.parts("sgd")
    model.layers[0].trainable = False
    run = programs.client().elastic(model, optimizer, own.data(), global_batch=64, max_per_gpu=64)
    with run:
        inputs, classes, _ = next(iter(run))
        model.layers[0].trainable = True
        with tf.GradientTape() as tape:
            loss = own.cost(model, inputs, classes)
        with pytest.raises(ValueError, match="became trainable inside the block"):
            run.backward(loss, tape)


def test_a_model_without_variables_is_one_line() -> None:
    model = own.keras.Sequential([own.keras.layers.Dense(4)])
    run = programs.client().elastic(
        model, own.keras.optimizers.SGD(0.1), own.data(), global_batch=64, max_per_gpu=64
    )
    with pytest.raises(ValueError, match="has no variables to train yet"):
        run.__enter__()


def test_arrays_of_other_lengths_are_one_line() -> None:
    model, optimizer = own.parts("sgd")
    with pytest.raises(ValueError, match="the dataset have 8 and 9 samples"):
        programs.client().elastic(
            model, optimizer, (np.zeros(8), np.zeros(9)), global_batch=4, max_per_gpu=4
        )


def test_a_loss_of_each_sample_is_one_line() -> None:
    run, model = begun()
    with run:
        inputs, classes, _ = next(iter(run))
        with tf.GradientTape() as tape:
            logits = model(inputs, training=True)
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits(classes, logits)
        with pytest.raises(ValueError, match=r"a tensor of shape \(64,\)"):
            run.backward(loss, tape)


def test_a_model_that_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    run, _ = begun()
    path = tmp_path / "model.keras"
    path.write_bytes(b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with run:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        try:
            with pytest.raises(OSError, match=r"^elastic: [^\n]* was not written"):
                run.save(path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["model.keras"]


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


def test_a_length_that_is_not_due_is_not_read() -> None:
    from client_plugin.training.channel import GenerationMembers
    from client_plugin.training.tensorflow.socket_group import SocketGroup

    group = SocketGroup(GenerationMembers(1, [5, 6], ""), 1, None)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        group._peers[0] = ours
        theirs.sendall((2**60).to_bytes(8, "big"))
        with pytest.raises(
            ConnectionAbortedError, match="worker 0 sends 1152921504606846976 bytes"
        ):
            group._read(0, 4_000)


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
