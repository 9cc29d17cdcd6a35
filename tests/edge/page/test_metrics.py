"""The text of the metrics: escapes, histograms, the page's own counts, a manager that is away."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nodemgr.edge.page import metrics as module
from nodemgr.edge.page.channel import Channel, ManagerAway, RequestRefused
from nodemgr.edge.page.metric_table import COUNTER, METRICS
from nodemgr.edge.page.metrics import PageMetrics, render
from nodemgr.edge.page.viewers import MAX_VIEWERS, Viewers
from tests.support.promtool import needs_promtool, promtool

NASTY = 'a"b\\c\nd <script>\u202e\x07\u00e9'


def value_of(text: bytes, name: str, **labels: str) -> float:
    found = [
        sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    ]
    assert len(found) == 1, f"{name}{labels} is there {len(found)} times"
    return float(found[0])


def samples_of_all(label: str = "x") -> dict[str, Any]:
    """One sample of each metric of the table."""
    return {
        metric.name: [
            (
                [label] * len(metric.labels),
                [[1] * (len(metric.bounds_s) + 1), 3_000_000_000] if metric.bounds_s else 7,
            )
        ]
        for metric in METRICS
    }


def test_each_metric_has_its_type_and_help() -> None:
    families = {
        family.name: family
        for family in text_string_to_metric_families(render(samples_of_all()).decode())
    }
    assert len(families) == len(METRICS)
    for metric in METRICS:
        name = metric.name.removesuffix("_total") if metric.kind == COUNTER else metric.name
        assert (families[name].type, families[name].documentation) == (metric.kind, metric.help)


def test_a_histogram_is_cumulated_and_its_sum_is_in_seconds() -> None:
    text = render(
        {"nodemgr_lease_wait_seconds": [(["job"], [[2, 0, 3] + [0] * 10, 1_500_000_000])]}
    )
    name = "nodemgr_lease_wait_seconds"
    assert value_of(text, f"{name}_bucket", kind="job", le="0.1") == 2
    assert value_of(text, f"{name}_bucket", kind="job", le="1.0") == 2
    assert value_of(text, f"{name}_bucket", kind="job", le="5.0") == 5
    assert value_of(text, f"{name}_bucket", kind="job", le="+Inf") == 5
    assert value_of(text, f"{name}_count", kind="job") == 5
    assert value_of(text, f"{name}_sum", kind="job") == 1.5


def test_a_label_with_quotes_lines_and_marks_is_one_value() -> None:
    text = render(samples_of_all(NASTY))
    assert value_of(text, "nodemgr_env_tasks", env=NASTY) == 7
    lines = text.decode().split("\n")
    assert sum(line.startswith("nodemgr_env_tasks{") for line in lines) == 1


def test_a_value_that_is_not_known_is_left_out() -> None:
    text = render({"DCGM_FI_DEV_GPU_UTIL": [(["0", "a"], None), (["1", "b"], 5)]})
    assert b"DCGM_FI_DEV_GPU_TEMP" not in text
    assert text.count(b"\nDCGM_FI_DEV_GPU_UTIL{") == 1
    assert render({"DCGM_FI_DEV_GPU_UTIL": [(["0", "a"], None)]}) == b""


@needs_promtool
def test_promtool_finds_no_fault_in_the_text() -> None:
    assert promtool("check", "metrics", text=render(samples_of_all())) == ""


class _Channel(Channel):
    """Answers with samples, or refuses."""

    def __init__(self, answer: dict[str, Any] | RequestRefused) -> None:
        super().__init__(Path("nowhere"))
        self.answer = answer
        self.asked: list[tuple[str, str | None]] = []

    async def ask(self, verb: str, token: str | None = None, *_arguments: Any) -> Any:
        self.asked.append((verb, token))
        if isinstance(self.answer, RequestRefused):
            raise self.answer
        return self.answer


def text_of(channel: _Channel, token: str | None = None) -> bytes:
    metrics = PageMetrics(channel, Viewers(channel))
    for status in (200, 200, 421):
        metrics.count(status)
    return asyncio.run(metrics.text(token))


def test_the_page_adds_its_own_counts() -> None:
    channel = _Channel({"nodemgr_envs": [([], 3)]})
    text = text_of(channel, "a token")
    assert channel.asked == [("metrics", "a token")]
    assert value_of(text, "nodemgr_up") == 1
    assert value_of(text, "nodemgr_envs") == 3
    assert value_of(text, "nodemgr_page_viewers_limit") == MAX_VIEWERS
    assert value_of(text, "nodemgr_page_requests_total", code="200") == 2
    assert value_of(text, "nodemgr_page_requests_total", code="421") == 1
    for metric in METRICS:
        assert (metric.name.encode() in text) is (
            metric.is_of_page or metric.name == "nodemgr_envs"
        )


def test_a_manager_that_is_away_is_a_value() -> None:
    text = text_of(_Channel(ManagerAway()), "any token")
    assert value_of(text, "nodemgr_up") == 0
    assert b"nodemgr_gpus" not in text


def test_a_manager_that_does_not_answer_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_TIMEOUT_S", 0.01)

    class Silent(_Channel):
        async def ask(self, verb: str, token: str | None = None, *_arguments: Any) -> Any:
            await asyncio.get_running_loop().create_future()

    assert value_of(text_of(Silent({})), "nodemgr_up") == 0


def test_a_refused_token_is_a_refusal() -> None:
    with pytest.raises(RequestRefused, match="has expired"):
        text_of(_Channel(RequestRefused("this token has expired", code="token")))
