"""The order of the sources, abstention, and the answer."""

from __future__ import annotations

import math
from typing import Any

import pytest

from client_plugin.messages.form import Message, Part
from nodemgr.core.forecast import network, prediction
from nodemgr.core.forecast.gpu_models import GPU_MODELS, find
from nodemgr.core.forecast.prediction import Known, ModelForecast, Source
from nodemgr.core.model.entities import Quota
from nodemgr.core.model.values import replace
from tests.core.forecast.trainings import A100, GIB, features, is_of, owner, sample, text, weights

FIRST = 4 * GIB + prediction.DEFAULT_CONSTANT_BYTES
"""The memory of the model, before tasks have shown what a context takes."""


def predicted(known: Known = prediction.NOTHING_KNOWN, **changes: Any) -> ModelForecast:
    model = find(A100)
    assert model is not None
    (found,) = prediction.predict(features(**changes), [model], owner(), known)
    return found


def is_because(found: ModelForecast, row: Message) -> bool:
    return found.reason is not None and is_of(row, found.reason)


def test_without_samples_the_roofline_answers_without_an_interval() -> None:
    found = predicted()
    assert found.source is Source.ROOFLINE
    assert found.step_ns is not None
    assert found.step_ns.interval is None
    assert found.run_ms == round(found.step_ns.number / 1000)
    assert found.memory_bytes == FIRST
    assert is_because(
        found, Part("nothing was learned yet: too few tasks with a known time of a step have ended")
    )


def test_a_network_corrects_the_estimate_with_an_interval() -> None:
    plain = predicted().step_ns
    known = Known(networks=network.parse(text(weights(math.log(2)))))
    found = predicted(known)
    assert found.source is Source.LEARNED
    assert found.reason is None
    assert plain is not None
    assert found.step_ns is not None
    assert found.step_ns.number == 2 * plain.number
    low, high = found.step_ns.interval or (0, 0)
    assert low < found.step_ns.number < high
    assert (plain.error_percent, found.step_ns.error_percent) == (None, 6)  # the median


def test_a_file_with_an_error_without_bounds_has_an_error_within_them() -> None:
    body = weights()
    body["networks"]["time"]["card"]["residuals"] = [-900.0] * 9
    found = predicted(Known(networks=network.parse(text(body))))
    assert found.step_ns is not None
    assert found.step_ns.error_percent == 100 * (prediction.MAX_TIME_FACTOR - 1)


def test_a_network_is_not_used_far_from_its_samples_or_while_it_is_no_better() -> None:
    for body, row in (
        (
            weights(1.0, reach=0.0),
            Part("no task like this one has ended on the node: only an estimate"),
        ),
        (
            weights(1.0, width=1.0),
            Part("no task like this one has ended on the node: only an estimate"),
        ),
        (weights(1.0, error=0.5), Part("what was learned is no better than the estimate")),
    ):
        found = predicted(Known(networks=network.parse(text(body))))
        assert found.source is Source.ROOFLINE
        assert is_because(found, row)
        assert found.step_ns is not None
        # the residuals of the estimate hold where nothing better is known at all
        assert (found.step_ns.interval is None) is (
            row.template == ("no task like this one has ended on the node: only an estimate")
        )


def test_utilisation_abstains_far_from_the_samples() -> None:
    near = predicted(Known(networks=network.parse(text(weights(-5.0, kind="compute")))))
    far = predicted(Known(networks=network.parse(text(weights(-5.0, 0.0, kind="compute")))))
    assert near.utilization is not None
    assert near.utilization.source is Source.LEARNED
    assert far.utilization is None


def test_measured_runs_come_before_the_network() -> None:
    known = Known((sample(),) * 12, network.parse(text(weights(1.0))))
    found = predicted(known)
    assert found.source is Source.MEASURED
    assert found.step_ns is not None
    assert found.step_ns.number == 30_000_000
    assert found.step_ns.interval == (30_000_000, 30_000_000)
    assert found.memory_bytes == 5 * GIB
    assert found.predicted.utilization_percent == 80


def test_a_model_without_runs_gets_the_factor_of_the_nearest_model_with_runs() -> None:
    """The times of two models are compared: an estimate beside a measured time is too short."""
    models = [find(A100), find("Tesla T4")]
    assert None not in models
    rates = [model for model in models if model is not None]
    plain = prediction.predict(features(), rates, owner())
    measured, carried = prediction.predict(features(), rates, owner(), Known((sample(),) * 12))
    assert (measured.source, carried.source) == (Source.MEASURED, Source.CARRIED)
    assert carried.reason is None
    numbers = [row.step_ns.number for row in (*plain, measured, carried) if row.step_ns]
    assert numbers[3] / numbers[2] == pytest.approx(numbers[1] / numbers[0])
    assert carried.step_ns is not None
    assert carried.step_ns.interval == pytest.approx((numbers[3], numbers[3]))


def beside(extra_bytes: int, count: int = 3, user: str = "ann", driver: str = "") -> Any:
    """Tasks of other sizes that took so many bytes more than their models."""
    return tuple(
        sample(
            user,
            of=features(peak_bytes=size * GIB, richer=(size,) * 6),
            peak_bytes=size * GIB + extra_bytes,
            driver=driver,
        )
        for size in range(1, count + 1)
    )


def test_the_memory_of_libraries_is_learned_by_driver_and_framework() -> None:
    own = beside(7)
    assert predicted(Known(own)).memory_bytes == 4 * GIB + 7
    assert predicted(Known(own[:2])).memory_bytes == FIRST
    assert predicted(Known(own), framework="torch 2.0").memory_bytes == FIRST
    assert predicted(Known(own, driver="570.1")).memory_bytes == FIRST
    newer = own + beside(9, driver="570.1")
    assert predicted(Known(newer, driver="570.1")).memory_bytes == 4 * GIB + 9
    more_bytes = FIRST - 4 * GIB + 5
    own_and_others = own + beside(more_bytes, 20, user="bob")
    assert predicted(Known(own_and_others)).memory_bytes == 4 * GIB + 7
    assert predicted(Known(beside(more_bytes, user="bob"))).memory_bytes == FIRST + 5


def test_runs_of_others_with_the_same_step_leave_room_for_the_context() -> None:
    theirs = (sample("eve", peak_bytes=4 * GIB),)
    assert predicted(Known(theirs)).memory_bytes == FIRST
    own = (sample(peak_bytes=4 * GIB),)
    assert predicted(Known(own)).memory_bytes == 4 * GIB


def test_few_environments_do_not_lower_the_memory_of_libraries_of_others() -> None:
    """A task with too little memory ends."""
    two = beside(7, user="bob") + beside(7, user="cid")
    assert predicted(Known(two)).memory_bytes == FIRST
    assert predicted(Known(two + beside(7, user="dan"))).memory_bytes == 4 * GIB + 7


@pytest.mark.parametrize("nonsense_bytes", [-(2**40), 2**40])
def test_one_environment_moves_the_memory_of_others_within_bounds(nonsense_bytes: int) -> None:
    """It is a third of the weight, and the median stands."""
    honest = beside(7, user="dan") + beside(7, user="bob") + beside(7, user="cid")
    low = max(1 - GIB, nonsense_bytes)
    false = tuple(
        replace(row, env="env-eve", user=f"eve{number}")
        for number, row in enumerate(beside(low, 50))
    )
    assert predicted(Known(honest + false)).memory_bytes == 4 * GIB + 7
    alone = predicted(Known(false)).memory_bytes
    assert alone is not None
    assert FIRST <= alone <= 6 * GIB


def test_what_a_request_needs_is_what_its_quota_can_grant() -> None:
    """But for the model's own memory, which is counted."""
    found, rows = features(), [predicted()]
    needed_bytes = rows[0].needed_bytes
    assert needed_bytes == FIRST + math.ceil(FIRST * 0.15)
    for most_bytes, expected_bytes in (
        (80 * GIB, needed_bytes), (5 * GIB, 5 * GIB), (4 * GIB, 4 * GIB), (3 * GIB, needed_bytes)
    ):  # fmt: skip
        assert prediction.needed_bytes(found, rows, most_bytes) == expected_bytes
    nothing = features(peak_bytes=0)
    assert prediction.needed_bytes(nothing, [predicted(peak_bytes=0)], GIB) is None


def test_unknown_memory_and_unknown_work_are_not_predicted() -> None:
    found = predicted(peak_bytes=0, work=())
    assert found.memory_bytes is found.step_ns is found.utilization is found.run_ms is None
    assert found.source is Source.NONE
    assert is_because(found, Part("no operations of a step were counted"))
    assert predicted(iteration=0).run_ms is None


def test_the_prediction_set_has_every_model_and_the_answer_its_form() -> None:
    found = features()
    answer = prediction.answer(found, prediction.predict(found, GPU_MODELS, owner()))
    assert [row["name"] for row in answer["models"]] == [model.name for model in GPU_MODELS]
    assert set(answer) == {
        "schema_version", "memory_bytes", "memory_margin_bytes", "models", "features", "reason",
    }  # fmt: skip
    keys = {
        "name", "memory_bytes", "memory_margin_bytes", "utilization_percent", "step_seconds",
        "run_seconds", "interval", "source", "error_percent", "reason",
    }  # fmt: skip
    assert all(set(row) == keys for row in answer["models"])
    assert answer["reason"] is None
    assert answer["memory_bytes"] == FIRST


def test_an_answer_has_the_interval_of_a_run_whose_steps_are_counted() -> None:
    known = Known(networks=network.parse(text(weights(math.log(2)))))
    (counted,) = prediction.answer(features(), [predicted(known)])["models"]
    ends = counted["interval"]["step_seconds"]
    assert counted["interval"]["run_seconds"] == pytest.approx([1_000 * end for end in ends])
    (open_ended,) = prediction.answer(features(), [predicted(known, iteration=0)])["models"]
    assert open_ended["interval"]["step_seconds"] == ends
    assert "run_seconds" not in open_ended["interval"]


def test_an_answer_about_nothing_has_a_reason() -> None:
    found = features(peak_bytes=0, work=())
    answer = prediction.answer(found, prediction.predict(found, GPU_MODELS, owner()))
    assert answer["reason"] == "neither memory nor operations of a step were found"
    assert answer["memory_bytes"] is None


def test_a_model_of_unknown_rates_has_a_forecast_of_memory_alone() -> None:
    found = prediction.predict_memory(features(), "RTX 9090", owner())
    assert found.memory_bytes == FIRST
    assert found.step_ns is found.utilization is None
    assert is_because(
        found,
        Part(
            "the peak rates of {name} are not known here{meant}: name them as `--gpu "
            "NAME:TFLOPS:GBPS:GIB`"
        ),
    )
    answer = prediction.answer(features(), [found])
    assert answer["memory_bytes"] == FIRST
    assert answer["models"][0]["source"] == "none"


def test_a_job_keeps_each_model_s_forecast_with_the_margin_and_its_share() -> None:
    shared, plain = Quota(1, compute_percent=70), Quota(1)
    known = Known((sample(utilization_percent=60),))
    (found,) = (predicted(known),)
    (row,) = prediction.runs([found], known, "env-ann", shared)
    assert (row.step_ns, row.run_ms, row.expected_ms) == (30_000_000, 30_000, 45_000)
    assert (row.percent, row.share_percent, row.steps) == (60, 60, 1_000)
    (row,) = prediction.runs([found], known, "env-ann", plain)
    assert row.share_percent is None
    (row,) = prediction.runs([found], known, "env-ann")
    assert row.share_percent is None


def test_a_share_is_within_the_quota_and_never_of_the_estimate() -> None:
    (busy,) = (predicted(Known((sample(utilization_percent=95),))),)
    assert prediction.shares([busy], Quota(1, compute_percent=40)) == [40]
    assert prediction.shares([predicted()], Quota(1, compute_percent=40)) is None
    assert prediction.shares([], Quota(1, compute_percent=40)) is None
