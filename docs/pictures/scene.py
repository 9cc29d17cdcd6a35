"""The scene of all pictures: a manager of a simulated node, environments, programs that use GPUs.

Knows: nodemgr's command line, the simulator, examples/standin. Must not know: any one picture.

The programs run as `python train.py` in a directory of their own: the stand-in of CuPy allocates
real (simulated) device memory, so each figure in a picture is the manager's own.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from client_plugin.ways.control import ControlConnection
from nodemgr.simulator import SimulatedNode

ROOT = Path(__file__).resolve().parents[2]
NODE = "4x80GiB"
GIB = 2**30
ENVS = {"alice": (2, 96), "bob": (1, 40), "carol": (2, None), "dana": (1, 60)}
"""GPUs, and GiB of memory in all, of each environment."""
USE = ((93, 71, 402), (38, 54, 187), (97, 74, 655), (96, 73, 648))
"""Utilization in percent, degrees and watts of each simulated GPU."""
LONGEST_S = 30.0
PROGRAM = '''"""A stand-in for a training: it allocates on each GPU, and waits for its end."""
import os
import signal
import subprocess
import sys

import cupy

words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
try:
    batch = cupy.cuda.alloc(int(float(words.get("--gib", 8)) * 2**30))
except cupy.cuda.memory.OutOfMemoryError as error:
    sys.exit(f"cupy OutOfMemoryError: {error}")
ranks = range(1, cupy.cuda.runtime.getDeviceCount())
for rank in ranks if "RANK" not in os.environ else ():
    rank_of = {**os.environ, "RANK": str(rank), "CUDA_VISIBLE_DEVICES": str(rank)}
    other = subprocess.Popen([sys.executable, *sys.argv], env=rank_of, stdout=subprocess.PIPE)
    other.stdout.readline()
for epoch in range(1, int(words.get("--epochs", 0)) + 1):
    print(f"epoch {epoch}: loss {2.4 / epoch:.3f}", flush=True)
if "--epochs" not in words:
    print("ready", flush=True)
    signal.pause()
'''


class SceneError(Exception):
    """A step that did not happen. One line."""


class Scene:
    """The manager and its programs, ended with the block."""

    def __init__(self, *options: str) -> None:
        """`options` are those of `nodemgr serve`."""
        self.directory = Path(tempfile.mkdtemp(prefix="nmp", dir="/tmp"))
        self.directory.chmod(0o755)  # the page's process has no rights
        self.run_dir = self.directory / "run"
        self.home = self.directory / "home"
        self._programs: dict[str, subprocess.Popen[bytes]] = {}
        self._jobs: list[str] = []
        self._lay_out()
        self.manager = subprocess.Popen(
            [
                *self.nodemgr("serve", "--simulate", NODE),
                *("--state-dir", str(self.directory / "state"), *options),
            ],
            env=self.variables(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def _lay_out(self) -> None:
        """The home of all programs: their sources, and `python` and `nodemgr` on the PATH."""
        bin_dir = self.directory / "bin"
        for made in (self.home, bin_dir):
            made.mkdir()
        for name in ("train.py", "finetune.py", "pretrain.py", "eval.py"):
            (self.home / name).write_text(PROGRAM)
        (bin_dir / "python").symlink_to(sys.executable)
        nodemgr = bin_dir / "nodemgr"
        nodemgr.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m nodemgr "$@"\n')
        nodemgr.chmod(0o755)

    @staticmethod
    def nodemgr(*words: str) -> list[str]:
        return [sys.executable, "-P", "-m", "nodemgr", *words]

    def variables(self) -> dict[str, str]:
        """The environment of all processes of the scene."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("NODEMGR_", "CUDA_", "LD_", "PYTHON", "NO_COLOR"))
        }
        return {
            **kept,
            "HOME": str(self.home),
            "PATH": f"{self.directory / 'bin'}:{kept.get('PATH', '/usr/bin:/bin')}",
            "PYTHONPATH": f"{ROOT / 'examples' / 'standin'}:{ROOT}",
            "NODEMGR_RUN_DIR": str(self.run_dir),
            "LD_LIBRARY_PATH": str(self.run_dir / "sim"),
            "TERM": "xterm-256color",
        }

    def call(self, verb: str, **arguments: object) -> Mapping[str, Any]:
        with ControlConnection(self.run_dir, timeout_s=LONGEST_S) as client:
            return client.call(verb, **arguments)

    def __enter__(self) -> Scene:
        self._line(self.manager, "ready on")
        for env, (gpus, gib) in ENVS.items():
            memory = {} if gib is None else {"memory_bytes": gib * GIB}
            self.call("quota_set", env=env, gpus=gpus, default_gpus=1, **memory)
        with SimulatedNode.open(self.run_dir / "sim") as node:
            for index, (percent, degrees, watts) in enumerate(USE):
                node.set_utilisation(index, percent, percent // 2)
                node.set_temperature(index, degrees)
                node.set_power(index, watts)
        return self

    def start(self, env: str, command: str, gib: float, gpus: int = 1) -> None:
        """A program in the environment; returns when it has its memory."""
        self._started(env, command, gib, gpus, "ready")

    def start_waiting(self, env: str, command: str, gib: float, gpus: int = 1) -> None:
        """The same, for a program that gets no GPU now; returns when it waits."""
        self._started(env, command, gib, gpus, "place ")

    def _started(self, env: str, command: str, gib: float, gpus: int, until: str) -> None:
        run = self.nodemgr("run", "--env", env, "--gpus", str(gpus), "--")
        program = subprocess.Popen(
            [*run, "python", *command.split(), "--gib", str(gib)],
            cwd=self.home,
            env=self.variables(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._programs[f"{env}/{command}"] = program
        self._line(program, until)

    def start_all(self) -> None:
        """Two programs and a job, which hold all GPUs; another program waits."""
        self.start("alice", "train.py --lr 3e-4", 31)
        self.start("bob", "finetune.py", 12)
        self.start_job("carol", "python pretrain.py --gib 64", "--gpus", "2", "--time", "6h")
        self.start_waiting("dana", "eval.py", 8)

    def submit(self, env: str, command: str, *options: str) -> str:
        """A job of this name; its id."""
        name = ("--name", command.split()[1])
        words = ("submit", "--env", env, *name, *options, "--", *command.split())
        self._jobs.append(self._run(*words).strip())
        return self._jobs[-1]

    def start_job(self, env: str, command: str, *options: str) -> None:
        """The same; returns when the job has its memory."""
        job = self.submit(env, command, *options)
        log = subprocess.Popen(
            self.nodemgr("logs", "--follow", job), env=self.variables(), stdout=subprocess.PIPE
        )
        self._line(log, "ready")
        log.kill()
        log.communicate(timeout=LONGEST_S)

    def _run(self, *words: str) -> str:
        """The output of a command of nodemgr. Raises SceneError."""
        done = subprocess.run(
            self.nodemgr(*words),
            cwd=self.home,
            env=self.variables(),
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
        )
        if done.returncode != 0:
            raise SceneError(f"nodemgr {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def end(self, env: str, command: str) -> None:
        self._end(self._programs.pop(f"{env}/{command}"))

    @staticmethod
    def _end(program: subprocess.Popen[bytes]) -> None:
        """Ends it with its ranks, which would keep its output open."""
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.communicate(timeout=LONGEST_S)

    @staticmethod
    def _line(program: subprocess.Popen[bytes], text: str) -> None:
        """Reads until a line holds the text. Raises SceneError."""
        stream = program.stdout or program.stderr
        assert stream is not None
        printed = b""
        while select.select([stream], [], [], LONGEST_S)[0]:
            more = os.read(stream.fileno(), 65_536)
            printed += more
            if text.encode() in printed:
                return
            if not more:
                break
        lines = " | ".join(printed.decode(errors="replace").splitlines())
        raise SceneError(f"a program did not print {text!r}; it printed: {lines}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for program in self._programs.values():
            self._end(program)
        if self._jobs and self.manager.poll() is None:
            self._run("queue", "withdraw", *self._jobs)  # a job outlives its manager
        self.manager.send_signal(signal.SIGTERM)
        self.manager.communicate(timeout=LONGEST_S)
        shutil.rmtree(self.directory, ignore_errors=True)
