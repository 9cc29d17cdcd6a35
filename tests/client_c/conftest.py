"""A user's process and a scripted manager for each test."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client_c.manager import Env, Manager, UdpManager, said
from tests.support.limits import WAIT_LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "client_plugin" / "_lib" / "libnodemgr.so"
FORGET = ("NODEMGR_", "CUDA_", "LOCAL_WORLD_SIZE", "LD_PRELOAD")


class Child:
    """A process with the client in it. `ask` sends a command of child.py and returns its answer."""

    def __init__(self, env: Env, variables: dict[str, str], stderr: int = subprocess.PIPE) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(FORGET)}
        self.process = subprocess.Popen(
            [sys.executable, "-S", str(Path(__file__).with_name("child.py")), str(LIBRARY)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True, bufsize=1,
            env={**clean, "NODEMGR_ENV_DIR": str(env.directory), **variables},
        )  # fmt: skip

    def start(self, *command: object) -> None:
        """Give a command; its answer is awaited later."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")

    def answer(self) -> Any:
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        assert text, f"the process ended: {self.rest()}"
        return json.loads(text)

    def ask(self, *command: object) -> Any:
        self.start(*command)
        return self.answer()

    def line(self) -> str:
        """The next line that it says to the user."""
        return said(self.process.stderr)

    def rest(self) -> list[str]:
        """Its other output to the user, to its end."""
        assert self.process.stderr is not None
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()
        return self.process.stderr.read().splitlines()

    def finish(self) -> int:
        """Ends it in the normal way; its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(timeout=WAIT_LIMIT_S)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


@pytest.fixture
def env() -> Iterator[Env]:
    env = Env()
    yield env
    shutil.rmtree(env.directory)


@pytest.fixture
def manager(env: Env) -> Iterator[Manager]:
    manager = Manager(env)
    yield manager
    manager.close()


@pytest.fixture
def udp(env: Env) -> Iterator[UdpManager]:
    manager = UdpManager(env)
    yield manager
    manager.close()


class Spawn:
    """Starts processes in the env and ends them with the test."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self.children: list[Child] = []

    def __call__(self, **variables: str) -> Child:
        self.children.append(Child(self.env, variables))
        return self.children[-1]


@pytest.fixture
def spawn(env: Env) -> Iterator[Spawn]:
    spawn = Spawn(env)
    yield spawn
    for child in spawn.children:
        child.kill()
