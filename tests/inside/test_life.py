"""A job's life in a container, without an engine: its ends, and the right to submit."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.inside.boxes import NOBODY, WAIT_LIMIT_S, Box, interruption, outcome
from tests.support import processes
from tests.support.limits import until
from tests.support.manager import ROOT, Manager
from tests.support.queue_pages import queue_rows

CPU = ("--gpus", "0", "--max-restarts", "0")


def named(box: Box, name: str) -> list[int]:
    """The processes below the box's first one that are called so, as the node numbers them."""
    below = psutil.Process(box.pid).children(recursive=True)
    return processes.named([box.pid, *(process.pid for process in below)], name)


def until_named(box: Box, name: str, *pids: int) -> None:
    """Until just these are called so: the kernel ends a process some time after its supervisor."""
    until(lambda: named(box, name) == [*pids], lambda: named(box, name))


def only(box: Box, name: str) -> int:
    """ProcessLookupError: there is none. A child has its parent's name until it becomes another."""
    end_s = time.monotonic() + WAIT_LIMIT_S
    while len(found := named(box, name)) > 1 and time.monotonic() < end_s:
        time.sleep(0.01)
    if not found:
        raise ProcessLookupError(name)
    (pid,) = found
    return pid


def runner_of(box: Box) -> int:
    return only(box, "nodemgr-runner")


def supervisor_of(box: Box) -> int:
    return only(box, "nodemgr-job")


def wait(node: Manager, job: str) -> tuple[str, int, str]:
    told = outcome(node, job)
    return told["state"], told["exit"], told["why"]


def gate(box: Box) -> Path:
    path = box.env_dir.with_name(box.env_dir.name + f"gate{os.urandom(4).hex()}")
    os.mkfifo(path)
    path.chmod(0o666)
    return path


def holding(node: Manager, box: Box, *options: str, then: str = "exit 5") -> tuple[str, Path]:
    """A job that runs until its gate is opened."""
    path = gate(box)
    job = box.submit(*CPU, *options, "--", "sh", "-c", f"echo begun; read line < {path}; {then}")
    node.events().expect("job.started", job=job)
    return job, path


def begun(node: Manager, job: str) -> int:
    """How often its process has said that it began."""
    return sum(
        log.read_text().count("begun") for log in (node.state_dir / "jobs" / job).glob("*/log")
    )


def test_it_runs_there_as_who_submitted_it(node: Manager, box: Box) -> None:
    """In its submitter's directory and variables; its numbers are those of the container."""
    shown = "id -u; id -g; pwd; echo $NODEMGR_JOB; readlink /proc/self/ns/pid; exit 7"
    job = box.submit(*CPU, "--name", "mine", "--", "sh", "-c", shown, uid=NOBODY)
    assert box.say("wait", job, uid=NOBODY).returncode == 7
    own = os.readlink(f"/proc/{box.pid}/ns/pid")
    assert box.say("logs", job).stdout.split("\n")[:-1] == [
        str(NOBODY),
        str(NOBODY),
        "/",
        f"{job}:1",
        own,
    ]
    (story,) = node.call("job_show", job=job)["jobs"]
    assert story["name"] == "mine"


def test_an_array_and_what_waits_for_it(node: Manager, box: Box) -> None:
    job = box.submit(*CPU, "--array", "0-2,7", "--", "sh", "-c", "echo $NODEMGR_ARRAY_INDEX")
    after = box.submit(*CPU, "--after", job, "--", "echo", "after all")
    assert box.say("wait", job, after).returncode == 0
    assert [box.say("logs", f"{job}.{index}").stdout for index in (0, 1, 2, 7)] == [
        "0\n",
        "1\n",
        "2\n",
        "7\n",
    ]
    assert runner_of(box)


def test_who_submits_what_cannot_be_is_told_in_one_line(node: Manager, box: Box) -> None:
    plain = box.env_dir.with_name("plain")
    plain.touch(0o644)
    refusals = {
        ("--gpus", "9", "--", "true"): 77,
        ("--memory", "8", "--", "true"): 2,
        ("--time", "0s", "--", "true"): 2,
        ("--env", "bob", "--", "true"): 77,
        ("--", "no-such-program"): 127,
        ("--", str(plain)): 126,
        (): 2,
    }
    for words, code in refusals.items():
        said = box.say("submit", *words)
        assert (said.returncode, said.stdout) == (code, ""), (words, said.stderr)
        assert "Traceback" not in said.stderr
        assert said.stderr
    assert queue_rows(node.call, env="alice") == []


def test_a_containers_root_asks_for_no_queue_above_its_environments(
    node: Manager, box: Box
) -> None:
    """It is root by the kernel's word, and no administrator of this node."""
    said = box.say("submit", *CPU, "--priority", "high", "--hold", "--", "true")
    assert (said.returncode, said.stdout) == (77, "")
    assert said.stderr.startswith(
        "nodemgr: queue high has rank 300, and the highest that alice may ask for is normal"
    )
    job = box.submit(*CPU, "--priority", "low", "--hold", "--", "true")
    assert box.say("queue", "move", job, "high").returncode == 77
    node.call("quota_set", env="alice", max_priority="high")
    assert box.say("queue", "move", job, "high").returncode == 0
    node.call("queue_create", queue="private", rank=10, users=["nobody"])
    said = box.say("submit", *CPU, "--priority", "private", "--hold", "--", "true")
    assert (said.returncode, "queue private is for nobody alone" in said.stderr) == (77, True)
    assert (
        box.say(
            "submit", *CPU, "--priority", "private", "--hold", "--", "true", uid=NOBODY
        ).returncode
        == 0
    )


def test_a_long_order_is_written_on_a_sheet(node: Manager, box: Box) -> None:
    text = "x" * 100_000
    job = box.submit(*CPU, "--", "sh", "-c", "echo ${#1}", "sh", text)
    assert box.say("wait", job).returncode == 0
    assert box.say("logs", job).stdout == "100000\n"
    assert "may have" in box.say("submit", *CPU, "--", "true", *["y" * 120_000] * 10).stderr


def test_the_command_that_is_not_there_is_not_tried_again(node: Manager, box: Box) -> None:
    script = box.env_dir.with_name("gone.sh")
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    job = box.submit("--gpus", "0", "--", str(script))
    state, _, why = wait(node, job)
    assert (state, "its interpreter is not found" in why) == ("failed", True)
    assert node.call("job_show", job=job)["jobs"][0]["restarts"] == 0


def test_withdrawn_it_is_asked_and_ends(node: Manager, box: Box) -> None:
    job, _ = holding(node, box, then="true")
    assert box.say("queue", "withdraw", job).returncode == 0
    assert wait(node, job)[0] == "withdrawn"
    assert node.call("job_show", job=job)["jobs"][0]["attempts"][0]["signal"] == signal.SIGTERM


def test_its_time_is_limited(node: Manager, box: Box) -> None:
    job = box.submit(*CPU, "--time", "300ms", "--", "sleep", "600")
    assert wait(node, job)[2] == "time limit"


def test_a_manager_that_dies_finds_it_again(node: Manager, box: Box) -> None:
    job, path = holding(node, box)
    node.kill()
    node.start()
    assert node.call("job_show", job=job)["jobs"][0]["state"] == "running"
    path.write_text("go\n")
    assert wait(node, job)[:2] == ("failed", 5)
    assert begun(node, job) == 1


def test_what_ended_while_no_manager_was_there_is_known(node: Manager, box: Box) -> None:
    job, path = holding(node, box)
    supervisor = supervisor_of(box)
    pidfd = os.pidfd_open(supervisor)
    node.kill()
    path.write_text("go\n")
    assert select.select([pidfd], [], [], WAIT_LIMIT_S)[0]
    os.close(pidfd)
    node.start()
    assert wait(node, job)[:2] == ("failed", 5)
    assert begun(node, job) == 1


def test_a_manager_that_dies_before_its_word_is_heard_costs_nothing(
    node: Manager, box: Box
) -> None:
    """The runner has not read the order to start: the next manager's order starts the job once."""
    first, path = holding(node, box)
    runner = runner_of(box)
    os.kill(runner, signal.SIGSTOP)
    job = box.submit(*CPU, "--", "sh", "-c", "echo begun; exit 3")
    node.events().expect("job.starting", job=job)
    node.kill()
    node.start()
    os.kill(runner, signal.SIGCONT)
    assert wait(node, job)[:2] == ("failed", 3)
    assert begun(node, job) == 1
    path.write_text("go\n")
    assert wait(node, first)[:2] == ("failed", 5)


def test_its_supervisor_is_killed(node: Manager, box: Box) -> None:
    """Nothing of the job goes on."""
    job, _ = holding(node, box, then="true")
    supervisor = supervisor_of(box)
    os.kill(supervisor, signal.SIGKILL)
    cause, why = interruption(node, job)
    assert (cause, "its supervisor there was killed" in why) == ("container_stopped", True)
    until_named(box, "sh")
    assert "Traceback" not in node.log


def test_its_runner_is_killed_and_it_goes_on(node: Manager, box: Box) -> None:
    """The next job waits for a verb that is said there."""
    job, path = holding(node, box)
    events = node.events(since=None)
    os.kill(runner_of(box), signal.SIGKILL)
    events.expect("place.down")
    second = box.submit(*CPU, "--", "true")  # submit starts the next runner
    assert wait(node, second)[0] == "done"
    path.write_text("go\n")
    assert wait(node, job)[:2] == ("failed", 5)


def test_a_supervisor_that_is_stopped_cannot_keep_its_job_alive(node: Manager, box: Box) -> None:
    """Any process of this user in the container can stop it: the manager insists by itself."""
    job, _ = holding(node, box)
    supervisor = supervisor_of(box)
    os.kill(supervisor, signal.SIGSTOP)
    node.call("job_withdraw", job=job)
    with contextlib.suppress(ProcessLookupError):  # the manager has insisted already
        os.kill(supervisor, signal.SIGCONT)
    assert wait(node, job)[0] == "withdrawn"


def test_a_container_stops_while_it_runs(node: Manager, box: Box) -> None:
    job, _ = holding(node, box)
    box.stop()
    cause, why = interruption(node, job)
    assert (cause, why.startswith("its container was stopped")) == ("container_stopped", True)


def test_who_started_it_may_go(node: Manager, box: Box) -> None:
    """Neither the end of the shell nor a hangup reaches the job or its runner."""
    path = gate(box)
    shell = box.spawn(
        "setsid",
        "sh",
        "-c",
        f"sh {box.verbs} submit {' '.join(CPU)} -- sh -c 'read line < {path}; exit 4'; kill -HUP 0",
    )
    job = shell.communicate(timeout=WAIT_LIMIT_S)[0].split()[0]
    node.events().expect("job.started", job=job)
    path.write_text("go\n")
    assert wait(node, job)[:2] == ("failed", 4)


def test_another_sandbox_on_the_nodes_own_way_is_refused(
    node: Manager, make_box: Callable[..., Box]
) -> None:
    """It was shown the node's socket, not a container's."""
    box = make_box()
    said = box.run(
        "env",
        f"NODEMGR_ENV_DIR={node.env_dir('alice')}",
        "sh",
        str(box.verbs),
        "submit",
        *CPU,
        "--",
        "true",
    )
    assert (said.returncode, said.stdout) == (1, "")
    assert "a job of this sandbox would run outside of it" in said.stderr


def test_where_no_runner_can_run_nothing_is_submitted(node: Manager, box: Box) -> None:
    box.run("mount", "-t", "tmpfs", "none", str(ROOT / "client_plugin" / "_bin"))
    said = box.say("submit", *CPU, "--", "true")
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr.startswith("nodemgr: no job can run in this container: ")
    assert queue_rows(node.call, env="alice") == []
