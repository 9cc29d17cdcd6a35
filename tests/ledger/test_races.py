"""The ledger under races: never beyond the limit at any instant, zero at the end.

A kill -9 at any moment blocks no process.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodemgr.edge.ledger.native_ledger import Ledger, SlotState
from tests.client_c.compiled import ENVIRONMENT, SANITIZERS, compile_c
from tests.support.limits import WAIT_LIMIT_S

LIMIT_BYTES = 1 << 20
PROCESSES = 8


@pytest.fixture(scope="module", params=list(SANITIZERS))
def racer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [
        "ledger/ledger.c",
        "base/prim.c",
        "base/sealed_file.c",
        Path(__file__).with_name("racer.c"),
    ]
    return compile_c(tmp_path_factory.mktemp("racer") / "racer", sources, sanitizer=request.param)


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    ledger = Ledger.create()
    ledger.set_row(0, "GPU-a", 80 << 30)
    ledger.set_limit(0, LIMIT_BYTES)
    for slot in range(PROCESSES):
        ledger.set_slot(slot, 0, SlotState.LIVE)
    yield ledger
    ledger.close()


@pytest.fixture
def truth() -> Iterator[int]:
    fd = os.memfd_create("truth")
    os.ftruncate(fd, 8)
    yield fd
    os.close(fd)


def start(racer: Path, ledger: Ledger, truth: int, slot: int, *, generation: int = 0,
    threads: int = 2, rounds: int = 3000,
          most_bytes: int = LIMIT_BYTES // 6,
          ceiling_bytes: int = LIMIT_BYTES) -> subprocess.Popen[str]:  # fmt: skip
    fds = (*ledger.fds, truth)
    process = subprocess.Popen(
        [str(racer), *map(str, (*fds, slot, generation, threads, rounds, most_bytes,
            ceiling_bytes))],
        pass_fds=fds, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, **ENVIRONMENT},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def go(*racers: subprocess.Popen[str]) -> None:
    for process in racers:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None


def figures(process: subprocess.Popen[str]) -> tuple[int, int]:
    """(reservations that stood, refusals) of a racer that ended; it found no hole."""
    out, errors = process.communicate(timeout=WAIT_LIMIT_S)
    assert process.returncode == 0, errors
    stood, refused, _ = map(int, out.split())
    return stood, refused


@pytest.mark.slow
def test_processes_and_threads_race_at_length(racer: Path, ledger: Ledger, truth: int) -> None:
    race(racer, ledger, truth, rounds=10_000)


def test_processes_and_threads_race_exactly(racer: Path, ledger: Ledger, truth: int) -> None:
    race(racer, ledger, truth, rounds=2_000)


def race(racer: Path, ledger: Ledger, truth: int, rounds: int) -> None:
    racers = [start(racer, ledger, truth, slot, rounds=rounds) for slot in range(PROCESSES)]
    go(*racers)
    assert all(stood > 0 for stood, _ in map(figures, racers))
    assert ledger.used(0) == 0
    assert os.pread(truth, 8, 0) == bytes(8)


def test_two_that_want_more_than_half_both_get_on(racer: Path, ledger: Ledger, truth: int) -> None:
    """Each refuses the other again and again; neither for ever."""
    racers = [
        start(racer, ledger, truth, slot, threads=1, rounds=2000, most_bytes=LIMIT_BYTES)
        for slot in range(2)
    ]
    go(*racers)
    assert all(stood > 0 for stood, _ in map(figures, racers))
    assert ledger.used(0) == 0


def test_with_room_for_one_somebody_gets_it(tmp_path: Path) -> None:
    """Both at the same moment, round for round.

    Refusing each other, they try again: with a single attempt one round in a hundred has no winner.
    """
    duel = compile_c(
        tmp_path / "duel",
        [
            "ledger/ledger.c",
            "base/prim.c",
            "base/sealed_file.c",
            Path(__file__).with_name("duel.c"),
        ],
    )
    result = subprocess.run(
        [str(duel), "2", "700"], capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False
    )
    assert (result.returncode, result.stdout) == (0, "0\n"), result.stderr


def test_threads_as_slots_of_one_process(racer: Path) -> None:
    """The part that the thread sanitizer can see whole."""
    command = [
        str(racer),
        "private",
        "0",
        "0",
        "0",
        "0",
        "4",
        "3000",
        str(LIMIT_BYTES // 2),
        str(LIMIT_BYTES),
    ]
    environment = {**os.environ, **ENVIRONMENT}
    result = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split()[-1] == "0"


def test_the_limit_moves_under_the_race(racer: Path, ledger: Ledger, truth: int) -> None:
    """All charges were judged by one of its values: never beyond the highest."""
    racers = [
        start(racer, ledger, truth, slot, rounds=2000, ceiling_bytes=2 * LIMIT_BYTES)
        for slot in range(4)
    ]
    go(*racers)
    chance = random.Random(3)
    while any(process.poll() is None for process in racers):
        ledger.set_limit(0, chance.randrange(2 * LIMIT_BYTES + 1))
    assert all(stood > 0 for stood, _ in map(figures, racers))
    assert ledger.used(0) == 0


def test_killed_at_any_moment_and_nobody_is_wedged(racer: Path, ledger: Ledger, truth: int) -> None:
    """The manager clears each slot after its process's death; in the end all is free.

    The other processes go on.
    """
    chance = random.Random(4)
    generation = [0] * 4
    bystander = start(racer, ledger, truth, 7, rounds=0)
    victims = [start(racer, ledger, truth, slot, rounds=0) for slot in range(4)]
    go(bystander, *victims)
    for _ in range(24):
        slot = chance.randrange(4)
        victims[slot].kill()
        victims[slot].communicate()
        generation[slot] = ledger.clear_slot(slot, generation[slot])
        assert ledger.slot_used(0, slot) == 0
        ledger.set_slot(slot, generation[slot], SlotState.LIVE)
        victims[slot] = start(racer, ledger, truth, slot, generation=generation[slot], rounds=0)
        go(victims[slot])
    assert bystander.poll() is None
    for process in (*victims, bystander):
        process.kill()
        process.communicate()
    for slot in range(4):
        ledger.clear_slot(slot, generation[slot])
    ledger.clear_slot(7, 0)
    assert ledger.used(0) == 0
    os.pwrite(truth, bytes(8), 0)
    ledger.set_slot(5, 0, SlotState.LIVE)
    last = start(racer, ledger, truth, 5, threads=1, rounds=50, most_bytes=LIMIT_BYTES // 4)
    go(last)
    stood, refused = figures(last)
    assert stood >= 25
    assert refused == 0


def test_a_lowered_limit_is_never_passed(racer: Path, ledger: Ledger, truth: int) -> None:
    """Half of the memory is asked back while all race: the answer holds until it is raised.

    Asked until it met the racers at different fillings: on a busy machine they get late to run.
    """
    racers = [start(racer, ledger, truth, slot, rounds=0) for slot in range(PROCESSES)]
    go(*racers)
    answers = set()
    rounds = 0
    deadline = time.monotonic() + WAIT_LIMIT_S
    while rounds < 300 or (len(answers) < 2 and time.monotonic() < deadline):
        rounds += 1
        limit_bytes = ledger.lower_limit(0, LIMIT_BYTES // 2)
        assert LIMIT_BYTES // 2 <= limit_bytes <= LIMIT_BYTES
        assert ledger.limit(0) == limit_bytes
        for _ in range(20):
            assert int.from_bytes(os.pread(truth, 8, 0), "little") <= limit_bytes
        answers.add(limit_bytes)
        ledger.set_limit(0, LIMIT_BYTES)
    for process in racers:
        process.kill()
        process.communicate()
    assert len(answers) > 1, "it met the racers at one filling alone"


def test_a_lowered_limit_is_never_raised(ledger: Ledger) -> None:
    assert ledger.lower_limit(0, 2 * LIMIT_BYTES) == LIMIT_BYTES
    assert ledger.lower_limit(0, 5) == 5
    assert ledger.lower_limit(0, 6) == 5
