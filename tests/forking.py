"""A process that has imported all that a manager needs: each fork of it becomes a manager.

`nodemgr serve` spends four fifths of its start in imports, and the tests start hundreds of it. Each
worker of a run has one such process, and `Fork` is a manager that it became, used as a Popen. The
fork has the variables, the umask and the limits of the test. Its parent, its command line in /proc
and the first state of its memory are those of the process that forked; a test of these starts a
program (`Manager(program=…)`, `before_exec`). TESTS_EXEC=1 makes a program of each manager.

Knows: fork, descriptors, exit codes. Must not know: what a manager does.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import json
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
PRELOADED = (
    "nodemgr.__main__",
    "nodemgr.cli.presentation.group",
    "nodemgr.cli.admins.serve",
    "nodemgr.edge.service",
)
READ_AT_START = ("LD_", "PYTHON", "MALLOC_", "LC_", "LANG", "GLIBC_", "TZ")
"""Variables that the loader, libc or the interpreter has read before any module is imported."""
MOST_BYTES = 2**20
LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE)


def can_fork(environment: Mapping[str, str], folder: Path) -> bool:
    """Whether a manager in this environment is the same by a fork."""
    if "TESTS_EXEC" in os.environ or folder != ROOT:
        return False
    return _read_at_start(environment) == _read_at_start(_server().environment)


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: environment[name] for name in environment if name.startswith(READ_AT_START)}


class Fork:
    """As much of subprocess.Popen as `Manager` uses; its stderr is a pipe."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self.args, self.returncode = words, None
        self.pid, self._ended, error = _server().order(words, environment)
        self.stderr: IO[bytes] = open(error, "rb", buffering=0)  # noqa: SIM115

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._ended.settimeout(timeout if timeout is None else max(timeout, 1e-9))
            try:
                said = self._ended.recv(64)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
            self.returncode = int(said or b"255")
            self._ended.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Server:
    """This worker's end of the preloaded process, which ends with it."""

    def __init__(self) -> None:
        self.environment = dict(os.environ)
        self._orders, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST_BYTES)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forking", str(other.fileno())],
                cwd=ROOT, pass_fds=(other.fileno(),), stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )  # fmt: skip

    def order(
        self, words: Sequence[str], environment: Mapping[str, str]
    ) -> tuple[int, socket.socket, int]:
        """The process, the socket that says its exit code, and the end of its stderr."""
        mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reads, writes = os.pipe2(os.O_CLOEXEC)
        umask = os.umask(0)
        os.umask(umask)
        limits = [resource.getrlimit(each) for each in LIMITS]
        order = [list(words), dict(environment), umask, limits]
        rights = array.array("i", [other.fileno(), writes])
        self._orders.sendmsg(
            [json.dumps(order).encode(errors="surrogateescape")],
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)],
        )
        other.close()
        os.close(writes)
        return int(mine.recv(64)), mine, reads


@cache
def _server() -> _Server:
    return _Server()


def _serve(orders: socket.socket) -> int:
    """Forks for each order, and says how each fork ended. The exit code, of a fork too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the worker's, whose end is seen
    for module in PRELOADED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    children: dict[int, tuple[int, socket.socket]] = {}
    with selectors.DefaultSelector() as ready:
        ready.register(orders, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is not orders:
                    ready.unregister(key.fd)
                    _bury(key.fd, *children.pop(key.fd))
                    continue
                said, descriptors, _, _ = socket.recv_fds(orders, MOST_BYTES, 2)
                if not said:
                    return 0
                pid = os.fork()
                if pid == 0:
                    orders.close()
                    for died, (_, asker) in children.items():
                        os.close(died)
                        asker.close()
                    ready.close()
                    return _become(json.loads(said), *descriptors)
                os.close(descriptors[1])
                asker = socket.socket(fileno=descriptors[0])
                asker.send(str(pid).encode())
                died = os.pidfd_open(pid)
                children[died] = pid, asker
                ready.register(died, selectors.EVENT_READ)


def _bury(died: int, pid: int, asker: socket.socket) -> None:
    _, status = os.waitpid(pid, 0)
    os.close(died)
    with asker, contextlib.suppress(OSError):  # a test that failed does not listen
        asker.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(order: list[Any], asker: int, error: int) -> int:
    words, environment, umask, limits = order
    os.dup2(error, 2)
    os.close(error)
    os.close(asker)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.umask(umask)
    for number, limit in zip(LIMITS, limits, strict=True):
        resource.setrlimit(number, tuple(limit))
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["nodemgr", *words]
    program = importlib.import_module("nodemgr.__main__")
    code: int = program.main()
    return code


if __name__ == "__main__":
    sys.exit(_serve(socket.socket(fileno=int(sys.argv[1]))))
