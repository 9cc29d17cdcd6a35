"""The simulated node of `nodemgr serve --simulate`.

It is made at the first start, and found again while clients live on it.

Knows: where a run directory keeps it. Must not know: how it works (nodemgr/simulator.py).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from nodemgr.edge.gpu.gpu_inventory import NvmlUnavailable
from nodemgr.edge.store.database import CommitHook
from nodemgr.simulator import STATE_FILE, SimulatedGpu, SimulatorError, open_or_create


def prepare_node(directory: Path, gpus: Sequence[SimulatedGpu]) -> Path:
    """The directory of its libraries, for the manager's NVML as for clients.

    Raises NvmlUnavailable.
    """
    try:
        open_or_create(directory, gpus).close()
        directory.chmod(0o755)
    except SimulatorError as error:
        raise NvmlUnavailable(error.line) from None
    return directory


def state_file(directory: Path) -> Path:
    """The file that is touched when a device is lost or restored."""
    return directory / STATE_FILE


CRASH_VARIABLE = "NODEMGR_SIM_CRASH"
"""With `before:N` or `after:N` the manager kills itself around its Nth commit."""


class _Crash(CommitHook):
    """Sends SIGKILL to the manager, for tests of recovery."""

    def __init__(self, when: str, commit: int) -> None:
        self._when = when
        self._commit = commit

    def before(self, commit: int) -> None:
        self._die("before", commit)

    def after(self, commit: int) -> None:
        self._die("after", commit)

    def _die(self, when: str, commit: int) -> None:
        if when == self._when and commit == self._commit:
            os.kill(os.getpid(), signal.SIGKILL)


def crash_hook() -> CommitHook | None:
    when, _, commit = os.environ.get(CRASH_VARIABLE, "").partition(":")
    return _Crash(when, int(commit)) if when in ("before", "after") and commit.isdigit() else None
