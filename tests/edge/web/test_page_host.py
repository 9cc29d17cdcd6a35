"""A new manager takes the page's address over from the page process of the one before.

The processes themselves: tests/edge/web/test_web_page.py.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from nodemgr.edge.host.module_path import command
from nodemgr.edge.page import address as addresses
from nodemgr.edge.page.address import ByHand
from nodemgr.edge.web import page_host
from nodemgr.edge.web.page_host import PAGE_FILE, PageHost, PageHostFault, end_earlier
from tests.support.limits import WAIT_LIMIT_S

BEGIN_AND_BE_KILLED = """
import os, signal, sys
from pathlib import Path
from nodemgr.edge.web import page_host
page_host.END_TIMEOUT_S = page_host.FREE_TIMEOUT_S = float(sys.argv[3])  # on a busy machine
page_host.PageHost.begin(Path(sys.argv[1]), ("127.0.0.1", int(sys.argv[2])), (), "/")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """Its path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="nm") as found:
        Path(found).chmod(0o755)
        yield Path(found)


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock


def count_tries(monkeypatch: pytest.MonkeyPatch, holder: socket.socket, most: int) -> list[int]:
    """A list that grows with each try; after so many the holder of the address has ended."""
    tries: list[int] = []
    listen = addresses.listen

    def tried(host: str, port: int) -> list[socket.socket]:
        tries.append(port)
        if len(tries) > most:
            holder.close()
        return listen(host, port)

    monkeypatch.setattr(addresses, "listen", tried)
    return tries


def make_earlier(run_dir: Path) -> None:
    """An earlier manager has had a page here."""
    (run_dir / PAGE_FILE).parent.mkdir()
    (run_dir / PAGE_FILE).touch()


def test_it_waits_until_an_earlier_page_process_gives_the_address_back(
    run_dir: Path, taken: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_host, "FREE_TIMEOUT_S", WAIT_LIMIT_S)
    make_earlier(run_dir)
    address = taken.getsockname()
    tries = count_tries(monkeypatch, taken, 3)
    host = PageHost.begin(run_dir, address, (), "/")
    try:
        assert len(tries) == 4
        assert host.url == f"http://127.0.0.1:{address[1]}/"
    finally:
        host.close()


@pytest.mark.parametrize("has_earlier", [True, False])
def test_a_strangers_address_is_one_line(
    run_dir: Path, taken: socket.socket, monkeypatch: pytest.MonkeyPatch, has_earlier: bool
) -> None:
    """Without an earlier page process there is nothing to wait for."""
    now_s = [0.0]
    passing = SimpleNamespace(
        monotonic=lambda: now_s[0], sleep=lambda s: now_s.__setitem__(0, now_s[0] + s)
    )
    monkeypatch.setattr(page_host, "time", passing)
    if has_earlier:
        make_earlier(run_dir)
    tries = count_tries(monkeypatch, taken, 1_000_000)
    with pytest.raises(PageHostFault, match=r"Address already in use\): name another address"):
        PageHost.begin(run_dir, taken.getsockname(), (), "/")
    assert (len(tries) > 1) == has_earlier


@pytest.mark.parametrize(
    "text", ["", "unix:", "unix:x:1", "udp:1", "unix:{pid}:1", "unix:0:0", "\0"]
)
def test_a_file_that_names_no_page_ends_no_process(run_dir: Path, text: str) -> None:
    with subprocess.Popen(["sleep", "300"]) as other:
        make_earlier(run_dir)
        (run_dir / PAGE_FILE).write_text(text.format(pid=other.pid))
        end_earlier(run_dir)
        assert other.poll() is None
        page_host.note(run_dir, other.pid)
        end_earlier(run_dir)
        assert other.wait(WAIT_LIMIT_S) == -signal.SIGTERM
        end_earlier(run_dir)  # it has gone


ADDRESS = ("127.0.0.1", 1)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "5", "null", "[", "[]", '[{}, "", null]', '[null, null, null, null]', '["told"]',
     "[" * 20_000, json.dumps([page_host.hello(ADDRESS, (), "/gpus"), "", None])],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_a_page_by_hand_of_other_settings_is_not_gone_on_with(run_dir: Path, text: str) -> None:
    told = page_host.hello(ADDRESS, ("gpus.example.org",), "/")
    make_earlier(run_dir)
    page_host.note(run_dir, os.getpid())
    key = (run_dir / PAGE_FILE).read_text()
    (run_dir / PAGE_FILE).write_text(key + text)
    assert page_host.by_hand(run_dir, told) is None
    page_host.note(run_dir, os.getpid(), ByHand(told, "http://x/", None))
    found = page_host.by_hand(run_dir, told)
    assert found is not None
    assert found.url == "http://x/"
    with subprocess.Popen(["true"]) as ended:
        page_host.note(run_dir, ended.pid, found)
    assert page_host.by_hand(run_dir, told) is None


def test_a_page_whose_manager_is_lost_before_it_is_noted_ends(run_dir: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    told = {"control": theirs.fileno(), "listeners": [], "views": str(run_dir / "views"),
            "names": [], "base": "/", "uid": None}  # fmt: skip
    words = command(page_host.MODULE, json.dumps(told))
    with theirs, subprocess.Popen(words, pass_fds=(theirs.fileno(),)) as page:
        ours.close()
        theirs.close()
        assert page.wait(WAIT_LIMIT_S) == 0


def test_managers_that_are_killed_one_after_the_other(run_dir: Path) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    words = [sys.executable, "-c", BEGIN_AND_BE_KILLED, str(run_dir), str(port), str(WAIT_LIMIT_S)]
    try:
        for _ in range(10):
            ended = subprocess.run(words, check=False)  # the page keeps its stderr open
            assert ended.returncode == -signal.SIGKILL
    finally:
        end_earlier(run_dir)
