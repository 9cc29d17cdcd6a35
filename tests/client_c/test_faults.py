"""Faults around the client: no manager, another one, garbage, no descriptors, a stopped process."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket

import pytest

from nodemgr.edge.clients.descriptor_filter import SO_PASSRIGHTS
from nodemgr.edge.ledger.native_ledger import SlotState
from tests.client_c.conftest import Child, Spawn
from tests.client_c.manager import AFTER_LOSS, AWAY, Books, Connection, Env, Manager, grant_fields
from tests.client_c.test_unix import asked, held
from tests.support.limits import WAIT_LIMIT_S
from tests.support.packets import Packet

IN_OPEN = 0x20
"""inotify(7)."""


def inode(fd: int) -> int:
    return os.fstat(fd).st_ino


# -- no manager --


def test_without_a_client_conf_nothing_is_managed(env: Env, spawn: Spawn) -> None:
    child = spawn()
    assert child.ask("managed") == 0
    assert child.ask("setting", "env") is None
    assert child.ask("begin") == "UNMANAGED"
    assert child.ask("poll") == ["UNMANAGED", ""]
    assert child.ask("ask", "status", None, 100, 50)[0] == -1
    assert child.ask("getenv", "NODEMGR_TASK") is None
    assert child.rest() == []


def test_off_is_off(manager: Manager, spawn: Spawn) -> None:
    child = spawn(NODEMGR_OFF="1")
    assert child.ask("managed") == 0
    assert child.ask("begin") == "UNMANAGED"


def private_env(env: Env, name: str, **settings: str) -> Env:
    own = Env(env.directory / name)
    own.directory.mkdir()
    own.write(**settings)
    return own


@pytest.mark.parametrize("there", ["nothing", "a socket that nobody listens on"])
def test_no_manager_by_policy(env: Env, spawn: Spawn, there: str) -> None:
    policies = {"error": ("NO_MANAGER", None), "cpu": ("CPU", "")}
    children = []
    for policy in policies:
        own = private_env(env, policy, address="unix:socket", no_manager=policy)
        if there != "nothing":
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
                dead.bind(str(own.directory / "socket"))
        children.append(spawn(NODEMGR_ENV_DIR=str(own.directory)))
        assert children[-1].ask("begin") == "WAITING"
    for child, (policy, (state, visible)) in zip(children, policies.items(), strict=True):
        found, line = child.ask("until", state, "no answer")
        assert found == state
        assert line.startswith(f"no answer from the manager at {env.directory}/{policy}/socket (")
        assert line.endswith(f"(no_manager={policy}): `nodemgr doctor` checks it")
        assert child.ask("poll") == [state, line], "that is final: a poll returns at once"
        assert child.ask("getenv", "CUDA_VISIBLE_DEVICES") == visible


def test_no_manager_waits_with_a_line_until_it_is_there(env: Env, spawn: Spawn) -> None:
    env.write(address="unix:socket")
    child = spawn()
    child.ask("begin")
    assert "waiting for it" in child.ask("until", "NO_MANAGER")[1]
    child.start("until", "HELD")
    manager = Manager(env)
    client = manager.accept()
    client.grant(client.expect("ACQUIRE"), Books())
    assert child.answer() == ["HELD", ""]
    manager.close()


GOES_ON = "; the program continues on the CPU (no_gpu=cpu)"
WAIT_IN_VAIN = pytest.mark.parametrize(
    ("policy", "state", "goes_on"), [("error", "DENIED", ""), ("cpu", "CPU", GOES_ON)]
)
"""The consequence of the end of a wait without GPUs."""


@WAIT_IN_VAIN
def test_the_users_limit_holds_without_a_manager_too(
    env: Env, spawn: Spawn, policy: str, state: str, goes_on: str
) -> None:
    env.write(address="unix:socket", no_gpu=policy)
    child = spawn()
    child.ask("begin", -1, -1, 1_500)
    found, line = child.ask("until", state)
    assert found == state
    assert line.startswith("waited 1 s for the manager at")
    remedy = "see `nodemgr doctor`, or allow a longer wait (NODEMGR_WAIT)"
    assert line.endswith(f"which does not answer: {remedy}{goes_on}")
    assert child.ask("getenv", "CUDA_VISIBLE_DEVICES") == ("" if state == "CPU" else None)


BAD_ADDRESSES = {
    "": "names no address",
    "tcp:localhost": "neither unix: nor udp:",
    "udp:localhost:12": "no numeric HOST:PORT",
    "udp:127.0.0.1:0": "no numeric HOST:PORT",
    "udp:127.0.0.1:99999": "no numeric HOST:PORT",
    "udp:[::1:9": "no numeric HOST:PORT",
    "udp:127.0.0.1:9": "the key file",
    "unix:" + "x" * 900: "too long",
}


def test_a_client_conf_that_cannot_be_meant(env: Env, spawn: Spawn) -> None:
    children = []
    for number, (address, fault) in enumerate(BAD_ADDRESSES.items()):
        own = private_env(env, str(number), address=address, no_manager="error")
        child = spawn(NODEMGR_ENV_DIR=str(own.directory))
        assert child.ask("managed") == 1
        child.ask("begin")
        children.append((child, fault))
    for child, fault in children:
        assert fault in child.ask("until", "NO_MANAGER")[1]


def test_a_long_path_to_the_socket(env: Env, spawn: Spawn) -> None:
    deep = Env(env.directory / ("d" * 100) / ("e" * 100))
    deep.directory.mkdir(parents=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    home = os.open(deep.directory, os.O_PATH)
    listener.bind(f"/proc/self/fd/{home}/socket")
    listener.listen()
    listener.settimeout(WAIT_LIMIT_S)
    deep.write(address="unix:socket")
    child = spawn(NODEMGR_ENV_DIR=str(deep.directory))
    child.ask("begin")
    client = Connection(listener.accept()[0])
    child.start("until", "HELD")
    client.grant(client.expect("ACQUIRE"), Books())
    assert child.answer() == ["HELD", ""]
    listener.close()
    os.close(home)


# -- another manager --


def left_waiting(child: Child, manager: Manager) -> Packet:
    """The process has asked; it has heard that it is the third, and its manager ends."""
    child.ask("begin")
    client = manager.accept()
    child.start("until", "HELD")
    request = client.expect("ACQUIRE")
    client.send("WAIT", rid=request.number("rid"), position=3, reason="third")
    client.close()
    manager.close()
    return request


def test_a_waiter_keeps_its_request_over_a_restart(manager: Manager, spawn: Spawn) -> None:
    child = spawn()
    request = left_waiting(child, manager)
    second = Manager(manager.env)
    client = second.accept()
    assert client.expect("ACQUIRE").fields == request.fields
    client.send("WAIT", rid=request.number("rid"), position=3, reason="third")
    client.grant(request, Books())
    assert child.answer() == ["HELD", ""]
    second.close()


@pytest.mark.parametrize("policy", ["cpu", "error"])
def test_who_has_a_place_in_the_queue_outlasts_a_restart_by_every_policy(
    manager: Manager, spawn: Spawn, policy: str
) -> None:
    """Where a newcomer is told after a second that there is no manager."""
    manager.env.write(no_manager=policy)
    child, newcomer = spawn(), spawn()
    left_waiting(child, manager)
    newcomer.ask("begin")
    assert (
        "no answer"
        in newcomer.ask("until", "CPU" if policy == "cpu" else "NO_MANAGER", "no answer")[1]
    )
    second = Manager(manager.env)
    client = second.accept()
    client.grant(client.expect("ACQUIRE"), Books())
    assert child.answer() == ["HELD", ""]
    second.close()


def test_a_holder_brings_its_ledger_to_the_next_manager(manager: Manager, spawn: Spawn) -> None:
    child, books = spawn(), Books()
    client = held(child, manager, books)
    task = child.ask("lease")["task"]
    client.close()
    manager.close()
    manager.env.write(ledger="wanted")
    second, adopted = Manager(manager.env), books.adopted()
    client = second.accept()
    rejoin = client.expect("REJOIN")
    assert [inode(fd) for fd in client.fds] == [inode(fd) for fd in books.ledger.fds]
    assert {key: value for key, value in rejoin.fields.items() if key != "rid"} == {
        "task": task,
        "lease": "t1",
        "slot": 0,
        "generation": 0,
    }
    client.grant(rejoin, adopted)
    client.settle(child)
    adopted.ledger.set_limit(0, 5 << 30)
    assert child.ask("lease")["limits"] == str(5 << 30), "it reads the new manager's limits"
    assert child.ask("state") == ["HELD", ""]
    client.close()
    client = second.accept()
    client.expect("REJOIN")
    assert [inode(fd) for fd in client.fds] == [inode(fd) for fd in adopted.ledger.fds]
    del manager.env.settings["ledger"]
    manager.env.write()
    client.close()
    client = second.accept()
    client.expect("REJOIN")
    assert client.fds == [], "it is not asked to bring them any more"
    second.close()


def test_a_manager_that_takes_no_descriptors_gets_the_words_alone(
    manager: Manager, spawn: Spawn
) -> None:
    """Its kernel refuses the packet as it is (SO_PASSRIGHTS)."""
    child = spawn()
    client = held(child, manager, Books())
    manager.env.write(ledger="wanted")
    try:
        manager.listener.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
    except OSError:
        pytest.skip("a kernel before 6.16")
    client.close()
    client = manager.accept()
    client.expect("REJOIN")
    assert client.fds == []
    assert child.ask("state") == ["HELD", ""]


@pytest.mark.parametrize("answer", ["FENCE", "DENY"])
def test_a_rejoin_may_be_refused(manager: Manager, spawn: Spawn, answer: str) -> None:
    child = spawn()
    held(child, manager, Books()).close()
    client = manager.accept()
    rejoin = client.expect("REJOIN")
    if answer == "FENCE":
        client.send("FENCE", lease="t1", reason="t1 went to bob")
    else:
        client.send("DENY", rid=rejoin.number("rid"), code="released", reason="t1 went to bob")
    assert child.ask("become", "LOST") == ["LOST", "t1 went to bob"]
    assert child.line() == f"nodemgr: t1 went to bob{AFTER_LOSS}"
    held(child, manager, Books(), lease="t2")


def test_another_place_in_the_books_takes_the_bytes_along(manager: Manager, spawn: Spawn) -> None:
    child, lost, new = spawn(), Books(), Books()
    client = held(child, manager, lost)
    os.pwrite(lost.ledger.fds[1], (3 << 30).to_bytes(8, "little"), 0)
    client.close()
    new.ledger.set_slot(7, 0, SlotState.LIVE)
    client = manager.accept()
    client.grant(client.expect("REJOIN"), new, slot=7)
    client.settle(child)
    new.await_beats(slot=7)
    assert new.ledger.slot_used(0, 7) == 3 << 30
    assert lost.ledger.used(0) == 0


# -- garbage --

GARBAGE = [
    b"\0", b"\n", b"NODEMGR/1 ", b"NODEMGR/2 GRANT\n", b"NODEMGR/1 NOPE\n", b"NODEMGR/1 GRANT\n",
    b"NODEMGR/1 ACQUIRE\nrid=1\ntask=ab\n",
    b"NODEMGR/1 NOTE\ntext=%zz\n", b"NODEMGR/1 NOTE\ntext=a",
    b"NODEMGR/1 WAIT\nrid=99999999999999999999\nposition=1\nreason=x\n",
    b"x" * 1201, b"NODEMGR/1 NOTE\ntext=" + b"y" * 5000 + b"\n", bytes(range(256)) * 4,
]  # fmt: skip


def test_garbage_from_the_manager_is_dropped(manager: Manager, spawn: Spawn) -> None:
    child = spawn()
    client, request = asked(child, manager)
    for packet in GARBAGE:
        client.send_raw(packet)
    client.grant(request, Books())
    assert child.answer() == ["HELD", ""]
    for packet in GARBAGE:
        client.send_raw(packet, (0, 0, 0, 0))
    client.send("FENCE", lease="t1", reason="the end")
    child.ask("become", "LOST")
    assert {target for target, _ in child.ask("descriptors").values()}.isdisjoint(
        {os.readlink("/proc/self/fd/0")}
    )
    assert child.rest() == [f"nodemgr: the end{AFTER_LOSS}"]


def test_files_that_are_no_ledger_are_refused(manager: Manager, spawn: Spawn, tmp_path) -> None:
    """Unsealed, of another size, or no memory files: a peer could kill a process that maps them."""
    child, books = spawn(), Books()
    limits, usage = books.ledger.fds
    unsealed = os.memfd_create("usage", os.MFD_ALLOW_SEALING)
    os.truncate(unsealed, os.fstat(usage).st_size)
    plain = os.open(tmp_path / "plain", os.O_RDWR | os.O_CREAT)
    bad = ((limits, unsealed), (usage, usage), (usage, limits), (plain, plain), (limits, 0))
    client, request = asked(child, manager)
    for fds in bad[:2]:  # at the third one, the process gives up
        client.send("GRANT", fds=fds, **grant_fields(request))
        client.expect("ACQUIRE")
    client.grant(request, books)
    assert child.answer() == ["HELD", ""]
    other = spawn()
    client, request = asked(other, manager)
    for fds in bad[2:]:
        client.send("GRANT", fds=fds, **grant_fields(request))
        client.expect("RELEASE" if fds == bad[-1] else "ACQUIRE")


# -- descriptors --


def test_no_free_descriptor_is_waited_for(manager: Manager, spawn: Spawn) -> None:
    child = spawn()
    child.ask("fill", 0)
    assert child.ask("managed") == 1
    assert child.ask("begin") == "WAITING"
    assert "Too many open files" in child.ask("until", "NO_MANAGER", "Too many")[1]
    child.ask("free")
    child.start("until", "HELD")
    client = manager.accept()
    client.grant(client.expect("ACQUIRE"), Books())
    assert child.answer() == ["HELD", ""]


NO_ROOM = (
    "GPUs are granted, but this process cannot take them: no free file descriptors for the memory"
    " ledger (ulimit -n)"
)


def test_no_room_for_the_ledgers_descriptors_is_said_and_asks_again(
    manager: Manager, spawn: Spawn
) -> None:
    child = spawn()
    child.ask("fill", 2)
    child.ask("begin")
    client = manager.accept()
    child.start("until", "NO_MANAGER")
    request = client.expect("ACQUIRE")
    client.grant(request, Books())
    assert child.answer() == ["NO_MANAGER", NO_ROOM + "; trying again"]
    child.ask("free")
    child.start("until", "HELD")
    client.grant(client.expect("ACQUIRE"), Books())
    assert child.answer() == ["HELD", ""]


def test_a_grant_that_cannot_be_taken_three_times_goes_back(manager: Manager, spawn: Spawn) -> None:
    """On one connection: the process may be unable to open another one."""
    child = spawn()
    child.ask("fill", 2)
    child.ask("begin")
    client = manager.accept()
    child.start("until", "DENIED")
    for _ in range(3):
        client.grant(client.expect("ACQUIRE"), Books())
    assert child.answer() == ["DENIED", NO_ROOM + "; start the program again with room for it"]
    client.expect("RELEASE")


@WAIT_IN_VAIN
def test_no_room_for_the_ledgers_descriptors_to_the_end_of_the_wait_gives_the_grant_back(
    manager: Manager, spawn: Spawn, policy: str, state: str, goes_on: str
) -> None:
    manager.env.write(no_gpu=policy)
    child = spawn()
    child.ask("fill", 2)
    child.ask("begin", -1, -1, 0)
    child.start("until", state)
    client = manager.accept()
    client.grant(client.expect("ACQUIRE"), Books())
    assert child.answer() == [
        state,
        f"{NO_ROOM}; start the program again with room for it{goes_on}",
    ]
    client.expect("RELEASE")


def test_without_room_for_a_new_managers_ledger_the_old_one_is_not_kept(
    manager: Manager, spawn: Spawn
) -> None:
    """The connection gets a descriptor number, but the grant's files get none.

    The client repeats its request until there are numbers.
    """
    child, books = spawn(), Books()
    client = held(child, manager, books)
    child.ask("fill", 0)
    client.close()
    client, adopted = manager.accept(), books.adopted()
    adopted.ledger.set_limit(0, 5 << 30)
    client.grant(client.expect("REJOIN"), adopted)
    assert client.closes() == []
    child.ask("free")
    client = manager.accept()
    client.grant(client.expect("REJOIN"), adopted)
    client.settle(child)
    assert child.ask("lease")["limits"] == str(5 << 30)


def test_ours_are_high_and_close_on_exec(manager: Manager, spawn: Spawn) -> None:
    child = spawn()
    before = set(child.ask("descriptors"))
    client = held(child, manager, Books())
    ours = {
        int(number): entry
        for number, entry in child.ask("descriptors").items()
        if number not in before
    }
    client.settle(child)
    assert len(ours) == 3
    assert all(number >= 40 and cloexec for number, (_, cloexec) in ours.items())


def test_a_program_that_closes_our_socket_and_takes_its_number(
    manager: Manager, spawn: Spawn, tmp_path
) -> None:
    """Nothing of ours is written into its file; the lease goes on over a new connection."""
    child = spawn()
    client = held(child, manager, Books(), beat_ms=20)
    (number,) = [number for number in child.ask("close_ours", "socket:") if number >= 40]
    child.ask("occupy", number, str(tmp_path / "theirs"))
    assert client.closes() == []
    client = manager.accept()
    client.grant(client.expect("REJOIN"), Books())
    client.settle(child)
    assert (tmp_path / "theirs").read_bytes() == b""
    assert str(number) in child.ask("descriptors")


def test_a_program_that_closes_the_ledgers_files(manager: Manager, spawn: Spawn) -> None:
    """The mapping lives on; at a restart the client comes without them, and takes new ones."""
    child, books = spawn(), Books()
    client = held(child, manager, books)
    manager.env.write(ledger="wanted")
    assert len(child.ask("close_ours", "memfd:")) == 2
    books.await_beats()
    client.close()
    client = manager.accept()
    rejoin = client.expect("REJOIN")
    assert client.fds == []
    client.grant(rejoin, Books())
    client.settle(child)
    assert child.ask("lease")["limits"] == str(10 << 30)


def test_beating_opens_no_file(manager: Manager, spawn: Spawn) -> None:
    """A new descriptor would have the lowest number, on which the program may just then count.

    And beats are to cost nothing.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    books = Books()
    held(spawn(), manager, books)
    watch = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        books.await_beats()
        assert libc.inotify_add_watch(watch, os.fsencode(manager.env.directory), IN_OPEN) > 0
        books.await_beats(5)
        with pytest.raises(BlockingIOError):
            os.read(watch, 4_096)
    finally:
        os.close(watch)


@pytest.mark.parametrize("closed", [(0,), (2,), (1, 2), (0, 1, 2)])
def test_closed_standard_streams_stay_closed(
    manager: Manager, spawn: Spawn, closed: tuple[int, ...]
) -> None:
    """A fork closes the standard streams before its first use of CUDA.

    No descriptor of ours takes their numbers, and no line of ours goes into a file of the program.
    """
    child = spawn()
    child.start("fork", ["close_fds", list(closed)], ["begin"], ["until", "HELD"],
        ["open_lowest", str(manager.env.directory / "own")],
                ["become", "LOST"], ["descriptors"])  # fmt: skip
    client = manager.accept()
    books = Books()
    client.grant(client.expect("ACQUIRE"), books)
    books.await_beats()
    client.send("FENCE", lease="t1", reason="a line for the user")
    _, _, state, lowest, lost, descriptors = child.answer()
    assert state == ["HELD", ""]
    assert lowest == min(closed)
    assert lost[0] == "LOST"
    assert (manager.env.directory / "own").read_bytes() == b""
    assert set(map(str, closed)) & set(descriptors) == {str(lowest)}


# -- a process that waits or runs --


def test_a_poll_ends_at_a_signal(manager: Manager, spawn: Spawn) -> None:
    """So that the program's own handler decides; the wait itself goes on."""
    child = spawn()
    child.ask("begin")
    client = manager.accept()
    request = client.expect("ACQUIRE")
    client.send("WAIT", rid=request.number("rid"), position=1, reason="wait")
    child.ask("until", "WAITING", "wait")
    assert child.ask("interrupted_poll") == ["WAITING", "wait", 1, True]
    child.start("until", "HELD")
    client.grant(request, Books())
    assert child.answer() == ["HELD", ""]


def test_the_manager_goes_and_comes_while_the_task_runs(manager: Manager, spawn: Spawn) -> None:
    """Told once, after the timeout. (The one test that waits for a timeout of the client's.)"""
    child = spawn()
    held(child, manager, Books()).close()
    manager.close()
    shutil.rmtree(manager.env.directory)
    assert child.process.stderr is not None
    assert child.process.stderr.readline().startswith(f"{AWAY}{manager.env.directory}/socket (")
    assert child.ask("state") == ["HELD", ""]
    manager.env.directory.mkdir()
    second = Manager(manager.env)
    client = second.accept()
    client.grant(client.expect("REJOIN"), Books())
    client.settle(child)
    second.close()
