"""A pilot: the process that Slurm runs on a node, while the head may use the node's GPUs.

Knows: the manager's verbs `node_join` and `pool_hold`, Slurm's signal. Must not know: GPUs, jobs.

Where no manager runs, the pilot starts one in a directory of its own, which the next pilot on the
node finds again: so the keys that were given here are known. The manager is in a session of its
own: if the pilot is killed, it ends what runs. A manager that died is started again.
"""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from client_plugin.ways.control import ControlConnection
from client_plugin.ways.faults import Fault
from nodemgr.edge.host import rundir

BEAT_S, MAX_GPUS = 1.0, 1_024
START_S = 60.0
JOIN_S = 90.0


def gpus_of(environ: Mapping[str, str]) -> list[str]:
    """The GPUs that Slurm gave this job, by index or uuid; none: Slurm names none.

    CUDA_VISIBLE_DEVICES counts only as uuids: under ConstrainDevices its indices begin at 0.
    """
    given = environ.get("SLURM_JOB_GPUS") or environ.get("SLURM_STEP_GPUS") or ""
    if not given:
        visible = environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        return [one for one in visible if one.startswith("GPU-")]
    found: list[str] = []
    for part in given.split(","):
        first, dash, last = part.strip().partition("-")
        if dash and first.isdecimal() and last.isdecimal() and int(last) - int(first) < MAX_GPUS:
            found += map(str, range(int(first), int(last) + 1))
        elif part.strip():
            found.append(part.strip())
    return found


class PilotProcess:
    def __init__(
        self, number: int, head: str, word: str, run_dir: Path, left_s: int, grace_s: int
    ) -> None:
        self._number, self._head, self._word, self._run_dir = number, head, word, run_dir
        self._ends_at = time.monotonic() + left_s
        self._grace_s, self._leaves = grace_s, False
        self._command: list[str] = []
        self._log = Path(os.devnull)
        self._manager: subprocess.Popen[bytes] | None = None
        self._gpus = gpus_of(os.environ)
        self._node = os.environ.get("SLURMD_NODENAME", os.uname().nodename.partition(".")[0])
        for number_of in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number_of, self._told)

    def _told(self, _number: int, _frame: FrameType | None) -> None:
        if not self._leaves:
            self._leaves = True
            self._ends_at = min(self._ends_at, time.monotonic() + self._grace_s)

    def brings_manager(self, directory: Path, simulate: str) -> None:
        """Raises RunDirError."""
        for path in (directory, directory / self._node):
            rundir.own_directory(path, 0o755 if os.geteuid() == 0 else 0o700)
        self._log = directory / self._node / "log"
        self._run_dir = directory / self._node / "run"
        state = directory / self._node / "state"
        self._command = [
            sys.executable, "-m", "nodemgr", "serve", "--run-dir", str(self._run_dir),
            "--state-dir", str(state), *(["--simulate", simulate] if simulate else []),
        ]  # fmt: skip

    def run(self) -> str:
        """Until the manager says that the node is empty; else the reason for the end."""
        give_up = time.monotonic() + START_S + JOIN_S
        is_held = False
        while True:
            try:
                self._keep_manager()
                with_manager = ControlConnection(self._run_dir, START_S)
                if not is_held:
                    self._join(with_manager)
                while True:
                    told = self._hold(with_manager)
                    is_held = True
                    if told["ends"]:
                        return ""
                    time.sleep(BEAT_S)
            except Fault as fault:
                if not is_held and (self._leaves or time.monotonic() > give_up):
                    return str(fault.message)
                if time.monotonic() > self._ends_at:
                    return "its time is over, and the manager does not answer"
                time.sleep(BEAT_S / 2)

    def _hold(self, manager: ControlConnection) -> Any:
        left_s = max(0, int(self._ends_at - time.monotonic()))
        return manager.call(
            "pool_hold",
            pilot=self._number,
            pid=os.getpid(),
            left_s=left_s,
            leaves=self._leaves,
            **({"gpus": self._gpus} if self._gpus else {}),
        )

    def _join(self, manager: ControlConnection) -> None:
        """A node that has joined is refused, and that is well."""
        try:
            manager.call(
                "node_join",
                address=self._head,
                word=self._word,
                node=self._node,
                take_over=bool(self._command),
            )
        except Fault as fault:
            if "is joined to" not in str(fault.message):
                raise

    def _keep_manager(self) -> None:
        if not self._command or (self._manager is not None and self._manager.poll() is None):
            return
        try:
            ControlConnection(self._run_dir, START_S).call("ping")
            return  # one of an earlier pilot
        except Fault:
            pass
        user = pwd.getpwuid(os.geteuid()).pw_name
        around = {name: text for name, text in os.environ.items() if not name.startswith("SLURM")}
        around.pop("NODEMGR_PILOT_WORD", None)
        around |= {"NODEMGR_SLURM_POOL": "true", "NODEMGR_CLUSTER_USERS": user}
        with open(self._log, "ab") as log:
            self._manager = subprocess.Popen(
                self._command, env=around, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, cwd="/",
            )  # fmt: skip
        end = time.monotonic() + START_S
        while time.monotonic() < end and self._manager.poll() is None:
            try:
                ControlConnection(self._run_dir, START_S).call("ping")
                return
            except Fault:
                time.sleep(0.05)

    def close(self) -> None:
        """The manager that this pilot started ends; what it stored stays."""
        if self._manager is not None and self._manager.poll() is None:
            self._manager.terminate()
            try:
                self._manager.wait(START_S)
            except subprocess.TimeoutExpired:
                self._manager.kill()
