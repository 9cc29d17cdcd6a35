"""One head and several managers as processes, with a proxy before the head for each node.

Each job writes a line with its number when it begins. All that a test does until an effect is
awaited, and no time is assumed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from client_plugin.ways.choice import UserWay
from client_plugin.ways.control import ControlConnection
from client_plugin.ways.faults import Exit, Fault, Lost
from tests.edge.links.wire import Wire
from tests.session import TMP, remove
from tests.support.limits import WAIT_LIMIT_S, until
from tests.support.manager import PROGRAM, ROOT, Manager

USER = pwd.getpwuid(os.getuid()).pw_name
ENV = "team"
CALL_LIMIT_S = 5.0
QUICK = {
    "NODEMGR_REQUEUE_PAUSE_MS": "20", "NODEMGR_MAX_REQUEUE_PAUSE_MS": "200",
    "NODEMGR_CLUSTER_USERS": USER,
}  # fmt: skip


class Head:
    """The head's program on one directory."""

    def __init__(self, directory: Path, name: str = "hq", program: Sequence[str] = PROGRAM) -> None:
        self.directory, self.run_dir, self.program = directory, Path(f"{directory}-run"), program
        self.process: subprocess.Popen[str] | None = None
        self.says("setup", "--name", name, "--address", "127.0.0.1:1")
        settings = directory / "settings.json"
        settings.write_text(settings.read_text().replace("127.0.0.1:1", "127.0.0.1:0"))

    def says(self, verb: str, *words: str) -> str:
        done = subprocess.run(
            [*self.program, "head", verb, *words, "--dir", str(self.directory)],
            capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False, cwd=ROOT,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self) -> None:
        log = open(f"{self.directory}.log", "a+")  # noqa: SIM115
        at = log.seek(0, os.SEEK_END)
        self.process = subprocess.Popen(
            [*self.program, "head", "serve", "--dir", str(self.directory), "--run-dir",
             str(self.run_dir)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True, cwd=ROOT,
        )  # fmt: skip

        def address() -> str:
            assert self.process is not None
            assert self.process.poll() is None, self.log
            with open(f"{self.directory}.log") as said:
                said.seek(at)
                _, sign, rest = said.read().partition("nodes reach it at ")
            return rest.split("\n")[0] if sign and "\n" in rest else ""

        self.address = until(address)
        log.close()

    @property
    def log(self) -> str:
        return Path(f"{self.directory}.log").read_text()

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def call(self, verb: str, **given: Any) -> dict[str, Any]:
        with ControlConnection(self.run_dir, timeout_s=WAIT_LIMIT_S) as client:
            answer: dict[str, Any] = client.call(verb, **given)
        return answer


class Site:
    """A head, its nodes, and what its user has submitted."""

    def __init__(self, nodes: int = 3, simulate: str = "4x8GiB", programs: Sequence[
        Sequence[str]] = ()) -> None:  # fmt: skip
        """`programs`: those of the first nodes, in place of this version's."""
        self.directory = Path(tempfile.mkdtemp(prefix="nmc", dir=TMP))
        self.directory.chmod(0o755)
        self.marks = self.directory / "marks"
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.head = Head(self.directory / "head")
        self.head.start()
        self.nodes: dict[str, Manager] = {}
        self.wires: dict[str, Wire] = {}
        self.count = 0
        try:
            for number in range(nodes):
                program = programs[number] if number < len(programs) else None
                folder = Path("/") if program else ROOT
                node = Manager(simulate, environment=QUICK, program=program, folder=folder)
                self.nodes[f"gn{number + 1}"] = node.start(wait=False)
            self.head.call("env_set", env=ENV, gpus=1_000, users=[USER])
            for name, node in self.nodes.items():
                node.wait_for_line("ready on ")
                self.join(name)
        except BaseException:
            self.close()
            raise

    def do(self, action: Callable[[], Any]) -> Any:
        """In the loop of the wires."""

        async def run() -> Any:
            return action()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(WAIT_LIMIT_S)

    def join(self, name: str, *, take_over: bool = False) -> None:
        node = self.nodes[name]
        wire = self.wires[name] = asyncio.run_coroutine_threadsafe(
            Wire.begun(self.loop, lambda: self.head.address), self.loop
        ).result(WAIT_LIMIT_S)
        word = self.head.call("node_word", node=name)["word"]
        said = {"address": wire.address, "word": word, "node": name, "take_over": take_over}
        node.call("node_join", **said)
        self.until_up(name)

    # -- what is seen --

    def row(self, name: str) -> dict[str, Any]:
        return self.head.call("node_show", node=name)

    def until_up(self, *names: str) -> None:
        """Each node speaks, and has the environment's quota."""
        for name in names or self.nodes:
            until(lambda name=name: self.row(name)["up"], f"{name} is not up")
            until(lambda name=name: self.nodes[name].env_dir(ENV).exists(), f"{name} has no {ENV}")

    def queue(self) -> list[dict[str, Any]]:
        rows, after = [], None
        while True:
            page = self.head.call("cluster_queue", after=after, limit=200)
            rows += page["queue"]
            if (after := page["after"]) is None:
                return rows

    def history(self) -> dict[str, dict[str, Any]]:
        rows, before = [], None
        while True:
            page = self.head.call("cluster_history", before=before, limit=200)
            rows += page["history"]
            if (before := page["before"]) is None:
                return {row["job"]: row for row in rows}

    def begun(self) -> Counter[int]:
        text = self.marks.read_text() if self.marks.exists() else ""
        return Counter(map(int, text.split()))

    # -- jobs --

    def submit(
        self, script: str = "", name: str | None = None, count: int = 1, gpus: int = 1,
        array: int = 0, **more: Any,
    ) -> list[str]:  # fmt: skip
        """As a client that repeats its order until it is answered. `array`: each is one of so many.

        Each job, and each job of an array, writes a number of its own.
        """
        jobs = []
        for _ in range(count):
            number = self.count + 1
            self.count += array or 1
            node = self.nodes[name or f"gn{1 + number % len(self.nodes)}"]
            number_of = '"$(($0 + ${NODEMGR_ARRAY_INDEX:-0}))"'
            text = f"echo {number_of} >> {self.marks}; {script or 'exit 0'}"
            argv = ["/bin/sh", "-c", text, str(number)]
            said = {
                "argv": argv, "cwd": "/", "environ": ["PATH=/usr/bin:/bin"], "gpus": gpus,
                "key": f"{number:032x}",
            } | more  # fmt: skip
            if array:
                of = self._submitted(node, {**said, "array": [[0, array - 1]]})
                jobs += [f"{of}.{index}" for index in range(array)]
            else:
                jobs.append(self._submitted(node, said))
        return jobs

    def _submitted(self, node: Manager, said: dict[str, Any]) -> str:
        deadline = time.monotonic() + WAIT_LIMIT_S
        while True:
            try:
                way = UserWay(node.env_dir(ENV))
                return str(way.ask("job_submit", timeout_s=CALL_LIMIT_S, **said)["job"])
            except Fault as fault:
                away = isinstance(fault, Lost) or fault.code == Exit.UNREACHABLE
                if not away or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def gate(self, name: str) -> tuple[str, Path]:
        """A script that waits until the file is there, and the file."""
        path = self.directory / name
        return f"until [ -e {path} ]; do sleep 0.05; done", path

    def until_ended(self, *jobs: str) -> dict[str, dict[str, Any]]:
        """Their rows in the history. The head may be killed meanwhile: its nodes tell it."""

        def ended() -> dict[str, dict[str, Any]] | None:
            rows = self.history()
            return rows if set(jobs) <= rows.keys() else None

        return until(ended, f"{jobs[:5]} do not end")  # type: ignore[no-any-return]

    def until_begun(self, count: int) -> None:
        until(lambda: len(self.begun()) >= count, f"{count} do not begin")

    def settled(self) -> None:
        """The books of head and nodes are equal: nobody has anything of the cluster any more."""
        self.until_up()
        until(lambda: not self.queue())

        def is_clean() -> bool:
            head = self.row_of_head()
            return all(
                not node.call("job_assigned", head=head)["assigned"] for node in self.nodes.values()
            )

        until(is_clean, "answers are left on nodes")

    def row_of_head(self) -> str:
        return str(self.head.call("node_list")["head"])

    # -- failures --

    def supervisors(self, name: str) -> list[int]:
        found = []
        for claim in (self.nodes[name].state_dir / "jobs").glob("*/*/claim.[0-9]*"):
            pid, ticks = claim.name.split(".")[1:3]
            if _born(int(pid)) == ticks:
                found.append(int(pid))
        return found

    def restart_head(self) -> None:
        self.head.kill()
        self.head.start()

    def restart_node(self, name: str) -> None:
        self.nodes[name].kill()
        self.nodes[name].start()

    @contextlib.contextmanager
    def stopped(self, signal_to: Callable[[signal.Signals], None]) -> Iterator[None]:
        signal_to(signal.SIGSTOP)
        try:
            yield
        finally:
            signal_to(signal.SIGCONT)

    def stop_node(self, name: str) -> Callable[[signal.Signals], None]:
        return lambda number: os.kill(self.nodes[name].pid, number)

    @contextlib.contextmanager
    def cut(self, name: str) -> Iterator[None]:
        """The node's way to the head swallows all."""
        wire = self.wires[name]
        wire.is_silent = True
        try:
            yield
        finally:
            wire.is_silent = False

    def close(self) -> None:
        self.head.kill()
        for node in self.nodes.values():
            node.close()
        for wire in self.wires.values():
            asyncio.run_coroutine_threadsafe(wire.ended(), self.loop).result(WAIT_LIMIT_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(WAIT_LIMIT_S)
        self.loop.close()
        remove(self.directory)


def _born(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except OSError:
        return ""


@contextlib.contextmanager
def site(nodes: int = 3, **more: Any) -> Iterator[Site]:
    made = Site(nodes, **more)
    try:
        yield made
    finally:
        made.close()


def submitted_as(
    uid: int, node: Manager, number: int, script: str,
    environ: Sequence[str] = ("PATH=/usr/bin:/bin",),
) -> str:  # fmt: skip
    """A job of another user, who needs no Python of its own for that."""
    said = {
        "argv": ["/bin/sh", "-c", script], "cwd": "/", "environ": [*environ], "gpus": 1,
        "key": f"{10**6 + number:032x}",
    }  # fmt: skip
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            job = UserWay(node.env_dir(ENV)).ask("job_submit", **said)["job"]
            os.write(write, str(job).encode())
        except BaseException as fault:
            os.write(write, repr(fault).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as answer:
        job = answer.read()
    os.waitpid(child, 0)
    assert job[:1] == "c", job
    return job
