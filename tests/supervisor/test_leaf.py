"""A job's cgroup: made before its process, left by none of its processes, and removed with it.

Real cgroups where this user may make some; a plain directory stands in for the files of limits.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from nodemgr.core.model.entities import Cause, HostFigures, RunSpec
from nodemgr.edge.gate.node_gate import NodeGate
from nodemgr.edge.kernel import cgroups
from nodemgr.edge.kernel.processes import process_key, start_ticks
from nodemgr.messages import doctor
from tests.supervisor.world import World, all_gone, end, python, remove_cgroup

MakeWorld = Callable[..., World]
TIES = "sh", "-c", "echo $$; exec sleep 600"


@pytest.fixture
def scope() -> Iterator[Path]:
    """A cgroup in place of the delegated scope."""
    mount = cgroups.mount_point()
    directory = (mount or Path("/nowhere")) / f"nodemgr-test-{os.getpid()}"
    try:
        directory.mkdir()
    except OSError:
        pytest.skip("no cgroup of version 2 can be made here")
    yield directory
    for path in sorted(directory.rglob("*/"), reverse=True):
        if path.is_dir():
            remove_cgroup(path)
    remove_cgroup(directory)


def served(make_world: MakeWorld, scope: Path) -> World:
    world = make_world(service=True)
    world.serve(scope=scope)
    world.until(lambda: world.launcher.scope == str(scope) and world.launcher.state()[0])
    return world


def gated(make_world: MakeWorld, scope: Path) -> tuple[World, FakeGate]:
    """Served with the gate of the node, which has closed the scope."""
    world = make_world(service=True)
    world.gate = gate = FakeGate()
    world.again()
    world.serve(scope=scope)
    world.until(lambda: gate.told == ["scope"])
    return world, gate


def processes(leaf: Path) -> set[int]:
    return {int(line) for line in (leaf / "cgroup.procs").read_text().split()}


def test_a_jobs_process_begins_in_its_leaf(make_world: MakeWorld, scope: Path) -> None:
    world = served(make_world, scope)
    leaf = scope / "alice" / "l1.1"
    assert world.run("cat", "/proc/self/cgroup", job="l1").exit_code == 0
    assert f"/{scope.name}/alice/l1.1\n" in world.heard.tails["l1", 1]
    assert not leaf.exists()


def test_a_process_that_is_not_below_the_supervisor_ends_with_its_leaf(
    make_world: MakeWorld, scope: Path
) -> None:
    world = served(make_world, scope)
    world.factory.create(world.order(*TIES, job="l1"))
    main = world.begun("l1")
    leaf = scope / "alice" / "l1.1"
    with subprocess.Popen(["sleep", "600"]) as other:
        (leaf / "cgroup.procs").write_text(str(other.pid))
        assert processes(leaf) == {main, other.pid}
        world.factory.withdraw("l1", 1, "")
        world.end("l1")
        assert other.wait() == -9
    assert not leaf.exists()


def test_a_killed_supervisor_leaves_no_leaf(make_world: MakeWorld, scope: Path) -> None:
    world = served(make_world, scope)
    world.factory.create(
        world.order("sh", "-c", "setsid sleep 600 & echo $!; exec sleep 600", job="l1")
    )
    (daemon,) = world.said(job="l1")
    leaf = scope / "alice" / "l1.1"
    main = world.begun("l1")
    assert processes(leaf) == {main, int(daemon)}
    end(world.supervisor("l1"))
    world.end("l1")
    assert all_gone([main, int(daemon)])
    world.until(lambda: not leaf.exists())


def test_a_launcher_removes_the_empty_leaves_of_a_crash(make_world: MakeWorld, scope: Path) -> None:
    (scope / "bob" / "j7.1").mkdir(parents=True)
    (scope / "carol" / "j8.1").mkdir(parents=True)
    with subprocess.Popen(["sleep", "600"]) as living:
        (scope / "carol" / "j8.1" / "cgroup.procs").write_text(str(living.pid))
        served(make_world, scope)
        left = {path.name for path in scope.rglob("*/") if path.is_dir()}
        living.kill()
    assert left == {"carol", "j8.1"}


def test_jobs_one_after_the_other_leave_no_directory(make_world: MakeWorld, scope: Path) -> None:
    world = served(make_world, scope)
    for number in range(20):
        world.factory.create(world.order("true", job=f"n{number}"))
    for number in range(20):
        assert world.end(f"n{number}").exit_code == 0
    assert [path for path in (scope / "alice").iterdir() if path.is_dir()] == []


def stand_in(tmp_path: Path, leaf: str = "alice/l1.1") -> Path:
    """A plain directory with the files that a kernel would show."""
    directory = tmp_path / leaf
    directory.mkdir(parents=True)
    for name in ("pids.max", "cgroup.procs", "cgroup.kill"):
        (directory / name).touch()
    return directory


def test_the_limits_of_the_order_are_written_before_the_process_begins(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    leaf = stand_in(tmp_path)
    world = served(make_world, tmp_path)
    assert (
        world.run("cat", str(leaf / "pids.max"), str(leaf / "cgroup.procs"), job="l1").exit_code
        == 0
    )
    assert world.heard.tails["l1", 1] == "327680"
    assert (leaf / "cgroup.kill").read_text() == "1"


@pytest.mark.parametrize(
    ("events", "env_ooms", "why", "more"),
    [
        ("oom 1\noom_kill 2\n", 0, "host memory, 3 GiB of --host-memory", "--host-memory"),
        (
            "oom 0\noom_kill 1\n", 1, "host memory, the limit of all jobs of its environment",
            "(nodemgr quota set alice --host-memory)",
        ),
        ("oom 0\noom_kill 1\n", 0, "host memory, all that the node has", "--host-memory"),
        ("oom 1\noom_kill 0\n", 1, "", ""),
    ],
)  # fmt: skip
def test_an_end_for_lack_of_memory_is_named(
    make_world: MakeWorld, tmp_path: Path, events: str, env_ooms: int, why: str, more: str
) -> None:
    leaf = stand_in(tmp_path)
    (leaf / "memory.events").write_text(events)
    files = [leaf / name for name in ("cpu.max", "memory.max", "memory.oom.group")]
    files.append(leaf.parent / "memory.max")
    for file in files:
        file.touch()
    of_env = leaf.parent / "memory.events.local"
    of_env.write_text("oom 3\n")
    world = served(make_world, tmp_path)
    limits = {"cpus": 2, "host_memory_bytes": 3 * 2**30, "env_limits": ("memory.max 9999",)}
    # the limit is higher beside the job's suspended task; the end names the job's own
    raised = f"cat {files[1]}; echo 9000000000 > {files[1]}"
    code = f"{raised}; echo oom {3 + env_ooms} > {of_env}; kill -9 $$"
    status = world.run("sh", "-c", code, job="l1", **limits)
    assert status.why.startswith(why)
    output, *lines = world.file("log", job="l1").read_text().splitlines()
    assert output == world.heard.tails["l1", 1].strip() == "3221225472"
    assert len(lines) == bool(why)
    for line in lines:
        assert line.startswith(f"nodemgr: the job was ended: {why}")
        assert more in line
    assert status.cause is (Cause.HOST_MEMORY if why else Cause.OWN)
    assert status.signal == 9
    assert [file.read_text() for file in files] == ["200000 100000", "9000000000\n", "1", "9999"]


def test_a_job_that_nears_its_memory_limit_reads_so_once_in_its_log(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    leaf, mib = stand_in(tmp_path), 2**20
    for name in ("memory.max", "memory.current"):
        (leaf / name).touch()
    (leaf / "memory.stat").write_text(f"anon 5\ninactive_file {mib}\n")
    world = served(make_world, tmp_path)
    world.factory.create(world.order(*TIES, job="l1", host_memory_bytes=100 * mib))
    world.said(job="l1")
    (leaf / "memory.max").write_text(f"{150 * mib}\n")  # 50 MiB of its task are suspended
    (leaf / "memory.current").write_text(f"{146 * mib}\n")
    lines = world.said(3, job="l1")
    assert lines[1:] == [
        "",
        "nodemgr: the job has 95 % of its host memory, 100 MiB, in use; it is ended at the limit:"
        " submit it with more --host-memory",
    ]
    world.factory.withdraw("l1", 1, "")
    world.end("l1")
    assert world.heard.tails["l1", 1].count("nodemgr:") == 1


def test_the_use_of_the_host_is_recorded_at_the_end(make_world: MakeWorld, tmp_path: Path) -> None:
    leaf = stand_in(tmp_path)
    (leaf / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (leaf / "memory.peak").write_text("4096\n")
    io_stat = "8:0 rbytes=10 wbytes=20 rios=1 wios=1 dbytes=5\n8:16 rbytes=1 wbytes=2 rios=0\n"
    (leaf / "io.stat").write_text(io_stat)
    world = served(make_world, tmp_path)
    assert world.run("true", job="l1").host == HostFigures(2_500, 4_096, 11, 22)
    (leaf / "memory.peak").write_text("max\n")
    (leaf / "io.stat").unlink()
    with (leaf / "cpu.stat").open("w") as file:
        file.write("x" * 9_000)
    (leaf.parent / "l2.1").symlink_to("/")
    assert world.run("true", job="l2").host is None


def test_a_real_cgroup_has_figures(make_world: MakeWorld, scope: Path) -> None:
    host = served(make_world, scope).run("sh", "-c", ":", job="l1").host
    assert host is not None
    assert (host.memory_bytes, host.read_bytes, host.written_bytes) == (None, 0, 0)


def test_the_manager_limits_a_leaf_and_an_environment(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    leaf = stand_in(tmp_path)
    (leaf.parent / "memory.max").touch()
    world = served(make_world, tmp_path)
    world.factory.create(world.order(*TIES, job="l1"))
    world.begun("l1")
    seen: list[str] = []
    limits = [("alice/l1.1", "pids.max 77777"), ("alice/l1.1", "no.such 1")]
    limits.append(("alice", "memory.max 1024"))
    world.factory.limit_cgroups(
        limits, lambda: seen.append((leaf.parent / "memory.max").read_text())
    )
    assert not seen
    world.until(lambda: seen == ["1024"])
    assert (leaf / "pids.max").read_text() == "77777"


def test_a_lowered_limit_ends_no_job(make_world: MakeWorld, tmp_path: Path) -> None:
    """It stays a little above what is in use, and holds from the next order with less in use."""
    env = stand_in(tmp_path).parent
    for name in ("memory.max", "pids.max"):
        (env / name).touch()
    (env / "memory.current").write_text("5000\n")
    world = served(make_world, tmp_path)
    world.launcher.request("limit alice memory.max 4096")
    world.launcher.request("limit alice pids.max 7")
    world.until(lambda: (env / "pids.max").read_text() == "7")
    assert (env / "memory.max").read_text() == "5312"
    (env / "memory.current").write_text("5200\n")
    assert world.run("true", job="l1", env_limits=("memory.max 4096",)).exit_code == 0
    assert (env / "memory.max").read_text() == "5312", "a limit is not raised for more use"
    (env / "memory.current").write_text("4096\n")
    assert world.run("true", job="l1", attempt=2, env_limits=("memory.max 4096",)).exit_code == 0
    assert (env / "memory.max").read_text() == "4096"


Entered = list[str | None]


@contextlib.contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Killed in any case."""
    with subprocess.Popen(words, stdin=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def entered(
    world: World, pid: int, *limits: str, controllers: Sequence[str] = ("cpu", "memory")
) -> Entered:
    """Why the process stays where it is, waited for."""
    found: Entered = []
    key = process_key(pid, start_ticks(pid) or 0)
    world.launcher._controllers = list(controllers)
    world.factory.enter("alice", key, limits, found.append)
    world.until(lambda: bool(found))
    return found


def leaf_of(scope: Path, pid: int) -> Path:
    return scope / "alice" / f"run-{pid}.{start_ticks(pid)}"


def test_a_command_is_moved_and_its_cgroup_goes_with_its_last_process(
    make_world: MakeWorld, scope: Path
) -> None:
    world = served(make_world, scope)
    with started("sh", "-c", "read line; sleep 600 & wait") as shell:
        leaf = leaf_of(scope, shell.pid)
        assert entered(world, shell.pid) == [None]
        assert processes(leaf) == {shell.pid}
        assert shell.stdin is not None
        shell.stdin.write(b"\n")
        shell.stdin.flush()
        world.until(lambda: len(processes(leaf)) == 2)
        (child,) = processes(leaf) - {shell.pid}
        assert entered(world, shell.pid) == [doctor.IN_A_CGROUP()]
        for order in ("kill", "remove"):
            world.launcher.request(f"{order} alice/{leaf.name}")
        assert world.run("true", job="l1").exit_code == 0
        assert shell.poll() is None, "the end of a command kills nothing"
    world.until(lambda: processes(leaf) == {child})
    end(child)
    world.until(lambda: not leaf.exists())


def test_the_next_launcher_removes_the_cgroup_of_a_command(
    make_world: MakeWorld, scope: Path
) -> None:
    world = served(make_world, scope)
    with started("sleep", "600") as command:
        leaf = leaf_of(scope, command.pid)
        assert entered(world, command.pid) == [None]
        world._programs[0].kill()
        world._programs[0].wait()
        world.until(lambda: world.launcher.scope == "")
        world.serve(scope=scope)
        world.until(lambda: world.launcher.scope == str(scope))
        assert processes(leaf) == {command.pid}
    world.until(lambda: not leaf.exists())


def test_no_command_leaves_a_container_or_a_job(make_world: MakeWorld, scope: Path) -> None:
    world = served(make_world, scope)
    unshare = subprocess.run(["unshare", "--pid", "--fork", "true"], check=False)
    if unshare.returncode:
        pytest.skip("no PID namespace can be made here")
    with started("unshare", "--pid", "--fork", "--kill-child", "sleep", "600") as outer:
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        world.until(lambda: bool(children.read_text()))
        inner = int(children.read_text())
        leaf = leaf_of(scope, inner)
        assert entered(world, inner) == ["its process has ended, or is in a container"]
        assert not leaf.exists()
    world.factory.create(world.order(*TIES, job="l1"))
    main = world.begun("l1")
    assert entered(world, main) == [doctor.IN_A_CGROUP()]
    world.factory.withdraw("l1", 1, "")
    world.end("l1")


def test_a_command_is_limited_before_it_is_moved(make_world: MakeWorld, tmp_path: Path) -> None:
    world = served(make_world, tmp_path)
    with started("sleep", "600") as command:
        name = f"alice/run-{command.pid}.{start_ticks(command.pid)}"
        leaf = stand_in(tmp_path, name)
        assert entered(world, command.pid, "pids.max 77") == [None]
        assert (leaf / "pids.max").read_text() == "77"
        assert (leaf / "cgroup.procs").read_text() == str(command.pid)
        (leaf / "cgroup.procs").unlink()
        assert entered(world, command.pid) == ["No such file or directory"]
        world.launcher.request(f"enter {name}")  # without a pidfd
        world.launcher.request("enter alice/l1.1")
        world.launcher._lose()
        assert entered(world, command.pid) == [doctor.LAUNCHER_AWAY()]


def test_without_a_scope_jobs_run_and_launcher_and_manager_report_it_once(
    make_world: MakeWorld, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    world = make_world(service=True)
    launcher = world.serve(scope=tmp_path / "nowhere", stderr=subprocess.PIPE)
    world.until(lambda: world.launcher.state()[0])
    for job in ("l1", "l2"):
        assert world.run("true", job=job).exit_code == 0
    launcher.kill()
    _, said = launcher.communicate()
    assert said.decode().count("get no cgroup") == said.count(b"\n") == 1
    assert world.launcher.scope == ""
    world.serve(scope=tmp_path / "nowhere")
    world.until(lambda: world.launcher.state()[0])
    lines = [line for line in capfd.readouterr().err.splitlines() if "have no limits" in line]
    assert lines[0] == (
        "nodemgr: CPUs and host memory of jobs have no limits: systemd delegates no cgroup to them"
        " (journalctl -u nodemgr-jobs); nodemgr-jobs (`nodemgr setup`) keeps them, with cgroup"
        " version 2 and its controllers of both"
    )
    assert [line for line in lines if line.startswith("nodemgr: CPUs")] == lines[:1]


@pytest.mark.parametrize(
    ("controllers", "limits"),
    [
        ("cpu io memory pids\n", "each in a cgroup of its own"),
        ("cpu pids\n", "--host-memory reserves, and limits nothing: their cgroups lack"
            " controllers (memory): look at the kernel's options"),
        ("memory pids\n", "--cpus reserves, and limits nothing: their cgroups lack"
            " controllers (cpu): look at the kernel's options"),
        (None, "--cpus and --host-memory reserve, and limit nothing: their cgroups lack"
            " controllers (cpu and memory): look at the kernel's options"),
    ],
)  # fmt: skip
def test_the_doctor_knows_whether_limits_hold(
    make_world: MakeWorld, tmp_path: Path, controllers: str | None, limits: str
) -> None:
    if controllers is not None:
        (tmp_path / "cgroup.subtree_control").write_text(controllers)
    world = served(make_world, tmp_path)
    assert world.factory.state()[1].endswith(f"launcher); {limits}")
    assert (world.factory.no_limits("") is None) is (limits == "each in a cgroup of its own")
    lost = world.factory.no_limits("alice/0/box")
    assert lost is not None
    assert "its limits hold" in lost.why


def test_a_limit_of_which_the_controller_is_missing_is_named_alone(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    """The other one holds, so a command is moved all the same."""
    (tmp_path / "cgroup.subtree_control").write_text("memory pids\n")
    world = served(make_world, tmp_path)
    lost = world.factory.no_limits("")
    assert lost is not None
    assert lost.are_named_by(RunSpec("", 0, None, None, cpus=1))
    assert not lost.are_named_by(RunSpec("", 0, None, None, host_memory_bytes=1))
    assert lost.of_command().startswith("--cpus does not limit this command: their cgroups lack")
    with started("sleep", "600") as command:
        stand_in(tmp_path, f"alice/run-{command.pid}.{start_ticks(command.pid)}")
        assert entered(world, command.pid, controllers=["memory"]) == [None]


def test_a_job_that_began_without_a_cgroup_goes_on_without_one(
    make_world: MakeWorld, scope: Path
) -> None:
    """Of the version before: the next manager takes it over, and moves and limits nothing."""
    world = make_world(service=True)
    launcher = world.serve()
    world.until(lambda: world.launcher.state()[0])
    world.factory.create(world.order(*TIES, job="l1", host_memory_bytes=2**30))
    main = world.begun("l1")
    before = cgroups.directory_of(main)
    launcher.kill()
    launcher.wait()
    world.again()
    assert world.factory.adopt([("l1", 1)]) == []
    world.serve(scope=scope)
    world.until(lambda: world.launcher.scope == str(scope))
    assert world.begun("l1") == main
    assert world.run("cat", "/proc/self/cgroup", job="l2").exit_code == 0
    assert f"/{scope.name}/alice/l2.1\n" in world.heard.tails["l2", 1]
    assert cgroups.directory_of(main) == before
    assert not (scope / "alice" / "l1.1").exists()
    world.factory.withdraw("l1", 1, "enough")
    assert world.end("l1").why == "enough"


def test_on_a_node_with_version_1_alone_jobs_and_commands_stay_where_they_are(
    make_world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "mount_point", lambda: None)
    world = make_world(service=True)
    launcher = world.serve(scope=tmp_path / "nowhere", stderr=subprocess.PIPE)
    world.until(lambda: world.launcher.state()[0])
    assert world.run("true", job="l1", cpus=1, host_memory_bytes=2**30).exit_code == 0
    answers: Entered = []
    with started("sleep", "600") as command:
        key = process_key(command.pid, start_ticks(command.pid) or 0)
        world.factory.enter("alice", key, ("pids.max 7",), answers.append)
    assert len(answers) == 1
    assert "systemd delegates no cgroup to them" in (answers[0] or "")
    launcher.kill()
    _, said = launcher.communicate()
    assert said.decode().count("get no cgroup") == 1


def test_the_cgroup_of_an_environment_that_vanishes_is_made_anew(
    make_world: MakeWorld, scope: Path
) -> None:
    world = served(make_world, scope)
    for job in ("l1", "l2"):
        assert world.run("cat", "/proc/self/cgroup", job=job).exit_code == 0
        assert f"/{scope.name}/alice/{job}.1\n" in world.heard.tails[job, 1]
        (scope / "alice").rmdir()
    world.factory.limit_cgroups([("alice", "pids.max 7")])
    assert world.run("true", job="l3").exit_code == 0


def test_a_cgroup_that_vanishes_before_its_job_begins_is_made_anew(
    make_world: MakeWorld, scope: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, _ = gated(make_world, scope)
    request, leaf = world.launcher.request, scope / "alice" / "l1.1"

    def cut(text: str, *descriptors: int) -> bool:
        if text.startswith("start "):
            leaf.rmdir()
        return request(text, *descriptors)

    monkeypatch.setattr(world.launcher, "request", cut)
    assert world.run("cat", "/proc/self/cgroup", job="l1").exit_code == 0
    assert f"/{scope.name}/alice/l1.1\n" in world.heard.tails["l1", 1]
    assert not leaf.exists()


def test_a_launcher_whose_scope_vanishes_begins_anew_and_loses_no_job(
    make_world: MakeWorld, scope: Path
) -> None:
    """As systemd does it: the scope is made again before the launcher's next start."""
    inner = scope / "inner"
    inner.mkdir()
    world = make_world(service=True)
    launcher = world.serve(scope=inner, stderr=subprocess.PIPE)
    world.until(lambda: world.launcher.scope == str(inner))
    inner.rmdir()
    world.factory.create(world.order("true", job="l1"))
    _, said = launcher.communicate()
    assert f"{inner} is gone" in said.decode()
    assert launcher.returncode == 1
    world.until(lambda: ("l1", 1) in world.heard.given_back)
    inner.mkdir()
    world.serve(scope=inner)
    world.until(lambda: world.launcher.scope == str(inner))
    assert world.run("cat", "/proc/self/cgroup", job="l1", attempt=2).exit_code == 0
    assert "/inner/alice/l1.2\n" in world.heard.tails["l1", 2]


@pytest.mark.parametrize(
    "packet",
    [
        "kill alice/l1.1", "kill ../alice/j9.1", "kill alice", "kill", "kill alice/l1.1/x",
        "remove alice/../alice", "remove .", "limit alice/l1.1", "limit alice/l1.1 pids.max",
        "limit alice/l1.1 ../j9.1/pids.max 1", "limit alice ../alice/j9.1/pids.max 1",
        "limit " + "x" * 300 + " pids.max 1", "kill alice/j9.1 ", "limit alice/j9.2 pids.max 1",
    ],
)  # fmt: skip
def test_a_packet_reaches_no_other_file(make_world: MakeWorld, tmp_path: Path, packet: str) -> None:
    """l1 has no directory of an attempt: no manager of this launcher has started it."""
    leaf, other = stand_in(tmp_path), stand_in(tmp_path, "alice/j9.1")
    world = served(make_world, tmp_path)
    world.launcher.request(packet)
    assert world.run("true", job="l2").exit_code == 0
    for file in (*leaf.iterdir(), *other.iterdir()):
        assert file.read_text() == ""
    world.launcher._lose()
    assert world.factory.no_limits("") is None, "while the launcher is away, this is not known"


class FakeGate(NodeGate):
    """Records what it is told, and closes jobs where there is a scope."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def closes_jobs(self) -> bool:
        return True

    def stand_at(self, scope: str) -> None:
        self.told.append("scope")

    def has_leaf(self, job_id: str, leaf: Path) -> None:
        busy = "busy" if leaf.is_dir() and processes(leaf) else "empty"
        self.told.append(f"{job_id} {busy if leaf.is_dir() else 'none'}")

    def has_ended(self, job_id: str) -> None:
        self.told.append(f"{job_id} ended")


def test_a_gate_opens_a_leaf_before_the_job_begins(make_world: MakeWorld, scope: Path) -> None:
    world, gate = gated(make_world, scope)
    assert world.run("true", job="l1").exit_code == 0
    assert (gate.told[1], gate.told[-1]) == ("l1 empty", "l1 ended")
    assert not (scope / "alice" / "l1.1").exists()


def test_a_launcher_that_makes_no_leaves_starts_the_job(
    make_world: MakeWorld, scope: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, _ = gated(make_world, scope)
    request = world.launcher.request
    monkeypatch.setattr(
        world.launcher, "request", lambda text: request(text.replace("leaf ", "leaves "))
    )
    assert world.run("true", job="l1").exit_code == 0


@pytest.mark.parametrize("way", ["withdrawn", "refused"])
def test_a_job_that_ends_between_its_leaf_and_its_start_leaves_no_directory(
    make_world: MakeWorld, scope: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    world, gate = gated(make_world, scope)
    leaf, request = scope / "alice" / "l1.1", world.launcher.request

    def cut(text: str, *descriptors: int) -> bool:
        if text.startswith("start "):
            assert leaf.is_dir()
            if way == "withdrawn":
                world.factory.withdraw("l1", 1, "withdrawn")
            text = text.replace("/1", "/9")  # there is no such attempt
        return request(text, *descriptors)

    monkeypatch.setattr(world.launcher, "request", cut)
    world.factory.create(world.order("true", job="l1"))
    if way == "refused":
        world.until(lambda: gate.told[-1] == "l1 empty")
        world.factory._heard("failed l1/1 no process")
    assert world.end("l1").why == ("withdrawn" if way == "withdrawn" else "no process")
    world.until(lambda: not leaf.exists())


@pytest.mark.parametrize("killed_at", ["leaf", "start", "running", "end", "remove"])
def test_a_launcher_that_is_killed_at_any_point_leaves_no_leaf_and_loses_no_job(
    make_world: MakeWorld, scope: Path, monkeypatch: pytest.MonkeyPatch, killed_at: str
) -> None:
    """Between making, limiting and starting, and between the end of a job and the removal."""
    world, _ = gated(make_world, scope)
    leaf, request, killed = scope / "alice" / "l1.1", world.launcher.request, list[str]()

    def die() -> None:
        killed.append(killed_at)
        world._programs[0].kill()
        world._programs[0].wait()

    def cut(text: str, *descriptors: int) -> bool:
        if text.startswith(f"{killed_at} ") and not killed:
            die()
        return request(text, *descriptors)

    monkeypatch.setattr(world.launcher, "request", cut)
    world.factory.create(world.order(*TIES, job="l1", host_memory_bytes=2**30))
    attempt = 1
    if killed_at in ("leaf", "start"):
        world.until(lambda: ("l1", 1) in world.heard.given_back)
        world.serve(scope=scope)
        world.until(lambda: world.launcher.state()[0] and not leaf.exists())
        attempt, leaf = 2, scope / "alice" / "l1.2"
        world.factory.create(world.order(*TIES, job="l1", attempt=2))
    main = world.begun("l1", attempt)
    if killed_at == "running":
        die()
    if killed_at == "remove":
        end(world.supervisor("l1"))
        world.until(lambda: bool(killed))
    else:
        world.factory.withdraw("l1", attempt, "")
        if killed_at == "end":
            die()
    if killed_at not in ("leaf", "start"):
        world.serve(scope=scope)
    world.end("l1", attempt)
    world.until(lambda: all_gone([main]) and not leaf.exists())
    for number in range(1, 1_000):  # given back until the next launcher has answered
        world.factory.create(world.order("true", job="l2", attempt=number))
        name = "l2", number
        world.until(lambda name=name: name in world.heard.ends or name in world.heard.given_back)
        if name in world.heard.ends:
            break
    assert not (scope / "alice" / f"l2.{number}").exists()


@pytest.mark.parametrize(
    "count", [200, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_the_end_of_a_job_with_many_processes_is_the_end_of_all(
    make_world: MakeWorld, scope: Path, count: int
) -> None:
    """Each in a session of its own."""
    world = served(make_world, scope)
    code = (
        "import os, signal\n"
        f"for number in range({count}):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        signal.pause()\n"
        "print('forked', flush=True)\n"
        "signal.pause()\n"
    )
    world.factory.create(world.order(*python(code), job="l1"))
    world.said(job="l1")
    leaf = scope / "alice" / "l1.1"
    pids = processes(leaf)
    assert len(pids) == count + 1
    world.factory.withdraw("l1", 1, "")
    world.end("l1")
    world.until(lambda: not leaf.exists())
    assert all_gone(pids)


def test_a_user_cannot_change_the_cgroup_of_a_job_or_leave_it(
    make_world: MakeWorld, scope: Path
) -> None:
    """Nor move a process into a cgroup that is delegated to the user."""
    if os.geteuid() != 0:
        pytest.skip("only root starts jobs of another user")
    nobody, own = pwd.getpwnam("nobody"), scope.parent / f"{scope.name}-own"
    own.mkdir()
    try:
        for path in (own, own / "cgroup.procs"):
            os.chown(path, nobody.pw_uid, nobody.pw_gid)
        world = served(make_world, scope)
        leaf = scope / "alice" / "l1.1"
        tries = [
            f"echo 0 > {own}/cgroup.procs", f"echo 0 > {scope}/cgroup.procs",
            f"echo 1 > {leaf}/cgroup.kill", f"mkdir {leaf}/inner", f"rmdir {leaf}",
        ]  # fmt: skip
        code = "; ".join(f"({word}) 2>/dev/null && echo done || echo refused" for word in tries)
        who = {"user": "nobody", "uid": nobody.pw_uid, "gid": nobody.pw_gid}
        assert world.run("sh", "-c", code, job="l1", **who).exit_code == 0
        assert world.heard.tails["l1", 1].split() == ["refused"] * len(tries)
    finally:
        remove_cgroup(own)
