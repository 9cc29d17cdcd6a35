"""The status as text: the same object as the core's snapshot.

This holds for any number of questions and any change in between.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from nodemgr.core.views import snapshot
from nodemgr.core.views.figures import GpuSensors
from nodemgr.edge.api import views
from nodemgr.edge.gpu import figure_reader
from nodemgr.edge.gpu.sensors import ProcessUse, Sensed
from tests.edge.simulated_clock import SimulatedClock
from tests.support.local import LocalManager
from tests.support.udp_clients import FakeClient

Client = Callable[..., FakeClient]


@pytest.fixture
def manager() -> Iterator[LocalManager]:
    """Its clock stands still: two looks at one state have the same ages."""
    with LocalManager(clock=SimulatedClock()) as manager:
        manager.call("quota_set", env="alice", gpus=4)
        yield manager


def both(manager: LocalManager, env: str | None = None) -> tuple[object, object]:
    """(as text, as the core's snapshot makes it), at one moment."""

    def look() -> tuple[object, object]:
        daemon = manager.daemon
        now_ns = daemon.clock.monotonic_ns()
        plain = snapshot.status(
            daemon.state,
            now_ns,
            used_bytes=daemon.gpus.last.used_bytes,
            last_beat_ns=daemon.beats.packets,
            env=env,
            readings=manager.service.daemon.views._figures.now(),
        )
        said: list[str] = []
        manager.service.daemon.views.reply_status(env, said.append)
        text = json.loads(said[0])
        for key in (
            "store", "launcher", "gate_node", "counters", "manager", "queue_loop", "crowds",
        ):  # fmt: skip
            text.pop(key, None)
        for request in text["queue"]:
            assert [place["pid"] for place in request.pop("places")] == request["pids"]
        for row in text["residues"]:
            row.pop("places")
        for task in text["tasks"]:
            assert {place["pid"] for place in task.pop("places")} == set(task["pids"])
        return text, json.loads(json.dumps(plain))

    found: tuple[object, object] = manager.do(look)
    return found


def test_text_and_snapshot_say_the_same_through_a_tasks_life(
    manager: LocalManager, make_client: Client
) -> None:
    def same() -> bool:
        text, plain = both(manager)
        return text == plain

    assert same()
    clients = [make_client(manager.env_dir("alice")) for _ in range(3)]
    for client in clients:
        client.acquire(1, command='a "quoted" },{ command %25 \\ é')
        assert same()
    clients[1].token = clients[0].token
    clients[1].release()
    clients[1].acquire(1)
    assert same(), "a second process joined"
    clients[0].kill()
    clients[2].release()
    assert same()
    text, plain = both(manager, "alice")
    assert text == plain


def test_a_long_status_is_made_in_turns(
    manager: LocalManager, make_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [make_client(manager.env_dir("alice")) for _ in range(5)]
    for client in clients:
        client.acquire(1)
    whole = [row["id"] for row in manager.call("status")["tasks"]]
    assert len(whole) == 5
    monkeypatch.setattr(views, "TURN_TASKS", 1)
    assert [row["id"] for row in manager.call("status")["tasks"]] == whole
    said: list[str] = []
    manager.do(lambda: manager.service.daemon.views.status("alice").begin(said.append))
    clients[3].release()
    while not said:
        manager.do(lambda: None)  # a turn of the loop
    assert [row["id"] for row in json.loads(said[0])["tasks"]] in (whole, whole[:3] + whole[4:])


def test_many_environments_are_written_in_turns(
    manager: LocalManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "dbc":
        manager.call("quota_set", env=name, gpus=1)
    whole = manager.call("status")["envs"]
    assert [row["name"] for row in whole] == ["alice", "b", "c", "d"]
    monkeypatch.setattr(views, "TURN_ENVS", 2)
    assert manager.call("status")["envs"] == whole
    said: list[str] = []

    def removed_between_two_turns() -> list[str]:
        manager.service.daemon.views.reply_status(None, said.append)
        del manager.daemon.state.envs["d"]
        return list(said)

    row = manager.do(lambda: manager.daemon.state.envs["d"])
    assert manager.do(removed_between_two_turns) == []
    while not said:
        manager.do(lambda: None)  # a turn of the loop
    assert json.loads(said[0])["envs"] == whole[:3]
    manager.do(lambda: manager.daemon.state.envs.update(d=row))
    for name in "bcd":
        manager.call("quota_rm", env=name)


def test_an_env_is_told_of_its_own_holdings(manager: LocalManager, make_client: Client) -> None:
    """The form that csrc/shim/sight.c reads, without a blank.

    `"gpus":[["GPU-…",limit,used],…]` and `"pids":[…]`.
    """
    manager.call("quota_set", env="bob", gpus=1, memory_bytes=1 << 30)
    other = make_client(manager.env_dir("alice"))
    other.acquire(2)
    asker = make_client(manager.env_dir("bob"))
    assert holdings(asker) == '{"gpus":[],"pids":[]}'
    lease = asker.acquire(1)
    uuid = lease["gpus"]
    assert holdings(asker) == f'{{"gpus":[["{uuid}",{1 << 30},0]],"pids":[{asker.pid}]}}'
    asker.release()
    assert json.loads(holdings(asker))["gpus"] == []


def holdings(client: FakeClient) -> str:
    client.send("ASK", rid=4242, what="holdings")
    return client.expect("PART")["data"]


# -- figures


def in_use(manager: LocalManager, client: FakeClient) -> None:
    """NVML shows 2 GiB and a use by the client on the first GPU, and its sensors."""
    uuid = manager.gpus.gpus[0].uuid
    manager.gpus.processes[uuid][client.pid] = 2 << 30
    shown = ProcessUse({client.pid: 40}, frozenset({client.pid}))
    manager.gpus.sensed[uuid] = Sensed(GpuSensors(55, 61, 300.0), shown)


def test_a_status_has_the_figures_that_the_driver_has_now(
    manager: LocalManager, make_client: Client
) -> None:
    client = make_client(manager.env_dir("alice"))
    client.acquire(1)
    in_use(manager, client)
    shown = manager.call("status")
    first, second = shown["gpus"][:2]
    assert (first["utilization_percent"], first["temperature_c"], first["power_w"]) == (55, 61, 300)
    assert (second["utilization_percent"], second["temperature_c"], second["power_w"]) == (
        None,
        None,
        None,
    )
    (task,) = shown["tasks"]
    assert task["memory_bytes"] in (0, 2 << 30), "of a reading at most 0.2 s old"
    assert (task["utilization_percent"], task["idle_seconds"], task["idle_source"]) == (
        40,
        0,
        "nvml",
    )
    assert task["host_memory_bytes"] > 0


def test_figures_alone_are_those_of_the_status(manager: LocalManager, make_client: Client) -> None:
    client = make_client(manager.env_dir("alice"))
    client.acquire(1)
    in_use(manager, client)
    manager.call("status")
    shown = manager.call("figures")
    assert shown["schema_version"] == 1
    assert shown["gpus"][0]["power_w"] == 300.0
    (task,) = shown["tasks"]
    assert (task["id"], task["utilization_percent"], task["idle_seconds"]) == ("t1", 40, 0)


def test_an_env_is_shown_no_figures_of_others(manager: LocalManager, make_client: Client) -> None:
    manager.call("quota_set", env="bob", gpus=1)
    holder = make_client(manager.env_dir("alice"))
    holder.acquire(1, command="secret")
    in_use(manager, holder)
    asker = make_client(manager.env_dir("bob"))
    for what in ("figures", "status"):
        asker.send("ASK", rid=4243, what=what)
        text = ""
        while True:
            part = asker.expect("PART")
            text += part["data"]
            if int(part["index"]) + 1 == int(part["count"]):
                break
        shown = json.loads(text)
        assert shown["tasks"] == []
        assert len(shown["gpus"]) == 4
        assert "alice" not in "".join(json.dumps(row) for row in shown["tasks"])
        assert "secret" not in text


def test_a_status_without_an_answer_of_the_driver_has_no_figures(
    manager: LocalManager, make_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figure_reader, "READING_TIMEOUT_S", 0.02)
    client = make_client(manager.env_dir("alice"))
    client.acquire(1)
    manager.gpus.gate.clear()
    in_use(manager, client)
    try:
        shown = manager.call("status")
    finally:
        manager.gpus.gate.set()
    assert shown["gpus"][0]["utilization_percent"] is None
    assert shown["tasks"][0]["idle_seconds"] is None


def test_a_task_that_ends_while_figures_are_read_has_no_row(
    manager: LocalManager, make_client: Client
) -> None:
    client = make_client(manager.env_dir("alice"))
    client.acquire(1)
    in_use(manager, client)
    manager.gpus.gate.clear()
    said: list[object] = []
    manager.do(lambda: manager.service.daemon.views.figures().begin(said.append))
    client.release()
    manager.gpus.gate.set()
    while not said:
        manager.do(lambda: None)  # a turn of the loop
    assert json.loads(str(said[0]))["tasks"] == []


def test_the_figures_of_very_many_tasks_end_with_the_oldest(
    manager: LocalManager, make_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "FIGURED_TASKS", 3)
    monkeypatch.setattr(views, "TURN_TASKS", 2)
    clients = [make_client(manager.env_dir("alice")) for _ in range(6)]
    for client in clients:
        client.acquire(1)
    for shown in (manager.call("status"), manager.call("figures")):
        known = [row["memory_bytes"] is not None for row in shown["tasks"]]
        assert known[:3] == [True] * 3
        assert known[4:] == [False] * 2, "a turn is not cut in two"
