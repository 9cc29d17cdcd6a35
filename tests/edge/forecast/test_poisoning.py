"""Nonsense of one environment, over the wire, and the forecasts of another: within bounds."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from client_plugin.ways.conversation import Conversation
from client_plugin.ways.faults import Fault
from nodemgr.core.forecast import features as feature_form
from nodemgr.core.forecast import learning, margins, prediction, samples
from nodemgr.core.forecast.features import Features, WorkRow
from nodemgr.core.model.values import replace
from nodemgr.core.sharing import progress
from nodemgr.edge.forecast import sample_recorder, trainer
from nodemgr.edge.forecast.trainer import Trainer
from tests.core.forecast.trainings import A100, GIB, features, sample
from tests.edge.forecast.priorities import AT_USUAL_PRIORITY
from tests.jobs.world import KINDS, World
from tests.session import TMP
from tests.support.limits import WAIT_LIMIT_S
from tests.support.local import FakeGpus
from tests.support.udp_clients import FakeClient

EVE, BOB = "alice", "bob"
HUGE = 2**53


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(sample_recorder, "PERIOD_S", 0.005)
    monkeypatch.setattr(progress, "LEAST_INTERVAL_NS", 1_000)
    gpus = FakeGpus(1)
    gpus.gpus[0] = replace(gpus.gpus[0], name=A100)
    with tempfile.TemporaryDirectory(prefix="nm", dir=TMP) as name:
        made = World(Path(name), KINDS[0], gpus=gpus)
        yield made
        made.close()


def order(world: World, env: str, verb: str, **arguments: Any) -> dict[str, Any]:
    with Conversation(world.manager.env_dir(env) / "socket", WAIT_LIMIT_S) as talk:
        _, (sheet,) = talk.ask("sheet")
        os.pwrite(sheet, json.dumps({"verb": verb, "args": arguments}).encode(), 0)
        os.close(sheet)
        return dict(talk.ask("order")[0])


def forecast(world: World, env: str, found: Features) -> dict[str, Any]:
    answer = order(world, env, "forecast", features=feature_form.packed(found))
    (row,) = answer["models"]
    return dict(row)


def submitted(world: World, env: str, found: Features) -> dict[str, Any]:
    """The job as its user sees it."""
    given = {"argv": ["true"], "cwd": "/", "environ": [], "key": os.urandom(16).hex(), "hold": True}
    answer = order(world, env, "job_submit", gpus=1, features=feature_form.packed(found), **given)
    (job,) = order(world, env, "job_show", job=answer["job"])["jobs"]
    return dict(job)


def training(size: int) -> Features:
    return features(
        iteration=1_000_000,
        graph=(100 * size, 0, 0, 0, 4_200 * size, 0, 0, 100, 0, 0, 0),
        work=(WorkRow("float32", 6, 10**10 * size, 10**9 * size, 100),),
        peak_bytes=size * GIB,
    )


ABSURD = {
    "1e9 steps a second": [0, 10**9, 2 * 10**9],
    "the most at once": [0, HUGE],
    "one step over and over": [7, 7, 7],
    "up and down": [0, HUGE, 3, HUGE, 5, 40],
    "a few steps": [0, 20],
}
NO_NUMBERS = ["-1", "nan", "inf", "1e9", "1e308", "0x10", "", " 7", "9" * 400, str(2**64), "7\0"]


def claims(world: World, client: FakeClient, found: Features, steps: list[int]) -> None:
    """One sample's life: the features are announced, the steps reported, each seen by a reading."""
    recorder = world.manager.service.daemon.recorder
    order(world, EVE, "forecast", features=feature_form.packed(found), token=client.token)
    for done in steps:
        client.send("PROGRESS", task=client.token, done=done)

        def is_read(done: int = done) -> bool:
            rows = list(recorder._followed.values())
            return any(row.last is not None and row.last.done == done for row in rows)

        world.until_seen(is_read)


def assert_bounded(row: dict[str, Any], plain: dict[str, Any], reserved_bytes: int) -> None:
    """The bounds of docs/forecast.md, against the answer of a node that knows nothing."""
    ratio = row["step_seconds"] / plain["step_seconds"]
    assert 1 / prediction.MAX_TIME_FACTOR * 0.99 <= ratio <= prediction.MAX_TIME_FACTOR * 1.01
    most_bytes = max(2 * reserved_bytes, reserved_bytes + samples.MAX_CONSTANT_BYTES)
    assert reserved_bytes <= row["memory_bytes"] <= most_bytes
    least, margin_bytes = margins.LEAST_MEMORY_BYTES, row["memory_margin_bytes"]
    assert least <= margin_bytes <= max(least, row["memory_bytes"] // 2 + 1)
    assert margin_bytes >= row["memory_bytes"] * 15 // 100
    percent = row["utilization_percent"]
    assert percent is None or plain["utilization_percent"] // 4 <= percent <= 100
    for low, high in (row["interval"] or {}).values():
        assert low <= high
        assert high <= 16 * 1.01 * max(row["step_seconds"], row["run_seconds"], 100)


def learns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the training process does it, in few passes."""
    knowledge = world.manager.service.daemon.knowledge
    monkeypatch.setattr(learning, "MAX_PASSES", 3)
    knowledge._weights.write_text(json.dumps(learning.train(knowledge.known.samples)))
    world.manager.do(knowledge.read_weights)


def learns_in_its_process(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(trainer, "MODULE", AT_USUAL_PRIORITY)
    own = world.manager.service.daemon.knowledge._trainer
    world.until_seen(lambda: own.pid is None)
    world.manager.do(own.begin)
    world.until_seen(lambda: own.pid is None)


@pytest.mark.parametrize(
    ("rounds", "learn"),
    [
        (2, learns),
        pytest.param(2, learns_in_its_process, marks=pytest.mark.slow),
        pytest.param(30, learns_in_its_process, marks=pytest.mark.long),
    ],
)
def test_absurd_progress_of_one_environment_moves_another_s_forecasts_within_bounds(
    world: World,
    make_client: Callable[..., FakeClient],
    monkeypatch: pytest.MonkeyPatch,
    rounds: int,
    learn: Callable[[World, pytest.MonkeyPatch], None],
) -> None:
    if learn is learns:
        monkeypatch.setattr(Trainer, "added", lambda self, count: None)
    sizes = (3, 5, 9)
    plain = {size: forecast(world, BOB, training(size)) for size in sizes}
    with make_client(world.manager.env_dir(EVE)) as client:
        client.acquire(1)
        for turn, steps in enumerate(rounds * list(ABSURD.values())):
            claims(world, client, training(1 + turn % 10), steps)
        for done in NO_NUMBERS:
            client.send("PROGRESS", task=client.token, done=done)
            client.send("PROGRESS", task=client.token, done=5, total=done)
    knowledge = world.manager.service.daemon.knowledge
    # one step over and over is no pace
    world.until_seen(lambda: len(knowledge.known.samples) == rounds * (len(ABSURD) - 1))
    kept = knowledge.known.samples
    assert {row.env for row in kept} == {EVE}
    for row in 2 * learning.LEAST_SAMPLES * kept[-1:]:  # and the last again, many times
        world.manager.do(lambda row=row: knowledge.add(row))
    learn(world, monkeypatch)
    assert world.manager.do(lambda: knowledge.known.networks.time)
    for size in sizes:
        row = forecast(world, BOB, training(size))
        assert_bounded(row, plain[size], size * GIB)
        (found,) = submitted(world, BOB, training(size))["predicted"]
        assert found["memory_bytes"] == row["memory_bytes"]
        least, most = margins.LEAST_RUN_PER_MILLE / 1000, margins.MOST_RUN_PER_MILLE / 1000
        assert least <= found["expected_seconds"] / found["run_seconds"] <= most


@pytest.mark.parametrize(
    "false",
    [
        {"step_ns": 1, "peak_bytes": 1, "utilization_percent": 0, "run_ms": 1},
        {"step_ns": 2**62, "peak_bytes": 2**62, "utilization_percent": 100, "run_ms": 2**62},
    ],
    ids=["nothing", "everything"],
)
def test_copies_of_another_s_features_with_false_figures_are_bounded_and_own_runs_stand(
    world: World, false: dict[str, int]
) -> None:
    """Also where the copy names memory of its own, and a margin that was never enough."""
    found = training(5)
    plain = forecast(world, BOB, found)
    knowledge = world.manager.service.daemon.knowledge
    predicted = samples.Predicted(1, 1, 1, 1)
    copy = replace(
        sample("eve", of=replace(found, peak_bytes=2**61), predicted=predicted), env=EVE, **false
    )
    for _ in range(120):
        world.manager.do(lambda: knowledge.add(copy))
    assert_bounded(forecast(world, BOB, found), plain, 5 * GIB)
    others = [sample(user, of=found, step_ns=10**7) for user in ("c", "d", "e")]
    for row in others:
        world.manager.do(lambda row=row: knowledge.add(row))
    assert forecast(world, BOB, found)["step_seconds"] == 0.01, "three honest ones outweigh it"
    own = replace(sample("root", of=found, step_ns=3 * 10**7, peak_bytes=6 * GIB), env=BOB)
    world.manager.do(lambda: knowledge.add(own))
    row = forecast(world, BOB, found)
    assert (row["source"], row["step_seconds"], row["memory_bytes"]) == ("measured", 0.03, 6 * GIB)
    assert row["utilization_percent"] == own.utilization_percent


def forged() -> dict[str, Any]:
    body = feature_form.packed(features())
    row = body["work"][0]
    return {
        "NaN": body | {"memory": {"peak_bytes": float("nan")}},
        "infinity": body | {"graph": {"mul": float("inf")}},
        "1e308": body | {"richer": {"operations": 1e308}},
        "2^63": body | {"memory": {"peak_bytes": 2**63}},
        "a hundred digits": body | {"memory": {"peak_bytes": 10**100}},
        "true": body | {"execution": {"batchsize": True}},
        "text": body | {"execution": {"batchsize": "32"}},
        "a foreign key": body | {"owner": "bob"},
        "a foreign kind": body | {"graph": {"__class__": 1}},
        "too many rows": body | {"work": [row] * (feature_form.MAX_WORK_ROWS + 1)},
        "a row of six": body | {"work": [[*row, 1]]},
        "an unknown precision": body | {"work": [["float4", *row[1:]]]},
        "a far intensity": body | {"work": [[row[0], 10**9, *row[2:]]]},
        "no object": [body],
        "a surrogate": body | {"framework": "\ud800"},
        "a formula": body | {"framework": '=HYPERLINK("http://x")'},
        "a command": body | {"framework": "@SUM(1)"},
        "a line of its own": body | {"framework": "torch\n1,2"},
        "a long framework": body | {"framework": "t" * 10_000},
        "deep": body | {"graph": json.loads("[" * 900 + "]" * 900)},
    }


def test_forged_features_are_refused_in_one_line_each_and_change_nothing(world: World) -> None:
    plain = forecast(world, BOB, features())
    for name, body in forged().items():
        for verb, more in (
            ("forecast", {"token": "ab" * 16}),
            ("job_submit", {"argv": ["true"], "cwd": "/", "environ": [], "gpus": 1,
                            "key": os.urandom(16).hex()}),
        ):  # fmt: skip
            with pytest.raises(Fault) as refused:
                order(world, EVE, verb, features=body, **more)
            assert "\n" not in refused.value.message, name
            assert len(refused.value.message) < 300, name
    assert world.manager.service.daemon.recorder._announced == {}
    assert forecast(world, BOB, features()) == plain


def test_the_greatest_features_within_the_form_have_a_forecast(world: World) -> None:
    """No figure of them leaves the range of the store."""
    most = feature_form.MAX_FIGURE
    found = Features(
        "x" * feature_form.MAX_FRAMEWORK_CHARACTERS, (most,) * len(feature_form.GRAPH),
        (most,) * 3, (most,) * len(feature_form.RICHER),
        (WorkRow("float64", 20, most, most, most),) * feature_form.MAX_WORK_ROWS, most,
    )  # fmt: skip
    row = forecast(world, EVE, found)
    assert row["run_seconds"] == prediction.MAX_RUN_MS / 1000
    with pytest.raises(Fault, match="make the model or its batch smaller"):
        submitted(world, EVE, found)
    assert submitted(world, EVE, replace(found, peak_bytes=0))["predicted"]
    world.restart()
    assert forecast(world, BOB, features())["source"] == "roofline"
