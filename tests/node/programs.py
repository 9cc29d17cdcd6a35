"""examples/hold.c as tests use it, and what a service manager would do."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from types import TracebackType
from typing import Any

from client_plugin.ways.event_stream import EventStream
from client_plugin.ways.faults import Away
from tests.support.manager import WAIT_LIMIT_S, Manager


def said(program: subprocess.Popen[str]) -> dict[str, Any]:
    """The line in which hold says what it got."""
    assert program.stdout is not None
    line = program.stdout.readline()
    assert line, f"hold said nothing; stderr: {program.stderr.read() if program.stderr else ''}"
    result: dict[str, Any] = json.loads(line)
    return result


def finish(program: subprocess.Popen[str], told: str = "") -> tuple[int, str]:
    """Its exit code and its stderr, after its stdin was closed.

    `told`: words of the manager that its stderr must have before: a program that ends does not wait
    for the thread that prints them.
    """
    if not told:
        _, stderr = program.communicate(timeout=WAIT_LIMIT_S)
        return program.returncode, stderr
    assert program.stderr is not None
    assert program.stdin is not None
    heard = ""
    while told not in heard:
        line = program.stderr.readline()
        assert line, f"it ended without {told!r}: {heard}"
        heard += line
    program.stdin.close()
    heard += program.stderr.read()
    return program.wait(WAIT_LIMIT_S), heard


class Supervised:
    """Starts the manager again whenever it was killed, as systemd would, until the context ends."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.deaths = 0

    def _run(self) -> None:
        while True:
            process = self._manager.process
            assert process is not None
            code = process.wait()
            if self._ending.is_set() or code != -signal.SIGKILL:
                return
            self.deaths += 1
            self._manager.wait()
            self._manager.start(wait=False)

    def call(self, verb: str, **arguments: object) -> dict[str, Any]:
        """An order, given again while the manager is away."""
        while True:
            try:
                return self._manager.call(verb, **arguments)
            except Away:
                self._thread.join(0.01)

    def until_idle(self) -> dict[str, Any]:
        """The status once no GPU is held or waited for; looks again after each event."""
        while True:
            status = self.call("status")
            if not status["tasks"] and not status["queue"]:
                return status
            try:
                with EventStream(self._manager.run_dir) as stream:
                    stream.next(1.0)
            except Away:
                self._thread.join(0.01)

    def __enter__(self) -> Supervised:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending.set()
        while self._thread.is_alive():  # one that has just been killed has a successor
            process = self._manager.process
            if process is not None:
                process.send_signal(signal.SIGTERM)
            self._thread.join(0.1)
        self._manager.wait()
