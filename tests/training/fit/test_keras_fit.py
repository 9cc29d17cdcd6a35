"""`run.fit`: Keras's fit by the steps of a run, on one worker and on workers that come and go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training import kills, programs
from tests.training import tensorflow_programs as own
from tests.training.agent import HOLD, Agent
from tests.training.pooled import WorkerPool, pool
from tests.training.tensorflow_programs import keras, tf
from tests.training.test_resizes import joiners

__all__ = ["pool"]
pytestmark = pytest.mark.frameworks

EPOCHS, EPOCH_STEPS = 5, programs.SAMPLES // programs.BATCH
CLOSE = 1e-5
Arguments = dict[str, Any]


def batches(samples: int = programs.SAMPLES, batch: int = programs.BATCH) -> Any:
    """Global batches in a seeded order, which is another one in each epoch."""
    inputs, classes, _ = own.data()
    tf.random.set_seed(5)
    whole = tf.data.Dataset.from_tensor_slices((inputs[:samples], classes[:samples]))
    return whole.shuffle(samples, seed=3).batch(batch, drop_remainder=True)


def begun(model: Any, dataset: Any = None, **options: Any) -> Any:
    dataset = batches() if dataset is None else dataset
    options = {"global_batch": programs.BATCH, "max_per_gpu": 16, "epochs": EPOCHS, **options}
    return programs.client().elastic(model, model.optimizer, dataset, **options)


def close(found: dict[str, list[float]], expected: dict[str, list[float]]) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, abs=CLOSE), name


class Interrupt(Exception):
    """The end of a training before its end."""


def judged() -> Arguments:
    """Callbacks with a state, and a validation for them."""
    plateau = keras.callbacks.ReduceLROnPlateau("val_loss", 0.3, 1, min_delta=0.5)
    return {"callbacks": [plateau], "validation_data": own.data()[:2], "verbose": 0}


@pytest.mark.parametrize("at_once", [1, 4])
def test_it_has_the_results_of_a_plain_fit(at_once: int) -> None:
    """In pieces of 16 samples, each epoch in another order; 6 steps are no whole turns of 4."""
    plain, model = compiled(), compiled(steps_per_execution=at_once)
    expected = plain.fit(
        batches().repeat(), steps_per_epoch=EPOCH_STEPS, epochs=EPOCHS, **judged()
    ).history
    with begun(model) as run:
        history = run.fit(**judged()).history
    close(history, expected)
    assert run.step == EPOCHS * EPOCH_STEPS
    assert model.optimizer.learning_rate.numpy() == plain.optimizer.learning_rate.numpy() < 0.03
    for mine, theirs in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=CLOSE)


def compiled(**options: Any) -> Any:
    """With a learning rate that callbacks may change."""
    model = own.compiled("adamw")
    model.compile(keras.optimizers.Adam(0.03), model.loss, metrics=["accuracy"], **options)
    return model


@pytest.mark.parametrize("ends", [EPOCH_STEPS + 2, 2 * EPOCH_STEPS])
def test_it_goes_on_from_a_checkpoint(tmp_path: Path, ends: int) -> None:
    """In the middle of an epoch, and after its last step: its end is made then."""
    path = str(tmp_path / "state")
    with begun(compiled()) as run:
        whole = run.fit(**judged()).history
    run = begun(compiled(), checkpoint=path, checkpoint_every_s=1e9)

    def end(_batch: int, logs: Any = None) -> None:
        if run.step == ends:
            run._checkpoints.final(run._snapshot)
            raise Interrupt

    options = judged()
    options["callbacks"].append(keras.callbacks.LambdaCallback(on_train_batch_end=end))
    with pytest.raises(Interrupt), run:
        run.fit(**options)
    with begun(compiled(), checkpoint=path) as run:
        rest = run.fit(**judged()).history
    close(rest, {name: values[1:] for name, values in whole.items()})


def test_early_stopping_ends_it() -> None:
    model = compiled()
    stopping = keras.callbacks.EarlyStopping(monitor="loss", min_delta=100.0)
    with begun(model) as run:
        history = run.fit(callbacks=[stopping], verbose=0).history
    assert (len(history["loss"]), run.step, run.is_over) == (2, 2 * EPOCH_STEPS, True)


def counted() -> tuple[Any, list[str]]:
    """A compiled model, and a word for each time that its step was traced."""
    traces: list[str] = []

    class Counted(keras.Model):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            traces.append("traced")
            return super().train_step(data)

    inputs = keras.Input((programs.FEATURES,))
    model = Counted(inputs, keras.layers.Dense(programs.CLASSES)(inputs))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model, traces


def test_the_step_is_traced_before_others_wait_where_fit_comes() -> None:
    model, traces = counted()
    elastic = programs.client().elastic  # the function that calls it is looked at
    with elastic(model, model.optimizer, batches(), global_batch=64, max_per_gpu=64) as run:
        assert traces
        run.fit(verbose=0)


def test_a_plain_loop_of_a_compiled_model_traces_no_step() -> None:
    model, traces = counted()
    elastic = programs.client().elastic  # the function that calls it is looked at
    with elastic(model, model.optimizer, batches(), global_batch=64, max_per_gpu=64) as run:
        for inputs, classes in run:
            with tf.GradientTape() as tape:
                loss = model.loss(classes, model(inputs, training=True))
            run.backward(loss, tape)
    assert traces == []


def test_what_cannot_be_fitted_is_one_line() -> None:
    model, optimizer = own.parts("sgd")
    with programs.client().elastic(
        model, optimizer, own.data()[:2], global_batch=64, max_per_gpu=64
    ) as run, pytest.raises(TypeError, match="without a compiled model of Keras"):  # fmt: skip
        run.fit()
    with begun(compiled()) as run, pytest.raises(TypeError, match=r"run\.fit has no epochs; it"):
        run.fit(epochs=3)
    for dataset, line in (
        (batches().repeat(), "no known number of batches"),
        (batches(batch=32), r"the shape \(32, 10\), and global_batch is 64; make it by batch\(64"),
        (batches().unbatch().batch(64), r"the shape \(None, 10\)"),
    ):
        with pytest.raises(ValueError, match=line):
            begun(compiled(), dataset)


def test_a_train_step_that_applies_gradients_twice_is_one_line() -> None:
    class Twice(keras.Model):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            super().train_step(data)
            return super().train_step(data)

    inputs = keras.Input((programs.FEATURES,))
    model = Twice(inputs, keras.layers.Dense(programs.CLASSES)(inputs))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with begun(model) as run, pytest.raises(TypeError, match="applies gradients 2 times"):
        run.fit(verbose=0)


def test_workers_that_read_other_batches_are_one_line() -> None:
    run = begun(compiled())
    with run:
        training = run._framework
        next(iter(run))
        [mine, *_] = training.extra()
        training.take_extra(np.array([*(2 * mine), 0, 0, 0, 0]))
        with pytest.raises(ValueError, match="different batches in one step; give the shuffle"):
            training.take_extra(np.array([1.0, mine[1] + 1, 0, 0, 0, 0]))


@pytest.mark.slow
@pytest.mark.xdist_group("tensorflow_resizes")
def test_workers_join_and_leave(tmp_path: Path, pool: WorkerPool) -> None:
    """1, 2, 3 and 1 workers, each change in the middle of an epoch."""
    steps, sizes = EPOCHS * EPOCH_STEPS, {2: 2, 9: 3, 20: 1}
    losses, numbers = pool.result(own.reference, "adamw", steps)
    with Agent(tmp_path, own.fit, "adamw", steps, context=pool, max_per_gpu=32) as agent:

        def change(report: dict[str, Any]) -> object:
            due = [step for step in sizes if step <= report["step"]]
            if report.get("done") or report["rank"] != 0 or not due or not agent.is_formed:
                return None
            size = sizes[due[0]]
            new = joiners(agent, max(0, size - len(agent.members)))
            if new is None:
                return HOLD
            del sizes[due[0]]
            agent.enter([*agent.members[:size], *new])
            return None

        agent.on_step = change
        agent.enter(agent.spawn(1))
        agent.until_all_ended()
    assert set(agent.gone.values()) == {0}
    steps_seen = [each for each in agent.reports if not each.get("done")]
    assert {each["step"] for each in steps_seen} == set(range(steps))
    assert {each["size"] for each in steps_seen} == {1, 2, 3}
    for each in steps_seen:
        assert each["loss"] == pytest.approx(losses[each["step"]], abs=CLOSE), each
    [done] = [each for each in agent.reports if each.get("done")]
    assert done["numbers"] == pytest.approx(numbers, rel=1e-4, abs=CLOSE)
    means = np.reshape(losses, (EPOCHS, EPOCH_STEPS)).mean(1)
    assert done["history"]["loss"] == pytest.approx(list(means), abs=CLOSE)


@pytest.mark.slow
@pytest.mark.xdist_group("tensorflow_resizes")
def test_kills_at_random_instants_repeat_at_most_one_step(tmp_path: Path, pool: WorkerPool) -> None:
    agent = kills.storm(tmp_path, 5, seed=2, program=own.fit, context=pool, max_per_gpu=64)
    steps = kills.judge(agent, 5, lambda kind, steps, _: pool.result(own.reference, kind, steps))
    assert steps > 5
