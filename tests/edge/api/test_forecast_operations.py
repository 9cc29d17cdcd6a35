"""The order `forecast` on an environment's socket."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from client_plugin.ways.conversation import Conversation
from client_plugin.ways.faults import Fault
from nodemgr.core.forecast import features as feature_form
from nodemgr.core.forecast import prediction
from nodemgr.edge.api import forecast_operations
from tests.core.forecast.trainings import GIB, features
from tests.support.limits import WAIT_LIMIT_S
from tests.support.local import LocalManager

FIRST = 4 * GIB + prediction.DEFAULT_CONSTANT_BYTES
BODY = feature_form.packed(features())


@pytest.fixture(scope="module")
def manager() -> Iterator[LocalManager]:
    with LocalManager(factory=None) as manager:
        manager.call("quota_set", env="alice", gpus=2)
        yield manager


@pytest.fixture
def talk(manager: LocalManager) -> Iterator[Conversation]:
    with Conversation(manager.env_dir("alice") / "socket", WAIT_LIMIT_S) as talk:
        yield talk


def ask(talk: Conversation, verb: str = "forecast", **arguments: Any) -> Any:
    _, (sheet,) = talk.ask("sheet")
    order = {"verb": verb, "args": arguments}
    os.pwrite(sheet, json.dumps(order).encode() + b" " * 20_000, 0)
    os.close(sheet)
    return talk.ask("order")[0]


def test_every_model_of_the_node_has_a_row(talk: Conversation, manager: LocalManager) -> None:
    answer = ask(talk, features=BODY)
    names = {gpu["name"] for gpu in manager.call("status")["gpus"]}
    assert {row["name"] for row in answer["models"]} == names
    assert answer["memory_bytes"] == FIRST
    assert answer["features"]["conv2d"] == 4_800


def test_named_models_come_from_the_table_or_from_their_rates(talk: Conversation) -> None:
    names = ["A100-80GiB", "mine:10:500:24", "RTX 9090"]
    rows = ask(talk, features=BODY, models=names)["models"]
    assert [row["name"] for row in rows] == ["NVIDIA A100-SXM4-80GB", "mine", "RTX 9090"]
    assert [row["source"] for row in rows] == ["roofline", "roofline", "none"]
    assert rows[0]["step_seconds"] < rows[1]["step_seconds"]
    assert "NAME:TFLOPS:GBPS:GIB" in rows[2]["reason"]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"features": None},
        {"features": BODY | {"graph": {"mul": -1}}},
        {"features": BODY, "models": []},
        {"features": BODY, "models": ["A"] * (forecast_operations.MAX_MODELS + 1)},
        {"features": BODY, "models": ["A" * 97]},
        {"features": BODY, "models": ["A\n"]},
        {"features": BODY, "models": [5]},
        {"features": BODY, "colour": "red"},
    ],
)
def test_bad_arguments_are_refused_in_one_line(
    talk: Conversation, arguments: dict[str, Any]
) -> None:
    with pytest.raises(Fault) as refused:
        ask(talk, **arguments)
    assert "\n" not in refused.value.message
    assert len(refused.value.message) < 300


def test_an_administrator_s_way_has_no_such_order(manager: LocalManager) -> None:
    with pytest.raises(Exception, match="unknown verb"):
        manager.call("forecast", features=BODY)


def submit(talk: Conversation, **more: Any) -> Any:
    given = {"argv": ["true"], "cwd": "/", "environ": [], "key": os.urandom(16).hex(), "hold": True}
    return ask(talk, "job_submit", **given, **more)


def job_of(talk: Conversation, job_id: str) -> Any:
    return ask(talk, "job_show", job=job_id)["jobs"][0]


def test_a_submission_with_features_gets_the_figures_that_it_leaves_out(
    talk: Conversation,
) -> None:
    answer = submit(talk, gpus=1, features=BODY)
    forecast = answer["forecast"]
    job = job_of(talk, answer["job"])
    assert job["memory_named_bytes"] == forecast["memory_bytes"] + forecast["memory_margin_bytes"]
    assert job["memory_min_bytes"] == job["memory_named_bytes"]
    assert job["memory_max_bytes"] == 80 * GIB, "as much as without a forecast"
    assert [row["memory_bytes"] for row in job["predicted"]] == [FIRST]
    assert job["time_limit_seconds"] is None


def test_the_memory_that_is_filled_in_is_within_the_quota(manager: LocalManager) -> None:
    manager.call("quota_set", env="bob", gpus=2, memory_bytes=10 * GIB)
    with Conversation(manager.env_dir("bob") / "socket", WAIT_LIMIT_S) as talk:
        answer = submit(talk, gpus=1, features=BODY)
        job = job_of(talk, answer["job"])
        assert (job["memory_named_bytes"], job["memory_max_bytes"]) == (5 * GIB, None)
        with pytest.raises(Fault, match="are predicted, but bob may have at most 5"):
            submit(talk, gpus=1, features=feature_form.packed(features(peak_bytes=6 * GIB)))


def test_the_user_s_own_figures_stand(talk: Conversation) -> None:
    answer = submit(talk, gpus=1, memory_bytes=GIB, time_limit_ms=60_000, features=BODY)
    job = job_of(talk, answer["job"])
    assert (job["memory_named_bytes"], job["time_limit_seconds"]) == (GIB, 60)
    assert job["memory_max_bytes"] is None


def test_a_job_without_a_gpu_has_no_forecast(talk: Conversation) -> None:
    answer = submit(talk, gpus=0, features=BODY)
    assert "forecast" not in answer
    assert job_of(talk, answer["job"])["predicted"] == []


def test_bad_features_refuse_the_submission(talk: Conversation) -> None:
    with pytest.raises(Fault, match="whole number"):
        submit(talk, features=BODY | {"memory": {"peak_bytes": -1}})


def test_one_of_many_submissions_may_have_features(talk: Conversation) -> None:
    one = {"argv": ["true"], "key": os.urandom(16).hex(), "hold": True, "features": BODY}
    (row,) = ask(talk, "job_submit_many", cwd="/", environ=[], jobs=[one])["jobs"]
    assert job_of(talk, row["job"])["predicted"]
