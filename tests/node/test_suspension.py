"""Suspended tasks of a whole node: no byte is lost, whichever process is killed meanwhile."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from client_plugin.ways.faults import Fault
from nodemgr import simulator
from nodemgr.edge.compute import mps
from nodemgr.edge.host.rundir import SIMULATOR_DIR
from nodemgr.edge.kernel import cgroups
from nodemgr.edge.suspension import host_memory
from nodemgr.simulator import SimulatedNode
from tests.gpu.keeper import KEEPER, answer, answer_of, ask, keeper
from tests.node.programs import said
from tests.supervisor.world import remove_cgroup
from tests.support.examples import examples
from tests.support.limits import WAIT_LIMIT_S, until
from tests.support.manager import HOLD, Manager

GIB, MIB = 2**30, 2**20
Make = Callable[..., Manager]
LIMITS = ("memory.max", "memory.limit_in_bytes")
USAGES = ("memory.current", "memory.usage_in_bytes")


@pytest.fixture
def node(make_manager: Make) -> Manager:
    """A GPU of 4 GiB, which alice and bob may have whole."""
    manager = make_manager(simulate="1x4GiB")
    manager.quota("alice", 1)
    manager.quota("bob", 1)
    return manager


def nodemgr(node: Manager, *words: str, env: str | None = None) -> subprocess.CompletedProcess[str]:
    around = node.environment_of(env, shim=False) if env else dict(os.environ)
    place = [] if env else ["--run-dir", str(node.run_dir)]
    return subprocess.run(
        [sys.executable, "-m", "nodemgr", words[0], *place, *words[1:]],
        env=around, capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False,
    )  # fmt: skip


def used(node: Manager) -> int:
    with SimulatedNode.open(node.run_dir / SIMULATOR_DIR) as gpus:
        return gpus.books()[0].used_bytes


def test_a_suspended_task_makes_room_and_loses_no_byte(node: Manager) -> None:
    alice = keeper(node)
    assert answer_of(alice) == "same"
    bob = node.hold("bob", "-b", str(GIB))
    events = node.events()
    events.expect("task.waiting", env="bob")
    result = nodemgr(node, "suspend", "t1")
    assert (result.returncode, result.stderr) == (0, "nodemgr: t1 is suspended\n")
    assert said(bob)["error"] is None
    row = node.task("t1")
    assert (row["state"], row["suspended"]) == ("suspended", True)
    result = nodemgr(node, "resume", "t1", env="alice")
    assert result.returncode == 0
    assert "t1 waits for its GPU memory: place 1 in queue normal: t1 is suspended" in result.stderr
    (row,) = node.status()["queue"]
    assert (row["id"], row["env"]) == ("r1", "alice")
    ask(alice)
    bob.communicate(timeout=WAIT_LIMIT_S)
    events.expect("task.restored", task="t1")
    assert answer(alice) == "same"
    assert node.task("t1")["state"] == "running"


def test_the_doctor_does_not_wait_for_a_suspension_that_takes_long(node: Manager) -> None:
    keeper(node)
    node.call("task_suspend", task="t1")
    node.call("task_resume", task="t1")
    events = node.events()
    (mover,) = children(node.pid)
    os.kill(mover, signal.SIGSTOP)
    order = threading.Thread(target=node.call, args=("task_suspend",), kwargs={"task": "t1"})
    order.start()
    until(lambda: node.task("t1")["state"] == "suspending")
    (row,) = [row for row in node.call("doctor")["checks"] if row["name"] == "suspension"]
    assert row["ok"]
    assert row["detail"].startswith("the driver moves the GPU memory of t1 now")
    os.kill(mover, signal.SIGCONT)
    events.expect("task.suspended", task="t1")
    order.join()


@pytest.fixture(params=["gated", "ungated"])
def idle_policy(request: pytest.FixtureRequest) -> dict[str, object]:
    """Of alice's quota: with an idle policy, her launches pass the gate."""
    return {"idle_ms": 60_000, "when_idle": "suspend"} if request.param == "gated" else {}


def test_a_suspended_process_answers_its_memory_and_frees_it(
    node: Manager, idle_policy: dict[str, object]
) -> None:
    """The driver holds each call of it: the ledger answers, and a free is done at the resume."""
    node.quota("alice", 1, **idle_policy)
    alice = keeper(node)
    before = used(node)
    node.call("task_suspend", task="t1")
    ask(alice, "info")
    assert int(answer(alice).removeprefix("info 0 ")) >= 64 * MIB
    assert node.call("status")["tasks"][0]["state"] == "suspended"
    ask(alice, "free")
    assert answer(alice) == "freed 0"
    assert node.call("status")["tasks"][0]["state"] == "suspended"
    node.call("task_resume", task="t1")
    until(lambda: used(node) == before - 64 * MIB)
    assert node.task("t1")["state"] == "running"


@pytest.mark.parametrize("restarted", [False, True])
def test_a_use_brings_the_memory_back(
    node: Manager, idle_policy: dict[str, object], restarted: bool
) -> None:
    """Also by a manager that found the task suspended."""
    node.quota("alice", 1, **idle_policy)
    alice = keeper(node)
    node.call("task_suspend", task="t1")
    assert used(node) == 0
    if restarted:
        node.restart()
    assert answer_of(alice) == "same"
    until(lambda: node.task("t1")["state"] == "running")  # its process went on before that


def test_ctrl_c_ends_the_wait_of_a_suspended_process(
    node: Manager, idle_policy: dict[str, object]
) -> None:
    """Its room is taken, so its memory cannot come back."""
    node.quota("alice", 1, **idle_policy)
    alice = keeper(node, size=3 * GIB)
    node.call("task_suspend", task="t1")
    bob = node.hold("bob", "-b", str(2 * GIB))
    assert said(bob)["error"] is None
    ask(alice)
    until(lambda: [row["env"] for row in node.status()["queue"]] == ["alice"])
    alice.send_signal(signal.SIGINT)
    assert alice.wait(WAIT_LIMIT_S) == -signal.SIGINT
    assert alice.stderr is not None
    assert "KeyboardInterrupt" in alice.stderr.read()
    bob.kill()


def test_a_suspended_process_ends_without_its_gpu(
    node: Manager, idle_policy: dict[str, object]
) -> None:
    node.quota("alice", 1, **idle_policy)
    alice = keeper(node)
    node.call("task_suspend", task="t1")
    bob = node.hold("bob", "-b", str(GIB))
    assert said(bob)["error"] is None
    ask(alice, "free")
    assert answer(alice) == "freed 0"
    assert alice.stdin is not None
    alice.stdin.close()
    assert alice.wait(WAIT_LIMIT_S) == 0


def refused(node: Manager, verb: str, task: str = "t1") -> str:
    with pytest.raises(Fault) as caught:
        node.call(verb, task=task)
    return str(caught.value)


def test_bad_orders_are_one_line_each(node: Manager) -> None:
    keeper(node)
    assert "there is no task 't11'; did you mean 't1'?" in refused(node, "task_suspend", "t11")
    assert "there is no task '; rm'" in refused(node, "task_resume", "; rm")
    assert "t1 is not suspended" in refused(node, "task_resume")
    node.call("task_suspend", task="t1")
    assert "t1 is suspended already" in refused(node, "task_suspend")
    result = nodemgr(node, "suspend", "t1", env="bob")
    assert result.returncode != 0
    assert "bob has no task 't1'" in result.stderr


def test_a_suspended_task_is_not_released_into_a_wait_without_end(node: Manager) -> None:
    """Its processes could not go on. One that loses its lease all the same is ended."""
    alice = keeper(node)
    node.call("task_suspend", task="t1")
    line = refused(node, "release")
    assert "t1 is suspended, and its processes cannot go on without their GPU memory" in line
    assert f"`nodemgr resume t1`), or end its processes (kill {alice.pid})" in line
    result = nodemgr(node, "release", "t1", env="alice")
    assert result.returncode != 0
    assert "t1 is suspended" in result.stderr
    assert node.task("t1")["state"] == "suspended"
    node.call("quota_rm", env="alice", force=True)
    assert alice.wait(WAIT_LIMIT_S) == -signal.SIGKILL
    fenced = node.events().expect("task.fenced", task="t1")
    assert "it was suspended, so its processes are ended" in fenced["reason"]
    assert used(node) == 0


def test_a_suspended_process_that_is_killed_leaves_nothing(node: Manager) -> None:
    """As where its container is removed; its task also waits for the room to come back."""
    alice = keeper(node)
    node.call("task_suspend", task="t1")
    bob = keeper(node, "bob")
    assert nodemgr(node, "resume", "t1").returncode == 0
    assert [row["env"] for row in node.status()["queue"]] == ["alice"]
    alice.kill()
    node.events().expect("task.ended", task="t1")
    status = node.status()
    assert [task["env"] for task in status["tasks"]] == ["bob"]
    assert (status["queue"], status["residues"]) == ([], [])
    bob.communicate(timeout=WAIT_LIMIT_S)
    assert used(node) == 0
    assert said(node.hold("alice", "-b", str(GIB)))["error"] is None


def test_a_gpu_that_is_lost_while_its_task_is_suspended(node: Manager) -> None:
    """The task waits for it, says so, and comes back with the GPU."""
    keeper(node)
    node.call("task_suspend", task="t1")
    events = node.events()
    with SimulatedNode.open(node.run_dir / SIMULATOR_DIR) as gpus:
        gpus.lose(0)
        events.expect("gpu.lost")
        result = nodemgr(node, "resume", "t1")
        assert result.returncode == 0
        (row,) = node.status()["queue"]
        assert "GPU 0" in row["reason"]
        assert "lost" in row["reason"]
        gpus.restore(0)
    events.expect("task.restored", task="t1")
    assert node.task("t1")["state"] == "running"


def test_a_task_comes_back_to_a_gpu_that_was_drained_meanwhile(node: Manager) -> None:
    """A drained GPU gets no new task; a suspended one is not new."""
    alice = keeper(node)
    node.call("task_suspend", task="t1")
    node.call("gpu_drain", index=0)
    bob = node.hold("bob", "-b", str(GIB))
    node.events().expect("task.waiting", env="bob")
    assert node.call("task_resume", task="t1")["suspension"] == "none"
    assert answer_of(alice) == "same"
    assert [row["env"] for row in node.status()["queue"]] == ["bob"]
    bob.kill()


def job_in_cuda(node: Manager, *options: str, kind: str = "cuMemAlloc_v2") -> tuple[str, Path]:
    """A job that keeps bytes on its GPU, and the file with its time limit."""
    ready = node.directory / "ready"
    os.mkfifo(ready)
    script = KEEPER.replace("print(*codes", f"print(*codes, file=open({str(ready)!r}, 'w')")
    script += "import signal; signal.pause()"
    command = [sys.executable, "-S", "-c", script, str(64 * MIB), kind]
    result = nodemgr(node, "submit", "--env", "alice", *options, "--", *command)
    assert result.returncode == 0, result.stderr
    assert ready.read_text() == "0 0 0 0 0\n"
    job_id = result.stdout.strip()
    (limit,) = node.directory.rglob(f"{job_id}/1/limit")
    return job_id, limit


def test_the_time_limit_of_a_suspended_job_stands_still(node: Manager) -> None:
    """The supervisor has no limit meanwhile, also beside a manager that is killed."""
    job_id, limit = job_in_cuda(node, "--time", "1h")
    (task,) = node.status()["tasks"]
    assert limit.read_text().strip() == "3600000"
    node.call("task_suspend", task=task["id"])
    assert limit.read_text().strip() == ""
    limit.write_text("1".ljust(32))  # of a manager that was killed before it wrote
    node.restart()
    assert limit.read_text().strip() == ""
    node.call("task_resume", task=task["id"])
    assert int(limit.read_text()) >= 3_600_000
    assert nodemgr(node, "queue", "withdraw", job_id).returncode == 0


@pytest.mark.parametrize("kind", ["cuMemAllocManaged", "cuMemShared_v2"])
def test_shared_or_managed_memory_is_named_and_the_task_goes_on(node: Manager, kind: str) -> None:
    alice = keeper(node, kind=kind)
    line = refused(node, "task_suspend")
    assert f"process {alice.pid}, which shares GPU memory" in line
    assert not children(node.pid), "the driver is asked nothing"
    assert node.task("t1")["state"] == "running"
    assert answer_of(alice) == "same"


def of_old_driver(make_manager: Make) -> Manager:
    """Its driver is of CUDA 12.4, before the calls."""
    node = make_manager(simulate="1x4GiB", start=False)
    node.run_dir.mkdir(mode=0o755)
    simulator.create(node.run_dir / SIMULATOR_DIR, 1, 4 * GIB, driver_version=12_040).close()
    return node.start()


def of_mps(make_manager: Make) -> Manager:
    """A process is there that passes for the control daemon of MPS."""
    node = make_manager(simulate="1x4GiB", start=False)
    pipe, program = node.directory / "mps", node.directory / "nvidia-cuda-mps-control"
    pipe.mkdir()
    shutil.copy("/bin/sleep", program)
    daemon = subprocess.Popen([str(program), "infinity"])
    weakref.finalize(node, daemon.kill)
    (pipe / mps.PID_FILE).write_text(f"{daemon.pid}\n")
    node.environment[mps.PIPE_VARIABLE] = str(pipe)
    return node.start()


def plain(make_manager: Make) -> Manager:
    return make_manager(simulate="1x4GiB")


NO_SUSPENSION = {
    "an old driver": (of_old_driver, "cuMemAlloc_v2", "needs version 570 or newer"),
    "MPS": (of_mps, "cuMemAlloc_v2", "the control daemon of MPS runs"),
    "managed memory": (plain, "cuMemAllocManaged", "or uses managed memory"),
    "CUDA IPC": (plain, "cuMemShared_v2", "shares GPU memory with another process"),
}


@pytest.mark.parametrize("why", NO_SUSPENSION)
def test_a_job_that_cannot_be_suspended_is_queued_again(make_manager: Make, why: str) -> None:
    """The reason is one line for its user and in the events; the next means is used."""
    make_node, kind, words = NO_SUSPENSION[why]
    node = make_node(make_manager)
    node.quota("alice", 1, task_class="best-effort", compute_percent=50)
    node.quota("bob", 1, task_class="latency-sensitive", compute_percent=50)
    job_id, _ = job_in_cuda(node, kind=kind)
    bob = node.hold("bob", "-b", str(GIB))
    events = node.events()
    failed = events.expect("task.suspension_failed")
    assert words in failed["reason"]
    again = events.expect("job.requeued", job=job_id)
    assert "a latency-sensitive request of bob needs the memory" in again["reason"]
    assert said(bob)["error"] is None
    assert not children(node.pid), "no process makes calls that cannot succeed"
    if make_node is not plain:
        (row,) = [row for row in node.call("doctor")["checks"] if row["name"] == "suspension"]
        assert row["ok"]
        assert row["detail"].startswith("skipped, since the ")
        assert words in row["detail"]
    assert nodemgr(node, "queue", "withdraw", job_id).returncode == 0


def test_no_restore_is_tried_while_a_task_that_ignores_us_uses_the_room(make_manager: Make) -> None:
    """A failed restore would be final. The books do not know the task: the driver is asked."""
    node = make_manager(simulate="1x512MiB")
    node.quota("alice", 1)
    alice = keeper(node, size=300 * MIB)
    node.call("task_suspend", task="t1")
    rogue = node.spawn("alice", [str(HOLD), "-b", str(120 * MIB)], shim=False)
    assert said(rogue)["error"] is None
    line = refused(node, "task_resume")
    assert "other processes use its room on GPU 0" in line
    rogue.communicate(timeout=WAIT_LIMIT_S)
    events = node.events()
    events.expect("task.restored", task="t1")
    assert answer_of(alice) == "same"


def test_host_memory_that_is_gone_at_the_checkpoint_harms_nothing(node: Manager) -> None:
    """It sufficed when it was checked."""
    alice = keeper(node)
    with SimulatedNode.open(node.run_dir / SIMULATOR_DIR) as gpus:
        gpus.fail_checkpoints(1)
    line = refused(node, "task_suspend")
    assert f"the host memory for the GPU memory of process {alice.pid} was gone" in line
    assert node.task("t1")["state"] == "running"
    assert answer_of(alice) == "same"
    node.call("task_suspend", task="t1")


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A memory cgroup of version 1 or 2 with a limit of 200 MiB."""
    v1 = host_memory.V1_MEMORY
    parent = v1 if v1.is_dir() else cgroups.mount_point()
    assert parent is not None
    directory = parent / f"nodemgr-test-{os.getpid()}"
    directory.mkdir()
    name = "memory.limit_in_bytes" if parent == v1 else "memory.max"
    (directory / name).write_text(str(200 * MIB))
    yield directory
    remove_cgroup(directory)


def test_the_limit_of_the_containers_cgroup_is_seen_before(node: Manager, cgroup: Path) -> None:
    """By the driver, a suspended process's device memory is charged to its cgroup."""
    alice = keeper(node, size=300 * MIB)
    (cgroup / "cgroup.procs").write_text(str(alice.pid))
    line = refused(node, "task_suspend")
    assert f"the limit of the container of process {alice.pid} leaves" in line
    assert "it needs 364" in line  # with its context
    assert answer_of(alice) == "same"
    (limit,) = (path for name in LIMITS if (path := cgroup / name).exists())
    limit.write_text(str(600 * MIB))
    node.call("task_suspend", task="t1")
    (usage,) = (path for name in USAGES if (path := cgroup / name).exists())
    assert int(usage.read_text()) >= 364 * MIB
    node.call("task_resume", task="t1")
    assert answer_of(alice) == "same"
    assert int(usage.read_text()) < 100 * MIB
    alice.communicate(timeout=WAIT_LIMIT_S)


def test_host_memory_that_does_not_suffice_is_seen_before(make_manager: Make) -> None:
    node = make_manager(simulate="1x1000GiB")
    node.quota("alice", 1)
    program = node.hold("alice", "-b", str(900 * GIB))
    assert said(program)["error"] is None
    line = refused(node, "task_suspend")
    assert "GiB of host memory, and the node has" in line
    assert node.task("t1")["state"] == "running"


def test_a_task_is_kept_up_to_the_limit_of_the_quota(node: Manager) -> None:
    keeper(node)
    node.quota("alice", 1, idle_ms=60_000, when_idle="suspend", max_keep_ms=3_600_000)
    result = nodemgr(node, "keep", "t1", "--for", "30min", env="alice")
    assert result.returncode == 0, result.stderr
    assert "t1 keeps its GPU memory for 30 min" in result.stderr
    result = nodemgr(node, "keep", "t1", "--for", "2h", env="alice")
    assert result.returncode != 0
    assert "a user of alice may keep an idle task for 1 h, not for 2 h" in result.stderr
    assert nodemgr(node, "keep", "t1", "--for", "2h").returncode == 0
    result = nodemgr(node, "keep", "t1", "--for", "0s", env="alice")
    assert result.returncode == 2
    assert "is less than 1 ms: name a longer time" in result.stderr
    result = nodemgr(node, "keep", "j1", "--for", "2h", env="alice")
    assert "'j1' is a job: name its task as nodemgr status shows it" in result.stderr


@pytest.mark.slow
def test_an_idle_task_is_suspended_for_one_that_waits(make_manager: Make) -> None:
    """After the half minute of the warning."""
    node = make_manager(simulate="1x4GiB")
    node.quota("alice", 1, idle_ms=1_000, when_idle="suspend")
    node.quota("bob", 1)
    alice = keeper(node)
    bob = node.hold("bob", "-b", str(GIB))
    node.events().expect("task.suspended", task="t1")
    assert said(bob)["error"] is None
    assert alice.poll() is None


def rounds(node: Manager, count: int, seed: int) -> None:
    """Suspends and resumes, while the manager and the suspension process are killed at random."""
    dice, program = random.Random(seed), keeper(node)
    for number in range(count):
        for verb, after in (("task_suspend", "suspended"), ("task_resume", "none")):
            killer = threading.Timer(dice.random() * 0.06, kill_one, (node, dice.randrange(3)))
            killer.start()
            carry_out(node, verb, after)
            killer.join()
            if node.process is None or node.process.poll() is not None:
                node.wait()
                node.start()
                carry_out(node, verb, after)
            assert (used(node) == 0) is (after == "suspended"), number
        assert answer_of(program) == "same", number


def kill_one(node: Manager, which: int) -> None:
    """The manager, its suspension process, or neither."""
    if which == 0:
        os.kill(node.pid, signal.SIGKILL)
    for child in children(node.pid) if which == 1 else ():
        os.kill(child, signal.SIGKILL)


def children(pid: int) -> list[int]:
    """The suspension processes of a manager."""
    found = []
    for name in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        words = Path(f"/proc/{name}/cmdline").read_bytes()
        if b"edge.suspension.process" in words:
            found.append(int(name))
    return found


def carry_out(node: Manager, verb: str, after: str) -> None:
    """Gives the order until it is done; a manager that is killed meanwhile ends the attempt."""
    while node.process is not None and node.process.poll() is None:
        with contextlib.suppress(Fault, OSError):
            node.call(verb, task="t1")
        try:
            state = node.task("t1")["state"]
        except (Fault, OSError):
            continue
        if state == ("suspended" if after == "suspended" else "running"):
            return


def test_no_byte_is_lost_while_manager_and_suspension_process_are_killed(node: Manager) -> None:
    rounds(node, examples(4), 3)
