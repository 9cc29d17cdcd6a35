"""The second time a command is submitted, its expected time is known: through a whole manager."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from client_plugin.prediction import closure
from client_plugin.ways.conversation import Conversation
from client_plugin.ways.faults import Fault
from nodemgr.core.forecast import earlier_runs
from nodemgr.core.forecast.earlier_runs import ProgramRuns, key_of
from nodemgr.core.model.entities import EarlySignal
from nodemgr.core.model.values import replace
from nodemgr.edge.api import job_operations
from nodemgr.edge.forecast import run_keeper
from nodemgr.edge.forecast.run_keeper import RunKeeper
from nodemgr.edge.rpc.operation import OperationError
from nodemgr.messages.orders import UNKNOWN_VERB
from tests.jobs import test_verbs
from tests.jobs.test_verbs import Run
from tests.jobs.world import World
from tests.support.limits import WAIT_LIMIT_S

world, nodemgr = test_verbs.world, test_verbs.nodemgr
"""Fixtures."""
SUBMIT = ("submit", "--env", "alice", "--gpus", 1)
KEY = "ab" * 32
SCRIPT = """
import sys, keras, net
closure = sys.modules["_nodemgr_client_plugin.prediction.closure"]
closure.REPORT_S = 600  # however slow this machine is
closure.package_folders = lambda prefix: []  # whatever else is installed or compiled meanwhile
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script of a user with a module beside it, and a framework that the hook knows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(earlier_runs, "LEAST_MS", 0)
    monkeypatch.setattr(closure, "package_folders", lambda _prefix: [])
    (tmp_path / "keras").mkdir()
    (tmp_path / "keras" / "__init__.py").touch()
    (tmp_path / "net.py").write_text("layers = 3\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def train(world: World, nodemgr: Run, *words: object, ends: str = "done") -> str:
    """Submits it, and waits for its end. The lines of the verb on stderr."""
    said = nodemgr(*SUBMIT, *words[1:], "--", sys.executable, "train.py", words[0])
    assert said.returncode == 0, said.stderr
    job_id = said.stdout.strip()
    assert world.until_ended(job_id).job.state.value == ends
    world.until_seen(lambda: not world.jobs._finished)
    return said.stderr


def programs(world: World, env: str = "alice") -> list[ProgramRuns]:
    database = world.manager.daemon.journal._store
    rows = world.manager.do(
        lambda: database._read("SELECT value FROM programs WHERE env = ?", (env,))
    )
    return [earlier_runs.parse(text) for (text,) in rows]


def until_kept(world: World, runs: int) -> None:
    world.until_seen(lambda: sum(len(one.runs) for one in _now(world)) == runs)


def _now(world: World) -> list[ProgramRuns]:
    read = world.manager.daemon.journal._store._read
    return [earlier_runs.parse(text) for (text,) in read("SELECT value FROM programs")]


def test_the_second_time_it_is_known(world: World, nodemgr: Run, program: Path) -> None:
    assert train(world, nodemgr, 0) == ""
    until_kept(world, 1)
    (known,) = programs(world)
    names = {os.path.basename(row[0]) for row in json.loads(known.closure or "[]")}
    assert {"net.py", "train.py"} <= names
    said = nodemgr(*SUBMIT, "--hold", "--", sys.executable, "train.py", 0)
    assert "1 earlier run of this command: " in said.stderr
    assert world.job("j2").run.expected_ms == known.runs[0].run_ms


def test_a_changed_module_begins_anew(world: World, nodemgr: Run, program: Path) -> None:
    train(world, nodemgr, 0)
    until_kept(world, 1)
    (program / "net.py").write_text("layers = 4\n")
    said = nodemgr(*SUBMIT, "--hold", "--", sys.executable, "train.py", 0)
    assert said.stderr == ""
    assert world.job("j2").run.expected_ms is None
    assert train(world, nodemgr, 0) == ""
    world.until_seen(lambda: _closure_changed(world, program))
    assert [len(one.runs) for one in programs(world)] == [1]


def _closure_changed(world: World, program: Path) -> bool:
    size = (program / "net.py").stat().st_size
    changed = (program / "net.py").stat().st_mtime_ns
    rows = [row for one in _now(world) for row in json.loads(one.closure or "[]")]
    return [str(program / "net.py"), size, changed] in [row[:3] for row in rows]


def test_a_module_that_was_only_touched_is_the_same(
    world: World, nodemgr: Run, program: Path
) -> None:
    train(world, nodemgr, 0)
    until_kept(world, 1)
    os.utime(program / "net.py", ns=(1, 1))
    said = nodemgr(*SUBMIT, "--hold", "--", sys.executable, "train.py", 0)
    assert "1 earlier run" in said.stderr


def test_only_good_runs_count(world: World, nodemgr: Run, program: Path) -> None:
    train(world, nodemgr, 3, ends="failed")
    train(world, nodemgr, 0)
    until_kept(world, 1)
    assert [one.runs[0].numbers for one in programs(world)] == [(0.0,)]


def test_a_limit_of_the_user_s_own_stands(world: World, nodemgr: Run, program: Path) -> None:
    train(world, nodemgr, 0)
    until_kept(world, 1)
    said = nodemgr(*SUBMIT, "--time", "1h", "--hold", "--", sys.executable, "train.py", 0)
    assert said.stderr == ""
    assert world.job("j2").run.expected_ms is None


def test_without_a_forecast_nothing_is_filled_in_and_nothing_kept(
    world: World, nodemgr: Run, program: Path
) -> None:
    train(world, nodemgr, 0, "--no-forecast")
    train(world, nodemgr, 0)
    until_kept(world, 1)
    said = nodemgr(*SUBMIT, "--no-forecast", "--hold", "--", sys.executable, "train.py", 0)
    assert said.stderr == ""


def test_the_lines_of_a_file_are_known_too(world: World, nodemgr: Run, program: Path) -> None:
    train(world, nodemgr, 0)
    until_kept(world, 1)
    lines = program / "lines"
    lines.write_text(f"{sys.executable} train.py 0\ntrue\n")
    said = nodemgr(*SUBMIT, "--hold", "--from", lines)
    assert said.stdout.split() == ["j2", "j3"]
    assert "1 of 2 commands ran before: their expected times are filled in" in said.stderr
    assert world.job("j2").run.expected_ms is not None
    assert world.job("j3").run.expected_ms is None


@pytest.mark.parametrize("words", [("--array", "0-1"), ("--gpus", "1-2", "--elastic")])
def test_arrays_and_elastic_tasks_are_no_earlier_runs(
    world: World, nodemgr: Run, program: Path, words: tuple[str, ...]
) -> None:
    world.until_ended(nodemgr(*SUBMIT, "--", "true").stdout.strip())
    until_kept(world, 1)
    said = nodemgr("submit", "--env", "alice", "--hold", "--gpus", 1, *words, "--", "true")
    assert (said.returncode, said.stdout.strip(), said.stderr) == (0, "j2", "")
    payload = world.manager.do(lambda: world.manager.daemon.journal.payload(_spec(world, "j2")))
    assert key_of(payload.environ) is None
    assert "1 earlier run" in nodemgr(*SUBMIT, "--hold", "--", "true").stderr


def _spec(world: World, job_id: str) -> str:
    return next(
        job.spec_id for job in world.manager.daemon.state.jobs.values()
        if job.job_id.partition(".")[0] == job_id
    )  # fmt: skip


def test_a_job_that_names_no_number_of_gpus_has_the_quota_s(
    world: World, nodemgr: Run, program: Path
) -> None:
    world.manager.call("quota_set", env="alice", gpus=8, default_gpus=1)
    world.until_ended(nodemgr("submit", "--env", "alice", "--", "true").stdout.strip())
    until_kept(world, 1)
    for words in (("--env", "alice"), SUBMIT[1:]):
        assert "1 earlier run" in nodemgr("submit", *words, "--hold", "--", "true").stderr


def test_a_manager_that_knows_of_no_programs_takes_the_jobs(
    world: World, nodemgr: Run, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an earlier version, which goes on until it is started again."""

    def no_verb(*_: object) -> None:
        raise OperationError(UNKNOWN_VERB(verb="programs", known="job_submit"))

    monkeypatch.setattr(RunKeeper, "closures", no_verb)
    for arguments in (job_operations.SUBMISSION, job_operations.ONE_OF_MANY):
        monkeypatch.delitem(arguments, "recognised")
    said = nodemgr(*SUBMIT, "--hold", "--", "true")
    assert (said.stdout.split(), said.stderr) == (["j1"], "")
    (program / "lines").write_text("true\ntrue 2\n")
    said = nodemgr(*SUBMIT, "--hold", "--from", program / "lines")
    assert (said.stdout.split(), said.stderr) == (["j2", "j3"], "")


def test_another_environment_knows_nothing_and_a_removed_one_is_forgotten(
    world: World, nodemgr: Run, program: Path
) -> None:
    train(world, nodemgr, 0)
    until_kept(world, 1)
    command = ("--gpus", 1, "--hold", "--", sys.executable, "train.py", 0)
    assert nodemgr("submit", "--env", "bob", *command).stderr == ""
    world.manager.call("quota_rm", env="alice")
    world.until_seen(lambda: not _now(world))


def test_a_program_without_the_hook_is_known_by_its_arguments(
    world: World, nodemgr: Run, program: Path
) -> None:
    for _ in range(2):
        said = nodemgr(*SUBMIT, "--", "true")
        world.until_ended(said.stdout.strip())
    until_kept(world, 2)
    (known,) = programs(world)
    assert known.closure is None
    assert "2 earlier runs" in nodemgr(*SUBMIT, "--hold", "--", "true").stderr


def test_a_run_that_may_have_gone_on_from_a_checkpoint_is_not_kept(world: World) -> None:
    """And one that its own early signal has ended."""
    job_id = submit(world, argv=["true"])
    job = world.until_ended(job_id).job
    run_ms = run_keeper._run_ms(job)
    assert run_ms is not None
    assert run_keeper._run_ms(replace(job, attempt=2)) is None
    for limit_ms, is_kept in ((run_ms + 10, False), (run_ms + 1_000, True)):
        run = replace(job.run, time_limit_ms=limit_ms, signal=EarlySignal("USR1", 500))
        assert (run_keeper._run_ms(replace(job, run=run)) is not None) is is_kept


def test_a_manager_that_was_killed_forgets_a_removed_environment_later(world: World) -> None:
    """Else one of the same name would know its programs."""
    text = earlier_runs.packed(ProgramRuns())
    for env in ("alice", "gone"):
        world.manager.do(lambda env=env: world.manager.daemon.journal.save_program(env, KEY, text))
    world.restart()
    world.until_seen(lambda: world.manager.daemon.journal.program_envs() == ["alice"])


def test_a_job_s_modules_are_those_that_its_own_user_reports(world: World) -> None:
    keeper = next(
        one for told in world.jobs.on_final
        if isinstance(one := getattr(told, "__self__", None), RunKeeper)
    )  # fmt: skip
    job_id, closure = submit(world, hold=True), "[]"
    for env, user, files in (("alice", "ann", "[1]"), ("bob", "root", "[2]")):
        world.manager.do(
            lambda env=env, user=user, files=files: keeper.reported(env, user, job_id, files)
        )
    world.manager.do(lambda: keeper.reported("alice", "root", job_id, closure))
    assert keeper._reports == {"alice": {job_id: closure}}


# -- what a client may say --


def order(world: World, verb: str, **arguments: Any) -> Any:
    with Conversation(world.manager.env_dir("alice") / "socket", WAIT_LIMIT_S) as talk:
        return talk.order(verb, arguments)[0]


def submit(world: World, **more: Any) -> str:
    words = {"argv": ["true"], "cwd": "/", "key": os.urandom(16).hex(), "gpus": 1}
    return str(order(world, "job_submit", **{"environ": [], **words, **more})["job"])


@pytest.mark.parametrize(
    "wrong",
    [
        5,
        {},
        {"key": "ab", "numbers": [], "holds": True},
        {"key": KEY, "numbers": ["1"], "holds": True},
        {"key": KEY, "numbers": [1] * 65, "holds": True},
        {"key": KEY, "numbers": [1e999], "holds": True},
    ],
)
def test_a_strange_program_is_refused(world: World, wrong: object) -> None:
    with pytest.raises(Fault, match="must be a program's key"):
        submit(world, recognised=wrong)


def test_a_job_does_not_hand_its_key_to_the_jobs_that_it_submits(world: World) -> None:
    seen = []
    for more in ({}, {"recognised": {"key": KEY, "numbers": [1, 2.5], "holds": True}}):
        job_id = submit(world, hold=True, environ=["NODEMGR_RUN_KEY=[1]"], **more)
        spec_id = world.job(job_id).spec_id
        payload = world.manager.do(lambda spec=spec_id: world.manager.daemon.journal.payload(spec))
        seen.append(key_of(payload.environ))
    assert seen == [None, (KEY, (1.0, 2.5))]


def test_a_report_of_another_s_job_is_ignored_and_one_too_large_keeps_nothing(
    world: World,
) -> None:
    job_id, gate = "", world.gate()
    known = {"key": KEY, "numbers": [], "holds": True}
    for files in ([["/a", 1, 2, "x"]], None):
        job_id = submit(world, argv=["/bin/sh", "-c", f"read l < {gate}"], recognised=known)
        order(world, "job_modules", job="j999", files=[["/b", 1, 2, "x"]])
        order(world, "job_modules", job=job_id, files=files)
        test_verbs.open_gate(gate)
        world.until_ended(job_id)
    world.until_seen(lambda: not world.jobs._finished)
    (program,) = programs(world)
    assert (program.closure, len(program.runs)) == ('[["/a",1,2,"x"]]', 1)
    told = order(world, "programs", keys=[KEY, "cd" * 32])
    assert told == {"closures": ['[["/a",1,2,"x"]]'], "of": {KEY: 0}}


def test_the_manager_and_the_program_mean_one_variable() -> None:
    assert earlier_runs.RUN_KEY == closure.RUN_KEY
