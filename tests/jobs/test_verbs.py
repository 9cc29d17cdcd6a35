"""The verbs for jobs as people type them, on a real manager with stand-in nodes."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from client_plugin.prediction import outcome
from client_plugin.prediction.watch import WatchOrder
from client_plugin.verbs.commands import history, predict
from client_plugin.verbs.launch import watching
from client_plugin.verbs.presentation import cells
from client_plugin.ways import choice as ways
from client_plugin.ways.faults import Lost
from nodemgr import cli
from nodemgr.core.forecast import gpu_models
from nodemgr.core.model.causes import WaitCause
from nodemgr.core.model.entities import EarlySignal, HostFigures, RunSpec
from nodemgr.edge.executor.interface import Status
from nodemgr.edge.suspension import host_memory
from tests.cli.conftest import STRANGER, clean_environment
from tests.edge.forecast.predicted_jobs import MODEL, submit_predicted
from tests.jobs.world import KINDS, WAIT_LIMIT_S, World, open_gate
from tests.prediction.test_findings import SEEN, watched
from tests.session import TMP
from tests.support.local import FakeGpus

Said = subprocess.CompletedProcess[str]
Run = Callable[..., Said]
USER = 4711
"""A user without a name."""


@pytest.fixture
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="nmv", dir=TMP) as name:
        world = World(Path(name), KINDS[0], gpus=FakeGpus(4))
        yield world
        world.close()


def variables(world: World, **more: str | None) -> dict[str, str]:
    return clean_environment(**{"NODEMGR_RUN_DIR": str(world.manager.run_dir), **more})


@pytest.fixture
def nodemgr(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """nodemgr(verb, …): the command line, within this process."""

    def run(*arguments: object, **more: str | None) -> Said:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            patch.setattr(os, "environ", variables(world, **more))
            code = cli.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, out, err)

    return run


def begin(world: World, *arguments: str, **more: str | None) -> subprocess.Popen[str]:
    """The command line as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "nodemgr", *arguments], env=variables(world, **more), text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


OUR_VERBS = '("submit", "queue", "logs", "wait", "history", "report", "doctor",'
AS_USER = (
    STRANGER.split("os.setgroups")[0].replace('("doctor",', OUR_VERBS)
    + f"""
import contextlib, io, json
os.setgroups([])
os.setresgid({USER}, {USER}, {USER})
os.setresuid({USER}, {USER}, {USER})
for line in sys.stdin:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(json.loads(line))
    print(json.dumps([int(code), out.getvalue(), err.getvalue()]), flush=True)
"""
)
"""Another user's command lines, one after the other in one process."""


@pytest.fixture
def user(world: World) -> Iterator[Run]:
    """user(verb, …): the same as a user that alice's quota names."""
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    world.manager.call("quota_set", env="alice", users=[str(USER)])
    program = subprocess.Popen(
        [sys.executable, "-c", AS_USER],
        env=variables(world),
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd="/",
    )
    assert program.stdin is not None
    assert program.stdout is not None

    def run(*arguments: object) -> Said:
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdin.write(json.dumps([str(argument) for argument in arguments]) + "\n")
        program.stdin.flush()
        return subprocess.CompletedProcess(arguments, *json.loads(program.stdout.readline()))

    yield run
    program.communicate(timeout=WAIT_LIMIT_S)


def refused(said: Said, code: int, text: str) -> None:
    """The verb failed with this code and one line that has `text`."""
    assert said.returncode == code, said.stderr
    assert said.stdout == ""
    (line,) = said.stderr.splitlines()
    assert line.startswith("nodemgr: ")
    assert text in line


def listed(nodemgr: Run, *arguments: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(nodemgr("queue", *arguments, "--json").stdout)
    return told


# -- submit --


def test_submit_prints_the_id_alone_and_the_job_finds_what_was_around(
    world: World, nodemgr: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = world.directory / "a b"
    here.mkdir()
    monkeypatch.chdir(here)
    script = 'echo "$PWD|$MARK|$NODEMGR_JOB|$0|$1"; printf "%s" "$2" | wc -l'
    said = nodemgr(
        "submit",
        "--env",
        "alice",
        "--gpus",
        1,
        "--",
        "sh",
        "-c",
        script,
        "x y",
        "--gpus",
        "two\nlines\n",
        MARK="é%=\\",
    )
    assert (said.returncode, said.stdout, said.stderr) == (0, "j1\n", "")
    world.until_ended("j1")
    assert world.log("j1").decode() == f"{here}|é%=\\|j1:1|x y|--gpus\n2\n"
    spec = world.ended("j1").spec
    payload = world.manager.do(lambda: world.manager.daemon.journal.payload(spec.spec_id))
    assert (spec.uid, spec.gid, payload.cwd) == (os.getuid(), os.getgid(), str(here))
    assert f"NODEMGR_ENV_DIR={world.manager.env_dir('alice')}" in payload.environ
    assert any(variable.startswith("LD_PRELOAD=") for variable in payload.environ), (
        "as nodemgr run has it"
    )
    told = nodemgr("history", "j1")
    assert "(uid " in told.stdout
    assert "\ntwo" not in told.stdout, "a command is one line to people"


def test_all_that_can_be_wished_arrives(world: World, nodemgr: Run) -> None:
    holder, _gate = world.holding(gpus=4, env="bob")
    said = nodemgr(
        "submit", "--env", "bob", "--gpus", 2, "--memory", "8GiB", "--priority", "high", "--after",
        holder, "--array", "0-2,7",
        "--time", "2h", "--max-restarts", 0, "--name", "a sweep", "--hold",
        "--class", "best-effort", "--compute", "30%", "--deadline", "90min",
        "--signal", "usr1@60s", "--", "true",
    )  # fmt: skip
    assert said.stdout == "j2\n"
    job = world.job("j2.7")
    assert (job.run.gpus, job.run.memory_bytes, job.priority, job.after, job.run.time_limit_ms) == (
        2,
        8 << 30,
        "high",
        (holder,),
        7_200_000,
    )
    assert (job.max_restarts, job.name, job.state) == (0, "a sweep", "held")
    run = job.run
    assert (run.task_class, run.compute_percent, run.deadline_ms) == ("best-effort", 30, 5_400_000)
    assert run.signal == EarlySignal("USR1", 60_000)
    (row,) = listed(nodemgr)["queue"]
    assert (row["id"], row["jobs"], row["indices"]) == ("j2.*", 4, "0-2,7")
    row = json.loads(nodemgr("history", "j2.7", "--json").stdout)["jobs"][0]
    assert row["early_signal"] == "USR1@60s"


def test_limits_that_cannot_hold_are_said(nodemgr: Run, tmp_path: Path) -> None:
    said = nodemgr("submit", "--env", "alice", "--gpus", "0", "--cpus", "1", "--", "true")
    assert said.stdout == "j1\n"
    (line,) = said.stderr.splitlines()
    assert "--cpus and --host-memory reserve, and limit nothing: only jobs of the service" in line
    lines = tmp_path / "lines"
    lines.write_text('{"command": "true", "host_memory": "1MiB"}\n' * 3)
    many = nodemgr("submit", "--env", "alice", "--gpus", "0", "--from", lines)
    assert many.stdout.split() == ["j2", "j3", "j4"]
    assert many.stderr.splitlines() == [line]
    assert nodemgr("submit", "--env", "alice", "--gpus", "0", "--", "true").stderr == ""


def test_limits_of_a_command_are_refused_or_their_absence_said(world: World, nodemgr: Run) -> None:
    def run(*options: str) -> tuple[int, str, str]:
        with begin(world, "run", "--env", "alice", *options, "--", "echo", "ran") as command:
            out, err = command.communicate()
        return command.returncode, out, err

    limits = "nodemgr: --cpus and --host-memory do not limit this command: only jobs of the service"
    code, out, err = run("--cpus", "1")
    assert (code, out, err.startswith(limits), err.count("\n")) == (0, "ran\n", True, 1)
    assert run() == (0, "ran\n", "")
    assert run("--cpus", "0")[:2] == (2, "")
    code, out, err = run("--cpus", "65536")
    assert (code, out, "this node has" in err) == (77, "", True)
    nodemgr("quota", "set", "alice", "--host-memory", "1GiB")
    code, out, err = run("--host-memory", "2GiB")
    assert (code, out, "alice" in err) == (77, "", True)
    assert run() == (0, "ran\n", "")


def test_with_the_nodes_gate_each_command_gets_a_cgroup_of_its_own(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, entered = world.manager.daemon.jobs, list[tuple[str, RunSpec]]()

    def enter(env: str, _process: str, run: RunSpec, then: Callable[[str | None], None]) -> None:
        entered.append((env, run))
        then("it cannot be done here")

    monkeypatch.setattr(jobs, "enter", enter)
    for is_closed in (False, True):
        monkeypatch.setattr(jobs, "closes_jobs", lambda is_closed=is_closed: is_closed)
        with begin(world, "run", "--env", "alice", "--", "echo", "ran") as command:
            assert command.communicate() == ("ran\n", ""), "without limits it says nothing"
        assert entered == [("alice", RunSpec("", 0, None, None))] * is_closed


def test_a_best_effort_job_hears_that_it_could_not_be_suspended(
    nodemgr: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it has a signal to save its state at, or its memory fits into that of the host."""
    best = "submit", "--env", "alice", "--hold", "--class", "best-effort", "--gpus", 1
    monkeypatch.setattr(host_memory, "most_of_node", lambda: 1 << 30)
    assert nodemgr(*best, "--memory", "2GiB", "--", "true").stderr == (
        "nodemgr: where a latency-sensitive task needs its GPU, the job is ended and begins anew,"
        " since its GPU memory (up to 2 GiB) does not fit in the host memory (1 GiB): have it"
        " save its state, at a --signal or by itself\n"
    )
    for words in (("--memory", "1GiB"), ("--memory", "2GiB", "--signal", "USR1@9s")):
        assert nodemgr(*best, *words, "--", "true").stderr == ""
    normal = *best[:4], "--gpus", 1, "--memory", "2GiB", "--", "true"
    assert nodemgr(*normal).stderr == ""


def test_a_best_effort_job_hears_that_it_goes_sooner_than_its_signal_says(nodemgr: Run) -> None:
    best = "submit", "--env", "alice", "--hold", "--class", "best-effort"
    said = nodemgr(*best, "--signal", "USR1@61s", "--", "true")
    assert said.stderr == (
        "nodemgr: where a latency-sensitive task needs its GPU, the job has 1 min after its"
        " --signal\n"
    )
    assert nodemgr(*best, "--signal", "USR1@60s", "--", "true").stderr == ""
    assert nodemgr(*best[:4], "--signal", "USR1@10min", "--", "true").stderr == ""


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--env", "alice", "--", "no-such-command"), 127, "no-such-command: not found in PATH"),
        (("--env", "alice", "--", "./no such file"), 127, "./no such file: not found"),
        (("--env", "alice", "--", "/etc/passwd"), 126, "/etc/passwd: not executable"),
        (("--env", "nobody", "--", "true"), 77, "no environment 'nobody'"),
        (("--env", "alice", "--gpus", "9", "--", "true"), 77,
            "the quota of alice is 8: ask for at most 8"),
        (("--env", "alice", "--gpus", "5", "--", "true"), 77, "this node has 4: ask for at most 4"),
        (("--env", "alice", "--gpus", "0", "--memory", "1GiB", "--", "true"), 2,
            "a job without a GPU has none"),
        (("--env", "alice", "--memory", "1", "--", "true"), 2, "a bare number"),
        (("--env", "alice", "--gpus", "0", "--compute", "30%", "--", "true"), 2,
            "a job without a GPU has none"),
        (("--env", "alice", "--class", "latency-sensitive", "--", "true"), 77,
            "the highest class of alice is normal: ask for that one"),
        (("--env", "alice", "--class", "batch", "--", "true"), 2, "is no class: write"),
        (("--env", "alice", "--compute", "40", "--", "true"), 2, "a bare number"),
        (("--env", "alice", "--compute", "0%", "--", "true"), 2, "a share of zero"),
        (("--env", "alice", "--compute", "101%", "--", "true"), 2, "more than a whole GPU"),
        (("--env", "alice", "--deadline", "0", "--", "true"), 2, "is less than 1 ms: name a long"),
        (("--env", "alice", "--deadline", "soon", "--", "true"), 2, "is no duration"),
        (("--env", "alice", "--time", "0", "--", "true"), 2, "is less than 1 ms: name a long"),
        (("--env", "alice", "--time", "2", "--", "true"), 2, "a bare number"),
        (("--env", "alice", "--signal", "USR1", "--", "true"), 2, "no signal and time: write it"),
        (("--env", "alice", "--signal", "KILL@1min", "--", "true"), 2, "with USR1, USR2, HUP"),
        (("--env", "alice", "--signal", "USR1@", "--", "true"), 2, "'' is no duration"),
        (("--env", "alice", "--signal", "USR1@60", "--", "true"), 2, "a bare number"),
        (("--env", "alice", "--signal", "USR1@0s", "--", "true"), 2, "is less than 1 s"),
        (("--env", "alice", "--signal", "USR1@11min", "--", "true"), 2, "is more than 10 min"),
        (("--env", "alice", "--signal", "USR1@1min", "--time", "60s", "--", "true"), 2,
            "--signal is due before the job starts: name a time shorter than --time"),
        (("--env", "alice", "--cpus", "0", "--", "true"), 2, "--cpus"),
        (("--env", "alice", "--host-memory", "0", "--", "true"), 2, "--host-memory"),
        (("--env", "alice", "--cpus", "65536", "--", "true"), 77, "65536 CPUs asked, but this n"),
        (("--env", "alice", "--priority", "nix", "--", "true"), 1, "there is no queue nix"),
        (("--env", "alice", "--priority", "../x", "--", "true"), 2, "no name of a queue"),
        (("--env", "alice", "--after", "j77", "--", "true"), 1, "no job j77"),
        (("--env", "alice", "--after", "77", "--", "true"), 2, "'77' is no job"),
        (("--env", "alice", "--array", "3-1", "--", "true"), 2, "runs backwards"),
        (("--env", "alice", "--array", "0-10000", "--", "true"), 2, "more than 10000"),
        (("--env", "alice", "--array", "0-9999,10000", "--", "true"), 2, "more than 10000"),
        (("--env", "alice", "--array", "a", "--", "true"), 2, "is no array"),
        (("--env", "alice", "--name", "x" * 65, "--", "true"), 2, "at most 64 characters"),
        (("--env", "alice", "--name", "a\nb", "--", "true"), 2, "on one line"),
        (("--env", "alice", "--", "sh", "-c", "x" * 140_000), 2, "the system takes at most"),
        (("--env", "alice", "--max-restarts", "-1", "--", "true"), 2, "--max-restarts"),
        (("--env", "alice"), 2, "COMMAND"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_at_once_in_one_line(
    nodemgr: Run, arguments: tuple[str, ...], code: int, text: str
) -> None:
    refused(nodemgr("submit", *arguments), code, text)
    assert listed(nodemgr)["queue"] == []


def test_an_environment_beyond_a_sheet_is_refused_with_the_cure(nodemgr: Run) -> None:
    many = {f"LARGE{i}": "x" * 100_000 for i in range(11)}
    refused(
        nodemgr("submit", "--env", "alice", "--", "true", **many), 2, "(env -u NAME, or env -i)"
    )
    assert nodemgr("submit", "--env", "alice", "--", "true", LARGE="x" * 100_000).stdout == "j1\n"


def test_a_lost_answer_is_asked_for_again_and_submits_nothing_twice(
    world: World, nodemgr: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, lost = ways.UserWay.ask, []

    def losing(way: ways.UserWay, verb: str, *rest: Any, **arguments: Any) -> Any:
        answer = ask(way, verb, *rest, **arguments)
        if verb == "job_submit" and not lost:
            lost.append(answer)
            raise Lost("the manager closed the connection")
        return answer

    monkeypatch.setattr(ways.UserWay, "ask", losing)
    said = nodemgr("submit", "--env", "alice", "--hold", "--", "true")
    assert (said.stdout, said.stderr) == ("j1\n", ""), "within a second there is nothing to say"
    assert [row["id"] for row in listed(nodemgr)["queue"]] == ["j1"]


def test_in_an_environment_it_need_not_be_named(
    world: World, nodemgr: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = str(world.manager.env_dir("bob"))
    said = nodemgr("submit", "--hold", "--", "true", NODEMGR_RUN_DIR=None, NODEMGR_ENV_DIR=inside)
    assert said.stdout == "j1\n"
    assert world.job("j1").env == "bob"
    assert nodemgr("submit", "--hold", "--", "true", NODEMGR_ENV_DIR=inside).stdout == "j2\n", (
        "the variable names its manager, too"
    )
    assert world.job("j2").env == "bob"
    elsewhere = ("submit", "--run-dir", world.manager.run_dir, "--", "true")
    refused(
        nodemgr(*elsewhere, NODEMGR_ENV_DIR=inside),
        2,
        "you may enter several environments (alice, bob): name one with --env",
    )
    refused(
        nodemgr("submit", "--", "true"),
        2,
        "you may enter several environments (alice, bob): name one with --env",
    )
    monkeypatch.setattr(predict, "watched_findings", None)  # it refuses before it watches
    refused(
        nodemgr("predict", "--", "true"),
        2,
        "you may enter several environments (alice, bob): name one with --env",
    )


def test_a_watched_command_brings_its_features(
    world: World, nodemgr: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "watch", lambda _order: watched(SEEN))
    said = nodemgr("submit", "--predict", "--env", "alice", "--gpus", 1, "--hold", "--", "true")
    assert (said.returncode, said.stdout) == (0, "j1\n"), said.stderr
    assert "predicted on " in said.stderr
    assert listed(nodemgr)["queue"][0]["predicted"]
    memory_bytes = world.job("j1").run.memory_bytes
    assert memory_bytes is not None
    assert memory_bytes > SEEN["reserved_peak_bytes"]


def test_the_number_of_steps_gives_an_expected_time(
    world: World, nodemgr: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: list[WatchOrder] = []
    monkeypatch.setattr(watching, "watch", lambda order: orders.append(order) or watched(SEEN))
    monkeypatch.setattr(gpu_models, "SIMULATED", "Test GPU")  # with the rates of an H100
    words = ("--predict", "--env", "alice", "--gpus", 1, "--hold")
    said = nodemgr("submit", *words, "--", "true")
    assert "run time unknown without the number of steps (--steps)" in said.stderr
    more = ("--steps", 10**9, "--unconfined", "--limit", "5min")
    said = nodemgr("submit", *words, *more, "--", "true")
    assert "unknown" not in said.stderr
    assert [(order.is_confined, order.limit_s) for order in orders] == [(True, 60), (False, 300)]
    assert world.job("j1").run.expected_ms is None
    assert (world.job("j2").run.expected_ms or 0) > 0


@pytest.mark.parametrize("option", [("--steps", "5"), ("--limit", "2min"), ("--unconfined",)])
def test_options_of_a_watched_command_need_one(nodemgr: Run, option: tuple[str, ...]) -> None:
    refused(
        nodemgr("submit", *option, "--env", "alice", "--", "true"),
        2,
        f"{option[0]} is about a command that is watched: add --predict, or leave it out",
    )


def test_a_command_without_a_prediction_is_submitted_as_it_is(
    nodemgr: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watched(outcome.abstention("it does not train"))
    monkeypatch.setattr(watching, "watch", lambda _order: seen)
    said = nodemgr("submit", "--predict", "--env", "alice", "--hold", "--", "true")
    assert (said.returncode, said.stdout) == (0, "j1\n")
    assert said.stderr == (
        "nodemgr: no prediction, because it does not train; the job is submitted without a"
        " forecast\n"
    )
    refused(
        nodemgr("submit", "--predict", "--from", "-", "--env", "alice"),
        2,
        "--predict watches one command: leave --from out, or --predict",
    )


# -- queue and its orders --


def test_the_queue_shows_all_that_waits_and_what_runs(world: World, nodemgr: Run) -> None:
    holder, _gate = world.holding(gpus=4)
    world.until_running(holder)
    for more in (("--name", "next"), ("--priority", "high"), ("--hold",), ("--after", holder)):
        nodemgr("submit", "--env", "alice", "--gpus", 2, *more, "--", "true")
    told = listed(nodemgr)
    assert told["schema_version"] == 1
    assert [(row["id"], row["position"], row["state"]) for row in told["queue"]] == [
        ("j3", 1, "queued"), ("j2", 1, "queued"), ("j4", None, "held"), ("j5", None, "after"),
    ]  # fmt: skip
    assert all(row["reason"] for row in told["queue"])
    assert [(row["id"], row["state"]) for row in told["running"]] == [(holder, "running")]
    assert [(row["name"], row["rank"], row["length"]) for row in told["queues"]] == [
        ("high", 300, 1),
        ("normal", 200, 1),
        ("low", 100, 0),
    ]
    lines = nodemgr("queue").stdout.splitlines()
    assert lines[0].split()[:3] == ["PLACE", "ID", "ENV"]
    assert lines[1].split()[:3] == ["1", "j3", "alice"]
    assert lines[3].split()[:2] == ["-", "j4"]
    assert listed(nodemgr, "--env", "bob")["queue"] == []
    assert nodemgr("queue", "--env", "bob").stdout == "Nothing waits.\n"


def test_each_order_does_what_it_says(world: World, nodemgr: Run) -> None:
    _holder, _gate = world.holding(gpus=4)
    for _ in range(3):
        world.submit(gpus=4)
    assert nodemgr("queue", "hold", "j3").stderr == "nodemgr: j3 is held\n"
    assert world.waiting() == ["j2", "j4"]
    assert nodemgr("queue", "unhold", "j3").returncode == 0
    assert world.waiting() == ["j2", "j4", "j3"]
    assert nodemgr("queue", "move", "j3", "--first").returncode == 0
    assert world.waiting() == ["j3", "j2", "j4"]
    assert nodemgr("queue", "move", "j4", "high").returncode == 0
    assert world.waiting() == ["j4", "j3", "j2"]
    assert nodemgr("queue", "withdraw", "j2").returncode == 0
    assert world.waiting() == ["j4", "j3"]
    assert "place 1 in queue normal" in nodemgr("queue", "position", "j3").stdout
    assert nodemgr("queue", "position", "j2").stdout == "j2: withdrawn (root (uid 0) withdrew it)\n"
    story = json.loads(nodemgr("history", "j2", "--json").stdout)["jobs"][0]
    assert [entry["what"] for entry in story["deeds"]] == ["submitted", "withdrawn"]
    assert {entry["who"] for entry in story["deeds"]} == {f"{ways.user()} (uid {os.getuid()})"}
    assert nodemgr("queue", "requeue", "j2").returncode == 0
    assert world.waiting() == ["j4", "j3", "j2"]


def test_an_order_that_makes_no_sense_says_why(world: World, nodemgr: Run) -> None:
    holder, _gate = world.holding(gpus=4)
    world.until_running(holder)
    world.submit(gpus=4)
    refused(nodemgr("queue", "hold", holder), 1, "j1 is running")
    refused(nodemgr("queue", "unhold", "j2"), 1, "j2 is not held")
    refused(nodemgr("queue", "move", "j2"), 2, "name a queue (for its end) or --first")
    refused(nodemgr("queue", "move", "j2", "nix"), 1, "there is no queue nix")
    refused(nodemgr("queue", "hold", "j9"), 1, "there is no job 'j9'")
    refused(nodemgr("queue", "hold", "r9"), 2, "'r9' is no job")
    refused(nodemgr("queue", "withdraw", "r9"), 1, "no request 'r9' waits here")
    refused(nodemgr("queue", "withdraw", "j1;j2"), 2, "is no job")
    nodemgr("queue", "withdraw", "j2")
    refused(
        nodemgr("queue", "hold", "j2"),
        1,
        "j2 has ended (withdrawn): run it again with `nodemgr queue requeue j2`",
    )


def test_what_keeps_an_environment_is_named_as_the_queue_names_it(
    world: World, nodemgr: Run
) -> None:
    holder, _gate = world.holding(gpus=4)
    world.until_running(holder)
    world.submit(gpus=4)
    world.submit(hold=True)
    said = nodemgr("quota", "rm", "alice").stderr.splitlines()
    assert said[0].endswith("(no process uses CUDA yet)")
    assert said[1:3] == ["nodemgr: j2 waits", "nodemgr: j3 is a job that has not ended"]
    assert "alice is not removed, since it is in use (1 running, 1 waiting, 1 more job)" in said[3]


def test_a_place_is_shown_where_others_are_in_the_way(world: World, nodemgr: Run) -> None:
    """A job that waits for its own environment alone has none."""
    nodemgr("quota", "set", "alice", "--gpus", 2)
    holder, _gate = world.holding(gpus=2)
    world.until_running(holder)
    world.submit(env="bob", gpus=4)
    world.submit(gpus=2)
    world.submit(gpus=2)
    rows = nodemgr("queue").stdout.splitlines()[1:4]
    assert [row.split()[:2] for row in rows] == [["1", "j2"], ["-", "j3"], ["-", "j4"]]
    causes = [row["cause"] for row in json.loads(nodemgr("queue", "--json").stdout)["queue"]]
    assert causes[:3] == [WaitCause.NODE, WaitCause.OWN_GPUS, WaitCause.BEHIND_OWN]
    assert {cause.value for cause in WaitCause} >= cells.WAITS_FOR_OWN


def test_the_release_of_a_jobs_task_says_that_the_job_ends(world: World, nodemgr: Run) -> None:
    holder, _gate = world.holding(gpus=1)
    world.until_running(holder)
    (task,) = json.loads(nodemgr("status", "--json").stdout)["tasks"]
    said = nodemgr("release", task["id"]).stderr
    assert said == "nodemgr: t1 is released: j1 is withdrawn, and its processes are ended\n"


def test_queues_are_made_and_removed(world: World, nodemgr: Run) -> None:
    made = nodemgr("queue", "create", "urgent", "--rank", 900, "--cap", 1)
    assert made.stderr == "nodemgr: queue urgent has rank 900, takes 1 at most\n"
    _holder, _gate = world.holding(gpus=4)
    assert (
        nodemgr("submit", "--env", "bob", "--gpus", 4, "--priority", "urgent", "--", "true").stdout
        == "j2\n"
    )
    refused(
        nodemgr("submit", "--env", "bob", "--gpus", 4, "--priority", "urgent", "--", "true"),
        1,
        "urgent",
    )
    assert "urgent   900" in nodemgr("queue").stdout
    assert nodemgr("queue", "create", "patient", "--rank", 50, "--max-restarts", 2).stderr.endswith(
        "restarts failed jobs 2 times\n"
    )
    changed = nodemgr("queue", "create", "patient", "--max-restarts", 3)
    assert changed.stderr.endswith("has rank 50, restarts failed jobs 3 times\n"), (
        "it keeps its rank"
    )
    assert nodemgr("queue", "create", "patient", "--rank", 50, "--max-restarts", -1).returncode == 2
    refused(
        nodemgr("queue", "create", "new", "--max-restarts", 2),
        2,
        "queue new is new and has no rank: name its rank (--rank N; high has 300",
    )
    columns = nodemgr("queue").stdout.splitlines()
    (title,) = (line for line in columns if line.startswith("QUEUE"))
    assert title.split()[-2:] == ["RESTARTS", "USERS"]
    assert [line.split()[-2] for line in columns if line.startswith("patient ")] == ["3"]
    assert [row["name"] for row in listed(nodemgr)["queues"] if row["max_restarts"] == 3] == [
        "patient"
    ]
    nodemgr("submit", "--env", "bob", "--priority", "patient", "--hold", "--", "true")
    nodemgr(
        "submit",
        "--env",
        "bob",
        "--priority",
        "patient",
        "--max-restarts",
        1,
        "--hold",
        "--",
        "true",
    )
    assert [world.manager.daemon.state.jobs[job].max_restarts for job in ("j3", "j4")] == [3, 1]
    refused(nodemgr("queue", "rm", "urgent"), 1, "queue urgent has waiting entries (1)")
    nodemgr("queue", "withdraw", "j2")
    assert nodemgr("queue", "rm", "urgent").returncode == 0
    refused(nodemgr("queue", "rm", "urgent"), 1, "there is no queue urgent")
    refused(nodemgr("queue", "rm", "low"), 2, "queue low is built in")
    assert nodemgr("queue", "rm", "low", "--force").returncode == 0
    refused(nodemgr("queue", "create", "x", "--rank", 0), 2, "--rank")


def test_a_long_queue_comes_in_pages_and_whole(world: World, nodemgr: Run, tmp_path: Path) -> None:
    _holder, _gate = world.holding(gpus=4)
    (tmp_path / "lines").write_text("true\n" * 450)
    nodemgr("submit", "--env", "alice", "--gpus", 4, "--from", tmp_path / "lines")
    told = listed(nodemgr)
    assert [row["id"] for row in told["queue"]] == [f"j{2 + index}" for index in range(450)]
    assert [row["position"] for row in told["queue"]] == list(range(1, 451))
    before_last = told["queue"][439]["id"]
    pages, after = [], None
    while True:
        page = world.manager.call("queue", after=after, limit=40)
        assert 0 < len(page["queue"]) <= 40
        pages.append([row["id"] for row in page["queue"]])
        if (after := page["after"]) is None:
            break
    listed_so = [job for page in pages for job in page]
    assert listed_so[listed_so.index(before_last) + 1 :] == [
        *(f"j{2 + index}" for index in range(440, 450)),
        "j1",
    ], "last the one that runs"
    assert world.manager.call("status")["queue_length"] == 450
    nodemgr("queue", "withdraw", "--all-of", "alice", "--state", "queued")


# -- logs, wait --


def test_follow_shows_every_start_and_ends_with_the_job(world: World) -> None:
    gate, mark = world.gate(), world.directory / "mark"
    script = (
        f'echo "try $NODEMGR_JOB"; if [ -e {mark} ]; then read line < {gate}; echo last; exit 0;'
        f" fi; touch {mark}; exit 7"
    )
    job = world.submit(script, max_restarts=1)
    following = begin(world, "logs", "--follow", job)
    world.until_running(job, attempt=2)
    open_gate(gate)
    out, err = following.communicate(timeout=WAIT_LIMIT_S)
    assert following.returncode == 0, err
    assert out.endswith("try j1:2\nlast\n")
    earlier = subprocess.run([sys.executable, "-m", "nodemgr", "logs", job, "--attempt", "1"],
        env=variables(world), capture_output=True,
                             text=True, timeout=WAIT_LIMIT_S, check=False)  # fmt: skip
    assert earlier.stdout == "try j1:1\n"


@pytest.mark.parametrize("way", ["control socket", "client socket"])
def test_follow_outlives_the_manager(world: World, way: str) -> None:
    gate = world.gate()
    job = world.submit(f"echo first; read line < {gate}; echo last")
    world.until_running(job)
    inside = {"NODEMGR_RUN_DIR": None, "NODEMGR_ENV_DIR": str(world.manager.env_dir("alice"))}
    following = begin(world, "logs", "--follow", job, **(inside if way == "client socket" else {}))
    assert following.stdout is not None
    assert following.stderr is not None
    assert following.stdout.readline() == "first\n"
    world.manager.close()
    assert "waiting for it to come back" in following.stderr.readline()
    world.start()
    open_gate(gate)
    out, err = following.communicate(timeout=WAIT_LIMIT_S)
    assert (following.returncode, out) == (0, "last\n"), err


def test_logs_of_what_has_none(world: World, nodemgr: Run) -> None:
    world.holding(gpus=4)
    nodemgr("submit", "--env", "alice", "--gpus", 4, "--array", "0-1", "--", "true")
    refused(nodemgr("logs", "j2"), 2, "j2 is an array: name one of its elements, for example j2.0")
    refused(nodemgr("logs", "j2.0"), 1, "j2.0 has not started yet")
    refused(nodemgr("logs", "j3"), 1, "there is no job 'j3'")
    refused(nodemgr("logs", "-f", "j2", "--attempt", "1"), 2, "--follow reads the present start")


def test_a_log_whose_file_is_gone_shows_its_last_lines(
    world: World, nodemgr: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.submit("echo the end")
    world.until_ended(job)

    def gone(*_: object) -> int:
        raise FileNotFoundError

    monkeypatch.setattr(world.jobs.factory, "logs", gone)
    said = nodemgr("logs", job)
    assert (said.returncode, said.stdout) == (0, "the end\n")
    assert "the log is gone" in said.stderr
    asked = nodemgr(
        "logs", job, NODEMGR_RUN_DIR=None, NODEMGR_ENV_DIR=str(world.manager.env_dir("alice"))
    )
    assert asked.stdout == "the end\n", "on the client socket, too"


def test_a_log_comes_whole_whichever_way(world: World, nodemgr: Run) -> None:
    job = world.submit("head -c 300000 /dev/zero | tr '\\0' x")
    world.until_ended(job)
    assert nodemgr("logs", job).stdout == "x" * 300_000, "the control socket"
    inside = str(world.manager.env_dir("alice"))
    assert (
        nodemgr("logs", job, NODEMGR_RUN_DIR=None, NODEMGR_ENV_DIR=inside).stdout == "x" * 300_000
    ), "the client socket"


@pytest.mark.parametrize("follow", [(), ("--follow",)])
def test_a_log_steers_no_terminal_and_comes_as_it_is_elsewhere(
    world: World, nodemgr: Run, monkeypatch: pytest.MonkeyPatch, follow: tuple[str, ...]
) -> None:
    job = world.submit(r"printf '\033[2Ja\033[31mred\n'; echo 'j9 is done'")
    world.until_ended(job)
    written = "\x1b[2Ja\x1b[31mred\nj9 is done\n"
    assert nodemgr("logs", *follow, job).stdout == written, "a pipe"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = nodemgr("logs", *follow, job).stdout
    assert shown == "\\x1b[2Ja\x1b[31mred\nj9 is done\n\x1b[0m"
    assert nodemgr("logs", *follow, "--raw", job).stdout == written
    told = nodemgr("history", job).stdout
    assert told.endswith("\n  \\x1b[2Ja\\x1b[31mred\n  j9 is done\n"), "no line of ours"


@pytest.mark.parametrize("follow", [(), ("--follow",)])
def test_what_was_dropped_of_a_log_is_told_and_not_shown(
    world: World, nodemgr: Run, follow: tuple[str, ...]
) -> None:
    job = world.submit("printf %65530s; echo first")
    world.until_ended(job)
    log = world.jobs.factory.logs(job)
    with open(f"/proc/self/fd/{log}", "r+b") as file:
        file.truncate(8 * 2**20)
        file.seek(0, os.SEEK_END)
        file.write(b"last\n")
    os.close(log)
    inside = {"NODEMGR_RUN_DIR": None, "NODEMGR_ENV_DIR": str(world.manager.env_dir("alice"))}
    for variables in ({}, inside):
        said = nodemgr("logs", *follow, job, **variables)
        assert (said.returncode, said.stdout.lstrip()) == (0, "first\n\nlast\n")
        (line,) = said.stderr.splitlines()
        assert line.startswith("nodemgr: 7.9 MiB of its output were dropped here")


@pytest.mark.parametrize(
    ("script", "code", "line"),
    [
        ("exit 0", 0, None),
        ("exit 3", 3, "failed, exit code 3"),
        ("kill -9 $$", 137, "failed, "),
    ],
)
def test_wait_ends_as_the_job_did(
    world: World, nodemgr: Run, script: str, code: int, line: str | None
) -> None:
    job = world.submit(script, max_restarts=0)
    said = nodemgr("wait", job)
    assert (said.returncode, said.stdout) == (code, "")
    assert (
        (said.stderr == "") if line is None else said.stderr.startswith(f"nodemgr: {job}: {line}")
    )


def test_wait_for_several_for_an_array_and_for_what_was_withdrawn(
    world: World, nodemgr: Run
) -> None:
    well, ill = world.submit("true"), world.submit("exit 4", max_restarts=0)
    array = world.submit("exit $NODEMGR_ARRAY_INDEX", array=(0, 6), max_restarts=0)
    assert nodemgr("wait", well, ill, array).returncode == 4
    said = nodemgr("wait", array)
    assert said.returncode == 6
    assert "j3 (j3.6): failed" in said.stderr
    held = world.submit("true", hold=True)
    nodemgr("queue", "withdraw", held)
    told = json.loads(nodemgr("wait", held, well, "--json").stdout)
    assert [(row["job"], row["exit"], row["state"]) for row in told["jobs"]] == [
        (held, 77, "withdrawn"),
        (well, 0, "done"),
    ]
    refused(nodemgr("wait", "j99"), 1, "there is no job 'j99'")


def test_wait_outlives_the_manager(world: World) -> None:
    job, gate = world.holding()
    world.until_running(job)
    waiting = begin(world, "wait", job)
    until_waits(world, 1)
    world.manager.close()
    assert waiting.stderr is not None
    assert "waiting for it to come back" in waiting.stderr.readline()
    world.start()
    open_gate(gate)
    assert waiting.wait(WAIT_LIMIT_S) == 0
    waiting.communicate()


def until_waits(world: World, count: int) -> None:
    """Until so many `wait` are known to the manager."""
    waits = world.manager.service.daemon.job_orders.waits
    world.until_seen(lambda: len(waits) == count)


def test_ctrl_c_ends_a_wait(world: World) -> None:
    job, _gate = world.holding()
    waiting = begin(world, "wait", job, "--env", "alice")
    until_waits(world, 1)
    waiting.send_signal(signal.SIGINT)
    assert waiting.wait(WAIT_LIMIT_S) == 130
    waiting.communicate()


# -- history, report --


def test_the_history_shows_the_last_jobs_oldest_first(world: World, nodemgr: Run) -> None:
    assert nodemgr("history").stdout == "No job has ended.\n"
    for script in ("true", "exit 2", "true"):
        world.until_ended(world.submit(script, max_restarts=0))
    told = json.loads(nodemgr("history", "--json").stdout)
    assert told["schema_version"] == 1
    ends = [(row["job"], row["state"], row["exit_code"]) for row in told["history"]]
    assert ends == [("j1", "done", 0), ("j2", "failed", 2), ("j3", "done", 0)]
    assert "environ" not in json.dumps(told)
    assert [
        row["job"] for row in json.loads(nodemgr("history", "-n", 2, "--json").stdout)["history"]
    ] == ["j2", "j3"]
    assert json.loads(nodemgr("history", "--env", "bob", "--json").stdout)["history"] == []
    assert (
        json.loads(nodemgr("history", "--since", "1h", "--json").stdout)["history"]
        == told["history"]
    )
    table = nodemgr("history").stdout.splitlines()
    assert table[0].startswith("JOB  ENV    STATE")
    assert table[2].split()[:4] == ["j2", "alice", "failed", "2"]
    refused(nodemgr("history", "j9"), 1, "there is no job 'j9'")


def test_history_and_report_show_the_use_of_the_host(
    world: World, nodemgr: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = world.manager.daemon.jobs
    ended, used = jobs.ended, HostFigures(3_725_400, 3 << 30, 11 << 30, 13 << 30)

    def end(job_id: str, attempt: int, status: Status, *more: Any) -> None:
        ended(job_id, attempt, dataclasses.replace(status, host=used), *more)

    monkeypatch.setattr(jobs, "ended", end)
    job = world.submit("true")
    world.until_ended(job)
    story = nodemgr("history", job).stdout
    assert "CPU HOST MEMORY READ WRITTEN" in " ".join(story.split())
    assert "1:02:05 3 GiB 11 GiB 13 GiB" in " ".join(story.split())
    (start,) = json.loads(nodemgr("history", job, "--json").stdout)["jobs"][0]["attempts"]
    kinds = ("cpu_seconds", "host_peak_bytes", "read_bytes", "written_bytes")
    assert [start[kind] for kind in kinds] == [3_725.4, 3 << 30, 11 << 30, 13 << 30]
    summed = nodemgr("report", COLUMNS="240").stdout
    assert "JOBS' CPU HOURS MOST HOST MEMORY READ WRITTEN" in " ".join(summed.split())
    assert "1.03 3 GiB 11 GiB 13 GiB" in " ".join(summed.split())


def test_the_report_counts_jobs_waits_and_gpu_time(world: World, nodemgr: Run) -> None:
    world.until_ended(world.submit("exit 1", gpus=2, max_restarts=1))
    world.until_ended(world.submit("true", env="bob"))
    told = json.loads(nodemgr("report", "--since", "1h", "--json").stdout)
    alice, bob = told["envs"]
    assert (
        alice["env"],
        alice["allocations"],
        alice["jobs_failed"],
        alice["restarts"],
        alice["jobs_done"],
    ) == ("alice", 2, 1, 1, 0)
    assert (bob["jobs_done"], bob["allocations"]) == (1, 1)
    assert 0 <= alice["utilisation_ratio"] <= 1
    assert told["node"]["gpus"] == 4
    assert "GPU HOURS" in nodemgr("report").stdout
    (alone,) = json.loads(nodemgr("report", "--env", "bob", "--json").stdout)["envs"]
    assert alone["env"] == "bob"


# -- rights --


def test_a_user_has_his_own_environments_jobs_and_no_others(world: World, user: Run) -> None:
    foreign = world.submit("true", env="bob", hold=True)
    said = user("submit", "--env", "alice", "--hold", "--", "true")
    assert (said.returncode, said.stdout, said.stderr) == (0, "j2\n", "")
    job = world.manager.do(
        lambda: world.manager.daemon.state.specs[world.manager.daemon.state.jobs["j2"].spec_id]
    )
    assert (job.uid, job.gid, job.user) == (USER, USER, str(USER))
    assert [row["id"] for row in listed(user)["queue"]] == ["j2"]
    for order in (("hold",), ("unhold",), ("withdraw",), ("requeue",), ("position",), ("move",)):
        more = ("high",) if order == ("move",) else ()
        refused(user("queue", *order, foreign, *more), 1, f"alice has no job '{foreign}'")
    refused(user("queue", "position", "r99"), 1, "no request 'r99' waits here")
    for table in ("--samples", "--forecast"):
        refused(user("report", table), 1, "only root, the manager's user and the group nodemgr may")
    refused(user("logs", foreign), 1, f"alice has no job '{foreign}'")
    refused(user("wait", foreign), 1, f"alice has no job '{foreign}'")
    refused(user("queue", "move", "j2", "--first"), 1, "is for administrators")
    refused(
        user("queue", "create", "mine", "--rank", 1),
        1,
        "only root, the manager's user and the group nodemgr may give orders",
    )
    refused(user("submit", "--env", "bob", "--", "true"), 77, f"{USER} may not enter bob")
    assert user("queue", "unhold", "j2").returncode == 0
    world.until_ended("j2")
    deeds = json.loads(user("history", "j2", "--json").stdout)["jobs"][0]["deeds"]
    who = f"{USER} (uid {USER})"
    assert [(entry["who"], entry["what"]) for entry in deeds] == [
        (who, "submitted, held"),
        (who, "unheld"),
    ]
    assert "node" not in json.loads(user("report", "--json").stdout), (
        "what the others use is not his"
    )


HIGH_IS_ABOVE = (
    "queue high has rank 300, and the highest that alice may ask for is normal with rank 200: "
    "name that or a lower one, or ask an admin (nodemgr quota set alice --max-priority high)"
)


def test_a_user_asks_for_no_queue_above_his_environments(
    world: World, user: Run, nodemgr: Run
) -> None:
    """submit and move, until an admin allows it; the admin's own actions are not bound."""
    refused(user("submit", "--priority", "high", "--hold", "--", "true"), 77, HIGH_IS_ABOVE)
    for queue in ("low", "normal"):
        assert user("submit", "--priority", queue, "--hold", "--", "true").returncode == 0
    refused(user("queue", "move", "j1", "high"), 77, HIGH_IS_ABOVE)
    assert user("queue", "move", "j1", "normal").returncode == 0
    assert nodemgr("queue", "move", "j1", "high").returncode == 0
    assert (
        nodemgr("submit", "--env", "alice", "--priority", "high", "--hold", "--", "true").returncode
        == 0
    ), "root is an admin"
    assert nodemgr("quota", "set", "alice", "--max-priority", "high").returncode == 0
    assert user("submit", "--priority", "high", "--hold", "--", "true").returncode == 0
    assert user("queue", "move", "j2", "high").returncode == 0
    assert (
        json.loads(nodemgr("quota", "show", "alice", "--json").stdout)["quotas"][0]["max_priority"]
        == "high"
    )
    nodemgr("quota", "set", "alice", "--max-priority", "none")
    refused(user("queue", "move", "j2", "high"), 77, HIGH_IS_ABOVE)


def test_a_held_job_is_unheld_into_no_queue_that_its_user_may_not_ask_for_any_more(
    world: World, user: Run, nodemgr: Run
) -> None:
    """One order and many, a job and an array.

    An admin is not bound, and a move to an allowed queue helps.
    """
    nodemgr("quota", "set", "alice", "--max-priority", "high")
    for more in ((), (), ("--array", "0-1")):
        assert user("submit", "--priority", "high", "--hold", *more, "--", "true").returncode == 0
    nodemgr("quota", "set", "alice", "--max-priority", "none")
    for job in ("j1", "j3"):
        refused(user("queue", "unhold", job), 77, HIGH_IS_ABOVE)
    said = user("queue", "unhold", "j1", "j2")
    assert said.stderr.count(HIGH_IS_ABOVE) == 2
    assert said.returncode != 0
    assert user("queue", "unhold", "--all-of", "alice").returncode != 0
    jobs = world.manager.daemon.state.jobs
    assert {job.state.value for job in jobs.values()} == {"held"}
    assert user("queue", "move", "j1", "normal").returncode == 0
    assert user("queue", "unhold", "j1").returncode == 0
    assert nodemgr("queue", "unhold", "j2").returncode == 0, "root is an admin"
    world.until_ended("j1")
    world.until_ended("j2")


def test_a_limit_below_the_quotas_own_queue_is_none(world: World, user: Run, nodemgr: Run) -> None:
    refused(
        nodemgr("quota", "set", "alice", "--max-priority", "low"),
        2,
        "max_priority: low is below normal, the quota's own queue",
    )
    refused(
        nodemgr("quota", "set", "alice", "--max-priority", "nix"),
        2,
        "--max-priority: must be one of",
    )
    nodemgr("quota", "set", "alice", "--priority", "high")
    assert user("submit", "--hold", "--", "true").returncode == 0
    assert user("submit", "--priority", "high", "--hold", "--", "true").returncode == 0


def test_a_queue_names_its_users(world: World, user: Run, nodemgr: Run) -> None:
    nodemgr("quota", "set", "alice", "--max-priority", "high")
    made = nodemgr("queue", "create", "night", "--rank", 50, "--user", "root", "--group", "root")
    assert made.stderr.splitlines() == [
        "nodemgr: queue night has rank 50, is for root, @root alone",
        "nodemgr: root, @root gained access to queue night",
    ]
    line = (
        "queue night is for root, @root alone: name another queue, or ask an admin (nodemgr queue"
        " create --user)"
    )
    refused(user("submit", "--priority", "night", "--hold", "--", "true"), 77, line)
    assert user("submit", "--hold", "--", "true").stdout == "j1\n"
    refused(user("queue", "move", "j1", "night"), 77, line)
    assert nodemgr("queue", "create", "night", "--rank", 60).returncode == 0
    (row,) = (row for row in listed(nodemgr)["queues"] if row["name"] == "night")
    assert (row["rank"], row["users"], row["groups"]) == (
        60,
        ["root"],
        ["root"],
    ), "what is not said keeps its value"
    added = nodemgr("queue", "create", "night", "--rank", 60, "--user", f"+{USER}")
    assert added.stderr.splitlines() == [
        f"nodemgr: queue night has rank 60, is for root, {USER}, @root alone",
        f"nodemgr: {USER} gained access to queue night",
    ]
    assert user("queue", "move", "j1", "night").returncode == 0
    removed = nodemgr("queue", "create", "night", "--no-user", "root", "--no-group", "root")
    assert removed.stderr.splitlines()[1:] == ["nodemgr: root, @root lost access to queue night"]
    assert nodemgr("queue", "create", "night", "--rank", 900).returncode == 0
    refused(
        user("submit", "--priority", "night", "--hold", "--", "true"),
        77,
        "queue night has rank 900",
    )
    assert nodemgr("queue", "create", "night", "--rank", 50, "--everybody").returncode == 0
    assert user("submit", "--priority", "night", "--hold", "--", "true").returncode == 0
    refused(
        nodemgr("queue", "create", "night", "--rank", 50, "--user", "no-such-user"),
        2,
        "this node knows no user 'no-such-user'",
    )
    refused(
        nodemgr("queue", "create", "night", "--rank", 50, "--user", "root", "--everybody"),
        2,
        "--everybody together with --user",
    )


def test_the_quotas_own_queue_is_open_whomever_it_is_for(
    world: World, user: Run, nodemgr: Run
) -> None:
    """An admin gave it to the environment, and its interactive requests wait there."""
    nodemgr("queue", "create", "mine", "--rank", 500, "--user", "root")
    nodemgr("quota", "set", "alice", "--priority", "mine")
    assert user("submit", "--hold", "--", "true").returncode == 0
    assert user("submit", "--priority", "mine", "--hold", "--", "true").returncode == 0


def test_what_an_admin_moved_up_runs_again_in_the_environments_own_queue(
    world: World, user: Run, nodemgr: Run
) -> None:
    user("submit", "--hold", "--", "true")
    nodemgr("queue", "move", "j1", "high")
    user("queue", "withdraw", "j1")
    _holder, _gate = world.holding(gpus=4)
    assert user("queue", "requeue", "j1").returncode == 0
    assert world.manager.daemon.state.jobs["j1"].priority == "normal"


def test_completion_knows_jobs_and_queues(
    world: World, nodemgr: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    world.submit("true", hold=True)
    asked = {"_NODEMGR_COMPLETE": "bash_complete"}
    world.until_ended(world.submit("true"))
    array = world.submit("true", array=(0, 7), hold=True)
    cases = (
        ("nodemgr queue unhold ", "3", {"j1", array, f"{array}.*"}, {"j2"}),
        ("nodemgr logs j", "2", {"j1", "j2", array}, set()),
        ("nodemgr submit --after j9,j", "3", {"j9,j1", "j9,j2"}, {"j1"}),
        ("nodemgr submit --priority ", "3", {"high"}, {"j1"}),
        ("nodemgr quota set alice --priority ", "5", {"high"}, set()),
        ("nodemgr wa", "1", {"wait"}, set()),
    )  # fmt: skip
    for words, word, expected, others in cases:
        with pytest.raises(SystemExit):
            nodemgr(COMP_WORDS=words, COMP_CWORD=word, **asked)
        offered = {line.partition(",")[2] for line in capsys.readouterr().out.splitlines()}
        assert expected <= offered, words
        assert not others & offered, words


def test_each_element_of_an_array_has_the_same_keys(world: World, nodemgr: Run) -> None:
    """Ended, running and waiting ones alike."""
    array = world.submit("true", array=(0, 3), hold=True)
    nodemgr("queue", "withdraw", f"{array}.0")
    rows = json.loads(nodemgr("history", array, "--json").stdout)["jobs"]
    assert {row["state"] for row in rows} == {"withdrawn", "held"}
    assert len({frozenset(row) for row in rows}) == 1
    (alone,) = json.loads(nodemgr("history", f"{array}.0", "--json").stdout)["jobs"]
    (living,) = json.loads(nodemgr("history", f"{array}.3", "--json").stdout)["jobs"]
    rows = json.loads(nodemgr("history", array, "--json").stdout)["jobs"]
    assert alone.keys() == living.keys() == rows[0].keys()


def test_allocations_name_the_scope_that_is_empty(world: World, nodemgr: Run) -> None:
    assert nodemgr("allocations").stdout == "Nothing was allocated on this node.\n"
    said = nodemgr("allocations", "--since", "1h")
    assert said.stdout == "Nothing was allocated since then on this node.\n"
    inside = nodemgr(
        "allocations", NODEMGR_RUN_DIR=None, NODEMGR_ENV_DIR=str(world.manager.env_dir("alice"))
    )
    assert inside.stdout == (
        "Nothing was allocated in alice, which is all that you may ask about.\n"
    )


def test_release_says_what_ends_a_job(nodemgr: Run) -> None:
    refused(nodemgr("release", "j12"), 2, "nodemgr queue withdraw j12")


def test_an_administrator_who_names_no_environment_of_the_node_is_told(nodemgr: Run) -> None:
    refused(nodemgr("queue", "--env", "nobodys"), 77, "no environment 'nobodys'")
    refused(nodemgr("history", "--env", "nobodys"), 77, "no environment 'nobodys'")
    refused(nodemgr("report", "--env", "nobodys"), 77, "no environment 'nobodys'")
    refused(nodemgr("report", "--since", "2999-01-01"), 2, "2999-01-01 is still to come")


def test_who_may_enter_several_environments_need_not_say_whose_a_job_is(
    world: World, user: Run
) -> None:
    world.manager.call("quota_set", env="bob", users=[str(USER)])
    for env, script in (("alice", "exit 3"), ("bob", "echo of bob"), ("bob", "exit 4")):
        assert (
            user("submit", "--env", env, "--max-restarts", 0, "--", "sh", "-c", script).returncode
            == 0
        )
    held = user("submit", "--env", "bob", "--hold", "--", "true").stdout.strip()
    said = user("wait", "j2", "j3", "j1", "--json")
    assert [(row["job"], row["exit"]) for row in json.loads(said.stdout)["jobs"]] == [
        ("j2", 0),
        ("j3", 4),
        ("j1", 3),
    ]
    assert said.returncode == 4
    assert user("history", "j2").stdout.endswith("\n  of bob\n")
    assert user("queue", "position", held).stdout.startswith(f"{held}: held by ")
    assert [row["id"] for row in listed(user)["queue"]] == [held]
    assert user("queue", "withdraw", held).returncode == 0
    assert user("history", held).returncode == 0
    past = json.loads(user("history", "--json").stdout)["history"]
    assert sorted(row["job"] for row in past) == ["j1", "j2", "j3", held]
    assert [row["ended"] for row in past] == sorted(row["ended"] for row in past)
    assert [
        row["job"] for row in json.loads(user("history", "--json", "--count", 1).stdout)["history"]
    ] == [held]
    assert [row["env"] for row in json.loads(user("report", "--json").stdout)["envs"]] == [
        "alice",
        "bob",
    ]
    refused(user("logs", "j99"), 1, "alice, bob have no job 'j99'")
    for verb in ("submit", "run"):
        refused(
            user(verb, "--", "true"),
            2,
            "you may enter several environments (alice, bob): name one with --env",
        )


def test_what_a_job_makes_is_as_open_as_what_its_user_makes(world: World, nodemgr: Run) -> None:
    for mask in (0o077, 0o002):
        before = os.umask(mask)
        try:
            job = nodemgr("submit", "--env", "alice", "--", "sh", "-c", "umask").stdout.strip()
            assert os.umask(mask) == mask
        finally:
            os.umask(before)
        world.until_ended(job)
        assert world.log(job) == f"{mask:04o}\n".encode()


def test_an_option_that_is_not_known_is_not_taken_for_the_command(nodemgr: Run) -> None:
    refused(
        nodemgr("submit", "--env", "alice", "--gpu", 1, "--", "true"), 2, "No such option '--gpu'"
    )
    refused(nodemgr("run", "--env", "alice", "--gpu", 1, "--", "true"), 2, "No such option '--gpu'")
    no_range, too_many = "is neither a number of GPUs nor a range", "is no whole number from 0"
    for wrong in ("x", "-1", "1025", "1_0"):
        refused(
            nodemgr("submit", "--env", "alice", "--gpus", wrong, "--", "true"),
            2,
            f"'{wrong}' {too_many if wrong == '1025' else no_range}",
        )
    refused(
        nodemgr("submit", "--env", "alice", "--array", "0-3%2", "--", "true"),
        2,
        "'0-3%2': no limit of elements that run at a time is known, the environment's GPUs limit"
        " them; leave out %, or submit the rest as a second array with --after",
    )
    refused(nodemgr("keep", "t1", "-5min"), 2, "No such option '-5min': write --for 5min")
    refused(nodemgr("keep", "t1", "2h"), 2, "extra argument (2h): write --for 2h")
    refused(nodemgr("history", "-n", 0), 2, "'0' is no whole number of at least 1")
    refused(nodemgr("submit", "--env", "alice", "--time", "0s", "--", "true"), 2, "'--time'")


def test_while_nothing_can_be_stored_the_queue_says_so(world: World, nodemgr: Run) -> None:
    world.submit(hold=True)
    assert nodemgr("queue").stderr == ""
    world.manager.store.fault = "database or disk is full"
    assert "cannot store a job now" in nodemgr("submit", "--env", "alice", "--", "true").stderr
    assert (
        "nothing new is granted or started, since the manager cannot store it"
        in nodemgr("queue").stderr
    )
    assert listed(nodemgr)["store"]["state"] == "failing"


def test_an_id_that_cannot_be_written_is_said(world: World) -> None:
    with open("/dev/full", "w") as full:
        said = subprocess.run(
            [sys.executable, "-m", "nodemgr", "submit", "--env", "alice", "--hold", "--", "true"],
            env=variables(world), text=True,
            stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, timeout=WAIT_LIMIT_S,
        )  # fmt: skip
    assert said.returncode == 1
    assert said.stderr.startswith("nodemgr: j1 is submitted\n")
    assert world.job("j1").env == "alice"


@pytest.mark.parametrize(
    "arguments", [("queue",), ("wait", "j1"), ("history",), ("submit", "--", "true"), ("report",)]
)
def test_where_no_manager_ever_was_that_is_what_is_said(
    nodemgr: Run, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    refused(
        nodemgr(*arguments, NODEMGR_RUN_DIR=str(tmp_path)), 69, f"no manager runs on {tmp_path}"
    )


# -- many at once --


def test_an_error_of_a_line_is_short_whatever_the_line_holds(
    world: World, nodemgr: Run, tmp_path: Path
) -> None:
    lines = [
        "x" * 2**21, "x" * 900_000, json.dumps({"command": "true", "gpus": "x" * 500_000}),
        '{"command":' * 90_000, '{"command": "true", "after": ' + "[" * 50_000 + "]" * 50_000 + "}",
    ]  # fmt: skip
    file = tmp_path / "lines"
    file.write_text("\n".join(lines))
    said = nodemgr("submit", "--env", "alice", "--gpus", 0, "--hold", "--from", file)
    told = said.stdout.splitlines()
    assert [line.partition(":")[0] for line in told] == ["error"] * 5
    assert max(map(len, told)) < 400
    assert told[0].endswith("is longer than 1048576 bytes")
    assert "not found in PATH" in told[1]
    assert told[3].startswith("error: line 4: is nested too deep")
    assert told[4].startswith("error: line 5: is nested too deep")
    assert "recursion" not in said.stdout


def test_each_line_of_a_file_is_a_job_or_an_error_in_order(
    world: World, nodemgr: Run, tmp_path: Path
) -> None:
    lines = [
        "echo one 'two  three' \"fo\\\"ur\"", "", "# no job", "ls | wc", "no-such-program x",
        (
            '{"command": ["sh", "-c", "exit 3"], "gpus": 0, "name": "js", "after": ["j1"], '
            '"max-restarts": 2}'
            ),
        '{"command": "true", "hold": false, "memory": "1"}', '{"command": "true", "nix": 1}',
        '{"gpus": 1}', "{", "[true]", "echo 'open",
        '{"command": "true", "gpus": "x"}', '{"command": "true", "array": [0, 2], "time": "2h"}',
        "true $HOME", "\x00",
    ]  # fmt: skip
    file = tmp_path / "lines"
    file.write_text("\n".join(lines), encoding="utf-8-sig")  # with a byte order mark
    said = nodemgr("submit", "--env", "alice", "--gpus", 0, "--hold", "--from", file)
    assert said.returncode == 1
    told = said.stdout.splitlines()
    beginnings = [
        "j1", "error: line 4: | needs a shell",
        "error: line 5: no-such-program: not found in PATH", "j2",
        "error: line 7: memory: '1' is a bare number", "error: line 8: 'nix' is no option of a job",
        "error: line 9: names no command",
        "error: line 10: is no JSON object", "error: line 11: [true]: not found in PATH",
        "error: line 12: a quotation is not closed",
        "error: line 13: gpus: 'x' is neither a number of GPUs nor a range", "j3",
        "error: line 15: $ needs a shell",
        "error: line 16: has a NUL",
    ]  # fmt: skip
    assert len(told) == len(beginnings)
    assert [
        line for line, begins in zip(told, beginnings, strict=True) if not line.startswith(begins)
    ] == []
    assert said.stderr == (
        "nodemgr: 11 of 14 lines were not submitted: the output has an error in place of each id\n"
    )
    assert (world.job("j1").state, world.job("j1").run.gpus, world.job("j1").name) == (
        "held",
        0,
        "echo",
    )
    assert (world.job("j2").name, world.job("j2").after, world.job("j2").max_restarts) == (
        "js",
        ("j1",),
        2,
    )
    assert world.job("j3.2").run.time_limit_ms == 7_200_000
    nodemgr("queue", "unhold", "j1")
    world.until_ended("j1")
    assert world.log("j1").decode() == 'one two  three fo"ur\n'


def test_a_file_may_be_long_and_its_lines_too(world: World, nodemgr: Run, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text(
        "".join(f"true {number}\n" for number in range(300))
        + f"true {'x' * 1_200_000}\ntrue {'y' * 200_000}\ntrue last"
    )
    said = nodemgr("submit", "--env", "alice", "--hold", "--from", file)
    told = said.stdout.splitlines()
    assert (len(told), told[299], told[-1]) == (303, "j300", "j301")
    assert told[300].startswith("error: line 301: is longer than 1048576 bytes")
    assert told[301].startswith("error: line 302: COMMAND: holds one of 200000 bytes")
    ids = [row["id"] for row in listed(nodemgr)["queue"]]
    assert len(ids) == len(set(ids)) == 301


def test_what_cannot_be_read_or_said_is_one_line(nodemgr: Run, tmp_path: Path) -> None:
    refused(
        nodemgr("submit", "--env", "alice", "--from", tmp_path / "none"),
        1,
        "cannot be read: No such file or directory",
    )
    refused(
        nodemgr("submit", "--env", "alice", "--from", "-", "--", "true"),
        2,
        "--from brings the commands",
    )
    refused(
        nodemgr("submit", "--env", "alice", "--from"), 2, "Option '--from' requires an argument"
    )
    said = nodemgr("submit", "--env", "alice", "--from", tmp_path)
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr.splitlines()[-1].endswith(
        "cannot be read: Is a directory; name a file of commands, or - for stdin"
    )


def test_lines_are_taken_as_they_come(world: World) -> None:
    program = subprocess.Popen(
        [sys.executable, "-m", "nodemgr", "submit", "--env", "alice", "--hold", "--from", "-"],
        env=variables(world), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert program.stdin is not None
    assert program.stdout is not None
    for number in (1, 2):
        program.stdin.write("true\n")
        program.stdin.flush()
        assert program.stdout.readline() == f"j{number}\n", "before the next line is written"
    program.send_signal(signal.SIGINT)
    _, stderr = program.communicate(timeout=WAIT_LIMIT_S)
    assert (program.returncode, stderr) == (
        130,
        "nodemgr: stopped: line 3 and those behind it were not submitted; submit these again\n",
    )


def test_several_are_ordered_at_once_and_each_that_fails_is_told(
    world: World, nodemgr: Run
) -> None:
    for _ in range(3):
        world.holding(hold=True)
    before = world.manager.do(lambda: world.manager.daemon.state.version)
    said = nodemgr("queue", "unhold", "j1", "j9", "j3", "j1")
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr.splitlines()[:2] == ["nodemgr: j1 is unheld", "nodemgr: j3 is unheld"]
    assert said.stderr.splitlines()[2].startswith("nodemgr: there is no job 'j9'")
    assert world.manager.do(lambda: world.manager.daemon.state.version) > before
    again = nodemgr("queue", "unhold", "j2", "j1")
    assert again.returncode == 1
    assert "j2 is unheld" in again.stderr
    assert again.stderr.splitlines()[1].startswith("nodemgr: j1 is ")


def test_a_filter_takes_what_it_matches(world: World, nodemgr: Run) -> None:
    for env, name in (
        ("alice", "sweep-1"),
        ("alice", "sweep-2"),
        ("alice", "other"),
        ("bob", "sweep-3"),
    ):
        world.submit(env=env, name=name, hold=True)
    array = world.submit(array=(0, 1, 2), name="many", hold=True)
    assert nodemgr("queue", "withdraw", "--name", "sweep-?", "--all-of",
        "alice").stderr.split("\n")[:2] == [
        "nodemgr: j1 is withdrawn", "nodemgr: j2 is withdrawn",
    ]  # fmt: skip
    assert (
        nodemgr("queue", "withdraw", "--name", "many").stderr
        == f"nodemgr: {array} (3 jobs) is withdrawn\n"
    )
    assert [row["id"] for row in listed(nodemgr)["queue"]] == ["j3", "j4"]
    refused(
        nodemgr("queue", "hold", "--state", "held"),
        1,
        "the filter matches nothing that this order can change (hold)",
    )
    refused(nodemgr("queue", "hold", "--name", "nix"), 1, "the filter matches nothing")
    for verb in ("hold", "withdraw"):
        refused(nodemgr("queue", verb, "--all-of", "alcie"), 77, "--gpus N`; did you mean 'alice'?")
    refused(nodemgr("release", "--all-of", "alcie"), 77, "--gpus N`; did you mean 'alice'?")
    refused(nodemgr("queue", "hold", "j3", "--mine"), 2, "and not both")
    refused(nodemgr("queue", "hold"), 2, "name ids or a filter")
    refused(nodemgr("queue", "hold", "--state", "nix"), 2, "must be one of")
    assert (
        nodemgr(
            "queue", "requeue", "--state", "withdrawn", "--name", "sweep-*", "--mine"
        ).returncode
        == 0
    )
    assert nodemgr("wait", "j1", "j2").returncode == 0
    assert nodemgr("queue", "withdraw", "--mine").returncode == 0
    assert listed(nodemgr)["queue"] == []


def test_a_users_filter_reaches_no_other_environment(world: World, user: Run) -> None:
    foreign = world.submit("true", env="bob", hold=True)
    own = user("submit", "--env", "alice", "--hold", "--", "true").stdout.strip()
    assert user("queue", "withdraw", own, foreign).stderr.splitlines() == [
        f"nodemgr: {own} is withdrawn",
        (
            f"nodemgr: alice has no job '{foreign}': `nodemgr queue` shows what waits, `nodemgr"
            " history` what has ended"
        ),
    ]
    refused(user("queue", "withdraw", "--state", "held"), 1, "the filter matches nothing")
    refused(user("queue", "withdraw", "--all-of", "bob"), 77, f"{USER} may not enter bob")
    assert world.job(foreign).state == "held"


@pytest.mark.parametrize("env", ["alice", "bob"])
def test_a_filter_over_two_environments_needs_a_match_in_one(
    world: World, nodemgr: Run, user: Run, env: str
) -> None:
    assert nodemgr("quota", "set", "bob", "--gpus", "1", "--user", USER).returncode == 0
    job = user("submit", "--env", env, "--hold", "--", "true").stdout.strip()
    done = user("queue", "withdraw", "--mine")
    assert (done.returncode, done.stderr) == (0, f"nodemgr: {job} is withdrawn\n")
    refused(user("queue", "withdraw", "--mine"), 1, "the filter matches nothing")


def test_several_unheld_at_once_keep_a_queues_bound(world: World, nodemgr: Run) -> None:
    _holder, _gate = world.holding(gpus=4)
    nodemgr("queue", "create", "narrow", "--rank", 10, "--cap", 2)
    for _ in range(3):
        world.submit(gpus=4, priority="narrow", hold=True)
    said = nodemgr("queue", "unhold", "j2", "j3", "j4")
    assert said.returncode == 1
    assert said.stderr.count("is unheld") == 2
    assert world.waiting() == ["j2", "j3"]
    assert said.stderr.splitlines()[-1].startswith("nodemgr: j4: "), (
        "this error does not name the job itself"
    )


def test_the_line_of_a_held_array_names_the_array(world: World, nodemgr: Run) -> None:
    array = world.submit(array=(0, 1, 2), hold=True)
    single = world.submit(array=(5,), hold=True)
    first, second = nodemgr("queue").stdout.splitlines()[1:]
    assert f"(nodemgr queue unhold {array})" in first
    assert f" {single}.5 " in second
    assert f"(nodemgr queue unhold {single})" in second
    assert nodemgr("queue", "unhold", array).returncode == 0


def test_an_array_is_one_line_unless_it_is_expanded(world: World, nodemgr: Run) -> None:
    array = world.submit(
        "test $NODEMGR_ARRAY_INDEX != 1", array=(0, 1, 2), max_restarts=0, hold=True
    )
    (line,) = nodemgr("queue").stdout.splitlines()[1:]
    assert f" {array} (3 jobs) " in line
    (line,) = nodemgr("queue", "--expand").stdout.splitlines()[1:]
    assert f" {array}.[0-2] " in line
    assert len(listed(nodemgr)["queue"]) == 1
    nodemgr("queue", "unhold", array)
    assert nodemgr("wait", array).returncode == 1
    first, second = sorted(line.split()[:5] for line in nodemgr("history").stdout.splitlines()[1:])
    assert (first, second[0]) == ([array, "(2", "jobs)", "alice", "done"], f"{array}.1")
    assert len(nodemgr("history", "--expand").stdout.splitlines()) == 4
    assert len(json.loads(nodemgr("history", "--json").stdout)["history"]) == 3


def test_the_history_counts_lines_and_no_line_lacks_a_job(
    world: World, nodemgr: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        world.until_ended(world.submit())
    arrays = [world.submit(array=tuple(range(7)), hold=True) for _ in range(2)]
    for array in arrays:
        nodemgr("queue", "unhold", array)
        assert nodemgr("wait", array).returncode == 0

    def shown(*arguments: object) -> list[str]:
        return [
            line.split("  ")[0] for line in nodemgr("history", *arguments).stdout.splitlines()[1:]
        ]

    lines = ["j1", "j2", *(f"{array} (7 jobs)" for array in arrays)]
    assert [shown("-n", count) for count in (1, 2, 3, 4, 5)] == [
        lines[-1:],
        lines[-2:],
        lines[-3:],
        lines,
        lines,
    ]
    assert shown() == lines
    assert len(shown("-n", 2, "--expand")) == 2
    assert len(json.loads(nodemgr("history", "-n", 2, "--json").stdout)["history"]) == 2
    monkeypatch.setattr(history, "PAGE", 5)
    assert shown("-n", 3) == lines[-3:]
    monkeypatch.setattr(history, "LOOKED_BACK", 10)
    assert nodemgr("history").stderr.startswith(
        "nodemgr: only the last 10 jobs were read for these lines (--count N"
    )
    assert shown() == [f"{arrays[0]} (3 jobs)", lines[-1]]


def test_the_reports_of_forecasts_are_tables_of_samples(world: World, nodemgr: Run) -> None:
    assert nodemgr("report", "--forecast").stdout == (
        "No job with a forecast has ended in this time.\n"
    )
    assert nodemgr("report", "--samples").stdout.count("\n") == 1
    world.until_ended(submit_predicted(world, "true"))
    journal = world.manager.daemon.journal
    world.until_seen(lambda: bool(journal.samples()))
    head, row = nodemgr("history").stdout.splitlines()
    at = head.index("PREDICTED") + len("PREDICTED")
    assert row[:at].endswith("  4 GiB, 0:00:20")
    head, row = nodemgr("report", "--samples").stdout.splitlines()
    assert head.startswith("ended_wall_ns,gpu_model,driver,framework,addv2,")
    assert row.split(",")[1:5:2] == [MODEL, "torch 2.5.1"]
    assert row.split(",")[4] == "2000"
    assert "root" not in row
    table = nodemgr("report", "--forecast").stdout.splitlines()
    assert table[0].split()[:2] == ["GPU", "MODEL"]
    assert [line.split()[2:4] for line in table[1:]] == [["run", "time"]], "too short for a step"
    told = json.loads(nodemgr("report", "--forecast", "--json").stdout)
    assert [row["tasks"] for row in told["figures"]] == [1]
    assert nodemgr("report", "--forecast", "--since", "1h").stdout.splitlines() == table
    refused(nodemgr("report", "--forecast", "--samples"), 2, "two tables")
    refused(nodemgr("report", "--forecast", "--env", "alice"), 2, "all tasks of the node")
    refused(nodemgr("report", "--samples", "--env", "alice"), 2, "all tasks of the node")
    refused(nodemgr("report", "--samples", "--since", "1h"), 2, "leave --since out")


def test_a_job_whose_parent_ended_badly_is_requeued_without_it_alone(
    world: World, nodemgr: Run
) -> None:
    world.manager.call("quota_set", env="alice", gpus=4)
    for more in (("--hold",), ("--after", "j1")):
        assert nodemgr("submit", "--env", "alice", *more, "--", "true").returncode == 0
    assert nodemgr("queue", "withdraw", "j1").returncode == 0
    refused = nodemgr("queue", "requeue", "j2")
    assert refused.returncode == 1
    assert "j2 waits for j1, which is withdrawn: requeue j1 first" in refused.stderr
    assert "`nodemgr queue requeue j2 --no-after`" in refused.stderr
    assert nodemgr("queue", "requeue", "j2", "--no-after").returncode == 0
    assert nodemgr("wait", "j2").returncode == 0
