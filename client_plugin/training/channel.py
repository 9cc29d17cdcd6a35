"""The worker's connection to the leader agent: memberships in, reports out.

A SOCK_SEQPACKET socket, one JSON object a packet. Knows: the protocol, and which generation comes
next. Must not know: a framework, collectives, the plan.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional

from .. import stderr

SOCKET = "NODEMGR_ELASTIC"
WORKER = "NODEMGR_WORKER"
GPU = "NODEMGR_WORKER_GPU"
"""Empty: a spare, which has no GPU yet."""
LARGEST_PACKET = 1 << 16
SIGNAL_S = 0.2
_AGENT_LOST = 1
"""The exit status of a worker whose agent has gone."""


class GenerationMembers(NamedTuple):
    """The workers of one generation."""

    generation: int
    workers: List[int]
    """The numbers of the workers by rank."""
    store: str

    @property
    def size(self) -> int:
        return len(self.workers)


ALONE = GenerationMembers(0, [0], "")


def parsed(message: Mapping[str, Any]) -> GenerationMembers:
    ranks = sorted(message["workers"], key=lambda each: int(each["rank"]))
    return GenerationMembers(
        int(message["generation"]),
        [int(each["worker"]) for each in ranks],
        str(message["store"]),
    )


class Interrupted(Exception):
    """A wait ended before its condition: another generation, or the agent said `end`."""


class AgentChannel:
    """The connection of this process; a thread of its own receives.

    Generations only rise, and the newest one alone counts. Each `with` block of the script is a
    phase with generations of its own.
    """

    def __init__(self, connection: socket.socket, worker: int) -> None:
        self.worker = worker
        self.changed = threading.Condition()
        self.end: Optional[str] = None
        self.is_over = False
        """The other workers have ended this phase already."""
        self._connection = connection
        self._phase = 0
        self._gpu = ""
        self._newest: Optional[GenerationMembers] = None
        self._urgent = -1
        """The newest generation that holds at once."""
        threading.Thread(target=self._receive, name="nodemgr elastic", daemon=True).start()

    def await_gpu(self) -> str:
        """A spare is as far as it can go without a GPU: the one that it gets.

        Wakes often enough for a signal of the user to end the wait.
        """
        self.send(**{"is": "spare"})
        with self.changed:
            while not self.changed.wait_for(lambda: bool(self._gpu), SIGNAL_S):
                pass
            return self._gpu

    def enter(self) -> None:
        """The next `with` block begins: its model is built."""
        with self.changed:
            self._phase += 1
            self._newest, self._urgent, self.is_over = None, -1, False
        hello = {"is": "hello", "pid": os.getpid(), "form": "inline", "phase": self._phase}
        self.send(**hello)

    def leave(self, is_whole: bool) -> None:
        """The loop of this phase is over; `is_whole`: after its last step."""
        self.send(**{"is": "done" if is_whole else "quit", "phase": self._phase})

    def fail(self, step: int, own: int) -> None:
        """The program has left the block by an exception in `step`, and may or may not end.

        `own`: the same of this worker's own steps. Both count from 1.
        """
        self.send(**{"is": "block failed", "phase": self._phase, "step": step, "own": own})

    def send(self, **message: Any) -> None:
        """Reports never fail: the receiving thread ends the process of a lost agent."""
        with contextlib.suppress(OSError):
            self._connection.send(json.dumps({**message, "worker": self.worker}).encode())

    def newer(self, generation: int) -> Optional[GenerationMembers]:
        newest = self._newest
        return newest if newest is not None and newest.generation > generation else None

    def urgent(self, generation: int) -> Optional[GenerationMembers]:
        """The newest generation, if one after `generation` holds at once."""
        return self._newest if self._urgent > generation else None

    def wait_newer(self, generation: int) -> GenerationMembers:
        with self.changed:
            self.changed.wait_for(
                lambda: self.newer(generation) or self.end is not None or self.is_over
            )
            found = self.newer(generation)
            if self.end is not None or found is None:
                raise Interrupted
            return found

    def wait(self, is_done: Callable[[], bool], generation: int, is_forming: bool) -> None:
        """Waits for a condition that notifies `changed`.

        Interrupted: a newer generation holds at once (or at all, while this one is formed), or the
        training is to end.
        """
        later = self.newer if is_forming else self.urgent
        with self.changed:
            self.changed.wait_for(lambda: is_done() or later(generation) or self.end is not None)
            if not is_done():
                raise Interrupted

    def _receive(self) -> None:
        while True:
            try:
                packet = self._connection.recv(LARGEST_PACKET)
            except OSError:
                packet = b""
            if not packet:
                stderr.say(
                    "elastic: the leader of this task has ended, and this worker ends with it",
                    "the first process of the task has the reason",
                )
                os._exit(_AGENT_LOST)
            with self.changed:
                self._take(json.loads(packet))
                self.changed.notify_all()

    def _take(self, message: Dict[str, Any]) -> None:
        kind, phase = message.get("is"), message.get("phase", self._phase)
        if kind == "gpu":
            self._gpu = str(message["gpu"])
        elif kind == "end":
            self.end = str(message.get("why", ""))
        elif phase == self._phase and kind == "over":
            self.is_over = True
        elif phase == self._phase and kind == "members":
            one = parsed(message)
            if self._newest is None or one.generation > self._newest.generation:
                self._newest = one
                self._urgent = one.generation if message.get("at") == "now" else self._urgent


def announce(variables: Mapping[str, str]) -> None:
    """The leader of an elastic task learns that this worker is to call `elastic(...)`."""
    path = variables.get(SOCKET)
    if not path or variables.get("NODEMGR_OFF") == "1":
        return
    with contextlib.suppress(OSError, ValueError), socket.socket(
        socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC
    ) as connection:
        connection.connect(path)
        word = {"is": "coming", "worker": int(variables.get(WORKER, "0"))}
        connection.send(json.dumps(word).encode())


_channels: List[AgentChannel] = []
_seating = threading.Lock()


def connected(
    variables: Mapping[str, str], put: Callable[[str, str], None]
) -> Optional[AgentChannel]:
    """The connection to the agent that the variables name; None outside of an elastic task.

    A spare waits here for its GPU; `put` sets the variables of it.
    """
    path = variables.get(SOCKET)
    if not path or variables.get("NODEMGR_OFF") == "1":
        return None
    with _seating:
        if not _channels:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
            connection.connect(path)
            _channels.append(AgentChannel(connection, int(variables.get(WORKER, "0"))))
        if variables.get(GPU) == "" and sys.flags.ignore_environment:
            raise SystemExit(0)  # without the hook it has found no GPU: of no use as a spare
        if variables.get(GPU) == "":
            gpu = _channels[0].await_gpu()
            put("CUDA_VISIBLE_DEVICES", gpu)
            put(GPU, gpu)
    return _channels[0]
