"""`status --watch`: a block per change in a pipe, a page on a terminal, until Ctrl-C."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import json
import os
import pty
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from client_plugin.verbs.commands import status_watch
from client_plugin.ways.event_signals import EventSignals
from tests.cli.conftest import (
    WAIT_LIMIT_S,
    EnvStandIn,
    Run,
    RunningManager,
    clean_environment,
    event,
    one_line,
    status,
)


def measured(**changes: Any) -> dict[str, Any]:
    """A status with figures."""
    shown = status()
    shown["gpus"][0] |= {"utilization_percent": 87, "temperature_c": 61, "power_w": 322.5}
    shown["tasks"][0] |= {
        "memory_bytes": 3 << 30,
        "utilization_percent": 87,
        "idle_seconds": 0,
        "idle_source": "nvml",
        "host_cpu_percent": 250,
        "host_memory_bytes": 5 << 30,
    }
    shown["tasks"][0] |= changes
    return shown


@contextmanager
def watch(run_dir: Path, *words: str, **more: Any) -> Iterator[subprocess.Popen[str]]:
    """`nodemgr status --watch`, which ends with the test, failed or not."""
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    process = subprocess.Popen(
        [sys.executable, "-m", "nodemgr", "status", "--watch", *words],
        text=True,
        env=clean_environment(NODEMGR_RUN_DIR=str(run_dir), NO_COLOR="1"),
        **given,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def stdout_of(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """By Ctrl-C."""
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    return process.wait(WAIT_LIMIT_S), process.stderr.read()


def until(lines: IO[str], part: str) -> list[str]:
    """The lines up to the first that has the part."""
    found = [lines.readline()]
    while part not in found[-1]:
        assert found[-1], f"it ended before {part!r}"
        found.append(lines.readline())
    return found


def test_a_pipe_gets_a_block_for_each_change(manager: RunningManager) -> None:
    manager.answers["status"] = measured()
    with watch(manager.run_dir) as process:
        stdout = stdout_of(process)
        first = until(stdout, "PLACE")
        assert sum("GPU  NAME" in line for line in first) == 1
        manager.answers["status"] = measured(memory_bytes=4 << 30, duration_seconds=99)
        manager.publish(event(1, "quota.set"))
        asked = len(manager.orders)
        while len(manager.orders) < asked + 2:
            assert process.poll() is None
        manager.answers["status"] = measured(state="stalled")
        manager.publish(event(2, "task.stalled"))
        text = "".join(until(stdout, "stalled"))
        assert text.count("GPU  NAME") == 1, "figures alone make no block"
        assert ended(process) == (130, "")


def test_the_tables_have_the_figures(nodemgr: Run, manager: RunningManager) -> None:
    manager.answers["status"] = measured()
    lines = nodemgr("status").stdout.splitlines()
    assert lines[0].split()[4:9] == ["GRANTED", "USED", "UTIL", "TEMP", "POWER"]
    assert "1 GiB  87 %  61 C  322 W" in lines[1]
    (title,) = (line for line in lines if line.startswith("TASK"))
    row = lines[lines.index(title) + 1]
    assert "USED  UTIL     IDLE" in title
    assert "3 GiB  87 %  0:00:00" in row
    assert "250 %  5 GiB" in row


@pytest.mark.parametrize(
    ("seconds", "source", "shown"),
    [
        (None, None, "-"),
        (59, "nvml", "0:00:59"),
        (60, "nvml_at_least", ">0:01:00"),
        (7_199, "nvml", "1:59:59"),
        (90_000, "nvml_at_least", ">1 d 01:00:00"),
    ],
)
def test_idle_time_in_the_table(
    nodemgr: Run, manager: RunningManager, seconds: int | None, source: str | None, shown: str
) -> None:
    manager.answers["status"] = measured(idle_seconds=seconds, idle_source=source)
    lines = nodemgr("status").stdout.splitlines()
    (title,) = (line for line in lines if line.startswith("TASK"))
    end = title.index("IDLE") + len("IDLE")
    assert lines[lines.index(title) + 1][:end].endswith(f" {shown}")


def test_unknown_figures_are_a_dash(nodemgr: Run, manager: RunningManager) -> None:
    manager.answers["status"] = measured(memory_bytes=None, utilization_percent=None)
    lines = nodemgr("status").stdout.splitlines()
    (row,) = (line for line in lines if line.startswith("t1"))
    assert row.split()[5:7] == ["-", "-"]


def test_json_is_one_object_a_line_also_without_a_change(manager: RunningManager) -> None:
    manager.answers["status"] = measured()
    with watch(manager.run_dir, "--json") as process:
        stdout = stdout_of(process)
        assert [json.loads(stdout.readline()) for _ in range(2)] == [measured()] * 2
        assert ended(process) == (130, "")


def test_a_restart_of_the_manager_is_one_line(short_dir: Path) -> None:
    first = RunningManager(short_dir)
    first.answers["status"] = measured()
    first.start()
    with watch(short_dir) as process:
        stdout = stdout_of(process)
        until(stdout, "PLACE")
        first.stop()
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "waiting for it to come back" in line
        second = RunningManager(short_dir)
        second.answers["status"] = measured(state="stalled")
        second.start()
        try:
            until(stdout, "stalled")
            second.answers["status"] = measured(state="running", pids=[77])
            second.publish(event(9, "task.resumed"))
            until(stdout, "77")
            assert ended(process) == (130, "")
        finally:
            second.stop()


def test_without_a_manager_it_ends_at_once(nodemgr: Run) -> None:
    result = nodemgr("status", "--watch")
    assert result.returncode == 69
    assert "nodemgr serve" in one_line(result)


def test_a_reader_that_leaves_ends_it(manager: RunningManager) -> None:
    manager.answers["status"] = measured()
    with watch(manager.run_dir, "--json") as process:
        stdout_of(process).readline()
        stdout_of(process).close()
        assert process.wait(WAIT_LIMIT_S) == 141
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_user_sees_the_environment_each_second(
    env_stand_in: Callable[[str], EnvStandIn], short_dir: Path
) -> None:
    alice = env_stand_in("alice")
    alice.answers["status"] = measured()
    with watch(short_dir, "--env", "alice") as process:
        until(stdout_of(process), "PLACE")
        alice.answers["status"] = measured(state="stalled")
        until(stdout_of(process), "stalled")
        assert ended(process) == (130, "")
    assert {what for what, _ in alice.asked} == {"status"}


def screens(run_dir: Path, columns: int, rows: int, pages: int) -> str:
    """The output on a terminal of this size, until so many pages have begun."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    text, decoder = "", codecs.getincrementaldecoder("utf-8")()
    with watch(run_dir, stdout=theirs, stdin=theirs) as process:
        os.close(theirs)
        while text.count("\x1b[H") < pages:
            text += decoder.decode(os.read(ours, 65_536))
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # its terminal has no other end any more
            while os.read(ours, 65_536):
                pass  # it may have drawn on: a terminal that nobody reads would hold it
        assert process.stderr is not None
        assert (process.wait(WAIT_LIMIT_S), process.stderr.read()) == (130, "")
    os.close(ours)
    return text


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (20, 5)])
def test_a_terminal_gets_pages_of_its_size(
    manager: RunningManager, columns: int, rows: int
) -> None:
    hostile = "python\x1b[2Jevil\u202e\r\n.py"
    manager.answers["status"] = measured(command=hostile)
    text = screens(manager.run_dir, columns, rows, 3)
    _, page, *_ = text.split("\x1b[H")
    assert page.count("\n") <= rows - 1
    assert "evil" not in page or "\x1b[2Jevil" not in page
    assert "\u202e" not in page
    if columns == 80:
        widths = [len(line.rstrip("\r")) for line in page.replace("\x1b[K", "").split("\n")]
        assert max(widths[1:-1]) <= 80
        assert "UTIL" in page
        assert "IDLE" in page
    else:
        assert "more lines" in page


def test_a_page_leaves_the_last_line_free() -> None:
    assert status_watch.page(["a", "b"], 24) == "a\x1b[K\nb\x1b[K\n"
    assert status_watch.page(["a", "b", "c"], 3) == "a\x1b[K\n... 2 more lines\x1b[K\n"
    assert status_watch.page(["a", "b"], 1) == "... 2 more lines\x1b[K\n"


# -- the stream


def test_a_signal_comes_with_an_event_alone(manager: RunningManager) -> None:
    signals = EventSignals(manager.run_dir)
    assert not signals.wait(0)
    manager.publish(event(1, "task.granted"))
    while not signals.wait(0.5):  # the subscription may come after the event
        manager.publish(event(2, "task.granted"))
    while signals.wait(0.5):
        pass
    signals.close()


def test_the_end_of_the_stream_is_a_signal_and_no_stream_is_none(short_dir: Path) -> None:
    manager = RunningManager(short_dir)
    manager.start()
    signals = EventSignals(short_dir)
    assert not signals.wait(0)
    manager.stop()
    assert signals.wait(WAIT_LIMIT_S)
    (short_dir / "events.sock").unlink(missing_ok=True)
    assert not signals.wait(0)
    assert not EventSignals(None).wait(0)


def test_a_stream_that_is_none(short_dir: Path) -> None:
    """Another program listens there, and says something else or nothing."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short_dir / "events.sock"))
        listener.listen()

        def answer() -> None:
            for _ in range(2):
                connection, _ = listener.accept()
                connection.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.close()

        answering = threading.Thread(target=answer)
        answering.start()
        assert not EventSignals(short_dir).wait(0)
        assert not EventSignals(short_dir).wait(0)
        answering.join()


def test_a_charge_that_passes_to_another_environment_is_a_change(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exported memory of ended processes has no process id, and its size may stay."""
    blocks, shown = status_watch.Blocks(inside=False), status()
    row = {"pid": None, "gpu": "GPU-0", "alive": False, "exported": True, "at_most": False}
    for env in ("alice", "alice", "bob"):
        shown["residues"] = [{"env": env, "gpu_index": 0, "memory_bytes": 1 << 30, **row}]
        blocks.print(shown)
    assert capsys.readouterr().out.count("AVAILABLE") == 2
