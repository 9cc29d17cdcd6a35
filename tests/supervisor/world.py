"""A manager's side of the jobs without a manager: a loop, a listener, a NodeFactory.

The listener records; the factory works on a directory.

Knows: how one is built, begun anew on the same directory, and waited for. Must not know: what a
test claims.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import pwd
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from nodemgr.core.model.entities import RunSpec
from nodemgr.edge.executor.interface import RunOrder, Status
from nodemgr.edge.executor.launcher import PROGRAM, Launcher, LauncherEndpoint
from nodemgr.edge.executor.local import NodeFactory
from nodemgr.edge.gate.node_gate import NO_NODE_GATE, NodeGate
from nodemgr.edge.kernel.processes import start_ticks
from tests.session import TMP, remove
from tests.support.limits import WAIT_LIMIT_S
from tests.support.processes import is_running

ME = pwd.getpwuid(os.geteuid())


class Heard:
    """The listener: what it was told, in order."""

    def __init__(self) -> None:
        self.begun: dict[tuple[str, int], int | None] = {}
        self.ends: dict[tuple[str, int], list[Status]] = {}
        self.tails: dict[tuple[str, int], str] = {}
        self.given_back: dict[tuple[str, int], str] = {}
        self.hosts: dict[str, str] = {}
        self.told_of_hosts: list[str] = []

    def started(
        self, job_id: str, attempt: int, pid: int | None, wall_ns: int, boot_ns: int | None = None
    ) -> None:
        assert wall_ns > 0
        assert (job_id, attempt) not in self.ends, "started after its end"
        self.begun[job_id, attempt] = pid

    def ended(
        self, job_id: str, attempt: int, status: Status, log_tail: str, wall_ns: int,
        boot_ns: int | None = None,
    ) -> None:  # fmt: skip
        assert wall_ns > 0
        self.ends.setdefault((job_id, attempt), []).append(status)
        self.tails[job_id, attempt] = log_tail

    def requeued_before_start(self, job_id: str, attempt: int, why: str) -> None:
        self.given_back[job_id, attempt] = why

    def launch_host_changed(self, place: str, is_up: bool, why: str) -> None:
        self.hosts[place] = "" if is_up else why
        self.told_of_hosts.append(self.hosts[place])


class World:
    """One node: `directory` stays, managers come and go."""

    def __init__(self, grace_ms: int = 30_000, service: bool = False, log_bytes: int = 0) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="nmj", dir=TMP))
        self.directory.chmod(0o755)
        self.jobs_dir = self.directory / "jobs"
        self.jobs_dir.mkdir(mode=0o700)
        self.socket = self.directory / "launcher" if service else None
        self.loop = asyncio.new_event_loop()
        self._grace_ms, self._log_bytes = grace_ms, log_bytes
        self._programs: list[subprocess.Popen[bytes]] = []
        self.begin()

    gate: NodeGate = NO_NODE_GATE

    def endpoint(self) -> LauncherEndpoint:
        return LauncherEndpoint(self.jobs_dir, self.socket)

    def begin(self) -> None:
        """A manager, the first or the next one."""
        self.heard = Heard()
        self.factory = NodeFactory(
            self.loop,
            self.heard,
            self.jobs_dir,
            self.endpoint(),
            grace_ms=self._grace_ms,
            log_bytes=self._log_bytes,
            gate=self.gate,
        )

    @property
    def launcher(self) -> Launcher:
        return self.factory._launcher

    def die(self) -> None:
        """The manager is no more; what it had in hand is forgotten. Its own launcher sees that."""
        self.factory.close()

    def again(self) -> None:
        self.die()
        self.begin()

    def serve(
        self, jobs_dir: Path | None = None, scope: Path | None = None, stderr: int | None = None
    ) -> subprocess.Popen[bytes]:
        """The launcher as a service has it."""
        words = [PROGRAM, "launcher", str(jobs_dir or self.jobs_dir), str(self.socket)]
        words += [] if scope is None else [str(scope)]
        program = subprocess.Popen(words, stderr=stderr)
        self._programs.append(program)
        return program

    def order(self, *argv: str, job: str = "j1", attempt: int = 1, **said: object) -> RunOrder:
        facts: dict[str, object] = {
            "env": "alice", "user": ME.pw_name, "uid": os.geteuid(), "gid": os.getegid(),
            "cwd": "/",
            "environ": (
                "PATH=/usr/bin:/bin",
                f"NODEMGR_JOB={job}:{attempt}",
                f"NODEMGR_ENV_DIR={self.directory}",  # another test has a job of this name
            ),
        }  # fmt: skip
        limited = [said.pop("time_limit_ms", None), said.pop("place", "")]
        host = {name: said.pop(name, None) for name in ("cpus", "host_memory_bytes", "signal")}
        run = RunSpec(" ".join(argv), 0, None, *limited, **host)  # type: ignore[arg-type]
        orders = {**facts, **said}
        return RunOrder(job, attempt, run=run, gpus=(), argv=argv, **orders)

    def run(self, *argv: str, job: str = "j1", attempt: int = 1, **said: object) -> Status:
        """Begins it and waits for its end."""
        self.factory.create(self.order(*argv, job=job, attempt=attempt, **said))
        return self.end(job, attempt)

    def begun(self, job: str = "j1", attempt: int = 1) -> int:
        """Waits until its process runs; the PID."""
        self.until(lambda: (job, attempt) in self.heard.begun)
        pid = self.heard.begun[job, attempt]
        assert pid is not None
        return pid

    def end(self, job: str = "j1", attempt: int = 1) -> Status:
        self.until(lambda: (job, attempt) in self.heard.ends)
        (status,) = self.heard.ends[job, attempt]
        return status

    def until(self, seen: Callable[[], bool], timeout_s: float = WAIT_LIMIT_S) -> None:
        """Lets the loop work until then."""
        deadline = time.monotonic() + timeout_s
        while not seen():
            assert time.monotonic() < deadline, (
                f"never seen; ended: {self.heard.ends}, tails: {self.heard.tails}"
            )
            self.loop.run_until_complete(asyncio.sleep(0.005))

    def set_limit(self, limit_ms: int | None, job: str = "j1", attempt: int = 1) -> None:
        self.factory.limit(job, attempt, limit_ms)

    def file(self, name: str, job: str = "j1", attempt: int = 1) -> Path:
        return self.jobs_dir / job / str(attempt) / name

    def said(self, count: int = 1, job: str = "j1", attempt: int = 1) -> list[str]:
        """The first words that the job has written, waited for."""
        path = self.file("log", job, attempt)
        self.until(lambda: path.exists() and path.read_text().count("\n") >= count)
        return path.read_text().split("\n")[:count]

    def supervisor(self, job: str = "j1", attempt: int = 1) -> int:
        """The PID in the claim, waited for."""
        directory = self.file("", job, attempt)
        self.until(lambda: bool(list(directory.glob("claim.*"))))
        (claim,) = directory.glob("claim.*")
        return int(claim.name.split(".")[1])

    def close(self) -> None:
        """Everything that still runs here is ended."""
        self.factory.close()
        for claim in self.jobs_dir.glob("*/*/claim.[0-9]*"):
            pid, ticks = claim.name.split(".")[1:3]
            if start_ticks(int(pid)) == int(ticks):
                end(int(pid))
        for program in self._programs:
            program.kill()
            program.wait()
        self.loop.close()
        remove(self.directory)


def end(pid: int) -> None:
    """kill -9, and gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with contextlib.suppress(ProcessLookupError):  # it may have been ended and waited for meanwhile
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    assert select.select([pidfd], [], [], WAIT_LIMIT_S)[0]
    os.close(pidfd)


def remove_cgroup(cgroup: Path) -> None:
    """A test's own: a process leaves its cgroup a moment after it was waited for."""
    deadline = time.monotonic() + WAIT_LIMIT_S
    while True:
        try:
            return cgroup.rmdir()
        except FileNotFoundError:  # somebody else has removed it
            return None
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
        assert time.monotonic() < deadline, "programs of the test live on"
        time.sleep(0.01)


def python(code: str) -> tuple[str, ...]:
    return sys.executable, "-I", "-S", "-c", code


def all_gone(pids: Iterable[int]) -> bool:
    return not any(is_running(pid) for pid in pids)


def own_audit_session() -> bool:
    """Whether a job is given one: the kernel has them, and we may begin them."""
    code = "import os\nopen('/proc/self/loginuid', 'w').write(str(os.getuid()))"
    return (
        subprocess.run(
            [sys.executable, "-c", code], stderr=subprocess.DEVNULL, check=False
        ).returncode
        == 0
    )
