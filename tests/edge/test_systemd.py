"""sd_notify: one datagram to whom the environment names."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import pytest

from nodemgr.edge import systemd


@pytest.mark.parametrize("abstract", [False, True])
def test_a_service_manager_is_told(monkeypatch: pytest.MonkeyPatch, abstract: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="nm", dir="/tmp") as directory, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        name = f"nodemgr-test-{os.getpid()}" if abstract else str(Path(directory) / "notify")
        listener.bind("\0" + name if abstract else name)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name if abstract else name)
        systemd.notify("READY=1")
        assert listener.recv(100) == b"READY=1"


@pytest.mark.parametrize("address", ["", "nonsense", "/nowhere/at/all", "@nobody-listens-here"])
def test_nobody_to_tell_is_no_fault(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    systemd.notify("READY=1")


@pytest.mark.parametrize(
    ("allowed", "pid", "period_s"),
    [("10000000", None, 5.0), ("10000000", "1", None), ("", None, None), ("0", None, None), ("soon", None, None), ("-5", None, None)],
)
def test_the_watchdog_is_patted_twice_as_often_as_it_wants(
    monkeypatch: pytest.MonkeyPatch, allowed: str, pid: str | None, period_s: float | None
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", allowed)
    if pid is None:
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
    else:
        monkeypatch.setenv("WATCHDOG_PID", pid)
    assert systemd.watchdog_period_s() == period_s
