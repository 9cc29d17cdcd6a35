"""Progress: reports of the program, counted steps, and numbers that cannot be meant."""

from __future__ import annotations

import math
from typing import Any

import pytest

from client_plugin import progress

from .conftest import World

GOOD: dict[tuple[Any, Any], tuple[int, int]] = {
    (3.0, 10): (3, 10),
    (0, 1): (0, 1),
    (10, 10): (10, 10),
    (7, None): (7, 0),
    (None, 10): (0, 10),
    (0.25, 1.0): (250_000, 1_000_000),
    (2.5, None): (2, 0),
    (2**53, 2**53): (2**53, 2**53),
}
BAD: list[tuple[Any, Any]] = [
    (None, None),
    (-1, 10),
    (11, 10),
    (1, 0),
    (1, -5),
    (math.nan, 10),
    (1, math.nan),
    (math.inf, None),
    (1, math.inf),
    (1, 2**53 + 1),
    ("3", 10),
    ([3], 10),
    (3j, 10),
    (Ellipsis, 10),
]


@pytest.mark.parametrize("said", GOOD)
def test_numbers_that_are_meant(said: tuple[Any, Any]) -> None:
    assert progress.whole(*said) == GOOD[said]


@pytest.mark.parametrize("said", BAD, ids=repr)
def test_numbers_that_cannot_be_meant(said: tuple[Any, Any]) -> None:
    assert progress.whole(*said) is None


def reports(log: list[str]) -> list[str]:
    return [line for line in log if line.startswith("progress")]


def test_a_script_reports_and_a_wrong_report_is_named_once(world: World) -> None:
    child = world.run("""
        from nodemgr_progress import nodemgr_progress
        nodemgr_progress(1, 10)
        for done in (11, 11, 12, -1):
            nodemgr_progress(done, 10)
        nodemgr_progress(2, 10)
        """)
    assert reports(child.log) == ["progress 1 10", "progress 2 10"]
    assert child.stderr == (
        "nodemgr: nodemgr_progress(11, 10) is no progress and is ignored: pass numbers with 0 <="
        " done <= total and total above 0\n"
    )


@pytest.mark.parametrize("off", [{"NODEMGR_OFF": "1"}, {"NODEMGR_ENV_DIR": "/nonexistent"}])
def test_outside_an_environment_it_does_nothing(world: World, off: dict[str, str]) -> None:
    world.environ |= off
    child = world.run("""
        from nodemgr_progress import nodemgr_progress
        nodemgr_progress(1, 10)
        nodemgr_progress("x")
        """)
    assert (child.returncode, child.stderr, child.log) == (0, "", [])


LOADED = "import sys\nnext(f for f in sys.meta_path if hasattr(f, 'package')).package('progress')\n"


def test_counted_steps_go_out_four_times_a_second_at_most(world: World) -> None:
    child = world.run(
        LOADED + "from _nodemgr_client_plugin import progress\n"
        "clock = iter([0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.7])\n"
        "progress.time = type('Clock', (), {'monotonic': staticmethod(lambda: next(clock))})\n"
        "from nodemgr_progress import nodemgr_progress\n"
        "for _ in range(4): progress.step()\n"
        "nodemgr_progress(total=10)\n"
        "for _ in range(2): progress.step()\n"
        "nodemgr_progress(1, 2)\n"
        "progress.step()\n"
    )
    assert (child.returncode, child.stderr) == (0, "")
    assert reports(child.log) == [
        "progress 1 0",
        "progress 4 0",
        "progress 4 10",
        "progress 6 10",
        "progress 1 2",
    ], "the program's own report ends the counting"


@pytest.mark.frameworks
@pytest.mark.parametrize("wanted", ["by the environment", "by a forecast", None])
def test_steps_of_torch_are_counted_where_they_are_asked_for(
    world: World, wanted: str | None
) -> None:
    asked = {"progress": "1"} if wanted == "by the environment" else {}
    world.script["settings"] = {"gpus": "2", **asked}
    if wanted == "by a forecast":
        world.environ["NODEMGR_COUNT_STEPS"] = "1"
    child = world.run("""
        import torch
        weights = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weights], lr=0.1)
        from _nodemgr_client_plugin import progress
        progress.PERIOD_S = 0
        for _ in range(3):
            weights.sum().backward()
            optimizer.step()
        optimizers = __import__("sys").modules["torch.optim.optimizer"]
        print(len(optimizers._global_optimizer_post_hooks))
        """)
    assert (child.returncode, child.stdout) == (0, "1\n" if wanted else "0\n"), child.stderr
    assert reports(child.log) == (
        ["progress 1 0", "progress 2 0", "progress 3 0"] if wanted else []
    )


def test_batches_of_keras_are_counted_with_their_number(world: World, package: Any) -> None:
    package(
        "keras",
        """
        import torch
        class CallbackList:
            def __init__(self, **params): self.params = params
            def on_train_begin(self, logs=None): pass
            def on_train_end(self, logs=None): pass
            def on_epoch_begin(self, epoch, logs=None): pass
            def on_train_batch_end(self, batch, logs=None): return "kept"
        class callbacks: pass
        callbacks.CallbackList = CallbackList
        """,
    )
    package("torch", "")
    world.script["settings"] = {"gpus": "2", "progress": "1"}
    child = world.run("""
        import keras
        from _nodemgr_client_plugin import progress
        progress.PERIOD_S = 0
        fit = keras.callbacks.CallbackList(epochs=2, steps=5)
        fit.on_train_begin()
        for epoch in range(2):
            fit.on_epoch_begin(epoch)
            for batch in (1, 3, 4):
                assert fit.on_train_batch_end(batch, {}) == "kept"
        fit.on_train_end()
        """)
    assert (child.returncode, child.stderr) == (0, "")
    assert reports(child.log) == [f"progress {done} 10" for done in (2, 4, 5, 7, 9, 10)]


ENTERED = "import types; loop._entered.append(types.SimpleNamespace"


@pytest.mark.parametrize(
    ("variables", "begun", "line"),
    [
        ({"WORLD_SIZE": "1"}, "", "does not use more than the GPU of its worker"),
        ({"WORLD_SIZE": "3"}, "", "each of the 3 workers trains a model of its own"),
        ({"WORLD_SIZE": "3"}, f"{ENTERED}(is_fitting=False))", "trains on this worker alone"),
        ({"WORLD_SIZE": "3"}, f"{ENTERED}(is_fitting=True))", ""),
        ({"WORLD_SIZE": "3", "RANK": "1"}, "", ""),
        ({"WORLD_SIZE": "3"}, "Strategy.num_replicas_in_sync = 3", ""),
    ],
)
def test_a_fit_of_keras_in_an_elastic_task_is_one_line(
    world: World, package: Any, variables: dict[str, str], begun: str, line: str
) -> None:
    package(
        "keras",
        """
        import torch
        class Strategy: num_replicas_in_sync = 1
        class Model: distribute_strategy = Strategy
        class CallbackList:
            model = Model()
            def on_train_begin(self, logs=None): pass
        class callbacks: pass
        callbacks.CallbackList = CallbackList
        """,
    )
    package("torch", "")
    world.environ |= {"NODEMGR_ELASTIC": "/nonexistent", "RANK": "0", **variables}
    child = world.run(f"""
        import keras
        from keras import Strategy
        from _nodemgr_client_plugin.training import loop
        {begun or "pass"}
        keras.callbacks.CallbackList().on_train_begin()
        keras.callbacks.CallbackList().on_train_begin()
        """)
    assert child.returncode == 0, child.stderr
    assert child.stderr.count("model.fit") == child.stderr.count("\n") == bool(line)
    assert line in child.stderr


@pytest.mark.frameworks
@pytest.mark.slow
def test_batches_of_the_installed_keras_are_counted_with_their_number(world: World) -> None:
    world.script["settings"] = {"gpus": "2", "progress": "1"}
    world.environ["KERAS_BACKEND"] = "tensorflow"
    child = world.run("""
        import keras, numpy
        from _nodemgr_client_plugin import progress
        progress.PERIOD_S = 0
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(loss="mse", optimizer="sgd")
        model.fit(numpy.ones((12, 2)), numpy.ones(12), batch_size=4, epochs=2, verbose=0)
        """)
    assert child.returncode == 0, child.stderr
    assert reports(child.log) == [f"progress {done} 6" for done in range(1, 7)]
