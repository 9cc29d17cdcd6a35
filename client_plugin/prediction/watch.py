"""Runs a command in predict mode until it has shown enough, and ends all its processes.

Knows: processes, the directory of outcomes, confinement. Must not know: frameworks, output. The
result comes through a pipe from the watching process, which ends with this one.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import select
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from typing import Any, Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Set

from . import confinement, isolation, outcome

POLL_S = 0.05
GRACE_S = 1.0
"""After the first outcome, for the other processes of the command."""
GO_ON_PART = 1 / 6
"""Of the limit: a program may go on for so long after two steps."""
MAX_TAIL_BYTES = 65_536
PR_SET_CHILD_SUBREAPER = 36
RANK = re.compile(r"^\[rank\d+\]: ?")
LOGGED = re.compile(r"^[IWE]\d{4} [\d:.]+ ")
"""Lines of TensorFlow's own log."""
EXCEPTION = re.compile(
    r"^(?!.*(ChildFailed|CalledProcess|ProcessRaised)Error)[\w.]+(Error|Exception): "
)
"""The last line of a traceback. Those of launchers only say that a child of theirs failed."""


class WatchOrder(NamedTuple):
    """The command and its surroundings."""

    command: List[str]
    program: str
    variables: Dict[str, str]
    limit_s: float
    is_confined: bool


class Watched(NamedTuple):
    """The end of a watched command."""

    outcomes: Dict[str, Any]
    exit_status: Optional[int]
    """As of waitpid; None: it was ended here."""
    last_line: str
    """The last line of its stderr, else of its stdout."""
    written: List[str]
    fault: str
    """Why it was not started."""


def watch(order: WatchOrder) -> Watched:
    """Blocks until the command is over, at most for its limit and a little more."""
    scratch = ScratchDirectory()
    reading, writing = os.pipe()
    others = frozenset(_children())
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(not order.is_confined))
    parent = os.getpid()
    keeper = os.fork()
    if keeper == 0:
        os.close(reading)
        _keep(order, scratch.path, writing, parent)
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as pipe:
            told = pipe.read()
    finally:
        _end(keeper)
        if not order.is_confined:
            _end_descendants(others)  # the command can have ended the keeper
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0)
        scratch.remove()
    if not told:
        return Watched({}, None, "", [], "its process was ended")
    return Watched(**json.loads(told))


class ScratchDirectory:
    """A directory that a process of its own makes, and removes when this one and its forks end.

    They hold a pipe to it. It has its own session, so that no signal of a terminal ends it.
    """

    def __init__(self) -> None:
        """Raises OSError."""
        reading, self._held = os.pipe()
        answer, answering = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._held)
            _keep_directory(reading, answering)
        os.close(reading)
        os.close(answering)
        with os.fdopen(answer) as pipe:
            number, _, self.path = pipe.read().partition(" ")
        if number != "0":
            self.remove()
            raise OSError(int(number or errno.EIO), os.strerror(int(number or errno.EIO)))

    def remove(self) -> None:
        os.close(self._held)
        with suppress(ChildProcessError):  # SIGCHLD is ignored: the kernel waited for it
            os.waitpid(self._pid, 0)


def _keep_directory(holders: int, answering: int) -> None:
    """Until the last holder of the pipe has ended. Never returns."""
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):  # a reader of the verb's output does not wait for this process
            os.dup2(nothing, stream)
        with os.fdopen(answering, "w") as pipe:
            try:
                path = tempfile.mkdtemp(prefix="nodemgr-predict-")
            except OSError as error:
                pipe.write(str(error.errno))
                return
            pipe.write(f"0 {path}")
        os.read(holders, 1)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os._exit(0)


def _end(keeper: int) -> None:
    """The first process of the namespaces ends with it, and the kernel ends all others there."""
    os.kill(keeper, signal.SIGKILL)  # it may have ended: it was not waited for
    os.waitpid(keeper, 0)


def _keep(order: WatchOrder, scratch: str, writing: int, parent: int) -> None:
    """In the child: makes the namespaces, and waits for their first process. Never returns."""
    code = 1
    try:
        confinement.end_with_parent(signal.SIGKILL)
        _end_if(os.getppid() != parent)
        if not order.is_confined:
            told = _run(order, scratch, [])
        else:
            own = confinement.own_roots(os.getcwd(), os.geteuid())
            hidden = isolation.sockets()
            roots = own if confinement.unshare() else None
            confinement.end_with_parent(signal.SIGKILL)  # a new user namespace forgets it
            _end_if(os.getppid() != parent)
            lives, held = os.pipe()
            first = os.fork()
            if first:
                os.waitpid(first, 0)
                os._exit(0)
            os.close(held)
            confinement.end_with_parent(signal.SIGKILL)
            _end_if(bool(select.select([lives], [], [], 0)[0]))  # its parent has no PID here
            os.close(lives)
            searched = order.variables.get("PATH", "").split(":")
            needed = [os.path.dirname(order.program), *filter(None, searched)]
            layers = confinement.confine(scratch, roots, hidden, needed)
            told = _run(order, scratch, layers)
        code = 0
    except OSError as error:
        told = Watched({}, None, "", [], f"{error.strerror or error}")
    except BaseException as error:
        told = Watched({}, None, "", [], f"{type(error).__name__}: {error}")
    try:
        with os.fdopen(writing, "w") as pipe:
            json.dump(told._asdict(), pipe)
    finally:
        os._exit(code)


def _end_if(is_orphan: bool) -> None:
    """A parent that ended before its child asked for the signal sends none."""
    if is_orphan:
        os._exit(1)


def _run(order: WatchOrder, scratch: str, layers: List[Any]) -> Watched:
    outcomes = os.path.join(scratch, "outcomes")
    os.mkdir(outcomes)
    os.chdir(os.getcwd())  # into the overlay
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    started_s = time.monotonic()
    outputs = [OutputTail(), OutputTail()]
    child = _start(order, outputs, outcomes)
    status = None
    enough_s = None
    while time.monotonic() - started_s < order.limit_s:
        pid, code = os.waitpid(child, os.WNOHANG)
        if pid:
            status = code
            break
        if enough_s is None and any(map(outcome.is_final, outcome.read_all(outcomes).values())):
            enough_s = time.monotonic() + GRACE_S
        if enough_s is not None and time.monotonic() >= enough_s:
            break
        _read_for(POLL_S, outputs)
    _read_for(0.0, outputs)
    found = outcome.read_all(outcomes)
    if not layers:
        _end_descendants(frozenset())
    texts = [output.text() for output in reversed(outputs)]
    return Watched(found, status, last_line(texts), confinement.written(layers), "")


class OutputTail:
    """The end of a stream of the command. No more is kept, however much it writes."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)
        self._tail = b""

    def read(self) -> bool:
        """Whether there may be more."""
        try:
            fresh = os.read(self.reading, MAX_TAIL_BYTES)
        except BlockingIOError:
            return True
        self._tail = (self._tail + fresh)[-MAX_TAIL_BYTES:]
        return bool(fresh)

    def text(self) -> str:
        return self._tail.decode(sys.getfilesystemencoding(), "replace")


def _read_for(seconds: float, outputs: List[OutputTail]) -> None:
    """At least once; what the command writes meanwhile is taken."""
    until_s = time.monotonic() + seconds
    open_outputs = [one for one in outputs if one.read()]
    while (left_s := until_s - time.monotonic()) > 0:
        ready, _, _ = select.select([one.reading for one in open_outputs], [], [], left_s)
        open_outputs = [one for one in open_outputs if one.reading not in ready or one.read()]


def _start(order: WatchOrder, outputs: List[OutputTail], outcomes: str) -> int:
    parent = os.getpid()
    child = os.fork()
    if child:
        for output in outputs:
            os.close(output.writing)
        return child
    try:
        confinement.end_with_parent(signal.SIGKILL)
        _end_if(os.getppid() != parent)
        os.setsid()
        _redirect(os.open(os.devnull, os.O_RDONLY), 0)
        for stream, output in enumerate(outputs, start=1):
            _redirect(output.writing, stream)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        if order.is_confined:
            isolation.give_up_rights()
        told = {
            outcome.VARIABLE: outcomes,
            outcome.CONFINED: str(int(order.is_confined)),
            outcome.GO_ON_S: str(order.limit_s * GO_ON_PART),
        }
        os.execve(order.program, order.command, {**order.variables, **told})
    except BaseException as error:
        os.write(2, str(error).encode())
    finally:
        os._exit(126)


def _redirect(source: int, stream: int) -> None:
    os.dup2(source, stream)
    os.close(source)


def _children() -> Set[int]:
    """PIDs of the children of this process's main thread, and of those that it adopted."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return {int(word) for word in file.read().split()}


def _end_descendants(others: FrozenSet[int]) -> None:
    """Without namespaces: processes that the command left behind are children of this one now.

    `others`: PIDs of the children that this process had before. They are not the command's.
    """
    while True:
        children = _children() - others
        if not children:
            return
        for child in children:
            try:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            except (ProcessLookupError, ChildProcessError):
                continue  # another thread of this process reaped it


def last_line(texts: Sequence[str]) -> str:
    """The line that says most about the end: of the first text with any, the last exception."""
    for text in texts:
        lines = [RANK.sub("", line.strip()) for line in text.split("\n")]
        found = [one for one in lines if any(map(str.isalnum, one)) and not LOGGED.match(one)]
        exceptions = [one for one in found if EXCEPTION.match(one)]
        if found:
            return (exceptions or found)[-1]
    return ""
