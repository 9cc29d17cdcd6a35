"""Worker processes: their environment, their start, signals to them, their end.

Each worker is a process group of its own; it is killed by the kernel when the leader ends, and its
group by the guard. The leader is a subreaper: processes that a worker leaves behind come to it, and
it kills them.

Knows: processes. Must not know: why one is started or killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
from typing import Dict, List, Mapping, Sequence, Tuple

from .orders import StartWorker
from .ports import LOOPBACK
from .relay import Relay

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
FOREIGN = ("NODEMGR_GPUS", "NODEMGR_VISIBLE", "TF_CONFIG", "TORCHELASTIC_ERROR_FILE")
"""Variables of the leader's request, or of another launcher around it: no worker's."""
MAX_RESTARTS = "3"
GUARD = """
groups=
while read -r word group; do
  rest=
  for each in $groups; do [ "$each" = "$group" ] || rest="$rest $each"; done
  [ "$word" = end ] || rest="$rest $group"
  groups=$rest
done
for each in $groups; do kill -KILL "-$each"; done
"""
"""For the shell: the groups of running workers are killed at the end of its input."""


def free_port() -> int:
    """A TCP port of the loopback address that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def variables(
    base: Mapping[str, str], order: StartWorker, *, token: str, path: str, ports: Sequence[int]
) -> Dict[str, str]:
    """A worker's environment: that of one of torchrun's nodes with one GPU each.

    `path`: the leader's socket. `ports`: the round's, by rank. LOCAL_RANK is 0 because the worker
    sees one GPU. A round's workers have TensorFlow's form of it too.
    """
    own = {name: value for name, value in base.items() if name not in FOREIGN}
    own.setdefault("OMP_NUM_THREADS", "1")
    own.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if order.round:
        own["TF_CONFIG"] = _tf_config(order.rank, ports[1:])
    rank, size = str(order.rank), str(order.size)
    own.update(
        CUDA_VISIBLE_DEVICES=order.gpu, CUDA_DEVICE_ORDER="PCI_BUS_ID", NODEMGR_TASK=token,
        NODEMGR_WORKER_GPU=order.gpu, NODEMGR_WORKER=str(order.worker), NODEMGR_ELASTIC=path,
        RANK=rank, WORLD_SIZE=size, LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
        GROUP_RANK=rank, GROUP_WORLD_SIZE=size, ROLE_RANK=rank, ROLE_WORLD_SIZE=size,
        ROLE_NAME="default", MASTER_ADDR=LOOPBACK, MASTER_PORT=str(ports[0]),
        TORCHELASTIC_RUN_ID=token, TORCHELASTIC_MAX_RESTARTS=MAX_RESTARTS,
        TORCHELASTIC_RESTART_COUNT=str(max(0, order.round - 1)),
        TORCHELASTIC_USE_AGENT_STORE="False",
    )  # fmt: skip
    return own


def _tf_config(rank: int, ports: Sequence[int]) -> str:
    """The cluster of tf.distribute: one worker for each GPU."""
    addresses = [f"{LOOPBACK}:{port}" for port in ports]
    return json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}})


class _Guard:
    """A process that survives the leader, and kills what a killed leader leaves behind.

    The kernel's signal reaches the workers alone, not the programs that a script of them started.
    """

    def __init__(self) -> None:
        reader, self._writer = os.pipe()
        with contextlib.suppress(OSError):  # without a shell the kernel's signal has to do
            guard = subprocess.Popen(
                ["/bin/sh", "-c", GUARD], stdin=reader, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, env={}, cwd="/", start_new_session=True,
            )  # fmt: skip
            guard.returncode = 0  # the leader kills it with its other children
        os.close(reader)

    def note(self, word: str, group: int) -> None:
        """`begin` or `end`, of a worker's process group."""
        with contextlib.suppress(OSError):
            os.write(self._writer, f"{word} {group}\n".encode())


class Workers:
    """The processes of one leader, by the workers' numbers."""

    def __init__(self, command: List[str], relay: Relay) -> None:
        self._command = command
        self._relay = relay
        self._pids: Dict[int, int] = {}
        self._is_paused = False
        self._leader = os.getpid()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._guard = _Guard()

    def pids(self) -> List[int]:
        return list(self._pids.values())

    def start(self, number: int, environment: Dict[str, str]) -> None:
        """Raises OSError. Worker 0 has the leader's own terminal, where there is one."""
        out, err = (
            None if number == 0 and os.isatty(descriptor) else subprocess.PIPE
            for descriptor in (1, 2)
        )  # fmt: skip
        process = subprocess.Popen(
            self._command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            preexec_fn=self._tie,
        )  # fmt: skip
        self._pids[number] = process.pid
        self._guard.note("begin", process.pid)
        process.returncode = 0  # it is waited for here, not by its object
        for stream, target in ((process.stdout, 1), (process.stderr, 2)):
            if stream is not None:
                self._relay.take(number, os.dup(stream.fileno()), target)
                stream.close()

    def send(self, number: int, signum: int) -> None:
        """To the worker's process group. A stopped group is continued, so that it ends."""
        if number in self._pids:
            for each in (signum, signal.SIGCONT):
                _signal_group(self._pids[number], each)

    def pause(self, signum: int) -> None:
        """Stop or continue all workers."""
        self._is_paused = signum == signal.SIGSTOP
        for pid in self._pids.values():
            _signal_group(pid, signum)

    def reap(self) -> List[Tuple[int, int]]:
        """Numbers and codes of workers that have ended; the rests of their groups are killed."""
        ended = []
        while (pid := _waited(os.WEXITED | os.WNOWAIT)) != 0:
            number = next((n for n, known in self._pids.items() if known == pid), None)
            if number is not None:
                _signal_group(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            if number is not None:
                self._guard.note("end", pid)
                del self._pids[number]
                code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                ended.append((number, code))
        return ended

    def stopped(self) -> List[Tuple[int, int]]:
        """Numbers and process ids of workers that another process has stopped."""
        found = []
        while (pid := _waited(os.WSTOPPED)) != 0:
            number = next((n for n, known in self._pids.items() if known == pid), None)
            if number is not None and not self._is_paused:
                found.append((number, pid))
        return found

    def clear(self) -> None:
        """Kill every process that is still below the leader, and wait for their ends."""
        for pid in self._pids.values():
            _signal_group(pid, signal.SIGKILL)
        while children := _children():
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            for pid in children:
                os.waitpid(pid, 0)
        self._pids.clear()

    def _tie(self) -> None:
        """In the child, before the command: a group of its own, an end with the leader's end."""
        os.setpgid(0, 0)
        self._libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != self._leader:
            os._exit(1)


def _signal_group(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signum)


def _waited(change: int) -> int:
    """A child with this change of its state (options of waitid); 0: none."""
    try:
        found = os.waitid(os.P_ALL, 0, change | os.WNOHANG)
    except ChildProcessError:
        return 0
    return 0 if found is None else found.si_pid


def _children() -> List[int]:
    """The children of this process, adopted ones included."""
    own, found = os.getpid(), []
    for name in os.listdir("/proc"):
        if name.isdigit() and _parent(name) == own:
            found.append(int(name))
    return found


def _parent(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b") ")[2].split()[1])
    except (OSError, IndexError):
        return 0
