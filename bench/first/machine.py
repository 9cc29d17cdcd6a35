"""The machine as a step uses it: a private manager on its GPU, and programs bare or in an env.

Knows: how a manager is started and an env entered. Must not know: any question.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from lacking import Lacking, needs_module

if TYPE_CHECKING:
    from tests.support.manager import Manager

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
ROOT = HERE.parents[1]
GIB, MIB = 1 << 30, 1 << 20
RESERVE = {"NODEMGR_DISK_RESERVE_BYTES": str(MIB)}
"""A private manager of seconds writes no large reserve first."""
ENVS: Mapping[str, Mapping[str, int]] = {"shim": {}, "gated": {"compute_percent": 100}}
KINDS = ("bare", *ENVS)
LOGGED_CHARACTERS = 8_000
"""Of each stream of a program."""


class Node:
    """A manager, if any runs, and the surroundings of programs by kind: bare or an env's name."""

    def __init__(self, running: Manager | None, reason: str = "") -> None:
        """`reason`: why there is no manager."""
        self._running, self._reason = running, reason

    @property
    def manager(self) -> Manager:
        """Raises Lacking."""
        if self._running is None:
            raise Lacking(self._reason)
        return self._running

    def kinds(self) -> tuple[str, ...]:
        """Of programs that can run here."""
        return KINDS if self._running is not None else KINDS[:1]

    def bare_alone(self) -> str:
        """The end of a line without figures of environments, with the reason."""
        return f"; bare alone: {self._reason}" if self._reason else ""

    def total_bytes(self) -> int:
        """Of the first GPU."""
        return int(self.manager.status()["gpus"][0]["memory_total_bytes"])

    def envs(self, memory_bytes: int) -> None:
        """`shim` without a share, `gated` with one of 100 %.

        Each has so much memory, at most a third of the GPU's. Without a manager there is none.
        """
        if self._running is None:
            return
        memory_bytes = min(memory_bytes, self.total_bytes() // 3)
        for env, more in ENVS.items():
            self.manager.quota(env, 1, memory_bytes=memory_bytes, **more)

    def around(self, kind: str) -> dict[str, str]:
        """The variables of a program."""
        from client_plugin.ways import locations

        plain = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("NODEMGR_", "LD_PRELOAD"))
        }
        if kind == "bare":
            return plain
        return plain | {
            "NODEMGR_ENV_DIR": str(self.manager.env_dir(kind)),
            "LD_PRELOAD": locations.preload_entry(),
        }

    def start(
        self,
        kind: str,
        command: Sequence[object],
        *,
        errors: int | None = None,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> subprocess.Popen[str]:
        """Its output is read, its input written; its errors go to the log."""
        return subprocess.Popen(
            [str(word) for word in command], env={**self.around(kind), **variables}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip

    def output(self, kind: str, command: Sequence[object], seconds: float = 60) -> str:
        """All that it prints. Raises RuntimeError where it fails, TimeoutExpired."""
        return output(command, self.around(kind), seconds, kind)


def ended(
    command: Sequence[object], environ: Mapping[str, str], seconds: float, what: str = "bare"
) -> subprocess.CompletedProcess[str]:
    """A program that has ended; all that it printed is in the log, too. Raises TimeoutExpired."""
    words = [str(word) for word in command]
    found = subprocess.run(
        words,
        cwd=ROOT, env=dict(environ), capture_output=True, text=True, timeout=seconds, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    printed = found.stdout[-LOGGED_CHARACTERS:] + found.stderr[-LOGGED_CHARACTERS:]
    print(f"-- {what}: {words} ended with {found.returncode}\n{printed}")
    return found


def output(
    command: Sequence[object], environ: Mapping[str, str], seconds: float, what: str = "bare"
) -> str:
    """All that a program prints. Raises RuntimeError where it fails, TimeoutExpired."""
    found = ended(command, environ, seconds, what)
    if found.returncode:
        last = (found.stderr.strip() or found.stdout.strip() or "no word").splitlines()[-1]
        raise RuntimeError(f"{what}: {command[-1]} ended with {found.returncode}: {last}")
    return found.stdout


def started_manager() -> Manager:
    """On this machine's GPU. Raises Lacking, AssertionError with the manager's words."""
    for name in ("zmq", "_cffi_backend", "psutil", "pynvml", "click"):
        needs_module(name)
    try:
        import nodemgr._native  # noqa: F401
    except ImportError as error:
        raise Lacking(f"the product is not built here ({error}): python -m csrc.build") from None
    from tests.support.manager import Manager

    manager = Manager(simulate=None, environment=RESERVE)
    try:
        return manager.start()
    except BaseException:
        manager.close()
        raise


@contextmanager
def node(*, bare_suffices: bool = False) -> Iterator[Node]:
    """Ended with the context, and the manager's words go to the log.

    `bare_suffices`: where the machine lacks what a manager needs, bare programs run.
    """
    try:
        manager = started_manager()
    except Lacking as lacking:
        if not bare_suffices:
            raise
        yield Node(None, str(lacking))
        return
    try:
        yield Node(manager)
    finally:
        print(manager.log)
        manager.close()


def python(program: str, *words: object) -> list[object]:
    """The command of a program beside this module."""
    return [sys.executable, PROGRAMS / program, *words]


def per_kind(figures: Mapping[str, Sequence[float]], form: str = ".0f") -> str:
    """Medians in the order of the kinds: bare/shim/gated."""
    return "/".join(format(statistics.median(each), form) for each in figures.values())
