"""The node's resources as events: each subscriber gets each once, and wakes by it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from client_plugin.ways.faults import Fault
from nodemgr.edge.engine import node_monitor
from nodemgr.edge.engine.informer import QUEUE_CHANGED, News, Resource
from tests.support.limits import WAIT_LIMIT_S
from tests.support.local import LocalManager
from tests.support.udp_clients import FakeClient

Client = Callable[..., FakeClient]


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalManager]:
    """While it is idle it reads nothing that it is not asked to."""
    monkeypatch.setattr(node_monitor, "IDLE_PERIOD_S", 10_000)
    with LocalManager(beat_ms=50) as manager:
        for env in ("alice", "bob"):
            manager.call("quota_set", env=env, gpus=4)
        yield manager


def told(manager: LocalManager) -> list[News]:
    """The news of resources from now on, without those of the queues."""
    heard: list[News] = []
    manager.do(
        lambda: manager.daemon.informer.subscribe(
            lambda _cause, news: heard.extend(each for each in news if each != QUEUE_CHANGED)
        )
    )
    return heard


def gpu_removed(manager: LocalManager) -> threading.Event:
    """Set when a GPU is reported as removed."""
    lost = threading.Event()

    def hear(_cause: str, news: list[News]) -> None:
        if any((each.change, each.resource.kind) == ("removed", "gpu") for each in news):
            lost.set()

    manager.do(lambda: manager.daemon.informer.subscribe(hear))
    return lost


def read_again(manager: LocalManager) -> None:
    """Until the devices were read once more, and what followed from that is done."""
    done = threading.Event()
    manager.do(lambda: manager.daemon.gpus.read_soon(lambda _reading: done.set()))
    assert done.wait(WAIT_LIMIT_S)
    for _ in range(3):
        manager.do(lambda: None)


def passes(manager: LocalManager) -> int:
    return int(manager.do(lambda: manager.daemon.event_loop.passes))


def of_gpus(news: list[News]) -> list[News]:
    return [each for each in news if each.resource.kind == "gpu"]


def test_a_gpu_that_is_lost_is_removed_and_one_that_is_back_wakes_the_matcher_once(
    manager: LocalManager, make_client: Client
) -> None:
    """A held GPU makes the devices be read; a waiting request gives the matcher work."""
    holder, waiter = make_client(manager.env_dir("bob")), make_client(manager.env_dir("alice"))
    holder.acquire(1)
    waiter.ask(4)
    assert waiter.receive()["verb"] == "WAIT"
    news, lost = told(manager), gpu_removed(manager)
    uuid = manager.gpus.gpus[3].uuid
    manager.gpus.set_healthy(3, False)
    assert lost.wait(WAIT_LIMIT_S), "nobody asked for a look"
    read_again(manager)
    before = passes(manager)
    manager.gpus.set_healthy(3, True)
    for _ in range(3):
        read_again(manager)
    assert of_gpus(news) == [("removed", Resource("gpu", uuid)), ("added", Resource("gpu", uuid))]
    assert passes(manager) == before + 1


def test_an_idle_node_reads_nothing_and_tells_at_the_next_audit(manager: LocalManager) -> None:
    news = told(manager)
    reads = manager.gpus.reads
    manager.gpus.set_healthy(0, False)
    manager.do(lambda: None)
    assert (manager.gpus.reads, news) == (reads, [])
    read_again(manager)
    assert of_gpus(news) == [("removed", Resource("gpu", manager.gpus.gpus[0].uuid))]
    assert passes(manager) == 0, "nothing is queued"


def test_a_device_that_says_that_something_happened_is_looked_at_once(
    manager: LocalManager,
) -> None:
    news, gone = told(manager), gpu_removed(manager)
    reads = manager.gpus.reads
    manager.gpus.set_healthy(0, False)
    manager.do(lambda: [manager.daemon.informer.stirred() for _ in range(5)])
    assert gone.wait(WAIT_LIMIT_S)
    assert manager.gpus.reads == reads + 1
    assert len(news) == 1


def test_quotas_and_leases_are_told_and_a_process_more_is_no_change(
    manager: LocalManager, make_client: Client
) -> None:
    news = told(manager)
    manager.call("quota_set", env="carol", gpus=1)
    manager.call("quota_set", env="carol", gpus=2)
    first, second = make_client(manager.env_dir("carol")), make_client(manager.env_dir("carol"))
    lease = first.acquire(1)["lease"]
    second.token = first.token
    second.acquire(1)
    second.release()
    first.release()
    manager.call("quota_rm", env="carol")
    carol, task = Resource("quota", "carol"), Resource("lease", lease)
    assert news == [
        ("added", carol),
        ("changed", carol),
        ("added", task),
        ("removed", task),
        ("removed", carol),
    ]


def test_one_listener_that_fails_keeps_nothing_from_the_others(
    manager: LocalManager, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_cause: str, _news: list[News]) -> None:
        raise RuntimeError("a fault of the listener")

    manager.do(lambda: manager.daemon.informer.subscribe(fail))
    news = told(manager)
    manager.call("quota_set", env="carol", gpus=1)
    assert news == [("added", Resource("quota", "carol"))]
    assert "a fault of the listener" in capsys.readouterr().err


def test_what_could_not_be_stored_is_told_to_nobody(manager: LocalManager) -> None:
    news = told(manager)
    manager.store.fault = "database or disk is full"
    with pytest.raises(Fault):
        manager.call("quota_set", env="carol", gpus=1)
    assert news == []
    manager.store.fault = None
