"""A program under test that prints a JSON object a line, and does a step at each input line."""

from __future__ import annotations

import json
import os
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
        self._rest = b""
        """Read already, behind the last line."""

    def line(self, timeout_s: float = WAIT_LIMIT_S) -> dict[str, Any]:
        """Its next JSON line; what else it prints is passed over.

        Fails with its stderr where it ends or stays silent.
        """
        assert self.process.stdout is not None
        end = time.monotonic() + timeout_s
        while True:
            line, is_whole, rest = self._rest.partition(b"\n")
            if not is_whole:
                self._read(max(0.0, end - time.monotonic()))
                continue
            self._rest = rest
            if line.startswith(b"{"):
                found: dict[str, Any] = json.loads(line)
                return found

    def _read(self, timeout_s: float) -> None:
        """Past the buffer of its stdout, which select does not know."""
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], timeout_s)[0], "it says nothing"
        more = os.read(self.process.stdout.fileno(), 65_536)
        assert more, (
            f"it ended with {self.process.wait()}:\n"
            f"{self.process.stderr and self.process.stderr.read()}"
        )
        self._rest += more

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
