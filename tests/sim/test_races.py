"""Many processes and threads at once, killed at random instructions: the books stay exact.

The books are checked against themselves in two ways that share no code: the device's sum
(one word, changed by compare-and-swap) and the sum over its processes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from csrc.sim import build
from nodemgr import simulator
from nodemgr.simulator import SimulatedNode
from tests.sim.conftest import GIB, MIB
from tests.support.limits import WAIT_LIMIT_S

Race = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = Path(__file__).parent / "programs" / "race.c"
    binary = tmp_path_factory.mktemp("race") / "race"
    command = [
        "cc",
        "-std=gnu11",
        "-D_GNU_SOURCE",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        str(source),
        "-o",
        str(binary),
        "-pthread",
    ]
    subprocess.run(
        [*command, str(simulator.library_directory() / "libcuda.so.1")],
        check=True,
        timeout=WAIT_LIMIT_S,
    )
    return binary


@pytest.fixture
def race(node: SimulatedNode, program: Path) -> Iterator[Race]:
    """race(threads, rounds, seed, most_bytes): such a process, under way; all end with the test."""
    started: list[subprocess.Popen[str]] = []

    def begin(threads: int, rounds: int, seed: int, most_bytes: int) -> subprocess.Popen[str]:
        command = [
            str(program),
            *(str(argument) for argument in (threads, rounds, seed, most_bytes)),
        ]
        environment = {**os.environ, **node.environment("racers")}
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate(timeout=WAIT_LIMIT_S)


@pytest.mark.parametrize(
    "sanitizer",
    [[], ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]],
    ids=["plain", "sanitized"],
)
@pytest.mark.parametrize("name", ["tally", "engine"])
def test_whoever_dies_within_a_change_is_mended_by_the_next(
    tmp_path: Path, sanitizer: list[str], name: str
) -> None:
    binary = tmp_path / name
    source = Path(__file__).parent / "programs" / f"{name}.c"
    probe = ["cc", *sanitizer, "-xc", "-", "-o", str(binary)]
    if subprocess.run(
        probe,
        check=False,
        input=b"int main(void) { return 0; }",
        capture_output=True,
        timeout=WAIT_LIMIT_S,
    ).returncode:
        pytest.skip("this compiler comes without that sanitizer")
    command = [
        "cc",
        "-std=gnu11",
        "-D_GNU_SOURCE",
        "-O1",
        "-g",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{build.CSRC}",
        *sanitizer,
    ]
    parts = ("node/engine", "node/schedule", "node/models", "lost/lost")
    below = [str(build.HERE / f"{part}.c") for part in parts]
    sources = [str(source), *(below if name == "tally" else [])]
    subprocess.run(
        [*command, *sources, "-o", str(binary), "-ldl"], check=True, timeout=WAIT_LIMIT_S
    )
    finished = subprocess.run(
        [str(binary)], check=False, capture_output=True, text=True, timeout=WAIT_LIMIT_S
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr


def finish(process: subprocess.Popen[str]) -> dict[str, int]:
    """Its output, while it still lives."""
    assert process.stdout is not None
    report: dict[str, int] = json.loads(process.stdout.readline())
    return report


def test_racers_share_a_device_exactly(node: SimulatedNode, race: Race) -> None:
    racers = [race(4, 3000, seed, 160 * MIB) for seed in range(8)]

    reports = [finish(process) for process in racers]

    books = node.books()[0]
    assert books.used_bytes == sum(process.used_bytes for process in books.processes) == 0
    assert [process.contexts for process in books.processes] == [1] * 8
    assert GIB * 9 // 10 < books.peak_bytes <= GIB, "the device was as good as full, and never more"
    assert sum(report["refused"] for report in reports) > 0
    assert node.group(0, "racers") == (0, books.peak_bytes)
    for process in racers:
        process.communicate(timeout=WAIT_LIMIT_S)
        assert process.returncode == 0


def test_the_books_are_exact_after_any_death(node: SimulatedNode, race: Race) -> None:
    chance = random.Random(20261121)
    living = [race(2, 0, seed, 160 * MIB) for seed in range(6)]
    for seed in range(6, 66):
        dying = living.pop(chance.randrange(len(living)))
        dying.kill()
        dying.wait(timeout=WAIT_LIMIT_S)
        books = node.books()[0]
        assert books.of(dying.pid) is None
        # the peak of a sum is written after it, by who raised it or by the next
        assert 0 <= books.used_bytes <= node.books()[0].peak_bytes <= GIB
        living.append(race(2, 0, seed, 160 * MIB))

    for process in living:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    books = node.books()[0]
    settled = sum(process.used_bytes for process in books.processes)
    assert books.used_bytes == settled, (
        "whoever was stopped halfway through had his books finished by the next"
    )

    for process in living:
        process.kill()
        process.wait(timeout=WAIT_LIMIT_S)
    assert node.books()[0].used_bytes == 0
    assert node.books()[0].processes == ()
    assert node.group(0, "racers")[0] == 0
    assert node.group(0, "racers")[1] <= GIB
