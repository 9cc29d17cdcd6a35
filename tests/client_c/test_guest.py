"""The shim's view of the client: the lease, its charges, a stalled and a fenced one, the wait in C.

Under the sanitizers too.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodemgr._native import ffi, lib
from nodemgr.edge.ledger.native_ledger import SlotState
from tests.client_c.compiled import CLIENT_SOURCES, ENVIRONMENT, HIDDEN, SANITIZERS, compile_c
from tests.client_c.conftest import FORGET
from tests.client_c.manager import (
    AFTER_LOSS,
    GPUS,
    Books,
    Connection,
    Env,
    Manager,
    UdpManager,
    grant_fields,
    said,
)
from tests.conftest import ROOT
from tests.support.limits import WAIT_LIMIT_S

OK, OVER, FENCED, STALLED = range(4)
HELD, DENIED, LOST = 2, 3, 4


@pytest.fixture(scope="module", params=list(SANITIZERS))
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [*CLIENT_SOURCES, Path(__file__).with_name("guest.c")]
    return compile_c(
        tmp_path_factory.mktemp("guest") / f"guest_{request.param}",
        sources,
        HIDDEN,
        sanitizer=request.param,
    )


class Guest:
    def __init__(
        self, program: Path, env: Env, stderr: int = subprocess.PIPE, before: tuple[str, ...] = (),
        **variables: str,
    ) -> None:  # fmt: skip
        clean = {name: value for name, value in os.environ.items() if not name.startswith(FORGET)}
        self.process = subprocess.Popen(
            [*before, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
            text=True, bufsize=1,
            env={**clean, **ENVIRONMENT, "NODEMGR_ENV_DIR": str(env.directory), **variables},
        )  # fmt: skip

    def start(self, *order: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, order)) + "\n")

    def answer(self) -> list[str]:
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        assert text, self.process.stderr and self.process.stderr.read()
        return text.split()

    def ask(self, *order: object) -> list[str]:
        self.start(*order)
        return self.answer()

    def charge(self, row: int, size: int) -> tuple[int, int]:
        result, number = map(int, self.ask("charge", row, size))
        return result, number

    def line(self) -> str:
        return said(self.process.stderr)

    def finish(self) -> tuple[int, str]:
        assert self.process.stdin is not None
        self.process.stdin.close()
        said = self.process.stderr.read() if self.process.stderr is not None else ""
        return self.process.wait(timeout=WAIT_LIMIT_S), said


class Seat:
    """Another process's slot in the books."""

    def __init__(self, books: Books, slot: int) -> None:
        self.native = ffi.new("struct nm_ledger *")
        self.slot = slot
        assert (
            lib.nm_ledger_map_client(self.native, *(os.dup(fd) for fd in books.ledger.fds))
            == lib.NM_LEDGER_OK
        )

    def reserve(self, size_bytes: int) -> int:
        result: int = lib.nm_ledger_reserve(self.native, 0, self.slot, 0, size_bytes)
        return result

    def release(self, size_bytes: int) -> None:
        lib.nm_ledger_release(self.native, 0, self.slot, 0, size_bytes)


Start = Callable[..., Guest]


@pytest.fixture
def start(program: Path, env: Env) -> Iterator[Start]:
    guests: list[Guest] = []

    def one(**arguments: object) -> Guest:
        guests.append(Guest(program, env, **arguments))  # type: ignore[arg-type]
        return guests[-1]

    yield one
    for guest in guests:
        guest.process.kill()
        guest.process.wait()
        for stream in (guest.process.stdin, guest.process.stdout, guest.process.stderr):
            if stream is not None:
                stream.close()


def acquired(guest: Guest, manager: Manager, books: Books, **changes: object) -> Connection:
    guest.start("acquire")
    client = manager.accept()
    client.grant(client.expect("ACQUIRE"), books, **changes)  # type: ignore[arg-type]
    assert guest.answer() == [str(HELD)]
    return client


def test_charges_are_in_the_managers_books(manager: Manager, start: Start) -> None:
    guest, books = start(), Books(10 << 30)
    acquired(guest, manager, books, gpus=2)
    assert guest.ask("lease") == ["0", "0", "2", GPUS[0], "0"]
    assert guest.charge(0, 6 << 30) == (OK, 1)
    assert guest.charge(0, 6 << 30) == (OVER, 1)
    assert guest.charge(1, 6 << 30) == (OK, 1)
    assert (books.ledger.used(0), books.ledger.slot_used(1, 0)) == (6 << 30, 6 << 30)
    guest.ask("discharge", 1, 0, 2 << 30)
    assert books.ledger.used(0) == 4 << 30
    guest.ask("discharge", 7, 0, 4 << 30)
    assert books.ledger.used(0) == 4 << 30, "a number that was never given out frees nothing"
    guest.ask("discharge", 1, 0, 100 << 30)
    assert books.ledger.used(0) == 0, "never below zero"
    books.ledger.set_limit(0, 1 << 30)
    assert guest.charge(0, 2 << 30) == (
        OVER,
        1,
    ), "a changed limit holds from the next allocation on"
    assert guest.ask("threads", 2000) == ["done"]
    assert books.ledger.used(0) == 0
    books.await_beats()
    assert guest.finish() == (0, "")


def test_a_forked_child_charges_and_frees_nothing_of_its_parents(
    manager: Manager, start: Start
) -> None:
    guest, books = start(), Books()
    acquired(guest, manager, books)
    guest.charge(0, 1 << 30)
    assert guest.ask("fork") == ["0"]
    assert books.ledger.used(0) == 1 << 30
    books.await_beats()


def test_without_a_lease_nothing_is_charged(manager: Manager, start: Start) -> None:
    guest = start()
    assert guest.ask("lease") == ["none"]
    assert guest.charge(0, 1) == (FENCED, 0)


def charge_of_a_stalled_one(guest: Guest, books: Books) -> list[str]:
    """The answer to a charge, during which the manager sees that the process is not stalled.

    Once more where this test was too late: the process waits for three seconds.
    """
    while True:
        books.ledger.set_slot(0, 0, SlotState.STALLED)
        before = books.beats()
        guest.start("charge", 0, 4096)
        books.await_beats(since=before)
        books.ledger.set_slot(0, 0, SlotState.LIVE)
        if (answer := guest.answer())[0] != str(STALLED):
            return answer


def test_a_stalled_process_beats_and_goes_on(manager: Manager, start: Start) -> None:
    guest, books = start(), Books()
    acquired(guest, manager, books, beat_ms=60_000)
    assert charge_of_a_stalled_one(guest, books) == [str(OK), "1"]
    assert books.ledger.used(0) == 4096


def test_a_stalled_process_that_lost_its_lease_is_refused(manager: Manager, start: Start) -> None:
    guest, books = start(), Books()
    client = acquired(guest, manager, books, beat_ms=60_000)
    assert guest.charge(0, 4096) == (OK, 1)
    books.ledger.set_slot(0, 0, SlotState.STALLED)
    before = books.beats()
    guest.start("charge", 0, 4096)
    books.await_beats(since=before)
    books.ledger.set_slot(0, 0, SlotState.FENCED)
    client.send("FENCE", lease="t1", reason="t1 was taken back")
    # stalled: where this test came after the three seconds of the wait
    assert guest.answer()[0] in (str(FENCED), str(STALLED))
    assert guest.line() == f"nodemgr: t1 was taken back{AFTER_LOSS}"
    assert guest.ask("state") == [str(LOST)]
    assert guest.charge(0, 1)[0] == FENCED
    guest.ask("discharge", 1, 0, 4096)
    assert books.ledger.used(0) == 0, "what is freed later still leaves the books"


def test_a_stalled_process_without_an_answer_is_refused_in_time(
    manager: Manager, start: Start
) -> None:
    guest, books = start(), Books()
    acquired(guest, manager, books)
    books.ledger.set_slot(0, 0, SlotState.STALLED)
    before = books.beats()
    assert guest.charge(0, 4096) == (STALLED, 1)
    assert books.beats() != before


@pytest.mark.parametrize("confined", ["send_no_more", "only_wait"])
def test_a_holder_may_confine_itself(
    manager: Manager, start: Start, program: Path, confined: str
) -> None:
    """With seccomp on all threads: a beat makes no system call but its wait, nor does its end."""
    if confined == "only_wait" and program.name != "guest_plain":
        pytest.skip("a sanitizer makes system calls of its own")
    guest, books = start(), Books()
    client = acquired(guest, manager, books)
    books.await_beats()  # a thread that begins makes more system calls
    assert guest.ask(confined) == ["0"]
    books.await_beats(5)
    assert guest.charge(0, 4096)[0] == OK
    guest.ask("discharge", 1, 0, 4096)
    assert guest.finish() == (0, "")
    assert client.closes() == []


def test_a_confined_process_that_was_stopped_goes_on(manager: Manager, start: Start) -> None:
    guest, books = start(), Books()
    acquired(guest, manager, books)
    assert guest.ask("send_no_more") == ["0"]
    assert charge_of_a_stalled_one(guest, books)[0] == str(OK)


def test_an_earlier_leases_memory_is_freed_there(manager: Manager, start: Start) -> None:
    guest, books = start(), Books()
    client = acquired(guest, manager, books)
    assert guest.charge(0, 3 << 30) == (OK, 1)
    guest.start("release")
    client.reply("ACK", rid=client.expect("RELEASE").number("rid"))
    guest.answer()
    books.ledger.set_slot(5, 0, SlotState.LIVE)
    acquired(guest, manager, books, slot=5, lease="t2")
    assert guest.charge(0, 2 << 30) == (OK, 2)
    guest.ask("discharge", 1, 0, 1 << 30)
    assert [books.ledger.slot_used(0, slot) for slot in (0, 5)] == [2 << 30, 2 << 30]
    books.await_beats(slot=5)


@pytest.mark.parametrize("noticed", [True, False])
def test_who_came_after_a_restart_counts_for_one_who_is_not_back_yet(
    manager: Manager, start: Start, noticed: bool
) -> None:
    """A restarted manager gives a newcomer a slot beyond the limits of a sleeping process."""
    guest, books = start(), Books(10 << 30)
    client = acquired(guest, manager, books)
    adopted = books.adopted()
    adopted.ledger.set_slot(900, 0, SlotState.LIVE)
    if noticed:
        client.close()
        client = manager.accept()
        rejoin = client.expect("REJOIN")
    newcomer = Seat(adopted, 900)
    assert newcomer.reserve(8 << 30) == OK
    assert guest.charge(0, 4 << 30)[0] == OVER
    newcomer.release(8 << 30)
    assert guest.charge(0, 4 << 30)[0] == OK
    if noticed:
        client.grant(rejoin, adopted)
        client.settle(guest)
    assert newcomer.reserve(6 << 30) == OK
    assert guest.charge(0, 1)[0] == OVER
    assert adopted.ledger.used(0) == 10 << 30


def test_a_restart_moves_no_word(manager: Manager, start: Start) -> None:
    """The usage file stays mapped once.

    If its words were moved, the memory would count for nothing in between.
    """
    guest, books = start(), Books()
    client = acquired(guest, manager, books)
    assert guest.charge(0, 3 << 30)[0] == OK
    for _ in range(3):
        books = books.adopted()
        client.close()
        client = manager.accept()
        client.grant(client.expect("REJOIN"), books)
        client.settle(guest)
        assert Path(f"/proc/{guest.process.pid}/maps").read_text().count("memfd:nodemgr-usage") == 1
        assert books.ledger.used(0) == 3 << 30
    books.ledger.set_limit(0, 4 << 30)
    assert guest.charge(0, 2 << 30)[0] == OVER, "it reads the newest limits"
    guest.ask("discharge", 1, 0, 3 << 30)
    assert books.ledger.used(0) == 0


def test_fixed_caps_over_udp(env: Env, start: Start) -> None:
    udp = UdpManager(env)
    guest = start()
    for lease in ("t1", "t2"):
        guest.start("acquire")
        request = udp.greet() if lease == "t1" else udp.expect("ACQUIRE")
        fields = {
            key: value
            for key, value in grant_fields(request, slot=None, gpus=2, lease=lease).items()
            if key != "rid"
        }
        udp.answer(request, "GRANT", **{**fields, "limits": (1 << 30, 2 << 30)})
        assert guest.answer() == [str(HELD)]
        number = 1 if lease == "t1" else 2
        assert guest.charge(0, 1 << 30) == (OK, number)
        assert guest.charge(0, 1) == (OVER, number)
        assert guest.charge(1, 2 << 30) == (OK, number)
        guest.ask("discharge", number, 1, 1 << 30)
        assert guest.charge(1, 1 << 30) == (OK, number)
        udp.answer(udp.expect("BEAT"), "FENCE", lease=lease, reason=f"{lease} is over")
        assert guest.line() == f"nodemgr: {lease} is over{AFTER_LOSS}"
        assert guest.charge(1, 1) == (FENCED, 0)
        guest.ask("discharge", number, 0, 1 << 30)
        guest.ask("discharge", number, 1, 2 << 30)
    udp.close()


def test_over_udp_what_an_earlier_lease_left_counts(env: Env, start: Start) -> None:
    udp, guest = UdpManager(env), start()
    for lease, left in (("t1", 1 << 30), ("t2", (1 << 30) - 4096)):
        guest.start("acquire")
        request = udp.greet() if lease == "t1" else udp.expect("ACQUIRE")
        fields = {
            key: value
            for key, value in grant_fields(request, slot=None, lease=lease).items()
            if key != "rid"
        }
        udp.answer(request, "GRANT", **{**fields, "limits": (1 << 30,)})
        assert guest.answer() == [str(HELD)]
        assert guest.charge(0, left + 1)[0] == OVER
        assert guest.charge(0, 4096)[0] == OK
        udp.answer(udp.expect("BEAT"), "FENCE", lease=lease, reason=f"{lease} is over")
        guest.line()
    udp.close()


def test_what_a_program_had_before_an_exec_counts_no_more(manager: Manager, start: Start) -> None:
    """For the manager it is the same process in the same slot; the driver freed its memory."""
    guest, books = start(), Books(1 << 30)
    client = acquired(guest, manager, books)
    assert guest.charge(0, 600 << 20)[0] == OK
    guest.start("exec")
    client.closes()
    client = acquired(guest, manager, books)
    assert books.ledger.used(0) == 0
    assert guest.charge(0, 600 << 20)[0] == OK
    client.close()
    client = manager.accept()
    client.grant(client.expect("REJOIN"), books)
    client.settle(guest)
    assert books.ledger.used(0) == 600 << 20, "a lease that goes on keeps its words"


def test_a_fenced_process_hears_why_and_says_it_once(manager: Manager, start: Start) -> None:
    """The books may say it before the packet comes: the refusal waits for the reason."""
    guest, books = start(), Books()
    client = acquired(guest, manager, books, beat_ms=60_000)
    books.ledger.set_slot(0, 0, SlotState.FENCED)
    before = books.beats()
    guest.start("charge", 0, 4096)
    books.await_beats(since=before)
    client.send("FENCE", lease="t1", reason="t1 went to bob")
    assert guest.answer()[0] == str(FENCED)
    assert guest.ask("tell_lost") == ["ok"]
    assert guest.charge(0, 4096)[0] == FENCED
    assert guest.finish() == (0, f"nodemgr: t1 went to bob{AFTER_LOSS}\n")


def test_a_thread_that_is_cancelled_leaves_no_lock_behind(manager: Manager, start: Start) -> None:
    guest = start()
    assert guest.ask("begin") == ["1"]
    client = manager.accept()
    request = client.expect("ACQUIRE")
    guest.start("cancel_threads", 200)
    client.socket.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        # they may have gone while there was still something to say
        for place in range(1000):
            client.send("WAIT", rid=request.number("rid"), position=1, reason=f"place {place}")
    assert guest.answer() == ["1"]


def test_every_lease_of_a_process_is_remembered(manager: Manager, start: Start) -> None:
    guest, books = start(), Books()
    for number in range(1, 71):
        client = acquired(guest, manager, books)
        assert guest.charge(0, 4096) == (OK, number)
        guest.start("release")
        client.reply("ACK", rid=client.expect("RELEASE").number("rid"))
        assert guest.answer() == ["0"]
        client.closes()
    assert books.ledger.used(0) == 70 * 4096
    for number in range(1, 71):
        guest.ask("discharge", number, 0, 4096)
    assert books.ledger.used(0) == 0


# -- the wait in C --


def test_the_line_on_a_pipe_comes_at_each_change(manager: Manager, start: Start) -> None:
    guest = start()
    guest.start("acquire")
    client = manager.accept()
    request = client.expect("ACQUIRE")
    for text in ("2nd in the queue", "1st in the queue"):
        client.send("WAIT", rid=request.number("rid"), position=1, reason=text)
        client.send("WAIT", rid=request.number("rid"), position=1, reason=text)
        assert guest.line() == f"nodemgr: {text}"
    client.send("DENY", rid=request.number("rid"), code="wait_timeout", reason="waited 5 s")
    assert guest.answer() == [str(DENIED)]
    assert guest.finish() == (0, "nodemgr: waited 5 s\n")


def on_terminal(
    manager: Manager, start: Start, texts: tuple[str, ...], before: tuple[str, ...] = ()
) -> bytes:
    """The output of a wait with these reasons."""
    leader, follower = pty.openpty()
    guest = start(stderr=follower, before=before)
    guest.start("acquire")
    client = manager.accept()
    request = client.expect("ACQUIRE")
    written = b""
    for text in texts:
        client.send("WAIT", rid=request.number("rid"), position=2, reason=text)
        while text[:20].encode() not in written:
            written += os.read(leader, 4096)
    client.grant(request, Books())
    assert guest.answer() == [str(HELD)]
    while b"granted" not in written or not written.endswith(b"\n"):
        written += os.read(leader, 4096)
    os.close(follower)
    os.close(leader)
    return written


def test_the_line_on_a_terminal_is_written_over(manager: Manager, start: Start) -> None:
    before, *drawn, last = on_terminal(manager, start, ("place 2",)).split(b"\r\x1b[K")
    assert before == b""
    assert drawn
    assert all(re.fullmatch(rb"nodemgr: place 2 \(\d:\d\d:\d\d\)", line) for line in drawn)
    assert re.fullmatch(rb"nodemgr: 1 GPU granted after \d:\d\d:\d\d\r\n", last)


def test_a_line_that_a_terminal_would_cut_stands_whole_above_its_clock(
    manager: Manager, start: Start
) -> None:
    texts = ("x" * 300, "y" * 300)
    *drawn, last = on_terminal(manager, start, texts).split(b"\r\x1b[K")
    whole = [line for line in drawn if line.endswith(b"\r\n")]
    lines = [b"nodemgr: " + letter * 300 + b"\r\n" for letter in (b"x", b"y")]
    assert whole in (lines[:1], lines), "the second only where it comes a period later"
    clocks = [line for line in drawn if line and line not in whole]
    assert clocks
    for line in clocks:
        waits = re.fullmatch(rb"nodemgr: waiting \(\d:\d\d:\d\d\)", line)
        cut = re.fullmatch(rb"nodemgr: y+ \(\d:\d\d:\d\d\)", line)
        assert waits or (cut and len(line) == 79), "cut, but for its clock"
    assert re.fullmatch(rb"nodemgr: 1 GPU granted after \d:\d\d:\d\d\r\n", last)


def test_in_the_background_of_a_shell_the_prompt_is_not_written_over(
    manager: Manager, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    before = (sys.executable, "-m", "tests.programs.background")
    first, last = on_terminal(manager, start, ("place 2",), before).splitlines()
    assert first == b"nodemgr: place 2"
    assert re.fullmatch(rb"nodemgr: 1 GPU granted after \d:\d\d:\d\d", last)


def test_a_signal_does_not_end_the_wait(manager: Manager, start: Start) -> None:
    """The program's own handler ran, and that was all it asked for."""
    manager.env.write(beat_ms="50")
    guest = start()
    guest.ask("handle")
    guest.start("acquire")
    client = manager.accept()
    request = client.expect("ACQUIRE")
    client.send("WAIT", rid=request.number("rid"), position=1, reason="wait")
    guest.line()
    guest.process.send_signal(signal.SIGINT)
    client.expect("BEAT")
    client.grant(request, Books())
    assert guest.answer() == [str(HELD)]


def test_without_a_handler_ctrl_c_ends_the_program_as_ever(manager: Manager, start: Start) -> None:
    guest = start()
    guest.start("acquire")
    client = manager.accept()
    request = client.expect("ACQUIRE")
    client.send("WAIT", rid=request.number("rid"), position=1, reason="wait")
    guest.line()
    guest.process.send_signal(signal.SIGINT)
    assert guest.process.wait(timeout=WAIT_LIMIT_S) == -signal.SIGINT
    client.closes()
