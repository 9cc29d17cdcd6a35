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
from pathlib import Path

import pytest

from client_plugin.ways.conversation import wait_readable
from tests.client_c.compiled import compile_c
from tests.support.limits import WAIT_LIMIT_S

HERE = Path(__file__).parent

WAIT = """
import socket, sys
from client_plugin.ways.conversation import wait_readable
ours, theirs = socket.socketpair()
print("waits", flush=True)
try:
    sys.exit(f"returned {wait_readable(ours, eval(sys.argv[1]))}")
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
"""Nothing ever comes."""


@pytest.fixture(scope="module")
def narrow_signal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_c(
        tmp_path_factory.mktemp("narrow") / "narrow_signal.so",
        [HERE / "narrow_signal.c"],
        "-shared",
    )


@pytest.mark.parametrize("timeout_s", ["None", "10_000"])
def test_a_signal_between_the_last_look_and_the_sleep_is_heard(
    narrow_signal: Path, tmp_path: Path, timeout_s: str
) -> None:
    when = tmp_path / "now"
    when.touch()
    result = subprocess.run(
        [sys.executable, "-c", WAIT, timeout_s], env={**os.environ,
            "LD_PRELOAD": str(narrow_signal), "NARROW_SIGNAL": str(when)},
        capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False,
    )  # fmt: skip
    assert (result.stdout, result.stderr, result.returncode) == ("waits\ninterrupted\n", "", 0)
    assert not when.exists()


def test_a_handler_that_raises_nothing_ends_no_wait() -> None:
    ours, theirs = socket.socketpair()
    before = signal.signal(signal.SIGUSR1, lambda *_: theirs.send(b"from the handler"))
    timer = threading.Timer(
        0.0, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1)
    )
    try:
        timer.start()
        assert wait_readable(ours, WAIT_LIMIT_S)
        assert ours.recv(100) == b"from the handler"
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
        ours.close()
        theirs.close()


def test_the_time_runs_out_in_every_thread() -> None:
    found: list[bool] = []
    ours, theirs = socket.socketpair()
    with ours, theirs:
        thread = threading.Thread(target=lambda: found.append(wait_readable(ours, 0)))
        thread.start()
        thread.join()
        found.append(wait_readable(ours, 0))
        theirs.send(b"x")
        found.append(wait_readable(ours, None))
    assert found == [False, False, True]
