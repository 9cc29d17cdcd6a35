"""sd_notify, the watchdog and the descriptor store, against a stand-in for systemd."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodemgr.edge.host import descriptors
from nodemgr.edge.host.systemd import ServiceManager
from tests.session import TMP
from tests.support.supervisor import Supervisor

OWN = str(os.getpid())
CHILD = """
import fcntl, os, sys
from nodemgr.edge.host.systemd import ServiceManager
taken = ServiceManager(os.environ).take_over()
for name, fd in taken:
    print(name, os.read(fd, 10).decode(), fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC)
print(sorted(name for name in os.environ if name.startswith(("LISTEN", "NOTIFY", "WATCHDOG"))))
"""


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nm", dir=TMP) as directory:
        yield Path(directory)


@pytest.fixture
def supervisor(directory: Path) -> Iterator[Supervisor]:
    supervisor = Supervisor(directory)
    yield supervisor
    supervisor.close()


@pytest.mark.parametrize("abstract", [False, True])
def test_a_service_manager_is_told(directory: Path, abstract: bool) -> None:
    supervisor = Supervisor(directory, abstract)
    ServiceManager({"NOTIFY_SOCKET": supervisor.address}).notify("READY=1")
    assert supervisor.hear() == "READY=1"
    supervisor.close()


@pytest.mark.parametrize(
    "address", ["", "nonsense", "/nowhere/at/all", "@nobody-listens-here", "/" + "a" * 200]
)
def test_nobody_to_tell_is_no_fault(address: str) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": address})
    manager.notify("READY=1")
    manager.keep("name", 0)
    manager.drop("name")


@pytest.mark.parametrize(
    ("allowed", "pid", "period_s"),
    [
        ("10000000", None, 5.0), ("10000000", "own", 5.0), ("10000000", "1", None),
        ("", None, None), ("0", None, None), ("soon", None, None), ("-5", None, None),
        ("9" * 30, None, None),
    ],
)  # fmt: skip
def test_the_watchdog_is_patted_twice_as_often_as_it_wants(
    allowed: str, pid: str | None, period_s: float | None
) -> None:
    pid = OWN if pid == "own" else pid
    said = {"WATCHDOG_USEC": allowed} | ({} if pid is None else {"WATCHDOG_PID": pid})
    assert ServiceManager(said).watchdog_period_s == period_s


def test_what_is_kept_is_kept_once_until_it_is_dropped(supervisor: Supervisor) -> None:
    manager = ServiceManager(supervisor.environment())
    fd = descriptors.memory("kept", 5)
    os.write(fd, b"words")
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    for _ in range(2):
        manager.keep("ledger-alice-7", fd)
    assert supervisor.hear() == "FDSTORE=1\nFDNAME=ledger-alice-7\nFDPOLL=0"
    os.close(fd)
    assert os.pread(supervisor.store["ledger-alice-7"], 10, 0) == b"words"
    for _ in range(2):
        manager.drop("ledger-alice-7")
    manager.notify("STOPPING=1")
    assert supervisor.hear() == "FDSTOREREMOVE=1\nFDNAME=ledger-alice-7"
    assert supervisor.hear() == "STOPPING=1"


@pytest.mark.parametrize("name", ["", "with:colon", "with\nline", "with space", "ü", "n" * 256])
def test_a_name_that_would_break_the_protocol_is_never_sent(
    supervisor: Supervisor, name: str
) -> None:
    manager = ServiceManager(supervisor.environment())
    manager.keep(name, 0)
    manager.notify("READY=1")
    assert supervisor.hear() == "READY=1"


def fill(address: str) -> bool:
    """Sends as many messages as one sender can; returns whether it sent any."""
    sent = 0
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
        contextlib.suppress(BlockingIOError),
    ):
        sender.setblocking(False)
        while True:
            sender.sendto(b"STATUS=busy", address)
            sent += 1
    return sent > 0


def test_a_service_manager_that_does_not_read_holds_nobody_up(supervisor: Supervisor) -> None:
    """Once its queue is full, a word is lost, and the manager goes on."""
    while fill(supervisor.address):  # one sender's own buffer may be full before the queue is
        pass
    ServiceManager(supervisor.environment()).notify("WATCHDOG=1")
    supervisor.hear_all()
    assert set(supervisor.heard) == {"STATUS=busy"}


def test_the_next_life_takes_over_what_was_kept(supervisor: Supervisor) -> None:
    for name in ("ledger-a-1", "ledger-b-2"):
        fd = os.memfd_create(name)
        os.write(fd, name[-3:].encode())
        os.lseek(fd, 0, os.SEEK_SET)
        supervisor.store[name] = fd
    said = subprocess.run(
        supervisor.wrap([sys.executable, "-c", CHILD]), pass_fds=supervisor.store.values(),
        capture_output=True, text=True, check=True,
        env={**os.environ, **supervisor.environment()},
    )  # fmt: skip
    assert said.stdout.splitlines() == ["ledger-a-1 a-1 1", "ledger-b-2 b-2 1", "[]"]


@pytest.mark.parametrize(
    "said",
    [
        {"LISTEN_PID": "1", "LISTEN_FDS": "1"},
        {"LISTEN_FDS": "1"},
        {"LISTEN_PID": OWN, "LISTEN_FDS": "many"},
        {"LISTEN_PID": OWN, "LISTEN_FDS": "-1"},
        {"LISTEN_PID": OWN, "LISTEN_FDS": "99999999"},
        {"LISTEN_PID": OWN},
    ],
)
def test_descriptors_that_are_not_for_us_are_left_alone(said: dict[str, str]) -> None:
    assert ServiceManager(said).take_over() == []
