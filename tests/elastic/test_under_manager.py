"""The leader under a lease of a real manager on a simulated node."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from client_plugin.elastic.command import leader_command
from tests.elastic.led import TRAINEE, Led
from tests.support.manager import Manager
from tests.support.udp_clients import FakeClient


@pytest.fixture
def manager(make_manager: Callable[..., Manager]) -> Manager:
    """Three GPUs; alice and bob may each use two."""
    manager = make_manager(simulate="3x8GiB", environment={"NODEMGR_OFFER_CALM_MS": "100"})
    manager.quota("alice", 2)
    manager.quota("bob", 2)
    return manager


@pytest.fixture
def led(manager: Manager, tmp_path: Path) -> Iterator[Led]:
    """alice's elastic task of one to two GPUs."""
    words = leader_command([sys.executable, str(TRAINEE)], minimum=1, maximum=2)
    led = Led(tmp_path, *words, own=True, variables=manager.environment_of("alice"))
    yield led
    led.close()


def test_gpus_go_to_a_request_that_waits_and_come_back(
    manager: Manager, led: Led, make_client: Callable[..., FakeClient]
) -> None:
    led.line("the training runs on 2 GPUs$")
    rival = make_client(manager.env_dir("bob"))
    rival.ask(2)
    led.line(r"GPU \d is asked back: r\d+ of bob waits for it$")
    rival.expect("WAIT")
    rival.expect("GRANT")
    led.line("the training runs on 1 GPU$")
    assert len(led.workers()) == 1
    rival.release()
    led.line("the training runs on 2 GPUs$", times=2)


def test_a_manager_that_dies_stops_no_training(
    manager: Manager, led: Led, make_client: Callable[..., FakeClient]
) -> None:
    led.line("the training runs on 2 GPUs$")
    workers = led.workers()
    manager.kill()
    manager.start()
    assert led.workers() == workers
    rival = make_client(manager.env_dir("bob"))
    rival.ask(2)
    rival.expect("WAIT")
    rival.expect("GRANT")
    led.line("the training runs on 1 GPU$")
    led.send(signal.SIGINT)
    assert led.end() == -signal.SIGINT


@pytest.fixture
def compete(make_manager: Callable[..., Manager], tmp_path: Path) -> Iterator[Callable[..., Led]]:
    """compete(manager, "alice", "--deaf"): an elastic task of one to four GPUs."""
    started: list[Led] = []

    def start(manager: Manager, env: str, *options: str) -> Led:
        words = leader_command([sys.executable, str(TRAINEE), *options], minimum=1, maximum=4)
        variables = manager.environment_of(env)
        started.append(Led(tmp_path, *words, own=True, variables=variables))
        return started[-1]

    yield start
    for each in started:
        each.close()


def shared(make_manager: Callable[..., Manager], **options: str) -> Manager:
    """Four GPUs, of which alice and bob may each use all."""
    settings = {"NODEMGR_OFFER_CALM_MS": "100", **options}
    manager = make_manager(simulate="4x8GiB", environment=settings)
    manager.quota("alice", 4)
    manager.quota("bob", 4)
    return manager


def held(manager: Manager) -> dict[str, list[str]]:
    """The GPUs of each environment's task. No GPU is of two tasks."""
    found = {task["env"]: list(task["gpus"]) for task in manager.status()["tasks"]}
    every = [gpu for gpus in found.values() for gpu in gpus]
    assert len(every) == len(set(every)), found
    return found


def test_two_elastic_tasks_compete(
    make_manager: Callable[..., Manager], compete: Callable[..., Led]
) -> None:
    """The second takes its least number; what the first gives back goes to it, and back again."""
    manager = shared(make_manager)
    first = compete(manager, "alice")
    first.line("the training runs on 4 GPUs$")
    second = compete(manager, "bob")
    first.line("the training runs on 3 GPUs$")
    second.line("the training runs on 1 GPU$")
    assert {env: len(gpus) for env, gpus in held(manager).items()} == {"alice": 3, "bob": 1}
    first.send(signal.SIGINT)
    assert first.end() == -signal.SIGINT
    second.line("the training runs on 4 GPUs$")
    assert {env: len(gpus) for env, gpus in held(manager).items()} == {"bob": 4}


def test_a_script_that_ignores_recalls_loses_its_worker_to_the_other_task(
    make_manager: Callable[..., Manager], compete: Callable[..., Led]
) -> None:
    manager = shared(make_manager, NODEMGR_RECALL_MS="1000")
    first = compete(manager, "alice", "--deaf")
    first.line("the training runs on 4 GPUs$")
    second = compete(manager, "bob")
    first.line("was killed, since it did not leave GPU . in time")
    second.line("the training runs on 1 GPU$")
    first.line("the training runs on 3 GPUs$")
    assert {env: len(gpus) for env, gpus in held(manager).items()} == {"alice": 3, "bob": 1}
