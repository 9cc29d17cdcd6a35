"""Samples of finished jobs, through a whole manager."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from client_plugin.ways.conversation import Conversation
from client_plugin.ways.faults import Fault
from nodemgr.core.forecast import features as feature_form
from nodemgr.core.forecast.prediction import DEFAULT_CONSTANT_BYTES
from nodemgr.core.forecast.samples import LEAST_STEPS, NOTHING_PREDICTED, Announced, Predicted
from nodemgr.core.model import events
from nodemgr.core.model.entities import Progress
from nodemgr.core.views.figures import Readings
from nodemgr.edge.forecast import sample_recorder
from nodemgr.edge.forecast.sample_recorder import Followed, SampleRecorder
from nodemgr.edge.ledger.peaks import Peaks
from tests.core.forecast.trainings import GIB, features, owner
from tests.core.world import S
from tests.edge.forecast.predicted_jobs import MODEL, submit_predicted
from tests.jobs.world import KINDS, World
from tests.session import TMP
from tests.support.limits import WAIT_LIMIT_S
from tests.support.local import FakeGpus
from tests.support.manager import ROOT
from tests.support.udp_clients import FakeClient


@pytest.fixture
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="nm", dir=TMP) as name:
        made = World(Path(name), KINDS[0], gpus=FakeGpus(1))
        yield made
        made.close()


def stored(world: World) -> list[Any]:
    return [json.loads(text) for text in world.manager.do(world.manager.daemon.journal.samples)]


def until_stored(world: World, count: int) -> list[Any]:
    journal = world.manager.daemon.journal
    world.until_seen(lambda: len(journal.samples()) >= count)
    return stored(world)


def test_a_job_that_ends_well_leaves_a_sample_with_its_forecast(world: World) -> None:
    world.until_ended(submit_predicted(world, "true"))
    (found,) = until_stored(world, 1)
    assert (found["user"], found["gpu_model"], found["env"]) == ("root", MODEL, "alice")
    assert found["run_ms"] > 0
    assert found["step_ns"] is None, "it has used no GPU: the time of its start is no step's"
    assert found["predicted"] == {
        "memory_bytes": 4 * GIB, "utilization_percent": None, "step_ns": 20_000_000,
        "run_ms": 20_000,
    }  # fmt: skip
    assert found["features"] == feature_form.packed(features())


def test_a_job_s_sample_has_the_peak_of_its_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Peaks, "of_task", lambda _self, _task_id: 5 * GIB)
    world.until_ended(submit_predicted(world, "true"))
    (found,) = until_stored(world, 1)
    assert found["peak_bytes"] == 5 * GIB


def test_a_job_with_a_forecast_counts_the_steps_of_its_optimizers(world: World) -> None:
    script = "echo ${NODEMGR_COUNT_STEPS-none}"
    for job_id, said in (
        (submit_predicted(world, script), b"1\n"),
        (world.submit(script), b"none\n"),
    ):
        world.until_ended(job_id)
        assert world.log(job_id) == said


def test_a_job_that_fails_or_has_no_features_leaves_none(world: World) -> None:
    world.until_ended(submit_predicted(world, "exit 3"))
    world.until_ended(world.submit("true"))
    world.until_ended(submit_predicted(world, "true"))
    assert len(until_stored(world, 1)) == 1


def test_a_job_that_outlives_its_manager_leaves_a_sample(world: World) -> None:
    gate = world.directory / "go"
    job_id = submit_predicted(world, f"until [ -e {gate} ]; do sleep 0.05; done")
    world.until_seen(
        lambda: job_id in {t.job_id for t in world.manager.daemon.state.tasks.values()}
    )
    world.restart()
    gate.touch()
    world.until_ended(job_id)
    (found,) = until_stored(world, 1)
    assert found["predicted"]["run_ms"] == 20_000
    world.restart()
    assert stored(world) == [found]


def test_samples_are_an_administrator_s_alone_and_name_no_user(world: World) -> None:
    world.until_ended(submit_predicted(world, "true"))
    until_stored(world, 1)
    told = world.manager.call("report_samples")
    assert len(told["rows"]) == 1
    assert "root" not in told["rows"][0]
    (row,) = [
        row
        for row in world.manager.call("report_forecast", since_wall_ns=0)["figures"]
        if row["figure"] == "run time"
    ]
    assert row["tasks"] == 1
    with Conversation(world.manager.env_dir("alice") / "socket", WAIT_LIMIT_S) as talk:
        for verb in ("report_samples", "report_forecast"):
            with pytest.raises(Fault, match="admin"):
                talk.ask("order", json.dumps({"verb": verb, "args": {}}))


# -- tasks that are no jobs --


def announce(world: World, token: str, **changes: Any) -> dict[str, Any]:
    """As `nodemgr_client.predict` does in a notebook."""
    with Conversation(world.manager.env_dir("alice") / "socket", WAIT_LIMIT_S) as talk:
        body = feature_form.packed(features(**changes))
        order = {"verb": "forecast", "args": {"features": body, "token": token}}
        _, (sheet,) = talk.ask("sheet")
        os.pwrite(sheet, json.dumps(order).encode() + b" " * 20_000, 0)
        os.close(sheet)
        return dict(talk.ask("order")[0])


def test_predict_of_the_client_module_announces_the_features_of_its_task(world: World) -> None:
    world.manager.call("quota_set", env="alice", gpus=1)
    program = (
        "import json, sys, types, nodemgr_client;"
        " found = types.SimpleNamespace(predict=lambda *_: {'features': json.load(sys.stdin)});"
        " nodemgr_client._module = lambda name: found;"
        " nodemgr_client.predict(object(), None)"
    )
    environ = {
        "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "sitecustomize"),
        "NODEMGR_ENV_DIR": str(world.manager.env_dir("alice")), "NODEMGR_TASK": "ab" * 16,
    }  # fmt: skip
    body = json.dumps(feature_form.packed(features()))
    command = [sys.executable, "-S", "-c", program]
    for variables in (environ, {**environ, "NODEMGR_ENV_DIR": "/nonexistent"}):
        ended = subprocess.run(
            command, env=variables, input=body, capture_output=True, text=True, check=False
        )
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    recorder = world.manager.service.daemon.recorder
    (row,) = recorder._announced["alice"].values()
    assert (row.token, row.features) == ("ab" * 16, features())


def trains(world: World, client: FakeClient, first: int) -> None:
    """Reports steps until the recorder has a pace of enough of them."""
    recorder = world.manager.service.daemon.recorder
    done = first

    def has_pace() -> bool:
        nonlocal done
        done += 30
        client.send("PROGRESS", task=client.token, done=done)
        (found,) = recorder._followed.values()
        return bool(found.pace()[1] >= LEAST_STEPS)

    world.until_seen(has_pace)


@pytest.fixture
def notebook(
    world: World,
    make_client: Callable[..., FakeClient],
    monkeypatch: pytest.MonkeyPatch,
) -> FakeClient:
    monkeypatch.setattr(sample_recorder, "PERIOD_S", 0.02)
    world.manager.call("quota_set", env="alice", gpus=1)
    return make_client(world.manager.env_dir("alice"))


@pytest.mark.parametrize("is_early", [True, False])
def test_an_interactive_task_whose_features_were_announced_leaves_a_sample(
    world: World, notebook: FakeClient, is_early: bool
) -> None:
    if is_early:
        announce(world, notebook.token)
    notebook.acquire(1)
    if not is_early:
        announce(world, notebook.token)
    trains(world, notebook, 0)
    notebook.close()
    (found,) = until_stored(world, 1)
    assert (found["env"], found["user"], found["gpu_model"]) == ("alice", "root", MODEL)
    assert found["steps"] >= LEAST_STEPS
    assert found["step_ns"] > 0
    assert found["features"] == feature_form.packed(features())
    assert found["predicted"]["memory_bytes"] == 4 * GIB + DEFAULT_CONSTANT_BYTES
    assert found["predicted"]["run_ms"] is None


def test_a_second_model_in_the_same_notebook_is_a_sample_of_its_own(
    world: World, notebook: FakeClient
) -> None:
    announce(world, notebook.token)
    notebook.acquire(1)
    trains(world, notebook, 0)
    announce(world, notebook.token, peak_bytes=7)
    assert until_stored(world, 1)[0]["features"] == feature_form.packed(features())
    trains(world, notebook, 10_000)
    notebook.close()
    second = until_stored(world, 2)[1]
    assert second["features"]["memory"] == {"peak_bytes": 7}
    assert second["peak_bytes"] is None, "the first model may have made it"


def test_announced_features_of_other_tasks_and_without_steps_leave_nothing(
    world: World, notebook: FakeClient
) -> None:
    announce(world, "f" * 32)
    notebook.acquire(1)
    notebook.close()
    world.until_ended(submit_predicted(world, "true"))
    assert [row["env"] for row in until_stored(world, 1)] == ["alice"]
    assert world.manager.service.daemon.recorder._followed == {}


def test_an_environment_keeps_a_bounded_number_of_announced_features() -> None:
    recorder = SampleRecorder.__new__(SampleRecorder)
    recorder._announced, recorder._followed = {}, {}
    state = SimpleNamespace(tasks={}, task_of_token={})
    recorder._daemon = SimpleNamespace(state=state)  # type: ignore[assignment]
    for number in range(2 * sample_recorder.MAX_ANNOUNCED):
        recorder.announced(Announced(owner(), f"{number:x}", features(), ()))
    recorder.announced(Announced(owner("bob"), "0", features(), ()))
    tokens = recorder._announced["env-ann"]
    assert len(tokens) == sample_recorder.MAX_ANNOUNCED
    assert list(tokens)[-1] == f"{2 * sample_recorder.MAX_ANNOUNCED - 1:x}"
    assert set(recorder._announced["env-bob"]) == {"0"}


@pytest.mark.parametrize("token", ["", "xyz", "a" * 65, 7, None])
def test_a_token_of_another_form_is_refused_in_one_line(world: World, token: Any) -> None:
    world.manager.call("quota_set", env="alice", gpus=1)
    with pytest.raises(Fault, match="token of a task"):
        announce(world, token)


# -- one job's readings --


def followed(predicted: Predicted = NOTHING_PREDICTED) -> Followed:
    return Followed("j1", owner(), MODEL, features(), predicted)


def test_the_pace_counts_from_the_first_report_and_anew_where_the_count_falls() -> None:
    one = followed()
    assert one.pace() == (None, 0)
    for done, at_ns in ((5, 1_000), (15, 2_000)):
        one.reported(Progress(done, None, at_ns, 0, 0))
    assert one.pace() == (None, 10)
    one.reported(Progress(35, None, 7_000, 0, 0))
    assert one.pace() == (200, 30)
    one.reported(Progress(2, None, 8_000, 0, 0))
    assert one.pace() == (None, 0)


@pytest.mark.parametrize(
    ("total", "iterations", "expected"),
    [
        (None, 0, (S, 30)),
        (100, 100, (S, 30)),
        (10, 1_000, (S // 100, 3_000)),  # 30 of 10 epochs' hundred steps each
        (1_000_000, 1_000, (None, 0)),  # 30 millionths of the work
        (100, 0, (None, 0)),
    ],
)
def test_parts_of_a_known_whole_count_as_steps_of_the_forecast(
    total: int | None, iterations: int, expected: tuple[int | None, int]
) -> None:
    one = followed()
    one.features = features(iteration=iterations)
    for done, at_ns in ((0, 0), (30, 30 * S)):
        one.reported(Progress(done, total, at_ns, 0, 0))
    assert one.pace() == expected
    one.reported(Progress(40, 7, 31 * S, 0, 0))
    assert one.pace() == (None, 0), "another whole: the pace is measured anew"


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([(0, 0), (30, 30), (40, 90)], (S, 30)),
        ([(0, 0), (10, 10), (40, 40)], (S, 40)),  # too few steps before the end
        ([(0, 0), (40, 40), (40, 90)], (90 * S // 40, 40)),
        ([(0, 0), (30, 30), (40, 90), (5, 100), (40, 135)], (S, 35)),  # a second pass
    ],
)
def test_the_end_of_a_whole_counts_only_where_little_was_reported_before(
    reports: list[tuple[int, int]], expected: tuple[int, int]
) -> None:
    one = followed()
    one.features = features(iteration=40)
    for done, at_s in reports:
        one.reported(Progress(done, 40, at_s * S, 0, 0))
    assert one.pace() == expected


def test_a_run_without_reports_has_a_pace_from_its_first_use_of_a_gpu() -> None:
    one = followed()
    assert one.pace_of_whole(10**15) == (None, 0), "it has used none"
    one.used_since_ns = 5 * S
    assert one.pace_of_whole(34 * S) == (None, 0), "too short for readings each two seconds"
    assert one.pace_of_whole(105 * S) == (100 * S // 1_000, 1_000)
    one.features = features(iteration=LEAST_STEPS - 1)
    assert one.pace_of_whole(105 * S) == (None, 0)


def test_the_median_of_the_utilisation() -> None:
    one = followed()
    assert one.median_percent is None
    one.percents.update([90, 10, 80])
    assert one.median_percent == 80


def test_a_reading_takes_the_most_of_one_gpu_by_the_ledger() -> None:
    charged = {("a", "GPU-0"): 5, ("b", "GPU-0"): 6, ("a", "GPU-1"): 7, ("b", "GPU-1"): 1}
    processes = {key: SimpleNamespace(key=key) for key in "ab"}
    state = SimpleNamespace(processes=processes)
    readings = Readings(charged=lambda process, uuid: charged[process.key, uuid])
    task = SimpleNamespace(processes=("a", "b"), gpus=("GPU-0", "GPU-1"))
    recorder = SampleRecorder.__new__(SampleRecorder)
    recorder._daemon = SimpleNamespace(state=state)  # type: ignore[assignment]
    assert recorder._charged_bytes(task, readings) == 11  # type: ignore[arg-type]


def test_withdrawn_jobs_leave_nothing(world: World) -> None:
    gate = world.directory / "go"
    job_id = submit_predicted(world, f"until [ -e {gate} ]; do sleep 0.05; done")
    world.until_seen(
        lambda: job_id in {t.job_id for t in world.manager.daemon.state.tasks.values()}
    )
    world.order(events.WithdrawJob, job_id)
    world.until_gone(job_id)
    world.until_ended(submit_predicted(world, "true"))
    assert len(until_stored(world, 1)) == 1
