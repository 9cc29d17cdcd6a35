"""Fake containers: processes in mount and PID namespaces over this machine's own files.

They see an env as a container does.

Knows: unshare, nsenter and setpriv (util-linux). Must not know: what is tested. To the manager such
a box is a container without an engine.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from client_plugin.ways.control import ControlConnection
from nodemgr.paths import container_dir
from tests.support.limits import WAIT_LIMIT_S
from tests.support.local import LocalManager
from tests.support.manager import ROOT, Manager

VERBS = ROOT / "client_plugin" / "bin" / "nodemgr"
NOBODY = 65_534
INIT = 'mount --make-rprivate / && mount --bind "$0" "$1" && echo ready && exec sleep infinity'


def unusable() -> str | None:
    if os.geteuid() != 0:
        return "namespaces need root"
    missing = [name for name in ("unshare", "nsenter", "setpriv") if shutil.which(name) is None]
    if missing:
        return f"no {', '.join(missing)} here"
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "true"],
        capture_output=True,
        check=False,
    )
    return None if done.returncode == 0 else "no namespaces here"


def outcome(node: Manager | LocalManager, job: str) -> dict[str, Any]:
    """How it ended, waited for longer than a busy machine takes."""
    with ControlConnection(node.run_dir, WAIT_LIMIT_S) as client:
        (told,) = client.call("job_wait", jobs=[job])["jobs"]
    assert isinstance(told, dict)
    return told


def interruption(node: Manager, job: str) -> tuple[str, str]:
    """The cause and the reason with which the job is paused.

    It is withdrawn then: no other test meets it.
    """
    paused = node.events().expect("job.paused", WAIT_LIMIT_S, job=job)
    node.call("job_withdraw", job=job)
    return str(paused["cause"]), str(paused["reason"])


class Box:
    """One container of `env`, from its start to `stop`."""

    _made = 0
    verbs = VERBS

    def __init__(self, node: Manager | LocalManager, env: str) -> None:
        Box._made += 1
        self.env_dir = node.directory / f"box{Box._made}"
        self.env_dir.mkdir()
        command = [
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child",
            "sh",
            "-c",
            INIT,
        ]
        self._programs: list[subprocess.Popen[str]] = []
        self._init = subprocess.Popen(
            [*command, str(container_dir(node.run_dir, env)), str(self.env_dir)],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._init.stdout is not None
        assert self._init.stdout.readline() == "ready\n"
        self.pid = int(
            Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children").read_text().split()[0]
        )
        """The node's PID of its first process."""

    def _command(self, command: Sequence[str], uid: int) -> list[str]:
        user = [] if uid == 0 else ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        return ["nsenter", f"--target={self.pid}", "--mount", "--pid", *user, *command]

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "NODEMGR_ENV_DIR": str(self.env_dir),
            "HOME": "/",
            "PYTHONPATH": str(ROOT),
        }

    def spawn(self, *command: str, uid: int = 0) -> subprocess.Popen[str]:
        """A program there; its input and output are ours, what it says on stderr among it."""
        program = subprocess.Popen(
            self._command(command, uid), env=self._environment(), text=True, cwd="/",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._programs.append(program)
        return program

    def run(self, *command: str, uid: int = 0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._command(command, uid), env=self._environment(), text=True, cwd="/",
            capture_output=True,
            timeout=WAIT_LIMIT_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def say(self, *words: str, uid: int = 0) -> subprocess.CompletedProcess[str]:
        """`nodemgr` there."""
        return self.run("sh", str(VERBS), *words, uid=uid)

    def submit(self, *words: str, uid: int = 0) -> str:
        """The job's id: all that is said."""
        said = self.say("submit", *words, uid=uid)
        assert (said.returncode, said.stderr, said.stdout.count("\n")) == (0, "", 1), (
            said.stdout,
            said.stderr,
        )
        return said.stdout.strip()

    def python(self, script: Path, *words: str, uid: int = 0) -> subprocess.Popen[str]:
        return self.spawn(sys.executable, str(script), *words, uid=uid)

    def stop(self) -> None:
        """With all that runs there."""
        if self._init.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self._init.communicate(timeout=WAIT_LIMIT_S)
        for program in self._programs:
            program.communicate(timeout=WAIT_LIMIT_S)
