"""The driver's figures beside the ledgers' words; the owner of a process that never spoke."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from nodemgr.core.model.entities import Config, Gpu, Process, Transport
from nodemgr.core.model.events import EndedUse, Seen
from nodemgr.core.model.values import replace
from nodemgr.core.state.node_state import State
from nodemgr.edge.gpu.gpu_inventory import DriverReading
from nodemgr.edge.gpu.usage import Auditor
from nodemgr.edge.kernel import processes
from nodemgr.edge.kernel.ownership import Belonging
from nodemgr.edge.kernel.processes import Credentials, credentials, process_key, start_ticks
from tests.support.limits import WAIT_LIMIT_S

GIB = 2**30
UUID = "GPU-0"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the thread of a short read may not run within its timeout."""
    monkeypatch.setattr(processes.read_within, "__defaults__", (WAIT_LIMIT_S,))
    monkeypatch.setattr(processes, "LONG_TIMEOUT_S", WAIT_LIMIT_S)


MEMBER = Process("unix:10:1", "alice", "t1", Transport.UNIX, 10, "ann", 3, 1, "r")


class Words:
    """The ledgers, as a test says."""

    def __init__(self) -> None:
        self.word_bytes = 0
        self.correction_bytes: dict[str, int] = {}
        self.of_tasks: dict[str, int] = {}

    def envs(self) -> Iterator[str]:
        return iter(["alice"])

    def slot_used(self, env: str, row: int, slot: int) -> int:
        assert (env, row, slot) == ("alice", 0, 3)
        return self.word_bytes

    def set_correction(
        self, env: str, row: int, correction_bytes: int, of_tasks: Mapping[str, int]
    ) -> None:
        self.correction_bytes[env] = correction_bytes
        self.of_tasks = dict(of_tasks)


class World:
    def __init__(
        self,
        strangers: Callable[[int], str | None] = lambda pid: None,
        members: Mapping[int, Process] = MappingProxyType({10: MEMBER}),
    ) -> None:
        state = State(Config())
        state.gpus[UUID] = Gpu(UUID, 0, "Test", 80 * GIB)
        for member in members.values():
            state.processes[member.key] = member
        self.words = Words()
        keys = {pid: member.key for pid, member in members.items()}
        self.auditor = Auditor(state, self.words, keys.get, strangers)
        self._state = state

    def forget(self, member: Process) -> None:
        """The core has dropped it, and its word is gone."""
        del self._state.processes[member.key]
        self.words.word_bytes = 0

    def audit(self, **gib_by_pid: int) -> tuple[Seen, ...]:
        shown = {int(name[1:]): size * GIB for name, size in gib_by_pid.items()}
        return self.auditor.audit(
            DriverReading((), {}, {UUID: shown, "GPU-unknown": shown}), 0
        ).seen

    @property
    def correction_gib(self) -> int:
        return self.words.correction_bytes["alice"] // GIB


def test_the_first_sight_of_a_process_corrects_nothing() -> None:
    world = World()
    world.audit(p10=5)
    assert world.correction_gib == 0
    world.audit(p10=5)
    assert world.correction_gib == 5
    world.audit()
    assert world.correction_gib == 0


def test_memory_that_was_freed_while_the_driver_was_read_is_no_bypass() -> None:
    world = World()
    world.words.word_bytes = 30 * GIB
    world.audit(p10=30)
    world.words.word_bytes = 10 * GIB  # after the driver was read
    (seen,) = world.audit(p10=30)
    assert (world.correction_gib, seen.charged_bytes) == (0, 30 * GIB)
    world.audit(p10=30)
    assert world.correction_gib == 20, "what the driver goes on to show is one"


def test_memory_beyond_a_members_word_counts_in_its_tasks_cap() -> None:
    """Contexts, say; not that of a process that has left its task."""
    world = World()
    world.audit(p10=5)
    world.audit(p10=5)
    assert world.words.of_tasks == {"t1": 5 * GIB}
    world = World(members={10: replace(MEMBER, fenced=True)})
    world.audit(p10=5)
    world.audit(p10=5)
    assert (world.correction_gib, world.words.of_tasks) == (5, {})


def test_a_stranger_of_an_env_counts_in_that_envs_ledger() -> None:
    own = os.getpid()
    world = World(strangers={own: "alice"}.get)
    (seen,) = world.audit(**{f"p{own}": 2})
    assert (seen.process, seen.env) == (process_key(own, start_ticks(own) or 0), "alice")
    assert (
        Path(sys.executable).name in seen.command or "pytest" in seen.command,
        world.correction_gib,
    ) == (True, 2)


def test_a_proof_may_come_later_and_holds_then() -> None:
    proofs: list[str | None] = [None, "alice"]
    world = World(strangers=lambda pid: proofs.pop(0))
    own = {f"p{os.getpid()}": 2}
    assert [world.audit(**own)[0].env for _ in range(4)] == [None, "alice", "alice", "alice"]


def test_the_dead_are_not_seen() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert World().audit(**{f"p{child.pid}": 2}) == ()


def ownerless_gib(world: World, shown: dict[int, int], ownerless_gib: int) -> int:
    reading = DriverReading(
        (),
        processes={UUID: {pid: size * GIB for pid, size in shown.items()}},
        ownerless_bytes={UUID: ownerless_gib * GIB, "GPU-unknown": 9 * GIB},
    )
    audited = world.auditor.audit(reading, 0)
    assert audited.ownerless_bytes.keys() <= {UUID}
    return audited.ownerless_bytes.get(UUID, 0) // GIB


def test_memory_of_no_process_is_explained_by_what_a_member_is_charged_beyond_the_driver() -> None:
    world = World()
    world.words.word_bytes = 7 * GIB
    assert ownerless_gib(world, {10: 5}, 6) == 4, "2 GiB that it exported and freed are charged"
    world.words.word_bytes = 5 * GIB
    assert ownerless_gib(world, {10: 5}, 6) == 6


def test_a_member_that_the_driver_cannot_list_explains_its_word_while_it_lives() -> None:
    child = started()
    key = process_key(child.pid, start_ticks(child.pid) or 0)
    world = World(members={child.pid: replace(MEMBER, key=key, pid=child.pid)})
    world.words.word_bytes = 4 * GIB
    assert ownerless_gib(world, {}, 6) == 2
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert ownerless_gib(world, {}, 6) == 6, "a zombie has no memory"
    child.communicate()
    assert ownerless_gib(world, {}, 6) == 6


def test_a_little_memory_of_no_process_is_not_looked_into() -> None:
    assert ownerless_gib(World(), {}, 1) == 0


class Ending:
    """A process of alice's that may end, and readings of its GPU, one after the other."""

    def __init__(self) -> None:
        self._child = started()
        key = process_key(self._child.pid, start_ticks(self._child.pid) or 0)
        self.member = replace(MEMBER, key=key, pid=self._child.pid)
        self.world = World(members={self._child.pid: self.member})
        self.now_ns = 0

    def allocate(self) -> None:
        self.world.words.word_bytes = 2 * GIB

    def end(self) -> None:
        """It had allocated by then."""
        self.allocate()
        self._child.kill()
        self._child.communicate()

    def is_heard(self) -> None:
        """The kernel told the manager of its end."""
        self.world.auditor.ended(self.member, self.now_ns)

    def read(
        self, ownerless_gib: int | None, shown_gib: int = 0, began_before_ns: int = 0
    ) -> tuple[list[EndedUse], int]:
        """One reading, the ends and the GiB that stayed; None: this GPU could not be read."""
        there = ownerless_gib is not None
        self.now_ns += 10
        reading = DriverReading(
            (),
            processes={UUID: {self._child.pid: shown_gib * GIB} if shown_gib else {}}
            if there
            else {},
            at_ns=self.now_ns - began_before_ns,
            ownerless_bytes={UUID: ownerless_gib * GIB} if ownerless_gib is not None else {},
        )
        audited = self.world.auditor.audit(reading, 0)
        return list(audited.ended), audited.stayed_bytes.get(UUID, 0) // GIB


ITS_WORD = EndedUse(UUID, "alice", 2 * GIB, 2 * GIB)


def test_memory_that_stays_is_told_with_the_processes_that_ended() -> None:
    one = Ending()
    one.allocate()
    assert one.read(1, shown_gib=3) == ([], 0)
    assert one.read(2, shown_gib=3) == ([], 0), "nobody has ended"
    one.end()
    one.is_heard()
    assert one.read(2, shown_gib=3) == ([], 0), "the driver still shows it"
    assert one.read(None) == ([], 0)
    assert one.read(5) == ([EndedUse(UUID, "alice", 3 * GIB, 2 * GIB)], 3)
    assert one.read(6) == ([], 0), "once"


def test_a_process_that_ended_between_two_readings_had_its_word() -> None:
    one = Ending()
    one.end()
    one.is_heard()
    assert one.read(4) == ([ITS_WORD], 0), "at the first reading nothing is known of before"
    assert one.read(5) == ([], 0)


def test_a_process_that_the_core_forgets_before_a_reading_is_told_with_the_next() -> None:
    one = Ending()
    one.read(1)
    one.end()
    one.is_heard()
    one.world.forget(one.member)
    assert one.read(3) == ([ITS_WORD], 2)
    assert one.read(4) == ([], 0), "once"


def test_a_reading_that_began_before_an_end_was_known_does_not_judge_it() -> None:
    """It may have been made while the process lived: what stayed is not in it yet."""
    one = Ending()
    one.read(1)
    one.end()
    assert one.read(1) == ([], 0)
    assert one.world.auditor.is_waiting
    one.is_heard()
    one.world.forget(one.member)
    assert one.read(3) == ([ITS_WORD], 2)
    assert not one.world.auditor.is_waiting


def test_what_stayed_may_be_in_the_reading_that_waits_already() -> None:
    one = Ending()
    one.read(1)
    one.end()
    one.is_heard()
    assert one.read(3, began_before_ns=15) == ([], 0)
    assert one.read(3) == ([ITS_WORD], 2)


def test_an_end_that_is_heard_after_it_was_told_is_not_told_again() -> None:
    one = Ending()
    one.end()
    assert one.read(1) == ([], 0)
    assert one.read(3) == ([ITS_WORD], 2)
    one.is_heard()
    assert one.read(5) == ([], 0)


def test_a_process_that_ends_while_a_reading_is_judged_explains_its_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At this reading it lives, so its memory is found to have stayed at a later one."""
    one = Ending()
    one.allocate()
    answers = [True]
    monkeypatch.setattr(
        "nodemgr.edge.gpu.usage.is_alive", lambda _key: answers.pop() if answers else False
    )
    assert one.read(2) == ([], 0)
    assert one.read(2) == ([], 0), "an end that this reading may be too old for"
    assert one.read(2) == ([ITS_WORD], 2)


# -- the env of a process


def started(**environment: str) -> subprocess.Popen[str]:
    """A child of this test, with this environment."""
    command = ["/bin/sh", "-c", "echo ready; read line"]
    child = subprocess.Popen(
        command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.readline()
    return child


def belonging(
    run_dir: str = "/run/n",
    *,
    parents: dict[int, str] | None = None,
    users: frozenset[str] = frozenset(["alice"]),
) -> Belonging:
    return Belonging(Path(run_dir), (parents or {}).get, list, lambda env, who: env in users)


@pytest.mark.parametrize(
    ("named", "env"),
    [
        ("/run/n/envs/alice", "alice"),
        ("/run/n/envs/alice/", "alice"),
        ("/run/n/envs/bob", None),
        ("/run/n/envs/../envs/alice", None),
        ("/elsewhere/envs/alice", None),
        ("/run/n/envs", None),
        ("/run/n/envs/al\nice", None),
        ("\udcff", None),
        ("", None),
    ],
)
def test_by_the_environment_that_it_was_started_with(named: str, env: str | None) -> None:
    with started(NODEMGR_ENV_DIR=named) as child:
        assert belonging().env_of(child.pid) == env


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="only root makes a mount namespace"
)
def test_what_a_container_writes_into_its_environment_proves_nothing() -> None:
    """Its root is this host's by number, and may enter every env; its directory does not exist."""
    command = ["unshare", "--mount", "/bin/sh", "-c", "echo ready; read line"]
    with subprocess.Popen(
        command,
        env={"NODEMGR_ENV_DIR": "/run/n/envs/alice"},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert belonging().env_of(child.pid) is None
        child.communicate("\n")


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="only root makes a mount namespace"
)
@pytest.mark.parametrize(
    ("shown", "env"),
    [
        (["alice"], "alice"),
        (["bob"], None),
        ([], None),
        (["alice", "carol"], None),
        (["../envs/alice"], None),
    ],
    ids=["its own", "no env any more", "nothing", "two", "the node's"],
)
def test_by_the_directory_that_its_container_is_shown(
    tmp_path: Path, shown: list[str], env: str | None
) -> None:
    run_dir = tmp_path / "a run"
    for name in ("containers/alice", "containers/bob", "containers/carol", "envs/alice"):
        (run_dir / name).mkdir(parents=True)
    binds = "".join(
        f'mkdir "$1/{at}" && mount --bind "$1/containers/{name}" "$1/{at}" && '
        for at, name in enumerate(shown)
    )
    command = [
        "unshare",
        "--mount",
        "/bin/sh",
        "-c",
        f"{binds} echo ready; read line",
        "sh",
        str(run_dir),
    ]
    with subprocess.Popen(
        command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        assert belonging(str(run_dir), users=frozenset(["alice", "carol"])).env_of(child.pid) == env
        child.communicate("\n")


def test_by_ancestry_before_all_else() -> None:
    with started(NODEMGR_ENV_DIR="/run/n/envs/alice") as child:
        assert belonging(parents={os.getpid(): "bob"}).env_of(child.pid) == "bob"


def test_nobody_is_anybodys() -> None:
    with started() as child:
        assert belonging().env_of(child.pid) is None
    assert belonging().env_of(2**30) is None


def test_credentials_are_the_real_users() -> None:
    assert credentials(os.getpid()) == Credentials(
        os.getuid(), frozenset([os.getgid(), *os.getgroups()])
    )
    assert credentials(2**30) is None
