"""The command line as a child process, and stand-ins for the manager's sockets.

The stand-ins give scripted answers and record the requests.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from client_plugin.ways import choice
from client_plugin.ways.control import ControlConnection
from nodemgr import cli
from nodemgr.edge.rpc import wire
from tests.session import TMP, remove
from tests.support.limits import WAIT_LIMIT_S
from tests.support.packets import Packet, decode

ROOT = Path(__file__).resolve().parents[2]

Run = Callable[..., subprocess.CompletedProcess[str]]


def clean_environment(**changes: str | None) -> dict[str, str]:
    """Ours without what would lead a verb somewhere; None takes a variable away."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("NODEMGR_") and key != "LD_PRELOAD"
    }
    kept |= {key: value for key, value in changes.items() if value is not None}
    return {key: value for key, value in kept.items() if changes.get(key, "") is not None}


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A directory with a path that is short enough for sockets."""
    directory = Path(tempfile.mkdtemp(prefix="nmc-", dir=TMP))
    directory.chmod(0o755)
    yield directory
    remove(directory)


@pytest.fixture
def nodemgr_process(short_dir: Path) -> Run:
    """nodemgr_process(verb, …, run_dir=…, environment={…}) runs the command line to its end.

    In a process of its own.
    """

    def run(
        *arguments: object,
        run_dir: Path | None = short_dir,
        environment: dict[str, str | None] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        said = {"NODEMGR_RUN_DIR": str(run_dir) if run_dir else None, **(environment or {})}
        return subprocess.run(
            [sys.executable, "-m", "nodemgr", *map(str, arguments)], env=clean_environment(**said),
            capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False,
            stdin=subprocess.DEVNULL, cwd="/",
        )  # fmt: skip

    return run


@pytest.fixture
def nodemgr(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """The same within this process, which is faster: for verbs that only ask and print."""

    def never(*_: object) -> None:
        raise AssertionError("this would become another program: use nodemgr_process")

    def run(
        *arguments: object,
        run_dir: Path | None = short_dir,
        environment: dict[str, str | None] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        said = {"NODEMGR_RUN_DIR": str(run_dir) if run_dir else None, **(environment or {})}
        capsys.readouterr()
        with monkeypatch.context() as patch:
            patch.setattr(os, "environ", clean_environment(**said))
            patch.setattr(os, "execve", never)
            # a busy machine's manager may not run for 10 s
            patch.setattr(ControlConnection.__init__, "__defaults__", (WAIT_LIMIT_S,))
            patch.setattr(choice, "ANSWER_TIMEOUT_S", WAIT_LIMIT_S)
            code = cli.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, out, err)

    return run


STRANGER = """
import datetime, difflib, os, pwd, shutil, sys, textwrap
import nodemgr.edge.rpc.wire, client_plugin.ways.event_stream
import client_plugin.verbs.commands.queue_actions
from nodemgr.cli import main
from nodemgr.cli.presentation.group import nodemgr
for verb in ("doctor", "quota", "release", "status"):
    # Load it now: what is loaded later must be readable for others, and root's interpreter is not.
    nodemgr.get_command(None, verb)
os.setgroups([])
os.setresgid(4711, 4711, 4711)
os.setresuid(4711, 4711, 4711)
sys.exit(main(sys.argv[1:]))
"""
"""The command line as an unknown user."""


@pytest.fixture
def stranger(short_dir: Path) -> Run:
    """stranger(verb, …): the same as `nodemgr`, by another user."""
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", STRANGER, *map(str, arguments)],
            env=clean_environment(NODEMGR_RUN_DIR=str(short_dir)),
            capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False,
            stdin=subprocess.DEVNULL, cwd="/",
        )  # fmt: skip

    return run


def one_line(result: subprocess.CompletedProcess[str]) -> str:
    """The message of a verb that refused: one line, ours, no traceback."""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("nodemgr: ")
    return lines[0].removeprefix("nodemgr: ")


@dataclass
class EnvStandIn:
    """An environment's directory with a client socket that answers ASK from a table."""

    directory: Path
    answers: dict[str, Any] = field(default_factory=dict)
    """Question -> its answer: an object, or the (code, reason) of a DENY, or raw packets."""
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    def configure(self, **settings: object) -> None:
        lines = {"env": self.directory.name, "address": "unix:socket", **settings}
        (self.directory / "client.conf").write_text(
            "".join(f"{key}={value}\n" for key, value in lines.items())
        )

    def packets(self, message: Packet) -> list[bytes]:
        answer = self.answers.get(message.text("what") or "")
        rid = message.number("rid")
        match answer:
            case None:
                return []
            case list():
                return answer
            case (code, reason):
                return [wire.encode("DENY", rid=rid, code=code, reason=reason)]
        text = json.dumps(answer)
        pages = [text[at : at + 200] for at in range(0, len(text), 200)]
        return [
            wire.encode("PART", rid=rid, index=index, count=len(pages), data=page)
            for index, page in enumerate(pages)
        ]

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                packet = connection.recv(wire.PACKET_BYTES)
                if not packet:
                    continue
                message = decode(packet)
                self.asked.append((message.text("what") or "", message.text("argument")))
                for answer in self.packets(message):
                    connection.send(answer)


@pytest.fixture
def env_stand_in(short_dir: Path) -> Iterator[Callable[[str], EnvStandIn]]:
    """env_stand_in(name): an environment at `short_dir`; its manager is a table of answers."""
    listeners: list[tuple[socket.socket, threading.Thread]] = []

    def make(name: str) -> EnvStandIn:
        directory = short_dir / "envs" / name
        directory.mkdir(parents=True)
        stand_in = EnvStandIn(directory)
        stand_in.configure()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(directory / "socket"))
        listener.listen()
        thread = threading.Thread(target=stand_in.serve, args=(listener,), daemon=True)
        thread.start()
        listeners.append((listener, thread))
        return stand_in

    yield make
    for listener, thread in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(WAIT_LIMIT_S)


def quota(env: str = "alice", **changes: Any) -> dict[str, Any]:
    """A quota as the manager tells it."""
    return {
        "env": env, "gpus": 2, "memory_bytes": 24 * 2**30, "memory_per_gpu_bytes": 12 * 2**30,
        "default_gpus": None, "priority": "normal",
        "max_priority": None, "acquire": "first-use", "no_gpu": "error", "no_manager": "wait",
        "users": [], "groups": [],
        "enforce": None, "compute_percent": None, "task_class": "normal", "idle_ms": None,
        "when_idle": "keep", "max_keep_ms": 8 * 3_600_000, **changes,
    }  # fmt: skip


def status(env: str = "alice", **changes: Any) -> dict[str, Any]:
    """A status as the manager tells it: one GPU, one env, one task, one waiter."""
    return {
        "schema_version": 1,
        "placement": {
            "setting": "auto", "in_force": "spread", "meaning": "most remaining memory first",
            "fault": None,
        },
        "gpus": [
            {"index": 0, "uuid": "GPU-0", "name": "Sim", "memory_total_bytes": 16 * 2**30,
                "memory_granted_bytes": 12 * 2**30,
             "memory_used_bytes": 2**30, "tasks": 1, "state": "healthy"},
        ],
        "envs": [{"name": env, "quota": quota(env), "gpus": ["GPU-0"],
            "memory_remaining_bytes": 12 * 2**30}],
        "tasks": [
            {"id": "t1", "env": env, "state": "running", "gpus": ["GPU-0"],
                "pids": [1, 2, 3, 4, 5, 6], "command": "python train.py",
             "since": "2026-11-20T10:00:00Z", "duration_seconds": 75, "last_beat_age_seconds": 0,
             "places": [{"pid": 1, "pid_inside": 7, "user": "root", "container": "3f3f",
                 "container_name": "web-1"},
                        {"pid": 2, "pid_inside": None, "user": "eve", "container": None,
                            "container_name": None}]},
        ],
        "queue": [{"id": "r2", "env": env, "gpus": 2, "priority": "normal", "position": 1,
            "reason": "needs 2 GPUs, 1 free",
                   "places": [{"pid": 9, "pid_inside": None, "user": "eve", "container": None,
                       "container_name": None}]}],
        **changes,
    }  # fmt: skip


@dataclass
class RunningManager:
    """A control socket that answers from a table, and has events when they are published.

    It records the orders that it gets. Each connection has a thread.
    """

    run_dir: Path
    answers: dict[str, Any] = field(default_factory=dict)
    """Verb -> result, or the (code, error) of a refusal, or a function of the arguments."""
    orders: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    subscribed: threading.Event = field(default_factory=threading.Event)
    """A reader waits for events."""
    published: list[dict[str, Any]] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _connections: list[socket.socket] = field(default_factory=list)
    _is_over: bool = False

    def reply(self, verb: str, given: dict[str, Any]) -> dict[str, Any]:
        self.orders.append((verb, given))
        if verb == "events":
            return self._events(**given)
        answer = self.answers.get(verb)
        if callable(answer):
            answer = answer(**given)
        if answer is None or isinstance(answer, tuple):
            code, error = answer or ("usage", f"unknown verb {verb}")
            return {"error": error, "code": code}
        return dict(answer)

    def _events(self, *, wait: bool = False, **span: Any) -> dict[str, Any]:
        told = self.answers.get("events", self._published)
        if wait:
            self.subscribed.set()
        with self._changed:
            while True:
                found: dict[str, Any] = told(**span) if callable(told) else told
                if found["events"] or not wait or self._is_over:
                    return found
                self._changed.wait()

    def _published(self, since: int | None = None, limit: int = 1_000) -> dict[str, Any]:
        if since is None:
            return {"events": self.published[-limit:]}
        return {"events": [one for one in self.published if one["sequence"] > since][:limit]}

    def publish(self, event: dict[str, Any]) -> None:
        with self._changed:
            self.published.append(event)
            self._changed.notify_all()

    def start(self) -> None:
        (self.run_dir / "control.sock").unlink(missing_ok=True)
        (self.run_dir / "events.sock").unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as events:
            events.bind(str(self.run_dir / "events.sock"))
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(self.run_dir / "control.sock"))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            sheet = -1
            while packet := connection.recv(wire.PACKET_BYTES):
                message = decode(packet)
                rid, text = message.number("rid"), message.text("argument") or ""
                if message.text("what") == "sheet":
                    sheet = os.memfd_create("sheet")
                    os.truncate(sheet, 2**20)
                    part = wire.encode("PART", rid=rid, index=0, count=1, data="{}")
                    socket.send_fds(connection, [part], [sheet])
                    continue
                if text.startswith("["):
                    text = os.pread(sheet, json.loads(text)[1], 0).decode()
                order = json.loads(text)
                data = json.dumps(self.reply(order["verb"], order["args"])).replace("%", "\\u0025")
                if self._is_over:  # a manager that ended answers no more
                    return
                pages = [data[at : at + 30_000] for at in range(0, len(data), 30_000)]
                for index, page in enumerate(pages):
                    head = f"NODEMGR/1 PART\nrid={rid}\nindex={index}\ncount={len(pages)}\n"
                    connection.send(f"{head}data={page}\n".encode())

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


@pytest.fixture
def manager(short_dir: Path) -> Iterator[RunningManager]:
    """A stand-in for the manager at `short_dir`."""
    stand_in = RunningManager(short_dir)
    stand_in.start()
    yield stand_in
    stand_in.stop()


def event(sequence: int, name: str, **fields: Any) -> dict[str, Any]:
    """An event as the manager publishes it."""
    return {
        "schema_version": 1,
        "sequence": sequence,
        "name": name,
        "time_ns": 1_795 * 10**15,
        "monotonic_ns": sequence,
        **fields,
    }
