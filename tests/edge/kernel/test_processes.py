"""Processes: what the kernel says, and word of a death."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from nodemgr.edge.host import stderr_log
from nodemgr.edge.kernel import processes
from nodemgr.edge.kernel.processes import (
    PeerGone,
    ProcessTable,
    accept_peer,
    command_line,
    identify,
    identify_peer,
    peer_credentials,
    read_within,
)
from tests.edge.hub import settle, turn
from tests.support.limits import WAIT_LIMIT_S
from tests.support.processes import children, lasting_fds, open_fds


@pytest.fixture
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def key_of(pid: int) -> str:
    ticks = processes.start_ticks(pid)
    assert ticks is not None
    return processes.process_key(pid, ticks)


def test_a_peer_is_named_by_pid_and_start(sleeping: subprocess.Popen[bytes]) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    identity = identify_peer(ours, peer_credentials(ours))
    assert (identity.pid, identity.uid) == (os.getpid(), os.geteuid())
    assert os.getegid() in identity.gids
    assert identity.key == key_of(os.getpid())
    assert not os.get_inheritable(identity.pidfd)
    for fd in (identity.pidfd, ours.detach(), theirs.detach()):
        os.close(fd)


def test_a_peer_that_died_is_no_peer() -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind("")  # an abstract name of the kernel's choice
    listener.listen(1)
    program = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET);"
        " s.connect(b'\\0' + sys.argv[1].encode())"
    )
    subprocess.run([sys.executable, "-c", program, listener.getsockname()[1:].decode()], check=True)
    accepted, _ = listener.accept()
    before = len(lasting_fds())
    with pytest.raises(PeerGone, match="ended before it could be identified"):
        identify_peer(accepted, peer_credentials(accepted))
    assert len(open_fds()) == before
    accepted.close()
    listener.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as listener:
        listener.bind("")
        listener.listen(1)
        yield listener


def test_an_accepted_connection_brings_credentials_and_waits_for_nothing(
    listener: socket.socket,
) -> None:
    with pytest.raises(BlockingIOError):
        accept_peer(listener)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as theirs:
        theirs.connect(listener.getsockname())
        ours, peer = accept_peer(listener)
        with ours:
            assert peer == peer_credentials(theirs) == peer_credentials(ours)
            assert peer.uid == os.geteuid()
            assert peer.gids == {os.getegid(), *os.getgroups()}
            assert not os.get_inheritable(ours.fileno())
            with pytest.raises(BlockingIOError):
                ours.recv(1)
            theirs.send(b"x")
            _, ((_, kind, data),), _, _ = ours.recvmsg(1, 64)
            assert kind == socket.SCM_CREDENTIALS
            assert int.from_bytes(data[:4], sys.byteorder) == os.getpid()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a process groups")
@pytest.mark.parametrize("count", [0, 256, 257, 2_000])
def test_a_peer_of_many_groups_has_them_all(listener: socket.socket, count: int) -> None:
    groups = list(range(100_000, 100_000 + count))
    name = listener.getsockname()
    child = os.fork()
    if child == 0:
        os.setgroups(groups)
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(name)
        signal.pause()
    try:
        select.select([listener], [], [])
        ours, peer = accept_peer(listener)
        ours.close()
        assert peer.gids == {os.getegid(), *groups}
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_without_a_free_descriptor_a_peer_is_not_taken_for_dead() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    for spare in (0, 1):  # neither for the pidfd, nor for /proc
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + spare, limits[1]))
        try:
            with pytest.raises(OSError, match="Too many open files") as raised:
                identify_peer(ours, peer_credentials(ours))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert raised.value.errno == errno.EMFILE
    assert os.dup(0) == free, "nothing was left open"
    for fd in (free, ours.detach(), theirs.detach()):
        os.close(fd)


def test_a_stored_key_is_the_same_process_or_none(sleeping: subprocess.Popen[bytes]) -> None:
    found = identify(key_of(sleeping.pid))
    assert found is not None
    os.close(found.pidfd)
    assert identify(f"unix:{sleeping.pid}:1") is None, "another process of that PID"
    assert identify("unix:4194304:1") is None


def test_ancestors_reach_init(sleeping: subprocess.Popen[bytes]) -> None:
    found = processes.ancestors(sleeping.pid)
    assert found[0] == os.getpid()
    for child, parent in zip((sleeping.pid, *found), (*found, 0), strict=True):
        fields = processes.stat_fields(child)
        assert fields is not None
        assert int(fields[1]) == parent
    assert processes.ancestors(4_194_304) == ()


def test_a_command_fits_a_terminal() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "input()", "\x1b[31mred\n" + "x" * 900], stdin=subprocess.PIPE
    )
    command = processes.command_line(process.pid)
    process.communicate(b"\n")
    assert command.isprintable()
    assert len(command) <= processes.MAX_COMMAND_CHARS
    assert processes.command_line(4_194_304) == ""


def test_a_name_in_the_command_cannot_confuse_the_start(tmp_path: str) -> None:
    """A process may call itself anything, `) R 1 1` too."""
    program = (
        "import ctypes, sys; ctypes.CDLL(None).prctl(15, b') R 1 2 3 (', 0, 0, 0);"
        " print(flush=True); input()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    before = processes.start_ticks(process.pid)
    process.stdout.readline()
    assert processes.start_ticks(process.pid) == before
    assert processes.ancestors(process.pid)[0] == os.getpid()
    process.communicate(b"\n")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the thread of a short read may not run within its timeout."""
    for reading in (processes.within, processes.read_within):
        monkeypatch.setattr(reading, "__defaults__", (WAIT_LIMIT_S,))


@pytest.mark.usefixtures("patient")
def test_users_and_groups_by_name_or_number() -> None:
    assert processes.user_id("root") == 0
    assert processes.user_id("4711") == 4711
    assert processes.user_id("no such user") is None
    assert processes.group_id("root") == 0
    assert processes.user_name(0) == "root"
    assert processes.user_name(2**31 - 7) == str(2**31 - 7)


def test_a_death_is_told_once(
    loop: asyncio.AbstractEventLoop, sleeping: subprocess.Popen[bytes]
) -> None:
    told: list[str] = []
    table = ProcessTable(loop)
    key = key_of(sleeping.pid)
    assert table.watch(key, told.append)
    assert table.watch(key, told.append)
    sleeping.kill()
    turn(loop, lambda: told)
    settle(loop)
    assert told == [key]
    assert len(table) == 0
    assert not table.watch(key, told.append), "it is gone"
    table.close()


def test_who_cannot_be_looked_at_for_want_of_descriptors_is_not_dead(
    loop: asyncio.AbstractEventLoop,
    sleeping: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "RETRY_S", 0)

    def exhausted(pid: int, flags: int = 0) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    gone: list[str] = []
    table = ProcessTable(loop)
    key = key_of(sleeping.pid)
    with monkeypatch.context() as out_of_descriptors:
        out_of_descriptors.setattr(os, "pidfd_open", exhausted)
        assert table.watch(key, gone.append)
        assert not table.kill(key)
        settle(loop)
    turn(loop, lambda: table.is_watched(key))
    assert gone == []
    sleeping.kill()
    turn(loop, lambda: gone == [key])
    table.close()


def test_a_pidfd_lives_as_long_as_somebody_needs_it(
    loop: asyncio.AbstractEventLoop, sleeping: subprocess.Popen[bytes]
) -> None:
    table = ProcessTable(loop)
    key = key_of(sleeping.pid)
    before = len(lasting_fds())
    for _ in range(2):
        identity = identify(key)
        assert identity is not None
        table.hold(identity)
    assert len(open_fds()) == before + 1
    table.watch(key, lambda key: None)
    table.drop(key)
    table.drop(key)
    assert table.is_watched(key)
    table.unwatch(key)
    assert len(open_fds()) == before
    table.close()


def test_an_order_to_kill_reaches_exactly_that_process(
    loop: asyncio.AbstractEventLoop, sleeping: subprocess.Popen[bytes]
) -> None:
    told: list[str] = []
    table = ProcessTable(loop)
    key = key_of(sleeping.pid)
    table.watch(key, told.append)
    assert table.kill(key)
    turn(loop, lambda: told)
    assert not table.kill(key)
    assert not table.kill("unix:1:1"), "one that it does not watch"
    table.close()


def test_a_process_is_told_by_the_numbers_it_has_in_each_namespace(
    sleeping: subprocess.Popen[bytes],
) -> None:
    assert processes.seen_as(sleeping.pid) == (sleeping.pid,)
    sleeping.kill()
    sleeping.wait()
    assert processes.seen_as(sleeping.pid) == ()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: makes a PID namespace")
def test_of_a_container_both_numbers_are_known() -> None:
    command = ["unshare", "--pid", "--fork", "sh", "-c", "echo $$; read line"]
    outer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with outer:
        assert outer.stdin is not None
        assert outer.stdout is not None
        assert outer.stdout.readline() == b"1\n"
        (inner,) = children(outer.pid)
        assert processes.seen_as(inner) == (inner, 1)
        outer.stdin.write(b"\n")


# -- reads that may not return


@pytest.fixture
def silent(tmp_path: Path) -> Path:
    """A pipe without a writer, like a page without a server."""
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def answer(path: Path, stuck: Iterable[threading.Thread]) -> None:
    """Until all have read. One may not have opened the pipe when its time was over."""
    for thread in stuck:
        while thread.is_alive():
            with contextlib.suppress(OSError):  # nobody has it open at this moment
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            thread.join(0.01)


@pytest.mark.usefixtures("patient")
def test_what_answers_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100)
    assert read_within(str(tmp_path / "file"), 10, WAIT_LIMIT_S) == b"x" * 10
    with pytest.raises(FileNotFoundError):
        read_within(str(tmp_path / "none"), 10, WAIT_LIMIT_S)
    assert "python" in command_line(os.getpid())


def test_what_does_not_answer_is_left_alone(silent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_stuck", {})
    with pytest.raises(TimeoutError):
        read_within(str(silent), 10, timeout_s=0.01)
    answer(silent, processes._stuck)


def test_a_users_name_that_does_not_come_is_his_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreachable directory server must not delay a connecting client."""
    gate = threading.Event()
    monkeypatch.setattr(processes, "_stuck", {})
    monkeypatch.setattr(processes.pwd, "getpwuid", lambda uid: gate.wait() and Mock(pw_name="late"))
    assert processes.user_name(123_456_789) == "123456789"
    with pytest.raises(TimeoutError):
        processes.known_user_name(123_456_789)
    waiting = list(processes._stuck)
    gate.set()
    for thread in waiting:
        thread.join()
    assert processes.user_name(123_456_789) == "late"
    processes._user_names.clear()


def test_what_is_logged_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    stderr_log.say("a fault\nin \x1b[31mred\u202e")
    assert capsys.readouterr().err == "nodemgr: a fault in ?[31mred?\n"


def test_many_that_do_not_answer_stop_the_reading_of_their_owner_until_one_does(
    silent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_stuck", {})
    for _ in range(processes.MAX_STUCK):
        with pytest.raises(TimeoutError):
            read_within(str(silent), 10, timeout_s=0.01)
    with pytest.raises(TimeoutError, match="too many"):
        read_within(str(silent), 10)
    assert read_within("/proc/self/cmdline", 10, WAIT_LIMIT_S), "of another mount namespace"
    learn = partial(processes._learn_user_name, 0)
    assert processes.within(learn, "it", processes.USER_DATABASE, WAIT_LIMIT_S) == "root"
    assert len(processes._stuck) == processes.MAX_STUCK
    answer(silent, processes._stuck)
    with pytest.raises(TimeoutError, match="does not answer"):
        read_within(str(silent), 10, timeout_s=0.01)
    answer(silent, processes._stuck)


def test_owners_without_number_keep_a_bounded_number_of_threads(
    silent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_stuck", {})
    monkeypatch.setattr(processes, "MAX_STUCK_IN_ALL", 2)
    for uid in range(3):
        with pytest.raises(TimeoutError, match="too many" if uid == 2 else "does not answer"):
            processes.within(silent.read_bytes, "it", (uid, 0), 0.01)
    assert processes.within(lambda: "root", "it", processes.USER_DATABASE, WAIT_LIMIT_S)
    answer(silent, processes._stuck)


def test_a_zombie_and_a_reused_pid_are_not_alive() -> None:
    child = subprocess.Popen(["sleep", "100"])
    ticks = processes.start_ticks(child.pid) or 0
    key = processes.process_key(child.pid, ticks)
    assert processes.is_alive(key)
    assert not processes.is_alive(processes.process_key(child.pid, ticks + 1))
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not processes.is_alive(key)
    child.wait()
    assert not processes.is_alive(key)
    assert not processes.is_alive("udp:0123")
