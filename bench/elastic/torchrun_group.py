"""The same changes under torchrun: an agent of its own for each GPU, a rendezvous on loopback."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from managed import GPUS, TRAININGS, await_ends
from steps import StepFile

LAST_CALL_S = 1
"""torchrun's own value is 30 s: the wait for more agents at the end of each rendezvous."""
LEADER_LIMIT_S = 30.0


class TorchrunGroup:
    """Agents with one worker each."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="nmb")
        self.directory = Path(self._directory.name)
        self.steps = StepFile(self.directory / "steps")
        self.checkpoint = self.directory / "checkpoint"
        self.agents: list[subprocess.Popen[bytes]] = []
        self._port = free_port()

    def add(self) -> float:
        """Start an agent on a GPU that has become free; the time."""
        words = [f"--nnodes=1:{GPUS}", "--nproc-per-node=1", "--rdzv-backend=c10d"]
        words += [f"--rdzv-endpoint=127.0.0.1:{self._port}", "--rdzv-id=bench"]
        words += [f"--rdzv-conf=last_call_timeout={LAST_CALL_S}", "--max-restarts=1000"]
        words += [str(TRAININGS / "for_torchrun.py"), str(self.steps.path), str(self.checkpoint)]
        # Without this variable a restart with another agent hangs for 60 s (pytorch issue 111646).
        around = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
        began_s = time.monotonic()
        with (self.directory / "log").open("ab") as log:
            self.agents.append(
                subprocess.Popen(
                    [sys.executable, "-m", "torch.distributed.run", *words], env=around,
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                )
            )  # fmt: skip
        return began_s

    def remove(self) -> tuple[float, float]:
        """End the newest agent by SIGTERM: when, and when its GPU was free."""
        agent = self.agents.pop()
        pids = [agent.pid, *_below(agent.pid)]
        began_s = time.monotonic()
        agent.send_signal(signal.SIGTERM)
        agent.wait()
        return began_s, await_ends(pids)

    def kill_leader(self) -> tuple[float, float]:
        """Kill the first agent, which has the rendezvous: when, and when all workers had ended."""
        workers = [pid for agent in self.agents for pid in _below(agent.pid)]
        began_s = time.monotonic()
        self.agents[0].kill()
        self.agents[0].wait()
        ended_s = await_ends(workers, LEADER_LIMIT_S)
        self._end()
        self._port = free_port()
        return began_s, ended_s

    def _end(self) -> None:
        for agent in self.agents:
            pids = _below(agent.pid) if agent.poll() is None else []
            agent.kill()
            agent.wait()
            for pid in pids:
                _kill(pid)
        newest = {each.pid for each in self.steps.read()[-50:]}
        for pid in newest:  # a killed agent leaves its worker behind
            if b"for_torchrun.py" in _command(pid):
                _kill(pid)
        self.agents = []

    def close(self) -> None:
        self._end()
        self._directory.cleanup()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _below(parent: int) -> list[int]:
    try:
        found = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    except OSError:
        return []
    return [int(pid) for pid in found if b"for_torchrun.py" in _command(int(pid))]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
