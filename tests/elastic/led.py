"""A leader in a process of its own, under a lease that the test makes; its lines are awaited."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from tests.support.limits import WAIT_LIMIT_S, until

T = TypeVar("T")
HERE = Path(__file__).parent
TRAINEE = HERE / "trainee.py"


class Led:
    """The leader's process, the lease's two pipes, and all that was printed."""

    def __init__(
        self, directory: Path, *command: str, gpus: int = 1, options: str = "",
        variables: Mapping[str, str] | None = None, own: bool = False,
    ) -> None:  # fmt: skip
        """`command`: a script of Python, or a program. `options`: of the leader.

        `own`: the command is a leader itself, with a lease of its own.
        """
        events, self._events = os.pipe()
        self._words, words = os.pipe()
        line = [sys.executable, str(HERE / "fake_membership.py"), str(events), str(words)]
        line += ["--gpus", f"{gpus}-8", *options.split(), "--"]
        line += [sys.executable, *command] if command[0].endswith(".py") else command
        line = list(command) if own else line
        self.directory = directory
        self.lines: list[str] = []
        self.words: list[tuple[str, str]] = []
        self._news = threading.Condition()
        self.process = subprocess.Popen(
            line, pass_fds=(events, words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, env={**(variables or os.environ), "TMPDIR": str(directory)},
            start_new_session=True,
        )  # fmt: skip
        os.close(events)
        os.close(words)
        self._readers = [
            threading.Thread(target=self._read_output, daemon=True),
            threading.Thread(target=self._read_words, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def lease(self, what: str, gpu: int = 0, within_s: float = WAIT_LIMIT_S) -> None:
        event = {"is": what, "gpu": gpu, "within_s": within_s}
        os.write(self._events, json.dumps(event).encode() + b"\n")

    def line(self, pattern: str, times: int = 1) -> str:
        """The line that matches, once it has come that often."""
        return self._await(self.lines, lambda line: re.search(pattern, line) is not None, times)

    def word(self, *word: str) -> tuple[str, str]:
        return self._await(self.words, lambda said: said == word, 1)

    def workers(self) -> dict[int, int]:
        """Number -> pid of the leader's children that are workers."""
        return workers_of(self.process.pid)

    def await_workers(self, count: int) -> None:
        """Until this many processes of the command run, a spare among them."""
        until(
            lambda: len(self.workers()) >= count, lambda: f"{self.workers()}; lines: {self.lines}"
        )

    def send(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> int:
        """The leader's exit code, with all output read."""
        code = self.process.wait(WAIT_LIMIT_S)
        for reader in self._readers:
            reader.join(WAIT_LIMIT_S)
        return code

    def close(self) -> None:
        """May be called again."""
        assert self.process.stdout is not None
        if self.process.stdout.closed:
            return
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)  # a shell's leader is one of its group
        self.process.wait()
        os.close(self._events)
        for reader in self._readers:
            reader.join()
        self.process.stdout.close()
        os.close(self._words)

    def _await(self, seen: list[T], matches: Callable[[T], bool], times: int) -> T:
        with self._news:
            found = self._news.wait_for(
                lambda: len([item for item in seen if matches(item)]) >= times, WAIT_LIMIT_S
            )
            assert found, f"it did not come; lines: {self.lines}, words: {self.words}"
            return [item for item in seen if matches(item)][times - 1]

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.decode().rstrip("\n"))
                self._news.notify_all()

    def _read_words(self) -> None:
        with os.fdopen(os.dup(self._words)) as words:
            for line in words:
                word, gpu = json.loads(line)
                with self._news:
                    self.words.append((word, gpu))
                    self._news.notify_all()


def workers_of(leader: int) -> dict[int, int]:
    """Number -> pid of a leader's children that are workers."""
    found = {}
    for pid in children(leader):
        number = re.search(r"NODEMGR_WORKER=(\d+)", _read(f"/proc/{pid}/environ"))
        if number:
            found[int(number[1])] = pid
    return found


def children(parent: int) -> list[int]:
    return [int(pid) for pid in _read(f"/proc/{parent}/task/{parent}/children").split()]


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def gone(*pids: int) -> None:
    """Wait until none of these processes runs."""
    end_s = time.monotonic() + WAIT_LIMIT_S
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        ready, _, _ = select.select([descriptor], [], [], max(0.0, end_s - time.monotonic()))
        os.close(descriptor)
        assert ready, f"process {pid} still runs"
