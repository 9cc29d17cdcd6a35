"""Training on samples: what is learned, what is held out, what one user can do."""

from __future__ import annotations

import math

import pytest

from nodemgr.core.forecast import (
    learning,
    margins,
    network,
    prediction,
    roofline,
    samples,
)
from nodemgr.core.forecast.features import MAX_FIGURE, Features, WorkRow
from nodemgr.core.forecast.gpu_models import find
from nodemgr.core.forecast.network import Networks
from nodemgr.core.forecast.prediction import Known, Source
from nodemgr.core.forecast.samples import Predicted, Sample
from nodemgr.core.model.values import replace
from tests.core.forecast.trainings import A100, features, owner, sample, text


@pytest.fixture(autouse=True)
def _briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "MAX_PASSES", 40)


def training(size: int) -> Features:
    """Of a family whose members differ by one size."""
    return features(
        graph=(100 * size, 0, 0, 0, 4_200 * size, 0, 0, 100, 0, 0, 0),
        richer=(10**6 * size, 2**20 * size, 12, 10**9 * size, 10**8 * size, 100),
        work=(WorkRow("float32", 6, 10**11 * size, 10**9 * size, 100),),
        peak_bytes=size << 28,
    )


def ended(count: int, user: str = "ann", times: float = 2.0) -> list[Sample]:
    """Tasks that take twice the estimate, each a little more than the one before."""
    rows = []
    for number in range(count):
        found = training(1 + number * 7 % 20)
        step_ns = round(times * found.work[0].operations / 11_700)
        rows.append(
            replace(
                sample(user, of=found, step_ns=step_ns, peak_bytes=found.peak_bytes * 9 // 8),
                wall_ns=number,
            )
        )
    return rows


def trained(rows: list[Sample]) -> Networks:
    return network.parse(text(learning.train(rows)))


def test_too_few_samples_train_nothing() -> None:
    assert learning.train(ended(learning.LEAST_SAMPLES - 1))["networks"] == {}
    assert learning.train([])["networks"] == {}


def test_a_constant_factor_is_learned_and_the_card_has_both_errors() -> None:
    found = trained(ended(60))
    for net in (found.time, found.memory):
        assert net is not None
        assert net.card.error < net.card.prior_error / 2
        assert (net.card.samples, net.card.newest) == (60, 10)
    assert found.time is not None
    assert found.time.card.prior_error == pytest.approx(math.log(2), rel=0.02)
    model = find(A100)
    assert model is not None
    near = replace(training(9), framework="torch 9")
    unseen = replace(near, execution=(31, 5, 1_000))
    (one,) = prediction.predict(unseen, [model], owner("bob"), Known((), found))
    assert one.step_ns is not None
    assert one.step_ns.source is Source.ROOFLINE, "no sample had this batch size"
    (one,) = prediction.predict(near, [model], owner("bob"), Known((), found))
    assert one.step_ns is not None
    assert one.step_ns.source is Source.LEARNED
    assert one.step_ns.number == pytest.approx(2 * 9 * 10**11 / 11_700, rel=0.1)


def test_the_result_is_the_same_each_time() -> None:
    assert learning.train(ended(30)) == learning.train(ended(30))


def test_one_user_s_nonsense_moves_what_others_have_taught_by_a_bounded_part() -> None:
    honest = ended(10, "ann") + ended(10, "bob") + ended(10, "cid")
    nonsense = ended(90, "eve", times=1_000.0)
    mixed = sorted(honest + nonsense, key=lambda row: row.wall_ns)
    examples = learning.examples(mixed, "time")
    assert max(abs(example.label) for example in examples) <= math.log(4)
    net = trained(mixed).time
    assert net is not None
    point = network.standardised(net, examples[0].inputs)
    assert abs(network.correction(net, point, "time")) <= math.log(4)


NONSENSE = {
    "an endless step": {"step_ns": MAX_FIGURE, "run_ms": MAX_FIGURE, "steps": MAX_FIGURE},
    "no time at all": {"step_ns": 1, "run_ms": 1},
    "all the memory": {"peak_bytes": MAX_FIGURE},
    "no memory": {"peak_bytes": 1},
    "no use": {"utilization_percent": 0},
    "more than the whole": {"utilization_percent": MAX_FIGURE},
}


@pytest.mark.parametrize("what", NONSENSE)
@pytest.mark.parametrize("is_alone", [True, False])
def test_whatever_one_environment_reports_the_figures_of_others_stay_within_bounds(
    monkeypatch: pytest.MonkeyPatch, what: str, is_alone: bool
) -> None:
    """With many users, of the same steps and of others, before and after the honest tasks."""
    monkeypatch.setattr(learning, "MAX_PASSES", 3)
    honest = [] if is_alone else ended(12, "ann") + ended(12, "bob") + ended(12, "cid")
    false = [
        replace(
            row, env="eve", user=f"eve{number}", predicted=Predicted(1, 1, 1, 1), **NONSENSE[what]
        )
        for number, row in enumerate(ended(60))
    ]
    rows = sorted(honest + false, key=lambda row: row.wall_ns)
    known = Known(tuple(rows), trained(rows))
    model = find(A100)
    assert model is not None
    for size in (3, 11, 19):
        found = training(size)
        (one,) = prediction.predict(found, [model], owner("dan"), known)
        estimate = roofline.estimate(found, model)
        assert estimate is not None
        assert one.step_ns is not None
        most = prediction.MAX_TIME_FACTOR
        assert estimate.step_ns / most <= one.step_ns.number <= estimate.step_ns * most
        assert one.memory_bytes is not None
        most_bytes = max(2 * found.peak_bytes, found.peak_bytes + samples.MAX_CONSTANT_BYTES)
        assert found.peak_bytes <= one.memory_bytes <= most_bytes
        assert one.memory_margin_bytes is not None
        least, margin = margins.LEAST_MEMORY_BYTES, one.memory_margin_bytes
        assert least <= margin <= max(least, one.memory_bytes // 2 + 1)
        percent = estimate.utilization_percent
        assert one.utilization is None or percent // 4 <= one.utilization.number <= 100
        (run,) = prediction.runs([one], known, "env-dan")
        assert run.run_ms is not None
        assert run.expected_ms is not None
        assert run.expected_ms <= run.run_ms * margins.MOST_RUN_PER_MILLE // 1_000 + 1


@pytest.mark.parametrize("times", [1e-6, 1e6])
def test_a_flood_of_one_environment_takes_no_places_of_others(
    monkeypatch: pytest.MonkeyPatch, times: float
) -> None:
    """The newest, and more of them than there are places."""
    monkeypatch.setattr(learning, "MAX_PASSES", 1)
    honest = [row for user in ("ann", "bob", "cid") for row in ended(12, user)]
    flood = ended(2 * network.MAX_ANCHORS, "eve", times)
    flood = [replace(row, wall_ns=1_000 + row.wall_ns) for row in flood]
    net = trained(honest + flood).time
    assert net is not None
    assert len(net.anchors) == network.MAX_ANCHORS
    true = [label for label in net.labels if abs(label) < 0.2]
    assert len(true) == 3 * 6, "the older half of the honest ones; the factors are the honest ones'"
    assert net.card.prior_error < math.log(2) + math.log(32) / 3, "what is false counts for both"


def test_a_false_task_of_the_same_step_is_one_of_many_beside_the_honest_ones() -> None:
    """Copies of the features of others with false labels: they are a third of the weight."""
    model = find(A100)
    assert model is not None
    honest = [row for user in ("ann", "bob", "cid") for row in ended(12, user)]
    true_ns = next(row.step_ns for row in honest if row.features == training(8))
    copies = [sample("eve", of=training(8), step_ns=1, peak_bytes=1, utilization_percent=0)] * 1_000
    (one,) = prediction.predict(training(8), [model], owner("dan"), Known((*honest, *copies)))
    assert one.step_ns is not None
    assert one.step_ns.source is Source.MEASURED
    assert one.step_ns.number == true_ns
    assert one.memory_bytes == training(8).peak_bytes * 9 // 8
    assert one.utilization is not None
    assert one.utilization.number == 80


def test_samples_without_a_figure_or_of_an_unknown_model_teach_nothing() -> None:
    rows = [replace(row, step_ns=None) for row in ended(40)]
    assert "time" not in learning.train(rows)["networks"]
    assert learning.examples([replace(row, gpu_model="RTX 9090") for row in rows], "memory") == []
    without_work = [replace(row, features=features(work=())) for row in rows]
    assert learning.examples(without_work, "memory") == []
