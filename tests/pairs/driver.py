"""A node of two simulated GPUs, and orders to it as a person types them."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from typing import Any

from client_plugin.ways.choice import UserWay
from client_plugin.ways.faults import Exit
from tests.node.programs import said
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import HOLD, Manager

MIB = 2**20
FAULTS = ("internal fault", "Traceback", "set aside")
UNTIL_END = "read line < "
"""Of a job's script: it ends when a line comes into the pipe behind this."""


class Driver:
    """alice and bob may have both GPUs."""

    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        for env in ("alice", "bob"):
            manager.quota(env, 2)
        self.events = manager.events()
        self.programs: list[subprocess.Popen[str]] = []
        self.gate = manager.directory / "gate"
        os.mkfifo(self.gate)

    def says(self, *words: str, env: str | None = None, rc: int | None = 0) -> str:
        """The command's output, both streams. `env`: typed inside this environment."""
        around = dict(os.environ)
        place = ["--run-dir", str(self.manager.run_dir)]
        if env is not None:
            around, place = self.manager.environment_of(env, shim=False), []
        verb = 2 if words[0] in ("queue", "quota", "gpu") and len(words) > 1 else 1
        ended = subprocess.run(
            [sys.executable, "-m", "nodemgr", *words[:verb], *place, *words[verb:]],
            env=around, capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False,
        )  # fmt: skip
        text = ended.stdout + ended.stderr
        assert not any(fault in text for fault in FAULTS), text
        assert ended.returncode != Exit.UNREACHABLE, text
        assert rc is None or ended.returncode == rc, f"{words}: {ended.returncode}\n{text}"
        return text

    def holds(self, env: str, *options: str, mib: int = 128) -> subprocess.Popen[str]:
        """A program that has a lease and memory."""
        program = self.asks(env, *options, mib=mib)
        assert said(program)["error"] is None
        return program

    def asks(self, env: str, *options: str, mib: int = 128) -> subprocess.Popen[str]:
        """A program that asks and may wait."""
        size = str(mib * MIB)
        program = self.manager.hold(env, "-b", size, *options, NODEMGR_GPUS="1")
        self.programs.append(program)
        return program

    def submits(self, env: str, *options: str, script: str = "") -> str:
        """A job that stays until the gate opens; its name."""
        command = script or f"{UNTIL_END}{self.gate}"
        words = ("--env", env, *options, "--", "/bin/sh", "-c", command)
        return self.says("submit", *words).strip().splitlines()[0]

    def assigned(self, env: str, key: str) -> str:
        """A head's job for one GPU, which does nothing; its name."""
        owner = pwd.getpwuid(os.getuid())
        row = UserWay(self.manager.env_dir(env)).ask(
            "job_assign", timeout_s=WAIT_LIMIT_S, key=key, number=1, user=owner.pw_name,
            uid=owner.pw_uid, gid=owner.pw_gid, argv=["/bin/true"], cwd="/",
            environ=["PATH=/usr/bin:/bin"], gpus=1,
        )  # fmt: skip
        return str(row["job"])

    def line(self, entry: str) -> str:
        """Why the entry waits."""
        return next(str(row["reason"]) for row in self.queue() if row["id"] == entry)

    def queue(self) -> list[dict[str, Any]]:
        rows = self.manager.status()["queue"]
        assert isinstance(rows, list)
        return rows

    def state(self, task: str) -> str:
        return str(self.manager.task(task)["state"])

    def submits_holder(self, env: str, *options: str) -> tuple[str, str]:
        """A job that holds memory on its GPU until it is ended; its name, and its task's."""
        job = self.submits(env, *options, script=f"exec {HOLD} -b {128 * MIB} 0<>{self.gate}")
        return job, self.task_of(job)

    def task_of(self, job: str) -> str:
        """Once a process of the job has its lease."""
        self.events.expect("task.joined")
        return next(str(row["id"]) for row in self.manager.status()["tasks"] if row["job"] == job)

    def starts(self, job: str) -> None:
        self.events.expect("job.started", job=job)

    def is_sound(self) -> None:
        """No entry is set aside, and the manager's log has no fault."""
        assert self.manager.status()["set_aside"] == []
        assert not any(fault in self.manager.log for fault in FAULTS)
