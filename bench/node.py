"""The parts that the manager's benches share: a private manager, a bare client, a table.

The manager has a simulated node. Standard library and the project only.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import psutil

from client_plugin.ways.control import ControlConnection
from nodemgr.paths import env_dir

ROOT = Path(__file__).resolve().parent.parent
RECEIVE_S = 30


class Node:
    """A manager of its own, in a temporary directory, ended with the context."""

    def __init__(self, simulate: str, *options: str, **variables: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="nmb", dir="/tmp"))
        self.directory.chmod(0o755)  # the page's process has no rights
        self.run_dir = self.directory / "run"
        self.state_dir = self.directory / "state"
        command = [
            sys.executable,
            "-P",
            "-m",
            "nodemgr",
            "serve",
            "--simulate",
            simulate,
            "--run-dir",
            str(self.run_dir),
        ]
        self._command = [*command, "--state-dir", str(self.state_dir), *options]
        self._variables = variables
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Returns when it is ready."""
        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            env={**os.environ, **self._variables},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert self._process.stderr is not None
        lines = []
        while not lines or "ready on" not in lines[-1]:  # what it warns of comes first
            lines.append(self._process.stderr.readline().decode())
            if not lines[-1]:
                raise SystemExit(f"the manager did not start: {''.join(lines)}")
        self.pid = self._process.pid
        self.ready_line = lines[-1]

    def call(self, verb: str, **arguments: object) -> dict[str, Any]:
        with ControlConnection(self.run_dir, timeout_s=60) as client:
            return client.call(verb, **arguments)

    def env_dir(self, env: str) -> Path:
        return env_dir(self.run_dir, env)

    def cpu_s(self) -> float:
        return cpu_s(self.pid)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self._process.send_signal(number)
        self._process.wait(30)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Node:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Client:
    """One connection, by hand: nothing between the wire and the clock."""

    def __init__(self, directory: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(str(directory / "socket"))
        self.socket.setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", RECEIVE_S, 0)
        )

    @staticmethod
    def packet(verb: str, **fields: object) -> bytes:
        lines = "".join(f"{key}={value}\n" for key, value in fields.items())
        return f"NODEMGR/1 {verb}\n{lines}".encode()

    def send(self, verb: str, **fields: object) -> None:
        self.socket.send(self.packet(verb, **fields))

    def receive(self) -> tuple[str, bytes]:
        """(verb, packet); descriptors that come along are dropped by the kernel."""
        try:
            packet = self.socket.recv(2_000)
        except BlockingIOError:
            raise SystemExit("the manager does not answer") from None
        return packet.split(b"\n", 1)[0].removeprefix(b"NODEMGR/1 ").decode(), packet

    def until(self, verb: str) -> bytes:
        while True:
            found, packet = self.receive()
            if found == verb:
                return packet
            if found not in ("WAIT", "NOTE"):
                raise SystemExit(f"{packet!r} instead of {verb}")


def cpu_s(pid: int) -> float:
    """Processor time of a process so far, all its threads."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def table(
    title: str, rows: Sequence[tuple[str, Sequence[float]]], unit: str, reference: str | None = None
) -> None:
    """Print a table: 5 % (least disturbed by other work), median, 95 %, and the ratio.

    The ratio is to the median of `reference`.
    """
    medians = {name: statistics.median(values) for name, values in rows}
    width = max(len(name) for name, _ in rows)
    print(
        f"\n{title} ({unit})\n{'':{width}}  {'5 %':>10} {'median':>10} {'95 %':>10} {'ratio':>7}"
        f" {'n':>6}"
    )
    for name, values in rows:
        ratio = (
            f"{medians[name] / medians[reference]:7.2f}"
            if reference and medians[reference]
            else " " * 7
        )
        low, high = quantile(values, 0.05), quantile(values, 0.95)
        print(
            f"{name:{width}}  {low:10.1f} {medians[name]:10.1f} {high:10.1f} {ratio}"
            f" {len(values):6}"
        )


_missed: list[str] = []


def against_target(what: str, value: float, limit: float, unit: str) -> None:
    good = value <= limit
    print(
        f"{'within' if good else 'ABOVE'} the target: {what} {value:.2f} {unit}, at most {limit:g}"
        f" {unit}"
    )
    if not good:
        _missed.append(what)


def at_least(what: str, value: float, limit: float, unit: str) -> None:
    good = value >= limit
    print(
        f"{'within' if good else 'BELOW'} the target: {what} {value:.2f} {unit}, at least {limit:g}"
        f" {unit}"
    )
    if not good:
        _missed.append(what)


def miss(line: str) -> None:
    """A target of another form is missed."""
    print(line)
    _missed.append(line)


def finish(options: argparse.Namespace) -> NoReturn:
    """The exit status: 1 if a target is missed. The short form holds none."""
    sys.exit(bool(_missed) and not options.short)
