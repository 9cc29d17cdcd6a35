"""No launcher can start a job: waiting jobs keep their places and nothing else.

This holds for the whole life of the manager.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from client_plugin.ways import choice as ways
from nodemgr import cli
from nodemgr.core.model import events
from nodemgr.core.model.entities import JobState
from nodemgr.edge.executor.launcher import PROGRAM, LauncherEndpoint
from tests.jobs.test_verbs import variables
from tests.jobs.world import KINDS, TWO_NODES, World, open_gate
from tests.session import TMP
from tests.supervisor.world import end
from tests.support.local import FakeGpus
from tests.support.processes import with_command
from tests.support.queue_pages import queue_rows
from tests.support.udp_clients import FakeClient

Client = Callable[..., FakeClient]
THIS_NODE = KINDS[0]


@pytest.fixture
def make() -> Iterator[Callable[..., World]]:
    with tempfile.TemporaryDirectory(prefix="nm", dir=TMP) as name:
        made: list[World] = []

        def start(kind: str, gpus: int = 1) -> World:
            made.append(World(Path(name), kind, gpus=FakeGpus(gpus)))
            return made[-1]

        yield start
        for world in made:
            world.close()


def launchers(world: World) -> list[int]:
    """The launchers of this node's manager that have not forked into a supervisor."""
    return with_command([str(PROGRAM), "launcher", str(world.directory / "state" / "jobs")])


def row(world: World, job_id: str) -> dict[str, Any]:
    (found,) = [row for row in queue_rows(world.manager.call) if row["id"] == job_id]
    return found


def why(world: World, job_id: str) -> str:
    reason: str = row(world, job_id)["reason"]
    return reason


def orders_by_pass(world: World) -> list[int]:
    """How many jobs each scan from now on starts. It grows."""
    loop, given = world.manager.daemon.event_loop, list[int]()
    run_pass = loop._matcher.run_pass

    def starting() -> int:
        jobs = world.manager.daemon.state.jobs.values()
        return sum(job.state is JobState.STARTING for job in jobs)

    def counted() -> None:
        before = starting()
        run_pass()
        given.append(starting() - before)

    world.manager.do(lambda: setattr(loop._matcher, "run_pass", counted))
    return given


def test_while_nothing_can_be_started_others_have_the_gpus_and_one_look_starts_all_when_it_can(
    make: Callable[..., World], make_client: Client
) -> None:
    world = make(TWO_NODES, gpus=2)
    world.set_up(False)
    (first, gate), (without_gpu, other_gate) = world.holding(gpus=2), world.holding(gpus=0)
    jobs = [first, without_gpu, world.submit()]
    assert world.waiting() == jobs
    assert why(world, jobs[0]) == "needs 2 GPUs; no job can be started: both nodes are down"
    assert world.manager.call("status")["launcher"] == {
        "state": "down",
        "error": "no job can be started: both nodes are down",
    }
    client = make_client(world.manager.env_dir("bob"))
    client.ask(1)
    client.expect("GRANT")
    assert world.waiting() == jobs
    client.release()
    wakes_of = world.manager.daemon.event_loop.wakes
    # the driver's word that nothing of it is left
    world.until_seen(lambda: wakes_of[events.UnreclaimedChanged.__name__] > 0)
    world.settle()
    wakes = world.manager.do(lambda: world.manager.daemon.event_loop.wakes.total())
    world.settle()
    assert world.manager.do(lambda: world.manager.daemon.event_loop.wakes.total()) == wakes
    given = orders_by_pass(world)
    world.set_up(True)
    world.until("job.started", job=jobs[1])
    assert [count for count in given if count] == [2], "one pass starts all that fits"
    open_gate(gate)
    open_gate(other_gate)
    for job_id in jobs:
        assert (world.until_ended(job_id).job.state, world.ended(job_id).job.restarts) == (
            JobState.DONE,
            0,
        )
    assert world.job_ids("job.starting")[:2] == jobs[:2]
    assert world.manager.call("status")["launcher"] == {"state": "ok", "error": None}


def test_who_looks_is_told_why_and_what_to_do(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = make(TWO_NODES)
    for name, value in variables(world).items():
        monkeypatch.setenv(name, value)

    def said(*words: str) -> tuple[int, str, str]:
        code = cli.main(list(words))
        out, err = capsys.readouterr()
        return int(code), out, err

    world.set_up(False)
    inside = world.submit(place="alice/0/dev")
    _, out, err = said("queue")
    assert (
        "root@dev" in out,
        "waits for its container dev: start it, then run `nodemgr queue` there" in out,
    ) == (True, True)
    assert err == "", "nobody waits for the node"
    job_id = world.submit()
    why = "no job can be started: both nodes are down"
    for verb in ("queue", "status"):
        code, out, err = said(verb)
        assert (code, why in out) == (0, True)
        assert (
            err == f"nodemgr: warning: {why} (nodemgr doctor says what to do; the jobs keep their"
            " places)\n"
        )
    assert (
        said("queue", "position", job_id)[1]
        == f"{job_id}: place 2 in queue normal: needs 1 GPU; {why}\n"
    )
    ask = ways.AdminWay.ask

    def up_before_it_waits(way: ways.AdminWay, verb: str, *more: Any, **arguments: Any) -> Any:
        if verb == "job_wait":
            world.set_up(True)
        return ask(way, verb, *more, **arguments)

    monkeypatch.setattr(ways.AdminWay, "ask", up_before_it_waits)
    assert said("wait", job_id) == (
        0,
        "",
        f"nodemgr: warning: {why} (nodemgr doctor says what to do; the jobs keep their places)\n",
    )
    assert said("wait", job_id) == (0, "", ""), "it has ended, and all is well"
    assert world.waiting() == [inside]


def test_what_was_to_be_started_when_it_went_down_is_back_in_its_place(
    make: Callable[..., World],
) -> None:
    world = make(TWO_NODES, gpus=1)
    assert world._cluster is not None
    world._cluster.is_up = False  # not reported yet
    first, second = world.submit(max_restarts=0), world.submit()
    world.until("job.unbegun", job=first)
    assert world.waiting() == [first, second]
    world.set_up(True)
    assert world.until_ended(first).job.state is JobState.DONE
    assert world.until_ended(second).job.state is JobState.DONE
    assert world.begun() == [f"{first}:2", f"{second}:1"]


def test_all_launchers_die_while_one_is_asked_and_others_wait(
    make: Callable[..., World], make_client: Client
) -> None:
    """The manager may start no other launcher: the next manager does.

    Until then the GPU is free for users that start their own programs.
    """
    world = make(THIS_NODE)
    holder, gate = world.holding()
    world.until_running(holder)
    alive = launchers(world)
    assert len(alive) == 3
    for pid in alive:
        os.kill(pid, signal.SIGSTOP)
    open_gate(gate)
    world.until_ended(holder)
    starting, waiting = world.submit(max_restarts=0), world.submit()
    world.until("job.starting", job=starting)
    assert world.waiting() == [waiting]
    for pid in alive:
        end(pid)
    world.until("job.unbegun", job=starting)
    assert world.waiting() == [starting, waiting]
    words = (
        "its launchers have died, and the manager may start no other: restart it (no task and no"
        " job is lost)"
    )
    assert why(world, starting) == f"needs 1 GPU; no job can be started: {words}"
    (check,) = [
        check for check in world.manager.call("doctor")["checks"] if check["name"] == "jobs"
    ]
    assert (check["ok"], words in check["detail"]) == (False, True)
    client = make_client(world.manager.env_dir("bob"))
    client.ask(1)
    client.expect("GRANT")
    client.release()
    world.restart()
    assert world.until_ended(starting).job.state is JobState.DONE
    assert world.until_ended(waiting).job.state is JobState.DONE
    assert world.begun() == [f"{holder}:1", f"{starting}:2", f"{waiting}:1"]


@pytest.fixture
def served(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[World, Callable[[], int]]]:
    """A manager as under systemd, and what starts its service."""
    monkeypatch.setattr(
        LauncherEndpoint,
        "fitting",
        lambda run_dir, jobs_dir: LauncherEndpoint(jobs_dir, run_dir / "launcher"),
    )
    programs: list[subprocess.Popen[bytes]] = []
    world = make(THIS_NODE)

    def serve() -> int:
        programs.append(
            subprocess.Popen(
                [
                    PROGRAM,
                    "launcher",
                    world.directory / "state" / "jobs",
                    world.manager.run_dir / "launcher",
                ]
            )
        )
        return programs[-1].pid

    yield world, serve
    if all(program.poll() is not None for program in programs):
        serve()  # or nothing could be ended
    world.close()
    for program in programs:
        program.kill()
        program.wait()


def test_the_service_is_missing_and_comes_and_goes(served: tuple[World, Callable[[], int]]) -> None:
    world, serve = served
    first, second, third = (world.submit(max_restarts=0) for _ in range(3))
    assert world.waiting() == [first, second, third]
    answer = f"{world.manager.run_dir}/launcher: No such file or directory"
    assert (
        why(world, first)
        == "needs 1 GPU; no job can be started: the service nodemgr-jobs does not answer"
        f" ({answer})"
    )
    world.restart()
    assert world.waiting() == [first, second, third]
    world.order(events.MoveJob, third, None, True)
    world.order(events.WithdrawJob, second)
    service = serve()
    for job_id in (third, first):
        assert world.until_ended(job_id).job.state is JobState.DONE
    assert world.begun() == [f"{third}:1", f"{first}:1"]
    end(service)
    world.until_seen(lambda: not world.manager.daemon.state.is_up(""))
    last = world.submit(max_restarts=0)
    assert world.waiting() == [last]
    assert "no job can be started: " in why(world, last)
    serve()
    assert world.until_ended(last).job.state is JobState.DONE


def test_the_service_ends_before_it_has_begun_what_it_was_asked_for(
    served: tuple[World, Callable[[], int]],
) -> None:
    world, serve = served
    service = serve()
    first = world.submit()
    world.until_ended(first)
    os.kill(service, signal.SIGSTOP)
    starting = world.submit(max_restarts=0)
    world.until("job.starting", job=starting)
    end(service)
    world.until("job.unbegun", job=starting)
    world.restart()
    assert world.waiting() == [starting]
    serve()
    job = world.until_ended(starting).job
    assert (job.state, job.restarts, [attempt.number for attempt in job.attempts]) == (
        JobState.DONE,
        0,
        [2],
    )
    assert world.begun() == [f"{first}:1", f"{starting}:2"]
