"""/metrics of a whole manager: each value, its bounds, and the scraper that may see it."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nodemgr.core.model.causes import LeaseEnd, WaitCause
from nodemgr.edge.page.metric_table import BY_NAME, METRICS
from nodemgr.edge.web import metric_values
from nodemgr.edge.web.metric_values import MAX_ENVS, NOT_JUDGED, OTHERS
from tests.edge.web.test_web_page import HOUR_MS, Node, site_of
from tests.support.limits import WAIT_LIMIT_S
from tests.support.local import GIB, LocalManager
from tests.support.manager import Manager
from tests.support.promtool import needs_promtool, promtool
from tests.support.udp_clients import FakeClient

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Scrape:
    """One answer."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.series: Series = {}
        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples:
                key = sample.name, tuple(sorted(sample.labels.items()))
                assert key not in self.series, "no series is there twice"
                self.series[key] = sample.value

    def value(self, name: str, **labels: str) -> float:
        return self.series[name, tuple(sorted(labels.items()))]

    def rows(self, name: str) -> dict[str, float]:
        """By the values of the labels, joined."""
        return {
            "/".join(value for _, value in labels): number
            for (known, labels), number in self.series.items()
            if known == name
        }


def scrape(node: Node, token: str | None = None) -> Scrape:
    while True:
        answer = node.site.ask("metrics", token=token)
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        found = Scrape(answer.body)
        if found.value("nodemgr_up"):  # else this process was kept waiting for seconds
            return found


def scrape_after_reading(node: Node) -> Scrape:
    """Behind a reading of the driver, or behind its timeout of a second."""
    read = threading.Event()
    node.manager.do(lambda: node.manager.daemon.node.when_read(read.set))
    assert read.wait(WAIT_LIMIT_S)
    return scrape(node)


@pytest.fixture(autouse=True)
def _values_are_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_values, "VALID_NS", 0)


@pytest.fixture
def node() -> Iterator[Node]:
    """A manager of its own: counts begin at zero."""
    node = Node()
    with node.manager:
        yield node


@pytest.fixture(scope="module")
def shared() -> Iterator[Node]:
    node = Node()
    with node.manager:
        yield node


# -- the right to see --


def test_without_a_token_no_env_is_named(shared: Node) -> None:
    with FakeClient(shared.manager.env_dir("alice")) as client:
        client.acquire(1)
        text = scrape(shared).text
    assert b"alice" not in text
    assert b"nodemgr_env_" not in text
    assert b"env=" not in text
    assert b"python" not in text, "no command"


def test_an_envs_token_adds_that_env_alone(shared: Node) -> None:
    found = scrape(shared, shared.token("alice"))
    assert found.rows("nodemgr_env_quota_gpus") == {"alice": 2}
    assert b"bob" not in found.text


def test_an_administrators_token_adds_each_env(shared: Node) -> None:
    found = scrape(shared, shared.token(None))
    assert found.rows("nodemgr_env_quota_gpus") == {"alice": 2, "bob": 2}


def test_a_scraper_with_a_bad_token_is_refused_with_one_line(node: Node) -> None:
    good = node.token(None)
    soon = node.token(None, 60_000)
    node.clock.ahead_ns = 61_000_000_000
    for token in (soon, good[:-1] + "~", "nmw-w99-" + 43 * "a", "x"):
        assert node.site.ask("metrics", token=token).refusal == (401, "token")
    node.manager.call("web_revoke", token=good.split("-")[1])
    assert node.site.ask("metrics", token=good).refusal == (401, "token")


def test_a_token_in_the_address_is_refused(shared: Node) -> None:
    good = shared.token(None)
    assert shared.site.ask(f"metrics?token={good}").refusal == (400, "usage")
    assert shared.site.ask("metrics?env=alice").refusal == (400, "usage")


def test_a_forged_host_gets_no_metrics(shared: Node) -> None:
    assert shared.site.ask("metrics", Host="evil.example").refusal == (421, "host")
    assert shared.site.ask("metrics", "POST", body={}).refusal == (405, "method")


def test_the_metrics_are_below_the_base() -> None:
    node = Node(web_base="/gpus")
    with node.manager:
        assert node.site.ask("metrics").status == 200
        assert node.site.ask("/metrics").status == 404


def test_while_the_manager_is_away_the_answer_is_a_value() -> None:
    manager = Manager("2x16GiB", options=["--web", "127.0.0.1:0"]).start()
    try:
        site = site_of(manager)
        token = manager.call("web_token", admin=True, for_ms=HOUR_MS)["token"]
        assert Scrape(site.ask("metrics", token=token).body).value("nodemgr_up") == 1
        manager.kill()
        with site.events() as stream:
            assert stream.until("manager") == {"state": "away"}
        answer = site.ask("metrics", token=token)
        assert (answer.status, Scrape(answer.body).value("nodemgr_up")) == (200, 0)
        assert b"nodemgr_gpus" not in answer.body
    finally:
        manager.close()


# -- the values --


def test_each_metric_of_the_table_is_there_with_its_labels(node: Node) -> None:
    node.manager.call("quota_set", env="alice", gpus=2, memory_bytes=GIB)
    node.site.ask("nosuch")
    node.manager.call("gpu_failed", index=0)
    found = scrape(node, node.token(None))
    node.manager.call("gpu_repaired", index=0)
    for (name, labels), _ in found.series.items():
        metric = BY_NAME.get(name) or BY_NAME[re.sub("_(bucket|sum|count)$", "", name)]
        assert {label for label, _ in labels} - {"le"} == set(metric.labels), name
    there = {name for name, _ in found.series}
    missing = {
        metric.name for metric in METRICS if metric.name not in there and not metric.bounds_s
    }
    assert missing <= {name for name in BY_NAME if name.startswith("DCGM_")}, "sensors are unknown"
    assert f"{next(m.name for m in METRICS if m.bounds_s)}_bucket" in there


def test_sensors_and_memory_have_the_names_of_dcgm_exporter() -> None:
    manager = Manager("1x16GiB", options=["--web", "127.0.0.1:0"]).start()
    try:
        wanted = {name for name in BY_NAME if name.startswith("DCGM_")}
        names: set[str] = set()
        while names != wanted:  # a reading that takes more than a second is not waited for
            found = Scrape(site_of(manager).ask("metrics").body)
            names = {name for name, _ in found.series if name.startswith("DCGM_")}
            assert names <= wanted
        assert list(found.rows("DCGM_FI_DEV_FB_FREE").values()) == [16 * 1024]
    finally:
        manager.close()


def test_a_wait_a_hold_and_its_end_are_counted(node: Node) -> None:
    with FakeClient(node.manager.env_dir("alice")) as client:
        client.acquire(2)
        held = scrape(node, node.token("alice"))
        assert held.value("nodemgr_gpus_held") == 2
        assert held.value("nodemgr_tasks", state="running") == 1
        assert held.value("nodemgr_env_gpus", env="alice") == 2
        assert held.value("nodemgr_lease_wait_seconds_count", kind="interactive") == 1
        assert held.value("nodemgr_lease_hold_seconds_count") == 0
        client.release()
    assert [event["cause"] for event in node.manager.events("task.ended")] == ["released"]
    found = scrape(node)
    assert found.value("nodemgr_lease_hold_seconds_count") == 1
    assert found.value("nodemgr_leases_ended_total", cause=LeaseEnd.RELEASED.value) == 1
    assert found.value("nodemgr_events_total", event="task.granted") == 1
    assert found.value("nodemgr_step_duration_seconds_count") > 0
    assert found.value("nodemgr_store_commit_duration_seconds_count") > 0
    assert found.value("nodemgr_manager_resident_memory_bytes") > 2**20


def test_a_waiting_request_is_in_its_queue_with_its_reason(node: Node) -> None:
    node.manager.call("quota_set", env="alice", gpus=4)
    with (
        FakeClient(node.manager.env_dir("alice")) as first,
        FakeClient(node.manager.env_dir("bob")) as second,
    ):
        first.acquire(4)
        second.ask(1)
        second.expect("WAIT")
        found = scrape(node, node.token(None))
        assert found.value("nodemgr_queue_length", queue="normal", reason="node") == 1
        assert sum(found.rows("nodemgr_queue_length").values()) == 1
        assert found.value("nodemgr_env_waiting", env="bob") == 1
        reasons = {labels.partition("/")[2] for labels in found.rows("nodemgr_queue_length")}
        assert reasons == {*(cause.value for cause in WaitCause), NOT_JUDGED}


def test_further_requests_are_counted_without_a_reason(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_values, "JUDGED", 1)
    node.manager.call("quota_set", env="alice", gpus=4)
    env_dir = node.manager.env_dir("bob")
    with FakeClient(node.manager.env_dir("alice")) as first:
        first.acquire(4)
        with FakeClient(env_dir) as second, FakeClient(env_dir) as third:
            for client in (second, third):
                client.ask(1)
                client.expect("WAIT")
            found = scrape(node)
    assert found.value("nodemgr_queue_length", queue="normal", reason="node") == 1
    assert found.value("nodemgr_queue_length", queue="normal", reason=NOT_JUDGED) == 1


def test_envs_beyond_the_bound_are_summed(node: Node) -> None:
    for number in range(MAX_ENVS):
        node.manager.call("quota_set", env=f"c{number}", gpus=1)
    found = scrape(node, node.token(None))
    assert len(found.text) < 200_000
    rows = found.rows("nodemgr_env_quota_gpus")
    assert len(rows) == MAX_ENVS + 1
    assert rows["alice"] == 2
    assert rows[OTHERS] == 2, "two envs of one GPU each are beyond the bound"
    assert sum(rows.values()) == MAX_ENVS + 4
    last = f"c{MAX_ENVS - 1}"
    named = scrape(node, node.token("c99")).rows("nodemgr_env_quota_gpus")
    assert named == {"c99": 1}, f"an env beyond the bound has its own series by its token ({last})"


def test_queues_beyond_the_bound_are_summed(shared: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_values, "MAX_QUEUES", 1)
    assert scrape(shared).rows("nodemgr_queue_first_wait_seconds") == {"high": 0, OTHERS: 0}


def test_the_driver_is_beside_the_ledger(node: Node) -> None:
    manager = node.manager
    manager.call("quota_set", env="alice", gpus=1, memory_bytes=10 * GIB)
    with FakeClient(manager.env_dir("alice")) as client:
        uuid = client.acquire(1)["gpus"].partition(",")[0]
        manager.gpus.processes[uuid] = {client.pid: 3 * GIB}
        index = next(gpu.index for gpu in manager.gpus.gpus if gpu.uuid == uuid)
        labels = {"gpu": str(index), "uuid": uuid}
        found = scrape_after_reading(node)
        while found.value("nodemgr_gpu_memory_charged_bytes", **labels) == 0:
            found = scrape_after_reading(node)  # it is corrected when two readings agree
        assert found.value("nodemgr_gpu_memory_capacity_bytes", **labels) == 80 * GIB
        assert found.value("nodemgr_gpu_memory_granted_bytes", **labels) == 10 * GIB
        assert found.value("nodemgr_gpu_memory_used_bytes", **labels) == 3 * GIB
        assert found.value("nodemgr_gpu_audit_difference_bytes", **labels) == 3 * GIB
        assert found.value("nodemgr_gpu_memory_charged_bytes", **labels) == 3 * GIB, "corrected"


def test_a_lost_gpu_has_no_sensors_and_is_counted(node: Node) -> None:
    manager: LocalManager = node.manager
    manager.gpus.set_healthy(0, False)
    found = scrape_after_reading(node)
    while found.value("nodemgr_gpus", state="lost") == 0:
        found = scrape_after_reading(node)
    assert found.value("nodemgr_gpus", state="lost") == 1
    uuid = manager.gpus.gpus[0].uuid
    assert found.value("nodemgr_gpu_healthy", gpu="0", uuid=uuid) == 0


def test_values_are_made_at_most_twice_a_second(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    make = metric_values.public_values

    def counted(*arguments: Any) -> Any:
        made.append(1)
        return make(*arguments)

    monkeypatch.setattr(metric_values, "public_values", counted)
    monkeypatch.setattr(metric_values, "VALID_NS", 10**15)
    for token in (None, node.token("alice"), None, node.token(None)):
        assert node.site.ask("metrics", token=token).status == 200
    assert made == [1], "one set of values serves each scope"


def test_the_values_of_many_environments_are_made_in_turns(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        node.manager.call("quota_set", env=f"e{number}", gpus=1)
    token, whole = node.token(None), scrape(node, node.token(None)).rows("nodemgr_env_quota_gpus")
    monkeypatch.setattr(metric_values, "TURN_ENVS", 2)
    assert scrape(node, token).rows("nodemgr_env_quota_gpus") == whole
    turns = list(metric_values.env_values(node.manager.daemon, {}, sorted(whole)))
    assert len(turns) == (len(whole) - 1) // 2


def test_a_fault_in_a_value_is_an_answer(shared: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_arguments: Any) -> Any:
        raise ValueError("a fault of ours")

    monkeypatch.setattr(metric_values, "public_values", failing)
    while (answer := shared.site.ask("metrics")).status == 200:
        assert Scrape(answer.body).value("nodemgr_up") == 0, "this process was kept waiting"
    assert answer.refusal == (500, "internal")


@needs_promtool
def test_promtool_finds_no_fault_in_a_scrape(shared: Node) -> None:
    assert promtool("check", "metrics", text=scrape(shared, shared.token(None)).text) == ""
