"""A program under test that prints a JSON object a line, and does a step at each input line."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import time
from typing import Any

from tests.support.limits import WAIT_LIMIT_S


class Program:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def line(self, timeout_s: float = WAIT_LIMIT_S) -> dict[str, Any]:
        """Its next JSON line; what else it prints is passed over.

        Fails with its stderr where it ends or stays silent.
        """
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout_s
        while select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))[
            0
        ]:
            text = self.process.stdout.readline()
            if not text:
                raise AssertionError(
                    "it ended with"
                    f" {self.process.wait()}:\n{self.process.stderr and self.process.stderr.read()}"
                )
            if text.startswith("{"):
                found: dict[str, Any] = json.loads(text)
                return found
        raise AssertionError("it says nothing")

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def step(self) -> dict[str, Any]:
        """Lets it go on, and returns what it says next."""
        self.go()
        return self.line()

    def end(self) -> tuple[int, str]:
        """Closes its input and waits: its exit code and all of its stderr."""
        _, stderr = self.process.communicate(timeout=WAIT_LIMIT_S)
        return self.process.returncode, stderr

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
