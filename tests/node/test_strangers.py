"""Processes of a user that no quota names do not keep out an env's own clients.

However many connections they make.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nodemgr.edge.rpc.wire import Direction, encode
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import Manager
from tests.support.packets import decode

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has processes of other users")
STRANGER = (
    "import os, signal, socket, sys\nos.setgroups([])\nos.setresgid(65533, 65533,"
    " 65533)\nos.setresuid(65533, 65533, 65533)\nsignal.alarm(120)\nprint('begun',"
    " flush=True)\nwhile True:\n    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET |"
    " socket.SOCK_NONBLOCK) as sock:\n        sock.connect_ex(sys.argv[1])\n"
)
ASKS = 30


def ask(path: str, number: int) -> None:
    """A shim's steps: a connect that does not wait, a grant, its end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as sock:
        sock.connect(path)  # a full backlog is BlockingIOError
        sock.settimeout(WAIT_LIMIT_S)
        sock.send(encode("ACQUIRE", rid=1, task=f"{number:04x}", gpus=1))
        assert decode(sock.recv(2_000), Direction.DOWN).verb == "GRANT"
        sock.send(encode("RELEASE", rid=2, task=f"{number:04x}"))
        assert decode(sock.recv(2_000), Direction.DOWN).verb == "ACK"


def test_two_processes_that_only_connect_keep_nobody_of_the_env_out(
    make_manager: Callable[..., Manager],
) -> None:
    node = make_manager(simulate="1x8GiB")
    node.quota("bob", 1)
    node.directory.chmod(0o755)
    path = str(node.env_dir("bob") / "socket")
    command = [sys.executable, "-I", "-S", "-c", STRANGER, path]
    strangers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        for stranger in strangers:
            assert stranger.stdout is not None
            assert stranger.stdout.readline() == "begun\n"
        while node.status()["counters"]["connections_refused"] == 0:
            assert all(stranger.poll() is None for stranger in strangers)
        for number in range(ASKS):
            ask(path, number)
    finally:
        for stranger in strangers:
            stranger.kill()
            stranger.communicate()
    assert node.status()["counters"]["strangers_shut_out"] >= 1
    assert "the kernel lets only its users connect" in node.log


@pytest.mark.slow  # the doctor tries all that it checks
def test_the_doctor_names_the_environment_the_holder_and_the_setting(
    make_manager: Callable[..., Manager], tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text("max_connections_per_env = 4\n")
    node = make_manager(simulate="1x8GiB", options=["--config", str(config)])
    node.quota("alice", 1)
    node.quota("bob", 1)
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            sock.settimeout(WAIT_LIMIT_S)
            sock.connect(str(node.env_dir("alice") / "socket"))
            sock.send(encode("RELEASE", rid=1, task="ab12"))
            assert sock.recv(2_000), "the manager has this connection"
        (row,) = [row for row in node.call("doctor")["checks"] if row["name"] == "connections"]
    assert not row["ok"]
    assert "environment alice has all the 4 connections that it may" in row["detail"]
    assert f"4 of pid {os.getpid()}" in row["detail"]
    assert "bob" not in row["detail"]
    assert "max_connections_per_env" in row["cure"]
