"""The duties of every way to execute jobs, on each way: the queue relies on them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodemgr.core.model.entities import Cause, RunSpec
from nodemgr.edge.executor.interface import ExecutorListener, ResourceFactory, RunOrder, Status
from nodemgr.edge.executor.launcher import LauncherEndpoint
from nodemgr.edge.executor.local import NodeFactory
from nodemgr.edge.kernel.processes import ancestors
from tests.edge.hub import turn
from tests.jobs.two_nodes import Cluster, TwoNodes
from tests.session import TMP
from tests.support.limits import WAIT_LIMIT_S
from tests.support.processes import is_running

Make = Callable[[asyncio.AbstractEventLoop, ExecutorListener], ResourceFactory]


class Notes:
    """A listener that writes down what it hears, and whether that came from within a verb."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, int]] = []
        self.ends: dict[tuple[str, int], tuple[Status, str]] = {}
        self.hosts: dict[str, bool] = {}
        self.pids: dict[tuple[str, int], int | None] = {}
        self.in_verb = False

    def started(
        self, job_id: str, attempt: int, pid: int | None, wall_ns: int, boot_ns: int | None = None
    ) -> None:
        assert not self.in_verb
        self.pids[job_id, attempt] = pid
        self.heard.append(("started", job_id, attempt))

    def ended(
        self, job_id: str, attempt: int, status: Status, log_tail: str, wall_ns: int,
        boot_ns: int | None = None,
    ) -> None:  # fmt: skip
        assert not self.in_verb
        self.heard.append(("ended", job_id, attempt))
        self.ends[job_id, attempt] = status, log_tail

    def requeued_before_start(self, job_id: str, attempt: int, why: str) -> None:
        assert not self.in_verb
        self.heard.append(("unbegun", job_id, attempt))

    def launch_host_changed(self, place: str, is_up: bool, why: str) -> None:
        assert not self.in_verb
        self.hosts[place] = is_up


class World:
    """One kind of nodes, and one manager's factory after another on it."""

    def __init__(self, make: Make, directory: Path) -> None:
        self.directory = directory
        self._make = make
        self.begin()

    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.notes = Notes()
        self.factory = self._make(self.loop, self.notes)

    def end(self) -> None:
        """The manager is gone; what runs goes on."""
        self.factory.close()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    def restart(self) -> None:
        self.end()
        self.begin()

    def do(self, verb: str, *arguments: Any) -> Any:
        self.notes.in_verb = True
        try:
            return getattr(self.factory, verb)(*arguments)
        finally:
            self.notes.in_verb = False

    def create(self, script: str, job_id: str = "j1", attempt: int = 1, **changes: Any) -> RunOrder:
        """Begins a shell script."""
        given: dict[str, Any] = {
            "argv": ("/bin/sh", "-c", script),
            "cwd": str(self.directory),
            "run": RunSpec(script, 1, None, changes.pop("time_limit_ms", None)),
            "gpus": ("GPU-0",),
            **changes,
        }
        environ = (
            f"PATH={os.environ['PATH']}",
            f"NODEMGR_JOB={job_id}:{attempt}",
            "GREETING=good day",
        )
        order = RunOrder(
            job_id=job_id,
            attempt=attempt,
            env="alice",
            user="root",
            uid=os.getuid(),
            gid=os.getgid(),
            environ=environ,
            **given,
        )
        self.do("create", order)
        return order

    def until_ended(self, job_id: str = "j1", attempt: int = 1) -> tuple[Status, str]:
        turn(self.loop, lambda: (job_id, attempt) in self.notes.ends, WAIT_LIMIT_S)
        return self.notes.ends[job_id, attempt]

    def until_said(self, word: str, job_id: str = "j1") -> None:
        """Until the job's log says so."""
        turn(self.loop, lambda: word in self.log(job_id), WAIT_LIMIT_S)

    def log(self, job_id: str, attempt: int | None = None) -> str:
        with (
            contextlib.suppress(FileNotFoundError),
            open(self.do("logs", job_id, attempt), "rb") as log,
        ):
            return log.read().decode()
        return ""


@contextlib.contextmanager
def two_nodes(directory: Path) -> Iterator[Make]:
    cluster = Cluster(directory / "cluster")
    yield lambda loop, listener: TwoNodes(loop.call_soon_threadsafe, listener, cluster)
    cluster.close()


@contextlib.contextmanager
def this_node(directory: Path) -> Iterator[Make]:
    jobs_dir = directory / "jobs"
    jobs_dir.mkdir(mode=0o700)
    yield lambda loop, listener: NodeFactory(loop, listener, jobs_dir, LauncherEndpoint(jobs_dir))


KINDS = {"two nodes": two_nodes, "this node": this_node}


@pytest.fixture(params=list(KINDS))
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with (
        tempfile.TemporaryDirectory(prefix="nm", dir=TMP) as name,
        KINDS[request.param](Path(name)) as make,
    ):
        world = World(make, Path(name))
        world.do("adopt", [])
        yield world
        world.end()


def test_a_job_runs_and_its_end_is_told_with_what_it_said(world: World) -> None:
    world.create('echo "$GREETING"; echo trouble >&2; cat; exit 3')
    status, tail = world.until_ended()
    assert (status.state, status.exit_code, status.signal, status.cause) == (
        "ended",
        3,
        None,
        Cause.OWN,
    )
    assert tail == "good day\ntrouble\n"
    assert world.notes.heard == [("started", "j1", 1), ("ended", "j1", 1)]
    assert world.log("j1", 1) == tail


def test_it_is_begun_once_however_often_that_is_said(world: World) -> None:
    for _ in range(3):
        world.create(f"echo once >> {world.directory}/marks")
    world.until_ended()
    world.create(f"echo once >> {world.directory}/marks")
    world.create("true", "j2")
    world.until_ended("j2")
    assert (world.directory / "marks").read_text() == "once\n"


def test_its_room_is_that_of_the_output_of_all_its_starts(world: World) -> None:
    assert world.do("room_bytes", "j1") == 0
    for attempt, size in ((1, 5_000), (2, 70)):
        world.create(f"head -c {size} /dev/zero", attempt=attempt)
        world.until_ended(attempt=attempt)
    block_bytes = os.statvfs(world.directory).f_frsize  # the node counts whole blocks
    most_files = 5  # of each attempt: the log and the small files beside it
    assert 5_070 <= world.do("room_bytes", "j1") < 5_070 + 2 * most_files * block_bytes
    world.do("delete", "j1")
    assert world.do("room_bytes", "j1") == 0


def test_another_attempt_is_another_start(world: World) -> None:
    for attempt in (1, 2):
        world.create("echo $NODEMGR_JOB", attempt=attempt)
        world.until_ended(attempt=attempt)
    assert (world.log("j1", 1), world.log("j1", 2), world.log("j1")) == (
        "j1:1\n",
        "j1:2\n",
        "j1:2\n",
    )


def test_a_signal_is_told_as_one(world: World) -> None:
    world.create("kill -9 $$")
    status, _ = world.until_ended()
    assert (status.exit_code, status.signal, status.cause) == (None, 9, Cause.OWN)


@pytest.mark.parametrize("changes", [{"argv": ("/nowhere/at/all",)}, {"cwd": "/nowhere/at/all"}])
def test_what_can_never_start_says_so_and_is_hopeless(
    world: World, changes: dict[str, Any]
) -> None:
    world.create("true", **changes)
    status, _ = world.until_ended()
    assert (status.signal, status.cause) == (None, Cause.CANNOT_RUN)
    assert status.exit_code in (None, 126, 127), "what a shell would say, if anything"
    assert status.why
    assert ("started", "j1", 1) not in world.notes.heard


def test_who_is_withdrawn_may_end_by_himself(world: World) -> None:
    world.create("trap 'echo farewell; exit 7' TERM; sleep 600 & echo ready; wait")
    world.until_said("ready")
    world.do("withdraw", "j1", 1, "withdrawn by alice")
    status, tail = world.until_ended()
    assert (status.exit_code, status.why, tail.splitlines()[-1]) == (
        7,
        "withdrawn by alice",
        "farewell",
    )


def test_a_time_limit_ends_it_and_trying_again_cannot_help(world: World) -> None:
    world.create("echo ready; exec sleep 600", time_limit_ms=200)
    status, _ = world.until_ended()
    assert (status.signal, status.cause, "time limit" in status.why) == (15, Cause.TIME_LIMIT, True)


def test_nothing_of_it_runs_when_its_end_is_told(world: World) -> None:
    world.create("sleep 600 & echo $!; exit 0")
    _, tail = world.until_ended()
    assert not is_running(int(tail))


def test_whose_process_it_is_is_told_by_its_ancestors(world: World) -> None:
    """Without a variable of the launcher's own or of an earlier job."""
    os.mkfifo(world.directory / "gate")
    world.create(f"env -i sh -c 'echo $$; read line < {world.directory}/gate'; true")
    world.until_said("\n")
    turn(world.loop, lambda: ("started", "j1", 1) in world.notes.heard, WAIT_LIMIT_S)
    pid = int(world.log("j1"))
    line = ancestors(pid)
    assert world.do("job_of", line) == "j1"
    assert world.do("job_of", ancestors(os.getpid())) is None
    (world.directory / "gate").write_text("go\n")
    world.until_ended()
    assert world.do("job_of", line) is None, "whoever has that PID now"


def test_its_start_and_its_end_name_the_same_process(world: World) -> None:
    os.mkfifo(world.directory / "gate")
    world.create(f"echo ready; read line < {world.directory}/gate")
    world.until_said("ready")
    turn(world.loop, lambda: ("started", "j1", 1) in world.notes.heard, WAIT_LIMIT_S)
    assert world.notes.ends == {}, "it runs"
    pid = world.notes.pids["j1", 1]
    assert pid is not None
    os.kill(pid, 0)
    (world.directory / "gate").write_text("go\n")
    status, _ = world.until_ended()
    assert (status.state, status.pid, status.exit_code) == ("ended", pid, 0)
    assert status.started_wall_ns is not None


def test_each_start_and_each_end_is_reported_once(world: World) -> None:
    world.create("exit 0")
    world.create("exit 1", "j2")
    world.create("true", "j3", argv=("/nowhere/at/all",))
    for job_id in ("j1", "j2", "j3"):
        world.until_ended(job_id)
    assert sorted(world.notes.heard) == [
        ("ended", "j1", 1),
        ("ended", "j2", 1),
        ("ended", "j3", 1),
        ("started", "j1", 1),
        ("started", "j2", 1),
    ]
    exits = [world.notes.ends[job_id, 1][0].exit_code for job_id in ("j1", "j2")]
    assert exits == [0, 1]
    assert world.notes.ends["j3", 1][0].exit_code != 0, "it never ran"


def test_the_log_of_a_running_job_is_read_as_it_grows_and_is_not_written_to(world: World) -> None:
    os.mkfifo(world.directory / "gate")
    world.create(f"echo first; read line < {world.directory}/gate; echo second")
    world.until_said("first")
    with open(world.do("logs", "j1", None), "rb") as log:
        assert log.read() == b"first\n"
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(log.fileno(), b"forged")
        (world.directory / "gate").write_text("go\n")
        world.until_ended()
        assert log.read() == b"second\n"


def test_of_what_is_forgotten_there_is_no_log(world: World) -> None:
    with pytest.raises(FileNotFoundError):
        world.do("logs", "j1", None)
    world.create("echo said")
    world.until_ended()
    world.do("delete", "j1")
    with pytest.raises(FileNotFoundError):
        world.do("logs", "j1", None)
    world.do("delete", "j1")


def test_the_next_manager_finds_what_runs_what_ended_and_what_was_never_begun(world: World) -> None:
    os.mkfifo(world.directory / "gate")
    world.create(f"echo ready; read line < {world.directory}/gate; exit 5")
    world.create("exit 6", "j2")
    world.create("echo ready; exec sleep 600", "j3")
    world.until_said("ready")
    world.until_said("ready", "j3")
    world.until_ended("j2")
    world.restart()
    assert world.do("adopt", [("j1", 1), ("j2", 1), ("j4", 1)]) == [("j4", 1)]
    assert world.until_ended("j2")[0].exit_code == 6
    turn(world.loop, lambda: ("started", "j1", 1) in world.notes.heard, WAIT_LIMIT_S)
    (world.directory / "gate").write_text("go\n")
    assert world.until_ended("j1")[0].exit_code == 5
    world.create("exit 8", "j4", 2)
    assert world.until_ended("j4", 2)[0].exit_code == 8
    assert world.do("strays") == [("j3", 1)], "what nobody expects goes on"
    world.do("withdraw", "j3", 1, "enough")
    turn(world.loop, lambda: world.do("strays") == [], WAIT_LIMIT_S)
    assert {("j1", 1), ("j2", 1), ("j4", 2)} <= world.notes.ends.keys(), "none of them runs"


def test_what_ended_while_nobody_looked_is_told_to_the_next_manager(world: World) -> None:
    os.mkfifo(world.directory / "gate")
    world.create(f"echo ready; read line < {world.directory}/gate; exit 5")
    world.until_said("ready")
    world.end()
    (world.directory / "gate").write_text("go\n")
    world.begin()
    assert world.do("adopt", [("j1", 1)]) == []
    assert world.until_ended()[0].exit_code == 5
