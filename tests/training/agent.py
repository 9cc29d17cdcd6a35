"""A leader agent for tests: it speaks the agent's protocol and moves only as the test says.

Workers are forked from a server that has imported PyTorch already. A worker's program reports each
step on a second socket and waits for the answer, so that a test acts at an exact step.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import selectors
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.limits import WAIT_LIMIT_S

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["pytest", "tests.training.preloaded"])
LARGEST_PACKET = 1 << 16
HOLD = object()
"""An answer of `on_step`: the worker waits, and the test is asked again after the next event."""


class Agent:
    """Workers, their connections, and the generations that they were told of."""

    def __init__(
        self, directory: Path, program: Callable[..., None], *arguments: Any, **options: Any
    ) -> None:
        self.members: list[int] = []
        self.generation = 0
        self.is_stopping = False
        self.warm: set[int] = set()
        self.entered: set[int] = set()
        self.gone: dict[int, int] = {}
        self.resized: dict[int, set[int]] = {}
        self.told: dict[int, int] = {}
        """By worker: the newest generation that was sent to it."""
        self.reports: list[dict[str, Any]] = []
        self.messages: list[dict[str, Any]] = []
        self.on_step: Callable[[dict[str, Any]], object] = lambda report: None
        self._held: list[tuple[dict[str, Any], socket.socket]] = []
        self._context = options.pop("context", FORKS)
        self._directory = directory
        self._program, self._arguments, self._options = program, arguments, options
        self._processes: dict[int, Any] = {}
        self._connections: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._paths = [str(directory / name) for name in ("agent", "steps")]
        self._listeners = [self._listener(path) for path in self._paths]
        self._number = 0

    def _listener(self, path: str) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(path)
        listener.listen(64)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        return listener

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.join()
        for each in [*self._connections.values(), *self._listeners]:
            each.close()
        self._selector.close()

    # -- orders of the test --

    def spawn(self, count: int = 1) -> list[int]:
        """Starts workers and waits until each has a model. Not to be called in `on_step`."""
        begun = self.begin(count)
        self.until(lambda: self.warm.issuperset(begun) or any(each in self.gone for each in begun))
        return begun

    def begin(self, count: int) -> list[int]:
        """Starts workers."""
        begun = []
        for _ in range(count):
            number, self._number = self._number, self._number + 1
            variables = {"NODEMGR_ELASTIC": self._paths[0], "NODEMGR_WORKER": str(number),
                         "TEST_STEPS": self._paths[1]}  # fmt: skip
            process = self._context.Process(
                target=self._program,
                args=(variables, *self._arguments),
                kwargs=self._options,
                daemon=True,
            )
            process.start()
            self._processes[number] = process
            self._selector.register(process.sentinel, selectors.EVENT_READ, (self._ended, number))
            begun.append(number)
        return begun

    def enter(self, members: list[int], *, now: bool = False) -> int:
        """A new generation of these members; returns its number."""
        self.generation += 1
        concerned = [*self.members, *(each for each in members if each not in self.members)]
        self.members = list(members)
        self.entered.update(members)
        message = {
            "is": "members",
            "generation": self.generation,
            "workers": [{"worker": w, "rank": r, "gpu": ""} for r, w in enumerate(members)],
            "store": str(self._directory / f"store.{self.generation}"),
            "root": members[0] if members else -1,
            "at": "now" if now else "boundary",
            "phase": 1,
        }
        for worker in concerned:
            self._send(worker, message)
            self.told[worker] = self.generation
        return self.generation

    @property
    def is_formed(self) -> bool:
        """Whether the newest generation is: a planned change waits for that."""
        return self.resized.get(self.generation, set()).issuperset(self.members)

    def kill(self, worker: int) -> None:
        self._processes[worker].kill()

    def end_all(self) -> None:
        for worker in list(self._connections):
            self._send(worker, {"is": "end", "why": "the test says so"})

    def until(self, is_done: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_LIMIT_S
        while not is_done():
            assert time.monotonic() < deadline_s, f"a hang: {self.messages[-20:]}"
            self.turn(1.0)

    def turn(self, seconds: float) -> None:
        """The events of the next moment."""
        held, self._held = self._held, []
        for report, connection in held:
            self._answer(report, connection)
        for key, _ in self._selector.select(seconds):
            act = key.data
            act[0](act[1]) if isinstance(act, tuple) else act(key.fileobj)

    @property
    def living(self) -> list[int]:
        return [number for number in self._processes if number not in self.gone]

    def until_all_ended(self) -> None:
        self.until(lambda: len(self.gone) == len(self._processes))

    # -- events --

    def _send(self, worker: int, message: dict[str, Any]) -> None:
        with contextlib.suppress(KeyError, OSError):
            self._connections[worker].send(json.dumps(message).encode())

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        self._selector.register(connection, selectors.EVENT_READ, self._read)

    def _read(self, connection: socket.socket) -> None:
        try:
            packet = connection.recv(LARGEST_PACKET)
        except ConnectionError:
            packet = b""
        if not packet:
            self._selector.unregister(connection)
            connection.close()
            return
        message = json.loads(packet)
        if message["is"] == "step":
            self.reports.append(message)
            self._answer(message, connection)
            return
        self.messages.append(message)
        self._take(message, connection)

    def _answer(self, report: dict[str, Any], connection: socket.socket) -> None:
        if self.on_step(report) is HOLD:
            self._held.append((report, connection))
            return
        word = "stop" if self.is_stopping else "go"
        with contextlib.suppress(OSError):
            connection.send(f"{word} {self.told[report['worker']]}".encode())

    def _take(self, message: dict[str, Any], connection: socket.socket) -> None:
        if message["is"] == "hello":
            self.warm.add(message["worker"])
            self._connections[message["worker"]] = connection
        elif message["is"] == "resized":
            self.resized.setdefault(message["generation"], set()).add(message["worker"])
        elif message["is"] == "failed" and message["generation"] == self.generation:
            self.enter(self.members, now=True)
        elif message["is"] == "done":
            self._drop_joiners(message["worker"])

    def _drop_joiners(self, ended: int) -> None:
        """As the plan does: the newest generation came too late for the training that ended."""
        if ended in self.resized.get(self.generation, set()):
            return
        formed = set().union(*self.resized.values())
        joiners = [each for each in self.members if each not in formed]
        self.members = [each for each in self.members if each in formed]
        for each in joiners:
            self.kill(each)

    def _ended(self, worker: int) -> None:
        process = self._processes[worker]
        self._selector.unregister(process.sentinel)
        process.join()
        self.gone[worker] = process.exitcode
        self.warm.discard(worker)
        if worker in self.members:
            rest = [each for each in self.members if each != worker]
            if process.exitcode == 0 or not rest:  # it has completed the training
                self.members = rest
            else:
                self.enter(rest, now=True)


class Reporter:
    """The worker's end of the socket of steps."""

    def __init__(self, variables: dict[str, str]) -> None:
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.connect(variables["TEST_STEPS"])

    def report(self, run: Any, **report: Any) -> str:
        """The answer. The worker then knows all generations that the agent has sent to it.

        On a busy machine its receiving thread may not run for as long as many steps take.
        """
        said = {"is": "step", "pid": os.getpid(), "worker": int(os.environ["NODEMGR_WORKER"])}
        self._connection.send(json.dumps({**said, **report}).encode())
        word, _, told = self._connection.recv(32).decode().partition(" ")
        if told:
            with run._channel.changed:
                run._channel.changed.wait_for(lambda: run._channel.newer(int(told) - 1))
        return word
