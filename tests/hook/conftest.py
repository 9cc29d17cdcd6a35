"""A payload with a scripted client in place of the library, and child interpreters in it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.limits import WAIT_LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
STANDINS = HERE / "standins"


def interpreters() -> list[str]:
    """One interpreter of each Python from 3.8 to 3.13 on this machine, from PATH or pyenv."""
    return found("3.8", "3.9", "3.10", "3.11", "3.12", "3.13") or [sys.executable]


def found(*versions: str) -> list[str]:
    paths = {}
    for version in versions:
        candidates = [
            shutil.which(f"python{version}"),
            *sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python")),
        ]
        for path in filter(None, candidates):
            paths[version] = str(path)
    return list(paths.values())


@dataclass
class Child:
    """A child interpreter that has ended."""

    returncode: int
    stdout: str
    stderr: str
    log: list[str]

    @property
    def seen(self) -> Any:
        """The JSON of the last line on stdout."""
        assert self.stdout.strip(), self.stderr
        return json.loads(self.stdout.strip().splitlines()[-1])


@dataclass
class World:
    """A payload X, an environment's directory, and the script of the client."""

    directory: Path
    script: dict[str, Any] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)
    path: list[str] = field(default_factory=list)

    @property
    def payload(self) -> Path:
        return self.directory / "X"

    @property
    def log(self) -> Path:
        return self.directory / "log"

    def child_environ(self) -> dict[str, str]:
        (self.directory / "script.json").write_text(
            json.dumps({"log": str(self.log), **self.script})
        )
        kept = {
            name: os.environ[name]
            for name in ("PATH", "HOME", "TMPDIR", "LANG")
            if name in os.environ
        }
        return {
            **kept,
            "NODEMGR_ENV_DIR": str(self.directory / "env"),
            "FAKE_NATIVE": str(self.directory / "script.json"),
            "PYTHONPATH": os.pathsep.join([str(self.payload / "sitecustomize"), *self.path]),
            "PYTHONDONTWRITEBYTECODE": "1",
            **self.environ,
        }

    def start(
        self, code: str, *arguments: str, python: str = sys.executable, **options: Any
    ) -> subprocess.Popen[str]:
        command = [python, *arguments, "-c", textwrap.dedent(code)]
        pipes = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            **options,
        }
        return subprocess.Popen(
            command, env=self.child_environ(), text=True, cwd=self.directory, **pipes
        )

    def run(self, code: str, *arguments: str, python: str = sys.executable) -> Child:
        process = self.start(code, *arguments, python=python)
        stdout, stderr = process.communicate(timeout=WAIT_LIMIT_S)
        return self.ended(process.returncode, stdout, stderr)

    def ended(self, returncode: int, stdout: str, stderr: str) -> Child:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return Child(returncode, stdout, stderr, [line.partition(" ")[2] for line in lines])

    def run_and_interrupt(self, code: str, when: str, python: str = sys.executable) -> Child:
        """Sends SIGINT when a line of stderr holds `when`."""
        with self.start(code, python=python) as process:
            assert process.stderr is not None
            assert process.stdout is not None
            try:
                errors = list(up_to(process.stderr, when))
                process.send_signal(signal.SIGINT)
                collector = threading.Thread(
                    target=lambda stream: errors.extend(stream), args=(process.stderr,)
                )
                collector.start()
                stdout = process.stdout.read()
                collector.join()
                process.wait(timeout=WAIT_LIMIT_S)
            finally:
                process.kill()
        return self.ended(process.returncode, stdout, "".join(errors))


def up_to(lines: Iterable[str], text: str) -> Iterator[str]:
    for line in lines:
        yield line
        if text in line:
            return


def make_payload(target: Path) -> None:
    ignore = shutil.ignore_patterns("__pycache__", "_lib")
    shutil.copytree(ROOT / "sitecustomize", target / "sitecustomize", ignore=ignore)
    shutil.copytree(ROOT / "client_plugin", target / "client_plugin", ignore=ignore)
    shutil.copy(HERE / "fake_native.py", target / "client_plugin" / "native.py")


@pytest.fixture
def world(tmp_path: Path) -> World:
    make_payload(tmp_path / "X")
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "client.conf").write_text("env=alice\n")
    return World(tmp_path, script={"settings": {"gpus": "2"}})


@pytest.fixture
def package(world: World) -> Callable[..., Path]:
    """package("torch", "x = 1") makes an importable package or module in the child's path."""
    site = world.directory / "site"
    site.mkdir()
    world.path.append(str(site))

    def make(name: str, source: str = "", **modules: str) -> Path:
        folder = site / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(textwrap.dedent(source))
        for module, text in modules.items():
            (folder / f"{module}.py").write_text(textwrap.dedent(text))
        return folder

    return make
