"""An elastic task under a manager on simulated GPUs, and environments that take GPUs from it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from steps import LIMIT_S, StepFile

from client_plugin.ways import locations
from client_plugin.ways.event_stream import EventStream
from node import Node
from nodemgr.paths import payload_dir

GPUS = 3
RIVALS = ("bob", "carol")
"""Tasks of one environment would share a GPU."""
SILENCE_S = 0.5
"""The wait for a further event."""
HOLD = payload_dir() / "nodemgr" / "_sim" / "hold"
TRAININGS = Path(__file__).resolve().parent / "trainings"


class ManagedTask:
    """`nodemgr run --env alice --gpus 1-3 --elastic` with a training of this bench."""

    def __init__(self, script: str, *options: str, words: tuple[str, ...] = ()) -> None:
        """`words`: further ones of the script; {} is the node's directory."""
        self.node = Node(f"{GPUS}x8GiB")
        for env in ("alice", *RIVALS):
            self.node.call("quota_set", env=env, gpus=GPUS)
        self.steps = StepFile(self.node.directory / "steps")
        self.checkpoint = self.node.directory / "checkpoint"
        own = [each.format(self.node.directory) for each in words]
        line = ["run", "--run-dir", str(self.node.run_dir), "--env", "alice", "--elastic"]
        line += ["--gpus", f"1-{GPUS}", *(each.format(self.checkpoint) for each in options)]
        script_words = [str(TRAININGS / script), str(self.steps.path), str(self.checkpoint)]
        self._command = [sys.executable, "-m", "nodemgr", *line, "--", sys.executable]
        self._command += [*script_words, *own]
        self._holders: list[subprocess.Popen[bytes]] = []
        self._events = EventStream(self.node.run_dir, 0)
        self._seen: list[tuple[str, float]] = []
        self._newest = 0
        self.leader: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start the leader; the time of the start."""
        self._log = (self.node.directory / "log").open("ab")
        began_s = time.monotonic()
        self.leader = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
            start_new_session=True,
        )  # fmt: skip
        self._log.close()
        return began_s

    def workers(self) -> list[int]:
        """The leader's children but its guard."""
        assert self.leader is not None
        pid = self.leader.pid
        below = _text(f"/proc/{pid}/task/{pid}/children").split()
        return [int(each) for each in below if "NODEMGR_WORKER=" in _text(f"/proc/{each}/environ")]

    def event_s(self, name: str, since_s: float, count: int = 1) -> list[float]:
        """The times of the first events of this name after `since_s`."""
        end_s = time.monotonic() + LIMIT_S
        while time.monotonic() < end_s:
            found = [at_s for each, at_s in self._seen if each == name and at_s > since_s]
            if len(found) >= count:
                return found[:count]
            offset_s = time.time() - time.monotonic()
            for event in self._events.follow(SILENCE_S):
                self._newest = event["sequence"]
                self._seen.append((event["name"], event["time_ns"] / 1e9 - offset_s))
        raise SystemExit(f"no event {name}")

    # -- the other environments --

    def take(self) -> float:
        """The next rival asks for one GPU; returns when it has it. The time of the request."""
        env = RIVALS[len(self._holders)]
        around = {
            **os.environ, "NODEMGR_ENV_DIR": str(self.node.env_dir(env)), "NODEMGR_GPUS": "1",
            "LD_LIBRARY_PATH": str(self.node.run_dir / "sim"),
            "LD_PRELOAD": locations.preload_entry(),
        }  # fmt: skip
        began_s = time.monotonic()
        holder = subprocess.Popen(
            [str(HOLD), "-b", "1048576"], env=around, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._holders.append(holder)
        assert holder.stdout is not None
        if b'"error": null' not in holder.stdout.readline():
            raise SystemExit(f"{env} got no memory")
        return began_s

    def free(self, count: int) -> float:
        """The newest programs of rivals end; the time."""
        began_s = time.monotonic()
        ending = [self._holders.pop() for _ in range(count)]
        for holder in ending:
            holder.kill()
        for holder in ending:
            holder.communicate()
        return began_s

    # -- deaths --

    def kill_leader(self) -> tuple[float, float]:
        """When the leader was killed, and when its last worker had ended."""
        workers = self.workers()
        assert self.leader is not None
        began_s = time.monotonic()
        self.leader.kill()
        ended_s = await_ends(workers)
        self.leader.wait()
        return began_s, ended_s

    def close(self) -> None:
        if self.leader is not None and self.leader.poll() is None:
            self.leader.send_signal(signal.SIGTERM)
            self.leader.wait()
        self.free(len(self._holders))
        self._events.close()
        self.node.close()

    def log(self) -> str:
        return _text(str(self.node.directory / "log"))


def await_ends(pids: list[int], limit_s: float = LIMIT_S) -> float:
    """The time at which none of these processes runs any more; infinite: some still run."""
    end_s = time.monotonic() + limit_s
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        left_s = max(0.0, end_s - time.monotonic())
        ready: Any = select.select([descriptor], [], [], left_s)[0]
        os.close(descriptor)
        if not ready:
            return float("inf")
    return time.monotonic()


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
