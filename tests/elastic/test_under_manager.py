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
