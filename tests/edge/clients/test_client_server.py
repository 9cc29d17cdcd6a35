"""Clients on UNIX sockets: the kernel identifies the speaker, and no packet stops the server."""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import os
import random
import resource
import select
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO

import pytest

from nodemgr.edge.clients import client_server as module
from nodemgr.edge.clients import descriptor_filter, socket_access
from nodemgr.edge.clients.client_server import ClientServer
from nodemgr.edge.clients.client_sessions import DECODED_NS, PAGES
from nodemgr.edge.clients.rate_limits import WINDOW_NS
from nodemgr.edge.host import descriptors
from nodemgr.edge.host.clock import RealClock
from nodemgr.edge.host.loop import new_loop
from nodemgr.edge.kernel.processes import ProcessTable
from nodemgr.edge.rpc.wire import Direction, encode
from tests.edge.hub import StubHub, settle, turn
from tests.edge.unserved import UnservedFile
from tests.session import TMP
from tests.support.limits import WAIT_LIMIT_S
from tests.support.packets import decode
from tests.support.processes import lasting_fds, open_fds

BEAT = encode("BEAT", task="ab12")


class World:
    def __init__(
        self, directory: Path, max_per_env: int = 100, *, files_expected: bool = False
    ) -> None:
        self.loop, selector = new_loop()
        self.hub = StubHub()
        self.hub.files_expected = files_expected
        self.path = directory / "socket"
        self.processes = ProcessTable(self.loop)
        self.server = ClientServer(
            self.loop, selector, self.hub, self.processes, RealClock(), max_per_env
        )
        self.server.open("alice", self.path)
        self._sockets: list[socket.socket] = []
        self._now_ns = 10**12

    def connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.settimeout(WAIT_LIMIT_S)
        sock.connect(str(self.path))
        self._sockets.append(sock)
        return sock

    def connected(self) -> socket.socket:
        """One that the server has accepted."""
        before = len(self.hub.sessions)
        sock = self.connect()
        turn(self.loop, lambda: len(self.hub.sessions) > before)
        return sock

    def send_all(self, sock: socket.socket, packets: list[bytes]) -> None:
        """The kernel queues ten packets of a connection: the server takes turns."""
        for packet in packets:
            while not select.select([], [sock], [], 0)[1]:
                settle(self.loop)
            sock.send(packet)

    def until(self, condition: object) -> None:
        turn(self.loop, condition)  # type: ignore[arg-type]

    def stand_still(self) -> None:
        """The second that is counted in ends when `passes` says so."""
        self.server.now_ns = lambda: self._now_ns

    def passes(self, duration_ns: int) -> None:
        self._now_ns += duration_ns

    def closed_all(self) -> None:
        """Waits for the sockets that threads close."""
        self.until(lambda: self.server._descriptor_filter._threads == 0)

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()
        self.server.close_all()
        self.closed_all()
        self.processes.close()
        self.loop.close()


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nm", dir=TMP) as directory:
        yield Path(directory)


@pytest.fixture
def world(directory: Path) -> Iterator[World]:
    world = World(directory)
    yield world
    world.close()


def test_a_message_comes_with_what_the_kernel_says_of_its_sender(world: World) -> None:
    world.connected().send(encode("ACQUIRE", rid=7, task="ab12", gpus=2))
    world.until(lambda: world.hub.messages)
    session, message, fds = world.hub.messages[0]
    assert (message.verb, message.fields, fds) == (
        "ACQUIRE",
        {"rid": 7, "task": "ab12", "gpus": 2},
        [],
    )
    session.find_kin(lambda pids: f"j{pids[0]}")
    session.find_kin(lambda pids: "looked for once")
    caller = session.caller
    assert (caller.env, caller.pid, caller.ancestors[0], caller.job_id) == (
        "alice",
        os.getpid(),
        os.getppid(),
        f"j{os.getppid()}",
    )


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_the_socket_is_open_to_all_users(
    umask: int, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under any umask of the process, which other threads make files under meanwhile."""
    os.umask(umask)
    monkeypatch.delattr(os, "umask")
    world = World(directory)
    assert world.path.stat().st_mode & 0o777 == 0o666
    world.close()


def test_a_file_in_the_sockets_place_is_given_no_other_mode(directory: Path) -> None:
    secret = directory / "secret"
    secret.touch(0o600)
    for change in (socket_access.open_to_all, lambda path: socket_access.open_to(path, [1], [])):
        with pytest.raises(FileExistsError, match="somebody else puts files there"):
            change(secret)
    assert secret.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "packet",
    [
        b"", b"\0", b"garbage", b"NODEMGR/1 ", b"NODEMGR/1 BEAT", b"NODEMGR/1 STEAL\ntask=ab\n",
        b"NODEMGR/2 BEAT\ntask=ab\n",
        b"NODEMGR/1 BEAT\ntask=ab\ntask=ab\n", b"NODEMGR/1 BEAT\ntask=AB\n", b"NODEMGR/1 BEAT\n",
        b"NODEMGR/1 GRANT\nrid=1\n",
        b"NODEMGR/1 ACQUIRE\nrid=-1\ntask=ab\n",
        b"NODEMGR/1 ACQUIRE\nrid=99999999999999999999\ntask=ab\n",
        b"NODEMGR/1 BEAT\ntask=" + b"a" * 1_300 + b"\n", bytes(range(256)) * 4,
        b"NODEMGR/1 BEAT\ntask=ab\n" + b"x" * 60_000,
    ],
    ids=lambda packet: repr(packet[:24]),
)  # fmt: skip
def test_a_packet_that_breaks_the_table_is_counted_and_dropped(world: World, packet: bytes) -> None:
    sock = world.connected()
    sock.send(packet)
    world.until(lambda: world.hub.counters["packets_malformed"] == 1)
    sock.send(BEAT)
    world.until(lambda: world.hub.messages)
    assert world.hub.verbs() == ["BEAT"]
    assert world.hub.ended == []


def test_one_who_sends_nothing_but_garbage_is_disconnected(world: World) -> None:
    sock = world.connected()
    world.send_all(sock, [b"garbage"] * module.MAX_MALFORMED)
    world.until(lambda: world.hub.ended)
    assert sock.recv(10) == b""


def test_the_end_of_a_connection_is_told_once(world: World) -> None:
    sock = world.connected()
    fds = len(lasting_fds())
    sock.close()
    world.until(lambda: world.hub.ended)
    world.closed_all()
    settle(world.loop)
    assert len(world.hub.ended) == 1
    assert len(open_fds()) == fds - 2 - 1, "our end, its end, its pidfd"


def test_beats_of_the_usual_form_are_noted_without_a_word(world: World) -> None:
    sock = world.connected()
    sock.send(BEAT)
    world.until(lambda: world.hub.messages)
    session = world.hub.messages[0][0]
    session.beats_fast(True)
    sock.send(BEAT)
    world.until(lambda: session.key in world.hub.last_beat_ns)
    assert len(world.hub.messages) == 1
    session.beats_fast(False)
    sock.send(BEAT)
    world.until(lambda: len(world.hub.messages) == 2)


def test_a_child_on_its_parents_connection_is_told_to_open_its_own(world: World) -> None:
    sock = world.connected()
    sock.send(BEAT)
    world.until(lambda: world.hub.messages)
    session = world.hub.messages[0][0]
    session.beats_fast(True)
    child = os.fork()
    if child == 0:
        sock.send(BEAT)
        sock.send(encode("ACQUIRE", rid=9, task="ab12"))
        os._exit(0)
    os.waitpid(child, 0)
    world.until(lambda: world.hub.counters["packets_foreign"] == 2)
    assert len(world.hub.messages) == 1
    assert session.key not in world.hub.last_beat_ns, "a child's beat says nothing of its parent"
    answer = decode(sock.recv(1_200), Direction.DOWN)
    assert (answer.verb, answer.fields["code"]) == ("DENY", "bad_request")
    assert "opens its own" in str(answer.fields["reason"])


# -- descriptors that come along --


@pytest.fixture(params=["old", "new"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Without SO_PASSRIGHTS, and with it where the kernel here has it."""
    if request.param == "old":
        monkeypatch.setattr(descriptor_filter, "SO_PASSRIGHTS", 9_999)
    else:
        with socket.socket(socket.AF_UNIX) as sock:
            if not descriptor_filter.refuse_rights(sock, True):
                pytest.skip("a kernel before 6.16")
    return str(request.param)


def with_rights(*fds: int) -> list[tuple[int, int, array.array[int]]]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]


REJOIN = encode("REJOIN", rid=1, task="ab12", lease="t1")


def sealed(
    size_bytes: int, seals: int = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK, *, beyond_bytes: int = 0
) -> int:
    """Memory as a ledger's."""
    fd = os.memfd_create("nodemgr-usage", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size_bytes)
    if beyond_bytes:  # allocated where its size does not show it
        keep_size = 1
        libc = ctypes.CDLL(None)
        assert (
            libc.fallocate(fd, keep_size, ctypes.c_long(size_bytes), ctypes.c_long(beyond_bytes))
            == 0
        )
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


NO_LEDGERS: dict[str, Callable[[], int]] = {
    "that can grow": lambda: sealed(4_096, fcntl.F_SEAL_SHRINK),
    "large": lambda: sealed(descriptor_filter.MAX_FILE_BYTES + 1),
    "large beyond its end": lambda: sealed(
        4_096, beyond_bytes=2 * descriptor_filter.MAX_FILE_BYTES
    ),
    "a file on a disk": lambda: os.open(__file__, os.O_RDONLY),
    "a device": lambda: os.open("/dev/zero", os.O_RDWR),
    "a directory": lambda: os.open("/", os.O_RDONLY),
    "a reference without a file": lambda: os.open(__file__, os.O_PATH),
}


@pytest.mark.parametrize("make", NO_LEDGERS.values(), ids=NO_LEDGERS)
def test_what_cannot_be_a_ledger_is_let_go_before_the_loop_has_it(
    make: Callable[[], int], directory: Path
) -> None:
    """The memory of a large file is freed by its last closer.

    This takes seconds, in which no other client would be heard.
    """
    with closing(World(directory, files_expected=True)) as world:
        sock, fd = world.connected(), make()
        before = len(lasting_fds())
        sock.sendmsg([REJOIN], with_rights(fd))
        world.until(lambda: world.hub.messages)
        assert (world.hub.verbs(), world.hub.messages[0][2]) == (["REJOIN"], [])
        assert len(open_fds()) == before
        os.close(fd)


def test_nobody_brings_descriptors_unasked(kernel: str, directory: Path) -> None:
    with closing(World(directory)) as world:
        sock = world.connected()
        before = len(lasting_fds())
        if kernel == "new":
            with pytest.raises(PermissionError):
                sock.sendmsg([REJOIN], with_rights(0))
            sock.send(REJOIN)
        else:
            sock.sendmsg([REJOIN], with_rights(0))
        world.until(lambda: world.hub.messages)
        assert world.hub.messages[0][2] == []
        assert len(open_fds()) == before


def test_a_ledger_that_is_expected_is_handed_over_and_all_else_closed(
    kernel: str, directory: Path
) -> None:
    with closing(World(directory, files_expected=True)) as world:
        sock = world.connected()
        ledger = [sealed(4_096), sealed(4_096)]
        pipe = os.pipe()
        before = len(lasting_fds())
        sock.sendmsg([b"garbage"], with_rights(*ledger))
        world.until(lambda: world.hub.counters["packets_malformed"] == 1)
        assert len(open_fds()) == before
        sock.sendmsg([REJOIN], with_rights(ledger[0], pipe[0]))
        sock.sendmsg([REJOIN], with_rights(*ledger))
        sock.send(BEAT)
        world.until(lambda: len(world.hub.messages) == 3)
        assert world.hub.verbs() == ["REJOIN", "REJOIN", "BEAT"], "in their order"
        one, both, none = (fds for _, _, fds in world.hub.messages)
        assert [os.fstat(fd).st_ino for fd in (*one, *both)] == [
            os.fstat(fd).st_ino for fd in (ledger[0], *ledger)
        ]
        assert all(not os.get_inheritable(fd) for fd in (*one, *both))
        assert none == []
        for fd in (*one, *both, *ledger, *pipe):
            os.close(fd)


def test_more_descriptors_than_a_packet_may_bring_are_refused(kernel: str, directory: Path) -> None:
    with closing(World(directory, files_expected=True)) as world:
        sock = world.connected()
        before = len(lasting_fds())
        sock.sendmsg([REJOIN], with_rights(*[0] * 50))
        world.until(lambda: world.hub.counters["packets_malformed"] == 1)
        assert world.hub.messages == []
        assert len(open_fds()) == before


class Lingering:
    """A TCP connection with unread data: the closer of its last reference waits for an hour."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.end = socket.create_connection(server.getsockname())
            self.peer, _ = server.accept()
        self.end.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self.end.send(bytes(2**16))
        self.end.setblocking(True)
        self.end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3_600))

    def give_away(self, sock: socket.socket, packet: bytes) -> None:
        sock.sendmsg([packet], with_rights(self.end.fileno()))
        self.end.close()

    def close(self) -> None:
        """A reset: no closer waits any more."""
        self.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.peer.close()


def unserved() -> UnservedFile:
    if (reason := UnservedFile.impossible()) is not None:
        pytest.skip(reason)
    try:
        return UnservedFile()
    except PermissionError as error:
        pytest.skip(str(error))


ENDLESS = {"a connection that lingers": Lingering, "a file whose server is silent": unserved}


@pytest.mark.parametrize("make", ENDLESS.values(), ids=ENDLESS)
@pytest.mark.parametrize("packet", [REJOIN, b"garbage"])
def test_files_whose_end_takes_for_ever_hold_up_nobody(
    packet: bytes, make: Callable[[], Lingering | UnservedFile], directory: Path
) -> None:
    with closing(World(directory, files_expected=True)) as world, closing(make()) as lingering:
        thief, other = world.connected(), world.connected()
        lingering.give_away(thief, packet)
        settle(world.loop)
        other.send(BEAT)
        world.until(lambda: "BEAT" in world.hub.verbs())
        thief.close()
        settle(world.loop)


@pytest.mark.parametrize("make", ENDLESS.values(), ids=ENDLESS)
def test_unread_files_hold_up_nobody_when_their_connection_ends(
    make: Callable[[], Lingering | UnservedFile], directory: Path
) -> None:
    with closing(World(directory, files_expected=True)) as world, closing(make()) as lingering:
        thief, other = world.connected(), world.connected()
        lingering.give_away(thief, REJOIN)
        (connection,) = (
            session for session in world.hub.sessions if session is world.hub.sessions[0]
        )
        assert isinstance(connection, module.Connection)
        world.server.drop(connection)
        other.send(BEAT)
        world.until(lambda: "BEAT" in world.hub.verbs())


def test_many_such_files_are_the_senders_loss(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptor_filter, "MAX_THREADS", 2)
    with closing(World(directory, files_expected=True)) as world, contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(closing(Lingering())).give_away(world.connected(), REJOIN)
            settle(world.loop)
        world.connected().send(BEAT)
        world.until(lambda: "BEAT" in world.hub.verbs())


def memory() -> IO[bytes]:
    """A file that may leave the manager."""
    fd = descriptors.memory("answer", 10)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return os.fdopen(fd, "rb")


def test_a_file_of_a_file_system_is_not_sent_and_ends_the_connection(world: World) -> None:
    sock = world.connected()
    session = world.hub.sessions[0]
    with tempfile.TemporaryFile() as file:
        session.answer("ACK", fds=(file.fileno(),), rid=3)
        world.until(lambda: not world.server.connections())
    assert sock.recv(1_200) == b""


def test_answers_carry_descriptors(world: World) -> None:
    sock = world.connected()
    session = world.hub.sessions[0]
    with memory() as file:
        session.answer("ACK", fds=(file.fileno(),), rid=3)
        packet, fds, _, _ = socket.recv_fds(sock, 1_200, 4)
        assert decode(packet, Direction.DOWN).fields == {"rid": 3}
        assert os.fstat(fds[0]).st_ino == os.fstat(file.fileno()).st_ino
        os.close(fds[0])


def test_one_who_does_not_read_holds_up_nobody_and_misses_nothing(world: World) -> None:
    sock, other = world.connected(), world.connected()
    session, count = world.hub.sessions[0], 3_000
    with memory() as file:
        number = os.fstat(file.fileno()).st_ino
        for rid in range(count):
            session.answer("ACK", fds=(file.fileno(),) if rid == count - 1 else (), rid=rid)
    with memory():  # takes the number that the queued answer named
        other.send(BEAT)
        world.until(lambda: world.hub.messages)
        for rid in range(count):
            if rid % 50 == 0:
                settle(world.loop)
            packet, fds, _, _ = socket.recv_fds(sock, 1_200, 4)
            assert decode(packet, Direction.DOWN).fields["rid"] == rid
        assert os.fstat(fds[0]).st_ino == number, (
            "its own descriptor, not whoever has the number now"
        )
        os.close(fds[0])


def test_one_who_never_reads_is_disconnected(world: World) -> None:
    (listener,) = world.server._listeners.values()
    listener.bounds = listener.bounds._replace(outbox_bytes=20_000)
    world.connected()
    for rid in range(5_000):
        world.hub.sessions[0].answer("ACK", rid=rid)
    world.until(lambda: world.hub.ended)
    assert world.hub.counters["connections_deaf"] >= 1


def test_an_env_whose_clients_do_not_read_takes_no_more_than_its_share(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_OUTBOXES_BYTES", 20_000)
    with closing(World(directory)) as world:
        for _ in range(5):
            world.connected()
        for rid in range(1_000):
            for session in world.hub.sessions:
                session.answer("ACK", rid=rid)
        world.until(lambda: len(world.hub.ended) >= 4)
        (listener,) = world.server._listeners.values()
        assert (
            listener.outbox_bytes
            == sum(connection.outbox_bytes for connection in listener.connections)
            <= 20_000
        )
        assert world.hub.counters["connections_deaf"] >= 4


def test_an_env_has_so_many_connections_and_the_next_waits_for_one_to_end(directory: Path) -> None:
    world = World(directory, max_per_env=3)
    first = [world.connected() for _ in range(3)]
    world.connect()
    settle(world.loop, 20)
    assert len(world.hub.sessions) == 3
    first[0].close()
    world.until(lambda: len(world.hub.sessions) == 4)
    world.close()


def test_an_env_that_has_all_its_connections_is_told_of_once_with_who_has_them(
    directory: Path,
) -> None:
    world, full = World(directory, max_per_env=2), []
    world.server.on_full = full.append
    world.connected()
    assert (full, world.server.full()) == ([], [])
    world.connected()
    assert (full, world.server.full()) == (["alice"], ["alice"])
    world.connect()
    world._sockets[0].close()
    world.until(lambda: world.hub.counters["connections_over_limit"] == 2)
    assert full == ["alice"], "one episode"
    assert world.server.crowd("alice") == {os.getpid(): 2}
    assert world.server.crowd("bob") == {}
    world.close()


def test_who_may_not_enter_is_heard_but_cannot_fill_the_env(world: World) -> None:
    world.hub.allowed = lambda env, identity: False
    for _ in range(module.MAX_FORBIDDEN + 5):
        world.connect()
    world.until(lambda: world.hub.counters["connections_refused"] == 5)
    assert len(world.hub.sessions) == module.MAX_FORBIDDEN
    assert not world.hub.sessions[0].may_enter()
    world.hub.allowed = lambda env, identity: True
    assert world.hub.sessions[0].may_enter(), "a quota that names the user now lets him in"


def test_an_env_whose_processes_connect_all_the_time_is_heard_in_turn(
    world: World, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More connections than a second may bring wait for the next; another env's come at once."""
    monkeypatch.setattr(module, "MAX_ARRIVALS", 5)
    world.stand_still()
    world.server.close("alice")
    world.server.open("alice", world.path)
    world.server.open("bob", directory / "bob")
    for _ in range(12):
        world.connect()
    world.until(lambda: world.hub.counters["connections_throttled"])
    assert len(world.hub.sessions) == 6, "one is found to be too many when it is there"
    world.path = directory / "bob"
    world.connected()
    assert [session.env for session in world.hub.sessions].count("bob") == 1
    world.passes(WINDOW_NS)
    world.until(lambda: len(world.hub.sessions) == 13)


CONNECTING = (
    "import errno, os, socket, sys\n"
    "path, most, uid, gid = sys.argv[1], *map(int, sys.argv[2:])\n"
    "os.setgroups([])\n"
    "os.setresgid(gid, gid, gid)\n"
    "os.setresuid(uid, uid, uid)\n"
    "said = {}\n"
    "for _ in range(most):\n"
    "    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:\n"
    "        error = errno.errorcode.get(sock.connect_ex(path), 'done')\n"
    "    said[error] = said.get(error, 0) + 1\n"
    "print(*(f'{error}={count}' for error, count in sorted(said.items())))\n"
)
STRANGER, FRIEND, NO_GROUP, FRIENDS = 65_533, 65_532, 65_531, 65_530
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root has processes of other users")


def connecting(world: World, most: int, uid: int, gid: int = NO_GROUP) -> dict[str, int]:
    """The results of connects by a process of that user.

    A connect waits while the backlog is full.
    """
    os.chmod(world.path.parent, 0o755)
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        CONNECTING,
        str(world.path),
        str(most),
        str(uid),
        str(gid),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        world.until(lambda: program.poll() is not None)
        assert program.stdout is not None
        return {
            error: int(count)
            for error, _, count in (word.partition("=") for word in program.stdout.read().split())
        }


@pytest.fixture
def strange(world: World) -> World:
    """Its env is root's, the friend's and the friends'."""
    world.hub.entitled_ids = frozenset({0, FRIEND}), frozenset({FRIENDS})
    world.hub.allowed = lambda env, who: who.uid in (0, FRIEND) or FRIENDS in who.gids
    return world


@root_only
def test_a_user_who_may_not_enter_and_floods_is_refused_by_the_kernel(
    strange: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHUT_S", 10_000)
    heard = connecting(strange, 5_000, STRANGER)
    assert set(heard) == {"done", "EACCES"}
    assert heard["done"] > module.MAX_STRANGERS
    assert strange.hub.counters["strangers_shut_out"] == 1
    assert connecting(strange, 10, STRANGER) == {"EACCES": 10}
    assert connecting(strange, 10, FRIEND) == {"done": 10}, "who may enter does"
    assert connecting(strange, 10, STRANGER, FRIENDS) == {"done": 10}, "by the group as well"
    strange.connected()


@root_only
def test_few_connects_of_a_user_who_may_not_enter_are_answered(strange: World) -> None:
    assert connecting(strange, module.MAX_STRANGERS, STRANGER) == {"done": module.MAX_STRANGERS}
    strange.until(
        lambda: (
            strange.hub.counters["connections_refused"] + len(strange.hub.sessions)
            >= module.MAX_STRANGERS
        )
    )
    assert strange.hub.counters["strangers_shut_out"] == 0
    assert strange.path.stat().st_mode & 0o777 == 0o666


@root_only
def test_a_quota_that_names_the_user_opens_a_closed_socket(strange: World) -> None:
    connecting(strange, 5_000, STRANGER)
    uids, gids = strange.hub.entitled_ids
    strange.hub.entitled_ids = uids | {STRANGER}, gids
    strange.server.open("alice", strange.path)
    assert connecting(strange, 3, STRANGER) == {"done": 3}


@root_only
def test_a_closed_socket_opens_again_by_itself(
    strange: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHUT_S", 0.01)
    connecting(strange, 5_000, STRANGER)
    assert strange.hub.counters["strangers_shut_out"] > 0
    strange.connected()  # the backlog is empty: no connection of the flood closes the socket again
    strange.until(lambda: not os.listxattr(strange.path))
    assert strange.path.stat().st_mode & 0o777 == 0o666
    assert connecting(strange, 1, STRANGER) == {"done": 1}


@root_only
def test_where_the_kernel_cannot_refuse_strangers_are_dropped_before_they_are_looked_at(
    strange: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_acl(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "no access control lists")

    looked_at = []
    identify = module.identify_peer
    monkeypatch.setattr(socket_access, "open_to", no_acl)
    monkeypatch.setattr(
        module, "identify_peer", lambda *given: looked_at.append(1) or identify(*given)
    )
    strange.stand_still()
    assert connecting(strange, module.MAX_ARRIVALS - 1, STRANGER) == {
        "done": module.MAX_ARRIVALS - 1
    }
    strange.until(lambda: strange.hub.counters["connections_refused"] > 500)
    strange.connected()
    assert len(looked_at) < 500, "64 a second, and ourselves"


def test_an_env_that_floods_is_slowed_and_the_others_are_not(
    world: World, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RATE_LIMIT_NS", 10 * DECODED_NS)
    world.server.close("alice")
    world.stand_still()
    world.server.open("alice", world.path)
    world.server.open("bob", directory / "bob")
    flood = world.connected()
    world.send_all(flood, [encode("RELEASE", rid=rid, task="ab12") for rid in range(30)])
    world.until(lambda: world.hub.counters["connections_throttled"])
    heard = len(world.hub.messages)
    assert heard < 30
    world.path = directory / "bob"
    world.connected().send(BEAT)
    world.until(lambda: "BEAT" in world.hub.verbs())
    world.passes(WINDOW_NS)
    world.until(lambda: len(world.hub.messages) > heard + 1)  # the flood goes on in the next second


def test_while_the_disk_is_late_an_env_has_a_request_a_turn(
    world: World, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With any number of connections; another env's request does not wait for them."""
    monkeypatch.setattr(module, "LATE_TURN_S", 1_000)
    world.server.open("bob", directory / "bob")
    world.server.is_late = lambda: True
    crowd = [world.connected() for _ in range(5)]
    for sock in crowd:
        sock.send(encode("ACQUIRE", rid=7, task="ab12", gpus=1))
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as bob:
        bob.connect(str(directory / "bob"))
        bob.send(encode("ACQUIRE", rid=7, task="ab12", gpus=1))
        world.until(lambda: any(session.env == "bob" for session, _, _ in world.hub.messages))
        settle(world.loop)
    assert Counter(session.env for session, _, _ in world.hub.messages) == {"alice": 1, "bob": 1}
    world.server.is_late = lambda: False
    (listener,) = [
        listener for listener in world.server._listeners.values() if listener.env == "alice"
    ]
    world.server._begin_turn(listener.turn)  # as the clock would
    world.until(lambda: len(world.hub.messages) == 6)


def test_who_takes_long_gets_turns_and_so_does_everybody_else(
    world: World, directory: Path
) -> None:
    """Each request of alice's takes as long as a turn: of forty, few come before bob's."""
    world.server.open("bob", directory / "bob")
    flood = [world.connected() for _ in range(40)]
    world.path = directory / "bob"
    other = world.connected()
    world.hub.on_message = lambda session, _: (
        time.sleep(module.TURN_NS / 1e9) if session.env == "alice" else None
    )
    for sock in flood:
        sock.send(encode("RELEASE", rid=1, task="ab12"))
    turn(world.loop, lambda: world.hub.messages)
    other.send(BEAT)
    world.until(lambda: "BEAT" in world.hub.verbs())
    assert len(world.hub.messages) < 10
    world.until(lambda: world.hub.verbs().count("RELEASE") == 40)


def test_work_for_an_env_beside_its_packets_is_a_part_of_its_turn_alone(
    world: World, directory: Path
) -> None:
    """As the starts of its jobs are; the packets of others do not wait for it."""
    world.server.open("bob", directory / "bob")
    sock = world.connected()
    world.server.charge("alice", module.TURN_NS + 1)
    turns = {env: each.is_over for env, each in world.server._turns.items()}
    assert turns == {"alice": True, "bob": False}
    sock.send(BEAT)
    world.until(lambda: world.hub.messages)


def test_a_pass_counts_where_time_was_spent_since_the_last_one(
    world: World, directory: Path
) -> None:
    world.server.open("bob", directory / "bob")
    turns = world.server._turns
    world.server.charge("alice", 3_000)
    world.server.charge("bob", 1_000)
    world.server.share(400_000)
    assert (turns["alice"].spent_ns, turns["bob"].spent_ns) == (303_000, 101_000)
    world.server.share(400_000)
    assert turns["alice"].spent_ns == 303_000, "no client caused this one"


def test_what_an_env_spends_in_its_rest_counts_in_its_next_turn(world: World) -> None:
    alice = world.server._turns["alice"]
    world.server.charge("alice", module.TURN_NS + 1)
    world.server.charge("alice", module.TURN_NS - 1)
    world.server._rested(alice, world.server.now_ns())  # as the clock would
    assert not alice.is_over
    world.server.charge("alice", 2)
    assert alice.is_over


def test_an_env_has_one_turn_on_both_its_sockets(
    world: World, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the node and in its containers: with one on each it had nine tenths of the time."""
    outside, path = world.connected(), directory / "inside"
    world.server.open("alice", path, for_all=True)
    world.path = path
    inside = world.connected()
    with monkeypatch.context() as patch:
        patch.setattr(world.loop, "call_later", lambda *_: None)
        world.hub.sessions[0].took(module.TURN_NS + 1)
        for sock in outside, inside:
            sock.send(encode("RELEASE", rid=1, task="ab12"))
        settle(world.loop)
        assert world.hub.messages == []
    world.server._begin_turn(world.server._turns["alice"])  # as the clock would
    world.until(lambda: len(world.hub.messages) == 2)


def test_work_in_a_rest_was_no_rest_and_owes_one_of_its_own(
    world: World, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of an order that goes on in many turns: an env has half of the time while another asks."""
    world.server.open("bob", directory / "bob")
    alice = world.server._turns["alice"]
    rests_s: list[float] = []
    monkeypatch.setattr(world.loop, "call_later", lambda after_s, *_: rests_s.append(after_s))
    monkeypatch.setattr(world.server, "now_ns", lambda: 10**9)
    for listener in reversed(world.server._listeners.values()):
        world.server._asked(listener)
    world.server.charge("alice", 8_000_000)
    world.server.charge("alice", 100_000_000)
    world.server._rested(alice, 10**9)
    world.server._rested(alice, 10**9)
    assert rests_s == [0.01, 0.225]
    assert not alice.is_over


def test_when_descriptors_run_out_the_connected_live_and_the_new_wait(directory: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = len(lasting_fds()) + module.RESERVE_DESCRIPTORS + 24
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    try:
        world = World(directory)
        old = world.connected()
        waiting = []
        while not world.hub.counters["descriptors_exhausted"]:
            waiting.append(world.connect())
            settle(world.loop)
        accepted = len(world.hub.sessions)
        late = world.connect()
        settle(world.loop, 20)
        assert len(world.hub.sessions) == accepted
        with tempfile.TemporaryFile():
            pass  # the reserve is for the store and the ledgers
        old.send(BEAT)
        world.until(lambda: world.hub.messages)
        for sock in waiting:
            sock.close()
        world.until(lambda: len(world.hub.ended) >= len(waiting) - 1)
        late.send(BEAT)
        world.until(lambda: len(world.hub.messages) == 2)
        world.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_exhausted_descriptors_are_told_once_until_it_has_been_calm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path)
    now_ns = 10**12
    world.server.now_ns = lambda: now_ns

    def exhausted_again() -> int:
        """By the next client; how often that was told by now."""
        seen = world.hub.counters["descriptors_exhausted"]
        monkeypatch.setattr(world.server, "_descriptor_limit", 0)
        world.connect()
        world.until(lambda: world.hub.counters["descriptors_exhausted"] > seen)
        monkeypatch.setattr(world.server, "_descriptor_limit", 1 << 30)
        world.until(lambda: world.server._retry is None)
        told.append(capsys.readouterr().err.count("descriptors are exhausted"))
        return sum(told)

    told: list[int] = []
    assert exhausted_again() == 1
    now_ns += 50 * 10**9
    assert exhausted_again() == 1
    now_ns += 50 * 10**9
    assert exhausted_again() == 1, "one episode, as long as it comes again within a minute"
    now_ns += 61 * 10**9
    assert exhausted_again() == 2
    world.close()


def test_a_closed_env_takes_nobody_in_and_lets_the_connected_hear_the_end(world: World) -> None:
    sock = world.connected()
    world.server.close("alice")
    assert not world.path.exists()
    with pytest.raises(OSError, match="No such file"):
        world.connect()
    world.hub.sessions[0].answer("FENCE", lease="t1", reason="gone")
    assert decode(sock.recv(1_200), Direction.DOWN).verb == "FENCE"
    sock.close()
    world.until(lambda: world.hub.ended)


def test_a_socket_that_a_dead_manager_left_is_replaced(directory: Path) -> None:
    leftover = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    leftover.bind(str(directory / "socket"))
    leftover.close()
    world = World(directory)
    world.connected()
    world.close()


def test_random_bytes_are_counted_and_dropped(world: World) -> None:
    sock = world.connected()
    chance = random.Random(20_261_121)
    packets = [
        chance.randbytes(chance.randrange(1, 1_200)) for _ in range(module.MAX_MALFORMED - 1)
    ]
    world.send_all(sock, [*packets, BEAT])
    world.until(lambda: world.hub.messages)
    assert world.hub.counters["packets_malformed"] == len(packets)


# -- the page process, which may be taken over by a viewer --

ASK = encode("ASK", rid=1, what="order", argument='{"verb":"view"}')


@pytest.fixture
def page(world: World, directory: Path) -> World:
    """The socket of the page process, in a clock that stands still."""
    world.stand_still()
    world.path = directory / "page"
    world.server.open(PAGES, world.path, for_all=True)
    return world


def test_a_page_process_has_a_fifth_of_the_time_and_nobody_rests_for_it(
    page: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With any number of connections, and also where nobody else asks."""
    rests: list[float] = []
    monkeypatch.setattr(page.loop, "call_later", lambda s, *_: rests.append(s))
    page.hub.on_message = lambda *_: page.passes(2 * module.TURN_NS)
    for _ in range(3):
        sock = page.connected()
        sock.send(ASK)
    page.until(lambda: page.hub.messages)
    settle(page.loop, 20)
    assert len(page.hub.messages) == 1, "the others wait for the end of its rest"
    assert rests == [pytest.approx(4 * 2 * module.TURN_NS / 1e9)]
    assert page.server.is_quiet()
    assert module.OF_PAGES.rest_percent == 400


def test_a_page_process_rests_however_much_it_owes(page: World) -> None:
    rests: list[float] = []
    page.loop.call_later = lambda s, *_: rests.append(s)  # type: ignore[assignment,misc]
    page.server.charge(PAGES, 3 * module.MAX_REST_NS)
    assert rests == [pytest.approx(12.0)]


def test_a_page_process_has_so_many_questions_under_way(page: World) -> None:
    sock, most = page.connected(), module.OF_PAGES.unanswered
    assert most is not None
    page.hub.on_message = lambda session, _: session.owes(1)
    page.send_all(sock, [ASK] * most)
    page.until(lambda: len(page.hub.messages) == most)
    sock.send(ASK)
    settle(page.loop, 20)
    assert len(page.hub.messages) == most
    page.hub.sessions[-1].owes(-1)
    page.until(lambda: len(page.hub.messages) == most + 1)


def test_a_page_process_that_does_not_read_is_not_read(page: World) -> None:
    sock = page.connected()
    session = page.hub.sessions[-1]
    while not session.outbox:  # type: ignore[attr-defined]
        session.answer("PART", rid=1, index=0, count=1, data="x" * 900)
    sock.send(ASK)
    settle(page.loop, 20)
    assert not page.hub.messages
    while not page.hub.messages:
        sock.recv(2_000)
        settle(page.loop)
    assert page.hub.verbs() == ["ASK"]


def test_new_page_processes_come_slowly(page: World) -> None:
    arrivals = page.server._listeners[page.path].arrivals
    arrivals.began_ns, arrivals.spent = page.server.now_ns(), module.OF_PAGES.arrivals + 1
    page.connect()
    settle(page.loop, 20)
    assert not page.hub.sessions
