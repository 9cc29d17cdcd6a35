"""Processes and the client: forks, clones, exec, threads, signals.

And the object itself: what it needs of a system.
"""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

from nodemgr.simulator import CLIENT_LIBRARIES
from tests.client_c.compiled import CLIENT_SOURCES, ENVIRONMENT, HIDDEN, compile_c
from tests.client_c.conftest import LIBRARY, Child, Spawn
from tests.client_c.manager import GPUS, Books, Env, Manager
from tests.client_c.test_unix import asked, held
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import HOLD


def test_a_forked_child_joins_over_a_connection_of_its_own(manager: Manager, spawn: Spawn) -> None:
    child, books = spawn(), Books()
    held(child, manager, books)
    task = child.ask("lease")["task"]
    child.start("fork", ["state"], ["lease"], ["begin"], ["until", "HELD"], ["lease"], ["threads"])
    theirs = manager.accept()
    request = theirs.expect("ACQUIRE")
    assert request.text("task") == task
    assert "gpus" not in request.fields
    theirs.grant(request, books, slot=0)
    state, lease, begun, held_state, joined, threads = child.answer()
    assert (state, lease, begun, held_state) == (["NONE", ""], None, "WAITING", ["HELD", ""])
    assert joined["visible"] == GPUS[0]
    assert threads == 2
    books.await_beats()
    assert child.ask("state") == ["HELD", ""]


def test_a_child_that_never_asks_disturbs_nothing(manager: Manager, spawn: Spawn) -> None:
    """Neither its end (by exit, with destructors) nor its descriptors are the parent's."""
    child, books = spawn(), Books()
    client = held(child, manager, books)
    assert child.ask("fork", ["state"], ["threads"]) == [["NONE", ""], 1]
    assert child.ask("fork_and_exit") == 0
    books.await_beats(3)
    assert child.finish() == 0
    assert client.closes() == []


def test_a_child_of_the_bare_system_call_holds_nothing(manager: Manager, spawn: Spawn) -> None:
    child, books = spawn(), Books()
    held(child, manager, books)
    assert child.ask("raw_clone") == ["NONE", -1]
    books.await_beats()
    assert child.ask("state") == ["HELD", ""]


def test_forks_while_other_threads_wait(manager: Manager, spawn: Spawn) -> None:
    """No lock of the parent's is left held in a child."""
    child = spawn()
    child.ask("begin")
    client = manager.accept()
    child.start("fork_while_polling", 50)
    request = client.expect("ACQUIRE")
    client.send("WAIT", rid=request.number("rid"), position=1, reason="wait")
    assert child.answer() == [["NONE", ""]] * 50
    child.start("until", "HELD")
    client.grant(request, Books())
    assert child.answer() == ["HELD", ""]


@pytest.mark.parametrize("how", ["spawn", "vfork"])
def test_a_child_program_inherits_the_task_and_its_share(
    manager: Manager, spawn: Spawn, how: str
) -> None:
    child, books = spawn(), Books()
    held(child, manager, books, gpus=2)
    task = child.ask("lease")["task"]
    script = Path(__file__).with_name("child.py")
    child.start(
        "run_program",
        how,
        [sys.executable, str(script), str(LIBRARY)],
        [["begin"], ["until", "HELD"], ["lease"]],
    )
    theirs = manager.accept()
    request = theirs.expect("ACQUIRE")
    assert request.text("task") == task
    assert "gpus" not in request.fields
    theirs.grant(request, books, gpus=2)
    assert child.answer()[2]["visible"] == ",".join(GPUS[:2])


def test_exec_asks_again_under_the_same_token(manager: Manager, spawn: Spawn) -> None:
    child, books = spawn(), Books()
    client = held(child, manager, books)
    task = child.ask("lease")["task"]
    child.start("exec", sys.executable, str(Path(__file__).with_name("child.py")), str(LIBRARY))
    assert client.closes() == []
    again, request = asked(child, manager)
    assert request.text("task") == task
    again.grant(request, books)
    assert child.answer() == ["HELD", ""]


def test_our_thread_takes_no_signal_and_there_is_none_before_the_grant(
    manager: Manager, spawn: Spawn
) -> None:
    child = spawn()
    child.ask("begin")
    assert child.ask("threads") == 1
    client = manager.accept()
    child.start("until", "HELD")
    client.grant(client.expect("ACQUIRE"), Books())
    child.answer()
    assert child.ask("threads") == 2
    masks = child.ask("signal_masks")
    assert len(masks) == 2
    every_signal = (1 << 64) - 1 & ~(1 << 8) & ~(1 << 18) & ~(0b11 << 31)
    assert [mask & every_signal == every_signal for mask in masks] == [False, True]


def test_publishing_the_environment(manager: Manager, spawn: Spawn) -> None:
    child = spawn(THEIRS="1")
    child.ask("publish", "OURS", "a=b")
    child.ask("publish", "OURS", "c")
    child.ask("publish", "THEIRS", None)
    child.ask("setenv", "LATER", "2")
    assert [child.ask("getenv", name) for name in ("OURS", "THEIRS", "LATER",
        "NODEMGR_ENV_DIR")] == [
        "c", None, "2", str(manager.env.directory),
    ]  # fmt: skip


# -- the exit --


@pytest.fixture(scope="module")
def slow_stderr(tmp_path_factory: pytest.TempPathFactory) -> Path:
    wrapped = ("-Wl,--wrap=clock_gettime", "-Wl,--wrap=poll", "-Wl,--wrap=syscall")
    sources = [*CLIENT_SOURCES, Path(__file__).with_name("slow_stderr.c")]
    return compile_c(tmp_path_factory.mktemp("slow") / "slow_stderr", sources, HIDDEN, *wrapped)


@pytest.mark.parametrize(
    ("stderr", "said"), [("late", "nodemgr: why memory is refused\n"), ("never", "")]
)
def test_an_exit_waits_for_a_line_that_is_being_said_and_not_for_ever(
    slow_stderr: Path, stderr: str, said: str
) -> None:
    result = subprocess.run(
        [slow_stderr, stderr], capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", said)


@pytest.mark.parametrize("sanitizer", ["plain", "thread"])
def test_a_thread_reads_no_half_of_an_adopted_stderr(tmp_path: Path, sanitizer: str) -> None:
    sources = [*CLIENT_SOURCES, Path(__file__).with_name("adopted_stderr.c")]
    program = compile_c(tmp_path / "adopted", sources, HIDDEN, sanitizer=sanitizer)
    result = subprocess.run(
        [program], capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False,
        env={**os.environ, **ENVIRONMENT},
    )  # fmt: skip
    assert (result.returncode, result.stdout, result.stderr) == (0, "0\n", "")


def test_a_process_ends_though_nobody_reads_why_its_lease_was_lost(
    manager: Manager, env: Env
) -> None:
    """The real library and a real pipe, full to its brim."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    child = Child(env, {}, stderr=writer)
    os.close(writer)
    try:
        client = held(child, manager, Books())
        client.send("FENCE", lease="t1", reason="not yours")
        assert child.ask("become", "LOST") == ["LOST", "not yours"]
        assert child.finish() == 0
    finally:
        child.kill()
        os.close(reader)


# -- the object --


@pytest.fixture(scope="module")
def elf() -> ELFFile:
    return ELFFile(LIBRARY.open("rb"))


RUNNER = LIBRARY.parent.parent / "_bin" / "nodemgr-runner"
OLDEST_GLIBC = {"x86_64": (2, 17), "aarch64": (2, 17)}


@pytest.mark.parametrize(
    "path",
    [LIBRARY, RUNNER, *(HOLD.with_name(name) for name in CLIENT_LIBRARIES)],
    ids=lambda path: path.name,
)
def test_no_symbol_of_a_newer_glibc(path: Path) -> None:
    """The client of containers loads into older images than the machine it was built on.

    So does a simulated driver.
    """
    needed = ELFFile(path.open("rb")).get_section_by_name(".gnu.version_r")
    assert isinstance(needed, GNUVerNeedSection)
    versions = {
        version.name for _, auxiliaries in needed.iter_versions() for version in auxiliaries
    }
    numbers = {tuple(map(int, version.removeprefix("GLIBC_").split("."))) for version in versions}
    assert max(numbers)[:2] <= OLDEST_GLIBC[platform.machine()], sorted(versions)


def test_it_needs_libc_alone(elf: ELFFile) -> None:
    """And its loader, for variables of a thread."""
    dynamic = elf.get_section_by_name(".dynamic")
    assert isinstance(dynamic, DynamicSection)
    needed = {
        tag.needed
        for tag in dynamic.iter_tags("DT_NEEDED")
        if not tag.needed.startswith("ld-linux")
    }
    assert needed == {"libc.so.6", "libdl.so.2", "libpthread.so.0"}


def test_what_it_exports_and_what_it_leaves_open(elf: ELFFile) -> None:
    symbols = list(elf.get_section_by_name(".dynsym").iter_symbols())
    undefined = {symbol.name for symbol in symbols if symbol["st_shndx"] == "SHN_UNDEF"}
    exported = {symbol.name for symbol in symbols if symbol["st_shndx"] != "SHN_UNDEF"}
    assert not {name for name in undefined if name.startswith(("Py", "_Py", "cu", "nvml", "nm_"))}
    assert {name for name in exported if not name.startswith(("cu", "nvml"))} == {
        "dlsym", "dlvsym", "__asan_default_options",
        "nodemgr_abi", "nodemgr_preloaded", "nodemgr_managed", "nodemgr_setting", "nodemgr_begin",
        "nodemgr_begin_program", "nodemgr_timed_out", "nodemgr_poll",
        "nodemgr_cancel", "nodemgr_release", "nodemgr_state", "nodemgr_lease", "nodemgr_ask",
        "nodemgr_ask_file", "nodemgr_progress", "nodemgr_is_stderr", "nodemgr_report_status",
        "nodemgr_set_waiter",
        "nodemgr_set_checker", "nodemgr_set_raiser",
        "nodemgr_publish_env",
    }  # fmt: skip


@pytest.mark.parametrize("variables", [{}, {"LD_BIND_NOW": "1"}])
@pytest.mark.parametrize("program", ["/bin/true", "/bin/ls", "/bin/sh"])
def test_it_loads_into_anything(program: str, variables: dict[str, str]) -> None:
    environment = {**os.environ, "LD_PRELOAD": str(LIBRARY), **variables}
    arguments = ["-c", "true"] if program == "/bin/sh" else []
    result = subprocess.run(
        [program, *arguments], env=environment, capture_output=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, b"")


def test_two_threads_first_contact_at_once_makes_no_child(tmp_path: Path) -> None:
    """A thread that comes while the process is being marked is of that process.

    Were it taken for a child, the session would be emptied.
    """
    sources = ["base/prim.c", Path(__file__).with_name("first_contact.c")]
    program = compile_c(tmp_path / "first_contact", sources, "-Wl,--wrap=syscall")
    assert (
        subprocess.run([program], capture_output=True, text=True, check=True).stdout == "itself\n"
    )
