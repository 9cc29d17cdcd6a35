"""Ledgers are made once per env, and found again through the processes that hold them.

None is taken from a stranger.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodemgr._native import ffi, lib
from nodemgr.core.model.entities import Suspension
from nodemgr.edge.ledger import registry as ledgers
from nodemgr.edge.ledger.native_ledger import CAPS, Ledger, LedgerError, SlotHold, SlotState
from nodemgr.edge.ledger.registry import (
    HOLDS,
    RETAINED_LIMITS,
    Cap,
    LedgerFiles,
    LedgerRow,
    Ledgers,
    Slot,
    file_id,
)
from tests.support.processes import lasting_fds, open_fds

GIB = 2**30
HOLDER = """
import mmap, os, socket, sys
_, fds, _, _ = socket.recv_fds(socket.socket(fileno=int(sys.argv[1])), 10, 2)
rights = (mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE)
maps = [mmap.mmap(fd, os.fstat(fd).st_size, mmap.MAP_SHARED, right) for fd,
    right in zip(fds, rights)]
if sys.argv[2] == "mapped": [os.close(fd) for fd in fds]
print("ready", flush=True); sys.stdin.readline()
"""


class Remembered(dict[str, LedgerFiles]):
    """The texts that the store would hold."""

    def put(self, env: str, files: LedgerFiles) -> None:
        self[env] = LedgerFiles.from_json(files.to_json())


class Store(dict[str, int]):
    """A keeper that outlives the manager."""

    def keep(self, name: str, fd: int) -> None:
        if name not in self:
            self[name] = os.dup(fd)

    def drop(self, name: str) -> None:
        if name in self:
            os.close(self.pop(name))

    def handed_over(self) -> list[tuple[str, int]]:
        return [(name, os.dup(fd)) for name, fd in self.items()]


class World:
    """A manager's ledgers, and client processes that hold them."""

    def __init__(self) -> None:
        self.remembered = Remembered()
        self.stored = Store()
        self.ledgers = Ledgers(self.remembered.put, self.stored)
        self._children: list[subprocess.Popen[bytes]] = []

    def holder(self, ledger: Ledger, how: str = "open") -> int:
        """A process that has the ledger open, or only mapped."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        child = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(theirs.fileno()), how],
            pass_fds=[theirs.fileno()], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        theirs.close()
        socket.send_fds(ours, [b"x"], ledger.fds)
        ours.close()
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        self._children.append(child)
        return child.pid

    def restart(self) -> None:
        self.ledgers.forget_all()
        self.ledgers = Ledgers(self.remembered.put, self.stored)
        self.ledgers.hand_over(self.stored.handed_over())

    def lose_stored(self) -> None:
        for name in list(self.stored):
            self.stored.drop(name)

    def close(self) -> None:
        for child in self._children:
            child.communicate(b"\n")
        self.ledgers.refuse_rest()
        self.ledgers.forget_all()
        self.lose_stored()


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def opened(world: World, env: str = "alice") -> Ledger:
    world.ledgers.open(env)
    ledger = world.ledgers.get(env)
    assert ledger is not None
    return ledger


def reserve(world: World, slot: int, generation: int, size: int, env: str = "alice") -> int:
    """Reserves memory as a client of the present files."""
    ledger = world.ledgers.get(env)
    assert ledger is not None
    client = ffi.new("struct nm_ledger *")
    assert lib.nm_ledger_map_client(client, *(os.dup(fd) for fd in ledger.fds)) == lib.NM_LEDGER_OK
    answer: int = lib.nm_ledger_reserve(client, 0, slot, generation, size)
    lib.nm_ledger_unmap(client)
    return answer


def test_a_spare_ledger_is_as_a_new_one_and_one_envs_alone(world: World) -> None:
    world.ledgers.make_spare()
    world.ledgers.make_spare()
    spare, new = opened(world, "alice"), opened(world, "bob")
    assert file_id(spare.fds[1]) != file_id(new.fds[1])
    for limits_or_usage in (0, 1):
        sizes = [os.fstat(ledger.fds[limits_or_usage]).st_size for ledger in (spare, new)]
        texts = [
            os.pread(ledger.fds[limits_or_usage], size, 0)
            for ledger, size in zip((spare, new), sizes, strict=True)
        ]
        assert texts[0] == texts[1]
    assert set(world.remembered) == {"alice", "bob"}


def test_a_ledger_is_remembered_before_anybody_has_it(world: World) -> None:
    ledger = opened(world)
    assert world.remembered["alice"].usage == file_id(ledger.fds[1])
    world.ledgers.open("alice")
    assert world.ledgers.get("alice") is ledger
    world.ledgers.close("alice")
    assert "alice" not in world.ledgers


def test_a_prepared_ledger_is_the_one_that_is_opened_and_is_not_stored_again(world: World) -> None:
    files = {env: world.ledgers.prepare(env) for env in ("alice", "bob")}
    assert files["alice"] == world.ledgers.prepare("alice") != files["bob"]
    for env, prepared in files.items():
        ledger = opened(world, env)
        assert prepared is not None
        assert (prepared.limits, prepared.usage) == (
            (file_id(ledger.fds[0]),),
            file_id(ledger.fds[1]),
        )
        assert world.ledgers.prepare(env) is None, "it has a ledger"
    assert world.remembered == {}, "the step's commit has stored them"


def test_a_prepared_ledger_whose_commit_failed_is_dropped(world: World) -> None:
    before = len(lasting_fds())
    refused = world.ledgers.prepare("alice")
    world.ledgers.drop_prepared()
    assert len(open_fds()) == before
    opened(world)
    assert world.remembered["alice"] != refused


def test_where_no_ledger_can_be_made_none_is_prepared(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptors() -> Ledger:
        raise LedgerError("ledger: Too many open files")

    monkeypatch.setattr(Ledger, "create", no_descriptors)
    assert world.ledgers.prepare("alice") is None
    with pytest.raises(LedgerError):
        world.ledgers.open("alice")


def test_a_ledger_that_cannot_be_remembered_is_not_used() -> None:
    def forgetful(env: str, files: LedgerFiles) -> None:
        raise OSError("no store")

    ledgers = Ledgers(forgetful)
    before = len(lasting_fds())
    with pytest.raises(OSError, match="no store"):
        ledgers.open("alice")
    assert "alice" not in ledgers
    assert len(open_fds()) == before


@pytest.mark.parametrize("how", ["open", "mapped"])
def test_after_a_restart_a_living_process_shows_it(world: World, how: str) -> None:
    if how == "mapped" and os.geteuid() != 0:
        pytest.skip("only root may open what another process maps")
    ledger = opened(world)
    ledger.set_row(1, "GPU-1", 80 * GIB)
    ledger.set_slot(3, 0, SlotState.LIVE)
    pid = world.holder(ledger, how)
    world.restart()
    before = len(lasting_fds())
    assert world.ledgers.adopt_from_processes(
        "alice", world.remembered["alice"], [4_194_304, os.getpid(), pid]
    )
    assert len(open_fds()) == before + 2
    found = world.ledgers.get("alice")
    assert found is not None
    assert found.slot_generation(3) == 0
    assert len(world.remembered["alice"].limits) == 2, (
        "the old limits file is one that clients may still show"
    )


def test_many_restarts_find_it_through_a_client_that_never_came_back(world: World) -> None:
    pid = world.holder(opened(world))
    for _ in range(RETAINED_LIMITS - 1):
        world.restart()
        assert world.ledgers.adopt_from_processes("alice", world.remembered["alice"], [pid])
    assert len(world.remembered["alice"].limits) == RETAINED_LIMITS


def test_without_a_process_that_shows_it_it_is_not_found(world: World) -> None:
    opened(world)
    world.lose_stored()
    world.restart()
    assert not world.ledgers.adopt_from_processes(
        "alice", world.remembered["alice"], [os.getpid(), 4_194_304]
    )


def test_a_strangers_ledger_is_not_taken(world: World) -> None:
    """A client made one itself, with the right seals: only the remembered inode counts."""
    opened(world)
    files = world.remembered["alice"]
    world.restart()
    forged = Ledger.create()
    before = len(lasting_fds())
    assert not world.ledgers.adopt("alice", files, [os.dup(fd) for fd in forged.fds])
    assert not world.ledgers.adopt("alice", files, [os.open("/dev/null", os.O_RDONLY)])
    assert not world.ledgers.adopt("alice", files, [])
    assert len(open_fds()) == before, "what is not taken is closed"
    assert not world.ledgers.adopt_from_processes("alice", files, [world.holder(forged)])
    forged.close()


def test_what_a_client_brings_is_taken_if_it_is_the_one(world: World) -> None:
    fds = [os.dup(fd) for fd in opened(world).fds]
    files = world.remembered["alice"]
    world.restart()
    assert world.ledgers.adopt("alice", files, [os.open("/dev/null", os.O_RDONLY), *reversed(fds)])
    assert world.ledgers.get("alice") is not None


def test_the_cores_books_are_said_again_on_an_adopted_ledger(world: World) -> None:
    pid = world.holder(opened(world))
    world.restart()
    world.ledgers.adopt_from_processes("alice", world.remembered["alice"], [pid])
    world.ledgers.rebuild(
        "alice", [LedgerRow(2, "GPU-2", 80 * GIB, 5 * GIB)], [Slot(4, 17, SlotState.STALLED)]
    )
    ledger = world.ledgers.get("alice")
    assert ledger is not None
    assert (ledger.limit(2), ledger.slot_generation(4)) == (5 * GIB, 17)


def test_a_limits_file_older_than_a_slot_takes_nothing_from_its_process(world: World) -> None:
    """Two restarts, of the first of which the process that shows the ledger never heard."""
    pid = world.holder(opened(world))
    world.restart()
    assert world.ledgers.adopt_from_processes("alice", world.remembered["alice"], [pid])
    rows, slots = [LedgerRow(0, "GPU-0", 80 * GIB, 8 * GIB)], [Slot(4, 17, SlotState.LIVE)]
    world.ledgers.rebuild("alice", rows, slots)
    assert reserve(world, 4, 17, 3 * GIB) == lib.NM_OK

    world.restart()
    assert world.ledgers.adopt_from_processes("alice", world.remembered["alice"], [pid])
    world.ledgers.rebuild("alice", rows, slots)
    assert (world.ledgers.slot_used("alice", 0, 4), world.ledgers.used("alice", 0)) == (
        3 * GIB,
        3 * GIB,
    )
    assert reserve(world, 4, 17, 6 * GIB) == lib.NM_OVER
    assert reserve(world, 4, 17, 5 * GIB) == lib.NM_OK


def test_caps_are_said_again_after_a_restart(world: World) -> None:
    """A task that is there keeps its memory; one that ended keeps none."""
    pid = world.holder(opened(world))
    row, slot = LedgerRow(0, "GPU-0", 80 * GIB, 8 * GIB), Slot(4, 17, SlotState.LIVE, "t2")
    caps = [Cap("t1", (0,), GIB, GIB), Cap("t2", (0,), 3 * GIB, 3 * GIB)]
    world.ledgers.set_limit("alice", row)
    for cap in caps:
        world.ledgers.set_cap("alice", cap)
    world.ledgers.begin_slot("alice", slot)
    assert reserve(world, 4, 17, 3 * GIB) == lib.NM_OK
    assert not world.ledgers.has_room("alice", 0, 4 * GIB - 1)
    world.restart()
    assert world.ledgers.adopt_from_processes("alice", world.remembered["alice"], [pid])
    world.ledgers.rebuild("alice", [row], [slot], caps[1:])
    assert world.ledgers.has_room("alice", 0, 3 * GIB)
    assert (world.ledgers.used("alice", 0), world.ledgers.unkept("alice", 0)) == (3 * GIB, 0)
    assert reserve(world, 4, 17, 1) == lib.NM_OVER


def hold_word(world: World) -> int:
    """Of slot 0: the first of the last words of the limits file."""
    ledger = world.ledgers.get("alice")
    assert ledger is not None
    limits, _ = ledger.fds
    place = os.fstat(limits).st_size - 4 * lib.NM_LEDGER_SLOTS
    return int.from_bytes(os.pread(limits, 4, place), sys.byteorder)


@pytest.mark.parametrize("suspension", list(Suspension))
def test_a_suspension_is_said_again_after_a_restart(world: World, suspension: Suspension) -> None:
    """Also its end, which the earlier manager may not have written."""
    world.ledgers.open("alice")
    slot = Slot(0, 1, SlotState.LIVE)
    world.ledgers.begin_slot("alice", slot)
    world.ledgers.set_hold("alice", 0, SlotHold.AWAY)
    row = LedgerRow(0, "GPU-0", 80 * GIB, 40 * GIB)
    held = slot._replace(hold=HOLDS[suspension])
    world.ledgers.rebuild("alice", [row], [held])
    assert hold_word(world) == HOLDS[suspension]
    world.ledgers.clear_slot("alice", 0, 1)
    assert hold_word(world) == SlotHold.NONE, "the slot is another process's"
    world.ledgers.set_hold("bob", 0, SlotHold.AWAY)  # no ledger yet: nothing to write


def test_the_number_of_a_cap_is_free_after_its_task(world: World) -> None:
    opened(world)
    world.ledgers.set_limit("alice", LedgerRow(0, "GPU-0", 80 * GIB, 8 * GIB))
    for number in range(2 * CAPS):
        world.ledgers.set_cap("alice", Cap(f"t{number}", (0,), GIB, GIB))
        world.ledgers.drop_cap("alice", f"t{number}")
    assert world.ledgers.has_room("alice", 0, 0)


def test_corrections_of_tasks_with_a_cap(world: World) -> None:
    opened(world)
    world.ledgers.set_limit("alice", LedgerRow(0, "GPU-0", 80 * GIB, 8 * GIB))
    world.ledgers.set_cap("alice", Cap("t1", (0,), 3 * GIB, 3 * GIB))
    world.ledgers.begin_slot("alice", Slot(0, 1, SlotState.LIVE, "t1"))
    world.ledgers.set_correction("alice", 0, 3 * GIB, {"t1": 2 * GIB, "t9": GIB})
    assert world.ledgers.unkept("alice", 0) == GIB
    assert reserve(world, 0, 1, 2 * GIB) == lib.NM_OVER
    assert reserve(world, 0, 1, GIB) == lib.NM_OK


def test_words_of_nobody_do_not_outlive_a_restart(world: World) -> None:
    """The manager was killed after it stored a process's death and before it cleared its slot."""
    pid = world.holder(opened(world))
    world.ledgers.set_limit("alice", LedgerRow(0, "GPU-0", 80 * GIB, 8 * GIB))
    world.ledgers.set_slot("alice", Slot(2, 5, SlotState.LIVE))
    assert reserve(world, 2, 5, 3 * GIB) == lib.NM_OK
    world.restart()
    assert world.ledgers.adopt_from_processes("alice", world.remembered["alice"], [pid])
    world.ledgers.rebuild("alice", [LedgerRow(0, "GPU-0", 80 * GIB, 8 * GIB)], [])
    assert world.ledgers.used("alice", 0) == 0
    assert reserve(world, 2, 5, 1) == lib.NM_FENCED


def test_orders_for_an_env_without_a_ledger_wait_for_the_rebuild(world: World) -> None:
    world.ledgers.set_limit("alice", LedgerRow(0, "GPU-0", GIB, GIB))
    world.ledgers.set_slot("alice", Slot(0, 1, SlotState.LIVE))
    world.ledgers.clear_slot("alice", 0, 1)
    world.ledgers.set_correction("alice", 0, 1)
    assert world.ledgers.used("alice", 0) == 0
    assert world.ledgers.slot_used("alice", 0, 0) == 0
    assert "alice" not in world.ledgers


def test_figures_with_the_drivers_correction(world: World) -> None:
    ledger = opened(world)
    world.ledgers.set_limit("alice", LedgerRow(0, "GPU-0", 8 * GIB, 4 * GIB))
    world.ledgers.set_slot("alice", Slot(0, 5, SlotState.LIVE))
    world.ledgers.set_correction("alice", 0, 300)
    assert (world.ledgers.used("alice", 0), world.ledgers.slot_used("alice", 0, 0)) == (300, 0)
    assert ledger.slot_generation(0) == 5
    world.ledgers.clear_slot("alice", 0, 5)
    assert ledger.slot_generation(0) == 6


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"usage": 5, "limits": []}'])
def test_a_damaged_memory_of_files_is_an_error_not_a_guess(text: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        LedgerFiles.from_json(text)


# -- a keeper --


def test_a_kept_ledger_comes_back_without_any_client(world: World) -> None:
    ledger = opened(world)
    usage, limits = file_id(ledger.fds[1]), file_id(ledger.fds[0])
    ledger.set_row(0, "GPU-1", 80 * GIB)
    ledger.set_limit(0, 3 * GIB)
    opened(world, "bob")
    world.restart()
    assert world.ledgers.adopt_stored("alice", world.remembered["alice"])
    world.ledgers.refuse_rest()
    again = world.ledgers.get("alice")
    assert again is not None
    assert (file_id(again.fds[1]), again.limit(0)) == (usage, 3 * GIB)
    assert file_id(again.fds[0]) != limits
    inodes = {os.fstat(fd).st_ino for fd in world.stored.values()}
    assert inodes == {
        usage[1],
        os.fstat(again.fds[0]).st_ino,
    }, "the older limits, and bob's, who is gone, are kept no longer"


def test_a_ledger_that_is_closed_is_kept_no_longer(world: World) -> None:
    opened(world)
    assert len(world.stored) == 2
    world.ledgers.close("alice")
    assert world.stored == {}


def test_a_stranger_among_what_was_kept_is_refused(world: World) -> None:
    """The right inode without the right seals, and a file that no env remembers."""
    opened(world)
    unsealed, other = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING), os.memfd_create("other")
    files = LedgerFiles(file_id(unsealed), (file_id(other),))
    world.stored |= {"unsealed": unsealed, "other": other}
    world.restart()
    assert not world.ledgers.adopt_stored("alice", files)
    assert "alice" not in world.ledgers
    assert not {"unsealed", "other"} & set(world.stored)
    assert world.ledgers.adopt_stored("alice", world.remembered["alice"])
    assert not world.ledgers.adopt_stored("alice", world.remembered["alice"]), (
        "what is not there is not adopted"
    )


# -- what a stranger shows instead of a ledger --


def test_what_only_bears_the_name_of_a_ledger_is_never_opened(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe notices each opener, as a device would.

    Its writer would be told here, and hung up on there.
    """
    ledger = opened(world)
    pid = world.holder(ledger)
    monkeypatch.setattr(ledgers, "MEMFD_PREFIX", str(tmp_path))
    os.mkfifo(tmp_path / "nodemgr-decoy")
    decoy = os.open(tmp_path / "nodemgr-decoy", os.O_RDONLY | os.O_NONBLOCK)
    shown = ledgers._descriptors(os.getpid())
    assert [os.readlink(path) for path in shown] == [str(tmp_path / "nodemgr-decoy")]
    assert ledgers._open_files_of(os.getpid(), world.remembered["alice"]) == []
    poller = select.poll()
    poller.register(decoy, select.POLLIN)
    assert poller.poll(0) == [], "nobody was at the other end"
    os.close(decoy)
    monkeypatch.undo()
    real = ledgers._open_files_of(pid, world.remembered["alice"])
    assert {file_id(fd) for fd in real} == {file_id(fd) for fd in ledger.fds}
    for fd in real:
        os.close(fd)


def test_a_plain_file_of_the_same_number_is_no_ledger(tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb") as file:
        assert ledgers._opened(f"/proc/self/fd/{file.fileno()}", {file_id(file.fileno())}) == (
            None,
            -1,
        )


def test_a_stranger_with_any_number_of_files_costs_a_bounded_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ledgers, "MOST_DESCRIPTORS", 5)
    files = [os.memfd_create("nodemgr-many") for _ in range(20)]
    assert len(ledgers._descriptors(os.getpid())) <= 5
    for fd in files:
        os.close(fd)


def test_a_process_that_delays_the_list_of_its_mappings_delays_no_restart(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel waits for a file system of the process's own before it lists them."""
    over = threading.Event()
    monkeypatch.setattr(ledgers, "LONG_TIMEOUT_S", 0.01)
    monkeypatch.setattr(ledgers, "_mappings", lambda pid: [str(over.wait())])
    opened(world)
    with subprocess.Popen(["sleep", "60"]) as process:
        pids = [process.pid] * 5
        assert not world.ledgers.adopt_from_processes("bob", world.remembered["alice"], pids)
        over.set()
        process.kill()
