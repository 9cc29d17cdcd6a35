"""The cost of 10 000 beats a second from 10 000 tasks.

It is the manager's processor time, and the latency of a status question.

    python bench/beats.py [--tasks 10000] [--rate 10000] [--seconds 10] [--udp]

Each task is a process of its own on the UNIX socket (a connection and a pidfd in the manager), as
many as its descriptors allow; it beats by a word in its env's ledger. With --udp each is a client
id, all in one process, and every beat is signed and answered. The bare reference is a Python loop
of epoll and recv that the same processes send packets to, and that does nothing else. Needs a C
compiler for the beating processes.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import hmac
import os
import resource
import select
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from arguments import parse
from client_plugin.ways.control import ControlConnection
from node import Client, Node, against_target, cpu_s, finish, miss, table

ENV_TASKS = 1_000
"""Below the slots of a ledger."""
TARGET_SHARE = 0.02
TARGET_UDP_SHARE = 0.25
TARGET_STATUS_MS = 20.0
"""For each 1 000 tasks."""
BEATER = Path(__file__).resolve().parent / "programs" / "beater.c"


def most_tasks(wanted: int) -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return min(wanted, (limit - 200) // 2)


class Beaters:
    """Processes that hold leases and beat, started env by env."""

    def __init__(self, program: Path, period_us: int) -> None:
        self._program = program
        self._period_us = period_us
        self._groups: list[subprocess.Popen[bytes]] = []
        self.tasks = 0

    def start(self, path: Path, count: int) -> None:
        """Returns when all of them hold a lease."""
        arguments = [str(path), str(count), str(self._period_us), str(self.tasks + 1)]
        group = subprocess.Popen(
            [self._program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._groups.append(group)
        assert group.stdout is not None
        self.tasks += int(group.stdout.readline())

    def close(self) -> None:
        for group in self._groups:
            group.communicate()


def udp_beats(node: Node, tasks: int, rate: int, stop: threading.Event) -> int:
    """Leases for `tasks` client ids over UDP, then beats of all of them in turn until told.

    Returns the number of leases.
    """
    host, port = node.call("status")["manager"]["udp"].rsplit(":", 1)
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**23)
    sock.connect((host, int(port)))
    clients: list[tuple[bytes, str, str]] = []
    for number in range(tasks):
        env = f"env{number // ENV_TASKS}"
        if number % ENV_TASKS == 0:
            node.call("quota_set", env=env, gpus=1, memory_bytes=64 * 2**30)
            key = bytes.fromhex((node.state_dir / "keys" / env / "key").read_text())
            answer = _asked(sock, key, f"NODEMGR/1 HELLO\nrid=1\nenv={env}\nclient=aa\n", b" EPOCH")
            epoch = answer.split(b"epoch=")[1].split(b"\n")[0].decode()
        head = f"env={env}\nepoch={epoch}\nclient={number:016x}\n"
        clients.append((key, head, f"{number + 1:032x}"))
        ask = f"NODEMGR/1 ACQUIRE\nrid=1\ntask={number + 1:032x}\ngpus=1\nmemory={2**24}\n{head}"
        _asked(sock, key, ask, f"task={number + 1:032x}\n".encode())
    threading.Thread(target=_beat, args=(sock, clients, rate, stop), daemon=True).start()
    return len(node.call("status")["tasks"])


def _asked(sock: socket.socket, key: bytes, text: str, sign: bytes) -> bytes:
    """The answer with `sign` in it.

    The question is repeated without an answer: an env that asks so fast is slowed.
    """
    sock.settimeout(0.2)
    for counter in range(1, 100):
        sock.send(_signed(key, f"{text}counter={counter}\n"))
        with contextlib.suppress(TimeoutError):
            while sign not in (answer := sock.recv(2_000)):
                pass
            return answer
    raise SystemExit("the manager does not answer over UDP")


def _signed(key: bytes, text: str) -> bytes:
    return f"{text}mac={hmac.new(key, text.encode(), hashlib.sha256).hexdigest()}\n".encode()


def _beat(
    sock: socket.socket, clients: list[tuple[bytes, str, str]], rate: int, stop: threading.Event
) -> None:
    counter, next_s = 100, time.monotonic()
    sock.setblocking(False)
    while not stop.is_set():
        counter += 1
        for index, (key, head, token) in enumerate(clients):
            with contextlib.suppress(ConnectionRefusedError):  # the node was stopped meanwhile
                sock.send(
                    _signed(
                        key,
                        f"NODEMGR/1 BEAT\nrid={counter}\ntask={token}\n{head}counter={counter}\n",
                    )
                )
            if index % 100 == 99:
                next_s += 100 / rate
                time.sleep(max(0.0, next_s - time.monotonic()))
                try:
                    while True:
                        sock.recv(2_000)
                except BlockingIOError:
                    pass


class Bare:
    """The least cost of the same beats in Python: processes beat at a loop of epoll and recv."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "bare"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(self.path))
        listener.listen(4_096)
        self._pid = os.fork()
        if self._pid == 0:
            _bare_loop(listener)
        listener.close()

    def cpu_s(self) -> float:
        return cpu_s(self._pid)

    def close(self) -> None:
        os.kill(self._pid, 9)
        os.waitpid(self._pid, 0)


def _bare_loop(listener: socket.socket) -> None:
    epoll, by_fd, last = select.epoll(), {}, {}
    epoll.register(listener.fileno(), select.EPOLLIN)
    while True:
        for fd, _ in epoll.poll():
            if fd == listener.fileno():
                sock, _ = listener.accept()
                by_fd[sock.fileno()] = sock
                epoll.register(sock.fileno(), select.EPOLLIN)
            elif (packet := by_fd[fd].recv(1_201)).startswith(b"NODEMGR/1 BEAT"):
                last[fd] = time.monotonic_ns()
            elif packet:
                by_fd[fd].send(b"NODEMGR/1 GRANT\n")
            else:
                epoll.unregister(fd)
                by_fd.pop(fd).close()


def shares(source: Node | Bare, seconds: int) -> list[float]:
    """Of one core, second by second."""
    found = []
    for _ in range(seconds):
        begin_s, begin_cpu_s = time.monotonic(), source.cpu_s()
        time.sleep(1)
        found.append((source.cpu_s() - begin_cpu_s) / (time.monotonic() - begin_s))
    return found


def status_ms(node: Node, rounds: int) -> dict[str, list[float]]:
    """The time until the answer is there.

    The answers are the whole node's over the control socket, and one env's.
    """
    control = ControlConnection(node.run_dir)
    client = Client(node.env_dir("env0"))
    found: dict[str, list[float]] = {
        "whole node, and parsed": [],
        "an env's own, on its socket": [],
    }
    for number in range(rounds):
        begin_s = time.perf_counter()
        control.call("status")
        found["whole node, and parsed"].append((time.perf_counter() - begin_s) * 1e3)
        begin_s = time.perf_counter()
        client.send("ASK", rid=number, what="status")
        while b"count=" not in (part := client.until("PART")) or not _is_last(part):
            pass
        found["an env's own, on its socket"].append((time.perf_counter() - begin_s) * 1e3)
    control.close()
    return found


def _is_last(part: bytes) -> bool:
    fields = dict(line.split(b"=", 1) for line in part.split(b"\n")[1:4])
    return int(fields[b"index"]) == int(fields[b"count"]) - 1


def main() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--udp", action="store_true")
    parser.add_argument(
        "--settle",
        type=float,
        default=2,
        metavar="SECONDS",
        help="until all beat in their own time",
    )
    options = parse(parser, tasks=20, rate=20, seconds=1, settle=0.2)
    tasks = options.tasks if options.udp else most_tasks(options.tasks)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    period_us = int(tasks / options.rate * 1e6)
    with tempfile.TemporaryDirectory(prefix="nmb", dir="/tmp") as name:
        program = Path(name) / "beater"
        subprocess.run(["cc", "-O2", "-o", program, BEATER], check=True)
        bare, beaters = Bare(Path(name)), Beaters(program, period_us)
        beaters.start(bare.path, tasks)
        time.sleep(options.settle)
        bare_shares = shares(bare, min(5, options.seconds))
        beaters.close()
        bare.close()
        with Node("16x80GiB", "--udp", "127.0.0.1:0") as node:
            measure(node, program, options, tasks, bare_shares)
    return options


def measure(
    node: Node, program: Path, options: argparse.Namespace, tasks: int, bare_shares: list[float]
) -> None:
    stop, beaters = threading.Event(), Beaters(program, int(tasks / options.rate * 1e6))
    if options.udp:
        held = udp_beats(node, tasks, options.rate, stop)
    else:
        for number, first in enumerate(range(0, tasks, ENV_TASKS)):
            node.call("quota_set", env=f"env{number}", gpus=1)
            beaters.start(node.env_dir(f"env{number}") / "socket", min(ENV_TASKS, tasks - first))
        held = beaters.tasks
    time.sleep(options.settle)
    found = shares(node, options.seconds)
    questions = status_ms(node, 15)
    alive = sum(task["state"] == "running" for task in node.call("status")["tasks"])
    stop.set()
    beaters.close()
    over = " over UDP" if options.udp else ""
    print(
        f"{held} tasks hold a lease, {alive} of them are heard of; {options.rate} beats a"
        f" second{over}"
    )
    rows = [
        ("packets, bare epoll + recv", [share * 100 for share in bare_shares]),
        ("manager", [share * 100 for share in found]),
    ]
    table("Share of one core", rows, "%", "packets, bare epoll + recv")
    table("Status questions beside the beats", list(questions.items()), "ms")
    against_target(
        "share of a core",
        statistics.mean(found),
        TARGET_UDP_SHARE if options.udp else TARGET_SHARE,
        "cores",
    )
    against_target(
        "status",
        statistics.median(questions["whole node, and parsed"]),
        TARGET_STATUS_MS * tasks / 1_000,
        "ms",
    )
    if alive != held or held != tasks:
        miss(f"ABOVE: of {tasks} tasks {held} got a lease and {alive} are heard of")


if __name__ == "__main__":
    finish(main())
