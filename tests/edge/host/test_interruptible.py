"""A signal ends a wait even in the moment in which Python would miss it.

That is after Python's last check and before poll(2) sleeps.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from nodemgr.edge.host.interruptible import readable, signals_told
from tests.client_c.compiled import compile_c
from tests.support.limits import WAIT_LIMIT_S

HERE = Path(__file__).parent

WAIT = """
import sys, zmq
from nodemgr.edge.host.interruptible import readable
socket = zmq.Context.instance().socket(zmq.PULL)
socket.bind("inproc://nobody")
print("waits", flush=True)
try:
    sys.exit(f"returned {readable((socket,), eval(sys.argv[1]))}")
except KeyboardInterrupt:
    print("interrupted", flush=True)
    socket.close()
"""
"""Nothing ever comes."""


@pytest.fixture(scope="module")
def narrow_signal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_c(
        tmp_path_factory.mktemp("narrow") / "narrow_signal.so",
        [HERE / "narrow_signal.c"],
        "-shared",
    )


@pytest.mark.parametrize("timeout_ms", ["None", "10_000_000"])
def test_a_signal_between_the_last_look_and_the_sleep_is_heard(
    narrow_signal: Path, tmp_path: Path, timeout_ms: str
) -> None:
    when = tmp_path / "now"
    when.touch()
    result = subprocess.run(
        [sys.executable, "-c", WAIT, timeout_ms], env={**os.environ,
            "LD_PRELOAD": str(narrow_signal), "NARROW_SIGNAL": str(when)},
        capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False,
    )  # fmt: skip
    assert (result.stdout, result.stderr, result.returncode) == ("waits\ninterrupted\n", "", 0)
    assert not when.exists()


@pytest.fixture
def pair() -> Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]]:
    with (
        zmq.Context() as context,
        context.socket(zmq.PAIR) as one,
        context.socket(zmq.PAIR) as other,
    ):
        one.bind("inproc://pair")
        other.connect("inproc://pair")
        yield one, other


def test_a_handler_that_raises_nothing_ends_no_wait(
    pair: tuple[zmq.Socket[bytes], zmq.Socket[bytes]],
) -> None:
    ours, theirs = pair
    before = signal.signal(signal.SIGUSR1, lambda *_: theirs.send(b"from the handler"))
    timer = threading.Timer(
        0.0, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1)
    )
    try:
        timer.start()
        assert readable((ours,), WAIT_LIMIT_S * 1_000) == {ours}
        assert ours.recv() == b"from the handler"
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)


def test_the_time_runs_out(pair: tuple[zmq.Socket[bytes], zmq.Socket[bytes]]) -> None:
    assert readable(pair, 0) == set()


def test_who_waits_around_us_hears_of_the_signal_too() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    before = signal.set_wakeup_fd(theirs.fileno())
    handler = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with signals_told():
            signal.raise_signal(signal.SIGUSR1)
        assert ours.recv(10) == bytes([signal.SIGUSR1])
        assert signal.set_wakeup_fd(-1) == theirs.fileno()
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGUSR1, handler)
        ours.close()
        theirs.close()


def test_another_thread_is_told_nothing() -> None:
    told: list[list[int]] = []

    def look() -> None:
        with signals_told() as descriptors:
            told.append(descriptors)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert told == [[]]
