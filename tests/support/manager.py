"""A real `nodemgr serve` as a child process, in a short temporary directory.

Its events are awaited, never slept for.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from client_plugin.ways import locations
from client_plugin.ways.control import ControlConnection
from client_plugin.ways.event_stream import EventStream
from nodemgr.edge.executor.launcher import PROGRAM as LAUNCHER
from nodemgr.paths import env_dir
from tests.forking import Fork, can_fork
from tests.session import TMP, remove, share_client
from tests.support.limits import WAIT_LIMIT_S
from tests.support.supervisor import Supervisor

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = (sys.executable, "-m", "nodemgr")
HOLD = ROOT / "nodemgr" / "_sim" / "hold"
SMALL_DISK_RESERVE = {"NODEMGR_DISK_RESERVE_BYTES": str(2**20)}
"""The default is written at each first start: 24 000 writes, a quarter of the start's time."""


class Events:
    """The stream, read forward: each `expect` takes the next match and skips the events before."""

    def __init__(self, run_dir: Path, since: int) -> None:
        self._stream = EventStream(run_dir, since, WAIT_LIMIT_S)
        self.seen: list[dict[str, Any]] = []

    def expect(
        self, name: str, timeout_s: float = WAIT_LIMIT_S, **fields: object
    ) -> dict[str, Any]:
        """The next event of this name with these fields. Fails with all that came instead."""
        skipped = []
        for event in self._stream.follow(timeout_s):
            self.seen.append(event)
            if event["name"] == name and all(
                event.get(key) == value for key, value in fields.items()
            ):
                return event
            skipped.append(event)
        lines = "\n".join(f"  {event}" for event in skipped) or "  nothing"
        raise AssertionError(f"no {name} with {fields} within {timeout_s} s; instead came\n{lines}")

    def expect_nothing(self, duration_s: float) -> None:
        """Fails if an event comes within this time."""
        for event in self._stream.follow(duration_s):
            raise AssertionError(f"nothing should have happened, but {event}")

    def close(self) -> None:
        self._stream.close()


class Manager:
    """One manager, started and stopped at will on the same run and state directories."""

    def __init__(
        self,
        simulate: str | None = "4x80GiB",
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        before_exec: Callable[[], None] | None = None,
        supervisor: Supervisor | None = None,
        folder: Path = ROOT,
        program: Sequence[str] | None = None,
    ) -> None:
        """`before_exec` runs in the manager's process before the exec.

        `supervisor` starts it as a service; `folder` is its working directory; `program` is the
        `nodemgr` that is started (None: this version's, by a fork where that is the same).
        """
        self.directory = Path(tempfile.mkdtemp(prefix="nm", dir=TMP))
        self.directory.chmod(0o755)
        self.run_dir = self.directory / "run"
        self.state_dir = self.directory / "state"
        self.options = [*(["--simulate", simulate] if simulate else []), *options]
        self.environment = dict(environment or {})
        self.before_exec = before_exec
        self.supervisor = supervisor
        self.folder = folder
        self.program = program or PROGRAM
        self._may_fork = program is None
        self.process: subprocess.Popen[bytes] | Fork | None = None
        self._log = b""
        self._heard = 0
        """How much of the log was waited for."""
        self._streams: list[Events] = []
        self._programs: list[subprocess.Popen[str]] = []

    # -- the manager --

    def start(self, *, wait: bool = True) -> Manager:
        """Returns when it says that it is ready; fails with its words if it ends instead."""
        command = [
            *self.program,
            "serve",
            "--run-dir",
            str(self.run_dir),
            "--state-dir",
            str(self.state_dir),
        ]
        command += self.options
        environment = {**os.environ, **SMALL_DISK_RESERVE, **self.environment}
        passed: list[int] = []
        if self.supervisor is not None:
            environment |= self.supervisor.environment()
            command, passed = self.supervisor.wrap(command), list(self.supervisor.store.values())
        self._heard = len(self._log)
        if self.before_exec is None and not self.state_dir.exists():  # it may be another user's
            share_client(self.state_dir)
        is_plain = self._may_fork and self.before_exec is None and self.supervisor is None
        if is_plain and can_fork(environment, self.folder):
            self.process = Fork(command[len(PROGRAM) :], environment)
            return self._wait_for_start(wait)
        self.process = subprocess.Popen(
            command, cwd=self.folder, env=environment, pass_fds=passed,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            preexec_fn=self.before_exec,
        )  # fmt: skip
        return self._wait_for_start(wait)

    def _wait_for_start(self, wait: bool) -> Manager:
        if wait:
            self.wait_for_line("ready on ")
        return self

    def wait_for_line(self, text: str, timeout_s: float = WAIT_LIMIT_S) -> None:
        """Until the manager's stderr holds this text, behind what was waited for before."""
        assert self.process is not None
        assert self.process.stderr is not None
        deadline = time.monotonic() + timeout_s
        wanted = text.encode()
        while (at := self._log.find(wanted, self._heard)) < 0:
            ready, _, _ = select.select(
                [self.process.stderr], [], [], max(0.0, deadline - time.monotonic())
            )
            chunk = os.read(self.process.stderr.fileno(), 65_536) if ready else b""
            if not chunk:
                raise AssertionError(
                    f"the manager did not say {text!r}; it"
                    f" said:\n{self._log.decode(errors='replace')}"
                )
            self._log += chunk
        self._heard = at + len(wanted)

    @property
    def log(self) -> str:
        """All that it has said so far."""
        if (
            self.process is not None
            and self.process.stderr is not None
            and not self.process.stderr.closed
        ):
            while select.select([self.process.stderr], [], [], 0)[0]:
                chunk = os.read(self.process.stderr.fileno(), 65_536)
                if not chunk:
                    break
                self._log += chunk
        return self._log.decode(errors="replace")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """SIGKILL, as a crash; its exit code."""
        return self._end(signal.SIGKILL)

    def wait(self, timeout_s: float = WAIT_LIMIT_S) -> int:
        """Until it ends by itself; its exit code."""
        assert self.process is not None
        code = self.process.wait(timeout_s)
        _ = self.log
        if self.process.stderr is not None:
            self.process.stderr.close()
        self.process = None
        return code

    def _end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.wait()

    def restart(self) -> None:
        """A crash and a new start."""
        self.kill()
        self.start()

    # -- orders --

    def call(self, verb: str, **arguments: object) -> dict[str, Any]:
        with ControlConnection(self.run_dir, timeout_s=WAIT_LIMIT_S) as client:
            return client.call(verb, **arguments)

    def quota(self, env: str, gpus: int, **arguments: object) -> dict[str, Any]:
        return self.call("quota_set", env=env, gpus=gpus, **arguments)

    def status(self) -> dict[str, Any]:
        return self.call("status")

    def task(self, task_id: str) -> dict[str, Any]:
        """Its row of the status."""
        return next(task for task in self.status()["tasks"] if task["id"] == task_id)

    def await_no_queue(self) -> None:
        """A process that is interrupted waits half a second for the end of its request."""
        while self.status()["queue"]:
            pass

    def events(self, since: int | None = 0) -> Events:
        """The stream from the beginning, or (None) from now on, also over a restart."""
        if since is None:
            since = max((each["sequence"] for each in self.call("events")["events"]), default=0)
        stream = Events(self.run_dir, since)
        self._streams.append(stream)
        return stream

    # -- environments --

    def env_dir(self, env: str) -> Path:
        return env_dir(self.run_dir, env)

    def environment_of(self, env: str, *, shim: bool = True) -> dict[str, str]:
        """The surroundings of a program in the env (CONTRACT "Environment variables")."""
        inherited = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("NODEMGR_", "CUDA_", "LD_"))
        }
        found = {
            **inherited,
            "NODEMGR_ENV_DIR": str(self.env_dir(env)),
            "LD_LIBRARY_PATH": str(self.run_dir / "sim"),
        }
        if shim:
            found["LD_PRELOAD"] = locations.preload_entry()
        return found

    def spawn(
        self, env: str, command: Sequence[str], *, shim: bool = True, **variables: str
    ) -> subprocess.Popen[str]:
        """Starts a program in the env, its output captured as text; it ends with the manager."""
        program = subprocess.Popen(
            list(command), env={**self.environment_of(env, shim=shim), **variables}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._programs.append(program)
        return program

    def hold(self, env: str, *options: str, **variables: str) -> subprocess.Popen[str]:
        """Starts examples/hold.c, a small CUDA program that holds memory until its stdin closes."""
        return self.spawn(env, [str(HOLD), *options], **variables)

    # -- the end --

    def close(self) -> None:
        """Ends what was started and leaves nothing behind."""
        for stream in self._streams:
            stream.close()
        for program in self._programs:
            if program.poll() is None:
                program.kill()
            program.wait()
            for pipe in (program.stdin, program.stdout, program.stderr):
                if pipe is not None:
                    pipe.close()
        if self.process is not None:
            is_ready = "ready on " in self.log  # before, it ends by the signal as any program
            code = self._end(signal.SIGTERM)
            if code != 0 and (is_ready or code != -signal.SIGTERM):
                raise AssertionError(f"the manager ended with {code}; it said:\n{self.log}")
        end_jobs(self.state_dir)
        apart = self.run_dir / "sim" / "apart"
        if apart.is_mount():  # root's manager that was killed has left it
            subprocess.run(["umount", "--lazy", apart], check=True)
        remove(self.directory)


def end_jobs(state_dir: Path) -> None:
    """Jobs outlive their manager: those that a test left wait for a gate that is gone."""
    jobs = state_dir / "jobs"
    with contextlib.suppress(OSError):
        if any(jobs.iterdir()):
            subprocess.run([LAUNCHER, "end-all", jobs], check=False)
