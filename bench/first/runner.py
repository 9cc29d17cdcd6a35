"""One step as a process group with a limit, and the GPU kept up between steps.

Knows: processes, signals, a step's pipe for its answer. Must not know: any question. Standard
library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from driver_library import NVML, Driver
from plan import Step

HERE = Path(__file__).resolve().parent
GRACE_S = 5.0
"""For a step to end what it has started, after its limit."""
ANSWER_BYTES = 1 << 16
LAST_WORDS = 300
WAIT_VARIABLE, WAIT_SHARE = "NODEMGR_TEST_WAIT_S", 0.6
"""A wait of the tests' parts ends before the step's limit, and then says for which event it was."""
HOLD = f"""
import ctypes, sys
nvml = ctypes.CDLL("{NVML}")
device = ctypes.c_void_p()
nvml.nvmlInit_v2()
nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
sys.stdin.read()
"""


class Outcome(NamedTuple):
    """`state`: ok, skipped, failed, timeout or interrupted; `line`: the answer or the reason."""

    state: str
    seconds: float
    line: str

    def on_simulator(self) -> Outcome:
        return self._replace(line=f"(simulator) {self.line}")


class HeldGpu:
    """A process with NVML open: a GPU without any starts anew for each program, for 1 to 3 s."""

    def __init__(self, driver: Driver, environ: dict[str, str]) -> None:
        self._driver, self._environ = driver, environ
        self._process: subprocess.Popen[bytes] | None = None

    def open(self) -> None:
        """Once; later calls do nothing."""
        if self._process is None and self._driver.folder is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-c", HOLD], env=self._environ, stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> HeldGpu:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def run_step(step: Step, limit_s: float, out: Path, environ: dict[str, str], log: int) -> Outcome:
    """The step's own answer, or how it ended without one. No process of its group is left."""
    os.write(log, f"\n===== {step.name}\n".encode())
    answer, end_of_step = os.pipe()
    told = {"name": step.name, "module": step.module, "out": str(out), "limit_s": limit_s}
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, str(HERE / "step.py"), json.dumps(told), str(end_of_step)],
        env={
            **environ,
            "PYTHONUNBUFFERED": "1",
            WAIT_VARIABLE: f"{WAIT_SHARE * limit_s:.1f}",
        }, pass_fds=[end_of_step],
        stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
    )  # fmt: skip
    os.close(end_of_step)
    try:
        code = _code_within(process, limit_s)
    finally:
        _end_group(process)
        said = os.read(answer, ANSWER_BYTES) if select.select([answer], [], [], 0)[0] else b""
        os.close(answer)
    seconds = round(time.monotonic() - began, 1)
    if code is None:
        line = f"it took more than {limit_s:.0f} s; its last words: {last_words(log)}"
        return Outcome("timeout", seconds, line)
    if not said:
        line = f"its process ended with {code}; its last words: {last_words(log)}"
        return Outcome("failed", seconds, line)
    state, _, line = said.decode(errors="replace").partition(" ")
    return Outcome(state, seconds, line)


def last_words(log: int) -> str:
    """The end of the log's text, in one line."""
    with open(f"/proc/self/fd/{log}", "rb") as text:
        text.seek(max(0, text.seek(0, os.SEEK_END) - LAST_WORDS))
        return " ".join(text.read().decode(errors="replace").split()) or "none"


def _code_within(process: subprocess.Popen[bytes], limit_s: float) -> int | None:
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM lets a living step end its manager; SIGKILL takes all the rest."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
