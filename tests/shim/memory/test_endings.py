"""Contexts and streams that end while other threads of the process are at work.

Nothing stays charged, and no process with room is refused.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.client_c.compiled import ENVIRONMENT, SANITIZERS, compile_c
from tests.shim.world import GIB, LINKED_WITH_DRIVER, MIB, PROGRAMS, World, compiled
from tests.support.limits import WAIT_LIMIT_S


@pytest.mark.parametrize(("scenario", "rounds", "limit"), [
    ("retained", 2000, 100 * MIB),
    ("underfoot", 200, GIB),
])  # fmt: skip
def test_contexts_that_end_beside_other_threads(
    scenario: str, rounds: int, limit: int, make_world: Callable[..., World]
) -> None:
    env = make_world(limit=limit, settings={"context_bytes": str(64 * MIB)})
    process = subprocess.Popen(
        [compiled("endings.c"), scenario, str(rounds)], env=env.environment(), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    said = process.stdout.readline()
    left = env.used(), env.held()
    _, stderr = process.communicate(timeout=WAIT_LIMIT_S)
    assert (said, process.returncode, stderr) == ("done\n", 0, "")
    assert left == (0, 0)


@pytest.mark.parametrize(
    ("sanitizer", "rounds"), [("plain", 2000), ("address", 500), ("thread", 100)]
)
def test_a_sweep_finds_every_block_beside_others_that_move_it(
    sanitizer: str, rounds: int, tmp_path: Path
) -> None:
    assert sanitizer in SANITIZERS
    program = compile_c(
        tmp_path / "blocks",
        ["account/blocks.c", "base/prim.c", PROGRAMS / "blocks.c"],
        sanitizer=sanitizer,
    )
    result = subprocess.run(
        [program, str(rounds)],
        capture_output=True,
        text=True,
        timeout=WAIT_LIMIT_S,
        env=ENVIRONMENT,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("sanitizer", ["plain", "thread"])
def test_a_synchronisation_beside_another_threads_look_at_the_pools_looks_itself(
    sanitizer: str, tmp_path: Path
) -> None:
    program = compile_c(tmp_path / "pool_looks", [PROGRAMS / "pool_looks.c"], sanitizer=sanitizer)
    result = subprocess.run(
        [program],
        capture_output=True,
        text=True,
        timeout=WAIT_LIMIT_S,
        env=ENVIRONMENT,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_a_raw_clone_does_not_wait_for_threads_that_are_not_in_it(tmp_path: Path) -> None:
    program = compile_c(
        tmp_path / "clone",
        ["account/blocks.c", "base/prim.c", PROGRAMS / "clone.c"],
        sanitizer="plain",
    )
    result = subprocess.run(
        [program],
        capture_output=True,
        text=True,
        timeout=WAIT_LIMIT_S,
        env=ENVIRONMENT,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("sanitizer", ["plain", "address"])
def test_a_forked_child_reads_the_table_though_its_parents_threads_held_locks(
    sanitizer: str, tmp_path: Path
) -> None:
    program = compile_c(
        tmp_path / "forks",
        ["account/blocks.c", "base/prim.c", PROGRAMS / "forks.c"],
        sanitizer=sanitizer,
    )
    result = subprocess.run(
        [program, "500"],
        capture_output=True,
        text=True,
        timeout=WAIT_LIMIT_S,
        env=ENVIRONMENT,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(("scenario", "code", "output"), [
    ("worker", 0, "cuInit 0\nworker\nhandler\n"),
    ("alone", 0, "cuInit 0\nhandler\n"),
    ("late", 0, "cuInit 0\nhandler\n"),
    ("code", 3, "cuInit 0\n"),
    ("killed", -signal.SIGKILL, "cuInit 0\n"),
])  # fmt: skip
def test_a_process_whose_own_threads_have_ended_ends_as_without_us(
    scenario: str, code: int, output: str, env: World
) -> None:
    """The beating thread is not the program's: it keeps no process alive.

    The exit handlers run once, on a usual stack.
    """
    program = compiled("last_thread.c", *LINKED_WITH_DRIVER)
    bare = env.run(program, scenario, shim=False, managed=False)
    assert (bare.returncode, bare.stdout) == (code, output)
    ran = env.run(program, scenario)
    assert (ran.returncode, ran.stdout, ran.stderr) == (code, output, "")


def test_a_process_goes_on_without_its_main_thread(env: World) -> None:
    """Its other threads are at work: it beats, and is not ended."""
    process = subprocess.Popen(
        [compiled("last_thread.c", *LINKED_WITH_DRIVER), "works"], env=env.environment(), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["cuInit 0\n", "works\n"]
    env.manager.await_verb("BEAT", 5)
    stdout, stderr = process.communicate("", timeout=WAIT_LIMIT_S)
    assert (process.returncode, stdout, stderr) == (7, "handler\n", "")
