"""A ResourceFactory of two nodes: the stand-in for a cluster's engine.

A job is a child of the test's own process, on the node where fewer run.

The cluster outlives its factories as it outlives a manager: what it has begun it knows, and tells
the next factory.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nodemgr.core.model.entities import Cause
from nodemgr.edge.executor.interface import (
    ExecutorListener,
    NoLimits,
    RunOrder,
    Status,
    nothing,
)

GRACE_S = 5.0
"""How long one that was asked to end has."""
TAIL_BYTES = 4_096

Key = tuple[str, int]


@dataclass
class Attempt:
    order: RunOrder
    node: int
    process: subprocess.Popen[bytes] | None = None
    status: Status = field(default_factory=lambda: Status("starting"))
    why: str = ""
    """Why it is being ended."""
    cause: Cause = Cause.OWN
    ended_wall_ns: int = 0


def _lives(group: int) -> bool:
    """Whether a process of this group runs; uncollected dead ones do not count."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                return True
    return False


class Cluster:
    """Two nodes with what runs on them. Thread-safe; its watchers are threads."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.attempts: dict[Key, Attempt] = {}
        self.lock = threading.RLock()
        self.tell: Callable[[str, Key], None] = lambda what, key: None
        """The present factory's, if there is one."""
        self.is_up = True
        self.on_change: Callable[[], None] = lambda: None
        """The present factory's."""
        self.begun: list[Key] = []
        """Each attempt with a process that was really made: a second one would show here."""

    def log(self, key: Key) -> Path:
        return self.directory / key[0] / str(key[1])

    def set_up(self, is_up: bool) -> None:
        """Whether it can begin anything."""
        self.is_up = is_up
        self.on_change()

    def begin(self, order: RunOrder) -> None:
        key = (order.job_id, order.attempt)
        with self.lock:
            if key in self.attempts:
                return
            loads = [
                sum(a.node == node and a.status.state != "ended" for a in self.attempts.values())
                for node in (0, 1)
            ]
            attempt = self.attempts[key] = Attempt(order, loads.index(min(loads)))
            self.log(key).parent.mkdir(parents=True, exist_ok=True)
        threading.Thread(target=self._live, args=(key, attempt), daemon=True).start()

    def _live(self, key: Key, attempt: Attempt) -> None:
        order = attempt.order
        environ = dict(entry.split("=", 1) for entry in order.environ)
        with open(self.log(key), "wb") as log:
            try:
                attempt.process = subprocess.Popen(
                    order.argv,
                    cwd=order.cwd,
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    umask=order.umask,
                )
            except OSError as error:
                self._end(
                    key,
                    attempt,
                    Status(
                        "ended", why=f"{order.argv[0]}: {error.strerror}", cause=Cause.CANNOT_RUN
                    ),
                )
                return
        began_wall_ns = time.time_ns()
        with self.lock:
            self.begun.append(key)
            attempt.status = Status("running", attempt.process.pid, began_wall_ns)
        self.tell("started", key)
        if attempt.why:
            self.kill(key, signal.SIGTERM)
        limit_ms = order.run.time_limit_ms
        try:
            code = attempt.process.wait(None if limit_ms is None else limit_ms / 1_000)
        except subprocess.TimeoutExpired:
            attempt.cause = Cause.TIME_LIMIT
            self.withdraw(key, f"time limit of {limit_ms} ms")
            code = attempt.process.wait()
        exit_code, number = (code, None) if code >= 0 else (None, -code)
        while _lives(attempt.process.pid):
            self.kill(key, signal.SIGKILL)
            time.sleep(0.005)
        self._end(
            key,
            attempt,
            Status(
                "ended",
                attempt.process.pid,
                began_wall_ns,
                exit_code,
                number,
                attempt.why,
                attempt.cause,
            ),
        )

    def _end(self, key: Key, attempt: Attempt, status: Status) -> None:
        with self.lock:
            attempt.status, attempt.ended_wall_ns = status, time.time_ns()
        self.tell("ended", key)

    def withdraw(self, key: Key, why: str) -> None:
        attempt = self.attempts.get(key)
        if attempt is not None and attempt.status.state != "ended" and not attempt.why:
            attempt.why = why
            self.kill(key, signal.SIGTERM)
            timer = threading.Timer(GRACE_S, self.kill, (key, signal.SIGKILL))
            timer.daemon = True
            timer.start()

    def kill(self, key: Key, number: signal.Signals) -> None:
        """All that is left of its process group."""
        attempt = self.attempts.get(key)
        process = None if attempt is None else attempt.process
        if process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)

    def close(self) -> None:
        for key, attempt in self.attempts.items():
            if attempt.status.state != "ended":
                self.kill(key, signal.SIGKILL)


class TwoNodes:
    """The factory."""

    def __init__(
        self, call_soon: Callable[..., object], listener: ExecutorListener, cluster: Cluster
    ) -> None:
        """`call_soon` brings a call into the manager's loop from any thread."""
        self._call_soon = call_soon
        self._listener = listener
        self._cluster = cluster
        self._strays: list[Key] = []
        cluster.tell = self._notify
        cluster.on_change = lambda: call_soon(self._notify_host)
        cluster.on_change()

    def _notify(self, what: str, key: Key) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the next factory hears of it
            self._call_soon(self._told, what, key)

    def _told(self, what: str, key: Key) -> None:
        attempt = self._cluster.attempts[key]
        status = attempt.status
        if what == "started":
            self._listener.started(*key, status.pid, status.started_wall_ns or 0)
        else:
            tail = self._cluster.log(key).read_bytes()[-TAIL_BYTES:].decode(errors="replace")
            self._listener.ended(*key, status, tail, attempt.ended_wall_ns)

    def _notify_host(self) -> None:
        is_up, words = self.state()
        self._listener.launch_host_changed("", is_up, "" if is_up else words)

    def state(self) -> tuple[bool, str]:
        return (
            (True, "two nodes that are pretended")
            if self._cluster.is_up
            else (False, "no job can be started: both nodes are down")
        )

    def strays(self) -> list[Key]:
        attempts = self._cluster.attempts
        return [
            key for key in self._strays if key in attempts and attempts[key].status.state != "ended"
        ]

    def create(self, order: RunOrder) -> None:
        if (key := (order.job_id, order.attempt)) in self._strays:
            self._strays.remove(key)
        if self._cluster.is_up or (order.job_id, order.attempt) in self._cluster.attempts:
            self._cluster.begin(order)
        else:
            self._call_soon(self._notify_host)
            self._call_soon(
                self._listener.requeued_before_start, order.job_id, order.attempt, self.state()[1]
            )

    def withdraw(self, job_id: str, attempt: int, why: str, *, warns: bool = False) -> None:
        self._cluster.withdraw((job_id, attempt), why)

    def limit(self, job_id: str, attempt: int, time_limit_ms: int | None) -> None:
        """This cluster has no time limits."""

    def no_limits(self, place: str) -> NoLimits | None:
        return None

    def scope(self) -> str:
        """This cluster has no cgroups."""
        return ""

    def limit_cgroups(
        self, limits: Sequence[tuple[str, str]], then: Callable[[], None] = nothing
    ) -> None:
        then()

    def enter(
        self, env: str, process: str, limits: Sequence[str], then: Callable[[None], None]
    ) -> None:
        then(None)

    def delete(self, job_id: str) -> None:
        for key in [key for key in self._cluster.attempts if key[0] == job_id]:
            self._cluster.log(key).unlink(missing_ok=True)
            del self._cluster.attempts[key]

    def logs(self, job_id: str, attempt: int | None = None) -> int:
        numbers = [key[1] for key in self._cluster.attempts if key[0] == job_id]
        if not numbers:
            raise FileNotFoundError(f"{job_id} has no log")
        return os.open(
            self._cluster.log((job_id, max(numbers) if attempt is None else attempt)),
            os.O_RDONLY | os.O_CLOEXEC,
        )

    def room_bytes(self, job_id: str) -> int:
        logs = [self._cluster.log(key) for key in self._cluster.attempts if key[0] == job_id]
        return sum(log.stat().st_size for log in logs if log.exists())

    def names(self) -> list[str]:
        return list(dict.fromkeys(job_id for job_id, _attempt in self._cluster.attempts))

    def job_of(self, pids: Sequence[int]) -> str | None:
        lives = {
            attempt.status.pid: key[0]
            for key, attempt in self._cluster.attempts.items()
            if attempt.status.state == "running"
        }
        return next((lives[pid] for pid in pids if pid in lives), None)

    def adopt(self, expected: Iterable[Key]) -> list[Key]:
        keys = list(expected)
        for key, attempt in list(self._cluster.attempts.items()):
            if key not in keys:
                self._strays.append(key)
            elif attempt.status.state != "starting":
                self._notify("started" if attempt.status.state == "running" else "ended", key)
        return [key for key in keys if key not in self._cluster.attempts]

    def close(self) -> None:
        self._cluster.tell = lambda what, key: None
        self._cluster.on_change = lambda: None
