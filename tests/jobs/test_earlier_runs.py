"""The second time a command is submitted, its expected time is known: through a whole manager."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from client_plugin.prediction import closure
from client_plugin.verbs.commands import submit as submit_verb
from client_plugin.ways.conversation import Conversation
from client_plugin.ways.faults import Fault
from nodemgr.core.forecast import earlier_runs
from nodemgr.core.forecast.earlier_runs import EarlierRun, ProgramRuns, key_of
from nodemgr.core.model.entities import EarlySignal
from nodemgr.core.model.values import replace
from nodemgr.edge.api import job_operations
from nodemgr.edge.forecast import run_keeper
from nodemgr.edge.forecast.run_keeper import RunKeeper
from nodemgr.edge.rpc.operation import OperationError
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
    assert "1 of 2 commands ran before: figures of their runs are filled in" in said.stderr
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
        raise OperationError("unknown verb 'programs'", "the verbs are job_submit")

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


def test_a_clock_that_was_set_back_changes_no_time(world: World) -> None:
    job = world.until_ended(submit(world, argv=["sleep", "0.1"])).job
    (last,) = job.attempts
    assert last.started_wall_ns is not None
    earlier = replace(last, ended_wall_ns=last.started_wall_ns - 3_600 * 10**9)
    before = run_keeper._run_ms(job)
    assert before is not None
    assert run_keeper._run_ms(replace(job, attempts=(earlier,))) == before


def test_a_manager_that_was_killed_forgets_a_removed_environment_later(world: World) -> None:
    """Else one of the same name would know its programs."""
    text = earlier_runs.packed(ProgramRuns())
    for env in ("alice", "gone"):
        world.manager.do(lambda env=env: world.manager.daemon.journal.save_program(env, KEY, text))
    world.restart()
    world.until_seen(lambda: world.manager.daemon.journal.program_envs() == ["alice"])


def test_a_job_s_modules_are_those_that_its_own_user_reports(world: World) -> None:
    keeper = keeper_of(world)
    job_id, closure = submit(world, hold=True), "[]"
    for env, user, files in (("alice", "ann", "[1]"), ("bob", "root", "[2]")):
        world.manager.do(
            lambda env=env, user=user, files=files: keeper.reported(env, user, job_id, files)
        )
    world.manager.do(lambda: keeper.reported("alice", "root", job_id, closure))
    assert keeper._reports == {"alice": {job_id: closure}}


# -- without a job --

RUN_SCRIPT = """
import sys
finder = next(one for one in sys.meta_path if getattr(one, "nodemgr", False))
finder.package("prediction.run_report").NOTIFY_S = 600  # however slow this machine is
import cupy, net
ours = {name: sys.modules["_nodemgr_client_plugin." + name]
        for name in ("lease", "prediction.closure", "prediction.run_report")}
ours["prediction.run_report"].LEAST_MS = 0
ours["prediction.closure"].package_folders = lambda prefix: []
open(sys.argv[1]).read()
assert ours["lease"].acquire() == ""
open(sys.argv[2]).read()
sys.exit(int(sys.argv[3]))
"""


@pytest.fixture
def ran(program: Path) -> Path:
    (program / "cupy").mkdir()
    (program / "cupy" / "__init__.py").touch()
    (program / "train.py").write_text(RUN_SCRIPT)
    return program


def keeper_of(world: World) -> RunKeeper:
    return next(
        one for told in world.jobs.on_final
        if isinstance(one := getattr(told, "__self__", None), RunKeeper)
    )  # fmt: skip


def run_once(world: World, *options: str, status: int = 0) -> int | None:
    """The expected time of the task that `run` made."""
    before = len(keeper_of(world)._begun.get("alice", {}))
    gates = [world.gate(), world.gate()]
    command = [sys.executable, "train.py", *gates]
    words = ["run", "--env", "alice", "--gpus", "1", *options, "--", *command]
    process = subprocess.Popen(
        [sys.executable, "-m", "nodemgr", *map(str, words), str(status)],
        env=test_verbs.variables(world),
    )
    world.until_seen(lambda: len(keeper_of(world)._begun.get("alice", {})) > before)
    test_verbs.open_gate(gates[0])
    world.until_seen(lambda: bool(world.manager.daemon.state.tasks))
    (task,) = world.manager.do(lambda: list(world.manager.daemon.state.tasks.values()))
    test_verbs.open_gate(gates[1])
    assert process.wait(WAIT_LIMIT_S) == status
    world.until_seen(lambda: not world.manager.daemon.state.tasks)
    return task.run.expected_ms


def test_the_time_of_run_is_known_the_second_time(world: World, ran: Path) -> None:
    assert run_once(world, status=3) is None
    assert run_once(world) is None
    until_kept(world, 1)
    (known,) = programs(world)
    assert (known.runs[0].gpus, known.runs[0].peak_bytes, known.runs[0].numbers) == (
        1,
        None,
        (0.0,),
    )
    assert run_once(world) == known.runs[0].run_ms
    until_kept(world, 2)
    (ran / "net.py").write_text("layers = 4\n")
    assert run_once(world) is None, "a changed module"


def test_run_recognises_nothing_before_its_program_starts(world: World) -> None:
    words = [sys.executable, "-X", "importtime", "-m", "nodemgr", "run", "--env", "alice"]
    done = subprocess.run(
        [*words, "--", "true"], env=test_verbs.variables(world), capture_output=True, text=True
    )
    assert (done.returncode, "client_plugin.verbs.launch" in done.stderr) == (0, True)
    assert [line for line in done.stderr.splitlines() if "recognition" in line] == []


@pytest.mark.parametrize("acquire", ["start", "import"])
def test_a_run_that_asks_early_has_its_time_too(world: World, ran: Path, acquire: str) -> None:
    options = ("--acquire", "start") if acquire == "start" else ()
    world.manager.call("quota_set", env="alice", acquire="first-use" if options else "import")
    assert run_once(world, *options) is None
    until_kept(world, 1)
    (known,) = programs(world)
    assert run_once(world, *options) == known.runs[0].run_ms


def test_what_is_told_of_runs_is_bounded_and_ends_with_the_environment(world: World) -> None:
    keeper, known = keeper_of(world), knows(world, GIB)
    forecasts = world.manager.daemon.forecasts
    for number in range(run_keeper.MAX_REPORTS + 1):
        order(world, "program_begun", recognised=known, token=f"{number:x}")
    assert len(keeper._begun["alice"]) == run_keeper.MAX_REPORTS
    assert world.manager.do(lambda: forecasts.expected_ms("alice", "0", 1)) is None, "the oldest"
    assert world.manager.do(lambda: forecasts.expected_ms("alice", "1", 1)) == 60_000
    assert world.manager.do(lambda: forecasts.expected_ms("alice", "1", 2)) is None
    gpus = world.manager.daemon.state.envs["alice"].quota.gpus
    assert world.manager.do(lambda: forecasts.expected_ms("alice", "1", None)) == (
        60_000 if gpus == 1 else None
    )
    assert world.manager.do(lambda: forecasts.expected_ms("bob", "1", 1)) is None
    order(world, "program_begun", recognised={**known, "holds": False}, token="1")
    assert world.manager.do(lambda: forecasts.expected_ms("alice", "1", 1)) is None
    world.manager.call("quota_set", env="alice", forecast="off")
    order(world, "program_begun", recognised=known, token="2")
    assert world.manager.do(lambda: forecasts.expected_ms("alice", "2", 1)) is None
    world.manager.call("quota_rm", env="alice")
    assert "alice" not in keeper._begun


def test_a_run_counts_with_the_gpus_and_modules_that_are_known(world: World) -> None:
    known, (uuid, *_) = {"key": KEY, "numbers": [1], "holds": True}, world.manager.daemon.state.gpus
    told = {"recognised": known, "gpus": [uuid], "run_ms": 9, "files": []}
    for more in ({"gpus": ["GPU-x"]}, {"gpus": [uuid, "GPU-x"]}, {"files": None}):
        order(world, "program_ran", **{**told, **more})
    assert programs(world) == []
    order(world, "program_ran", **told)
    until_kept(world, 1)
    world.manager.call("quota_set", env="alice", forecast="off")
    order(world, "program_ran", **told)
    assert [len(one.runs) for one in programs(world)] == [1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"gpus": []}, {"gpus": "GPU"}, {"gpus": [5]}, {"gpus": ["x" * 300]},
        {"gpus": ["x"] * 2_000}, {"run_ms": 0}, {"run_ms": "9"}, {"run_ms": 2**60},
        {"files": 5}, {"recognised": 5},
    ],
)  # fmt: skip
def test_a_strange_word_of_a_run_is_refused(world: World, wrong: dict[str, Any]) -> None:
    known = {"key": KEY, "numbers": [], "holds": True}
    with pytest.raises(Fault):
        order(world, "program_ran", **{"recognised": known, "gpus": ["x"], "run_ms": 9, **wrong})
    with pytest.raises(Fault):
        order(world, "program_begun", recognised=known, token="no hex")


# -- memory --

GIB = 1 << 30


def knows(world: World, *peaks: int, run_ms: int = 60_000) -> dict[str, Any]:
    """A program of alice, whose runs had these peaks on a GPU, as a client names it."""
    (model,) = {gpu.name for gpu in world.manager.daemon.state.gpus.values()}
    runs = tuple(EarlierRun((), 1, model, run_ms, peak) for peak in peaks)
    text = earlier_runs.packed(ProgramRuns(runs, "[]"))
    world.manager.do(lambda: world.manager.daemon.journal.save_program("alice", KEY, text))
    return {"key": KEY, "numbers": [], "holds": True}


def test_memory_is_filled_in_as_the_low_end_of_a_range(world: World) -> None:
    known, needed = knows(world, GIB, GIB // 2), GIB * 1_100 // 1_000 + 64 * 2**20
    run = world.job(submit(world, hold=True, recognised=known)).run
    assert (run.memory_bytes, run.is_memory_filled) == (needed, True)
    assert run.memory_most_bytes is not None
    assert run.memory_most_bytes > needed
    own = world.job(submit(world, hold=True, recognised=known, memory_bytes=GIB, time_limit_ms=9))
    assert (own.run.memory_bytes, own.run.memory_most_bytes) == (GIB, None)
    assert (own.run.is_memory_filled, own.run.expected_ms) == (False, None)
    too_much = knows(world, run.memory_most_bytes)
    assert world.job(submit(world, hold=True, recognised=too_much)).run.memory_bytes is None


def test_the_answer_names_each_figure_that_is_filled_in(world: World) -> None:
    words = {"argv": ["true"], "cwd": "/", "gpus": 1, "environ": [], "hold": True}
    known = knows(world, GIB)
    for more, figures in (
        ({}, {"run_seconds", "memory_bytes"}), ({"time_limit_ms": 9}, {"memory_bytes"}),
        ({"memory_bytes": GIB}, {"run_seconds"}), ({"memory_bytes": GIB, "time_limit_ms": 9}, None),
    ):  # fmt: skip
        told = order(
            world, "job_submit", key=os.urandom(16).hex(), recognised=known, **words, **more
        )
        earlier = told.get("earlier")
        assert (earlier and set(earlier) - {"runs", "learned"}) == figures


def test_an_environment_without_a_forecast_fills_in_nothing_and_keeps_nothing(world: World) -> None:
    known = knows(world, GIB)
    world.manager.call("quota_set", env="alice", forecast="off")
    run = world.job(submit(world, hold=True, recognised=known)).run
    assert (run.memory_bytes, run.expected_ms) == (None, None)
    world.until_ended(submit(world, recognised={**known, "key": "cd" * 32}))
    world.until_seen(lambda: not world.jobs._finished)
    assert [len(one.runs) for one in programs(world)] == [1]


@pytest.mark.parametrize(
    ("figures", "line"),
    [
        ({"run_seconds": 90}, "an expected time of 1 min 30 s is filled in"),
        ({"memory_bytes": GIB}, "a least GPU memory of 1 GiB is filled in"),
        (
            {"run_seconds": 90, "memory_bytes": GIB},
            "an expected time of 1 min 30 s and a least GPU memory of 1 GiB are filled in",
        ),
    ],
)
def test_the_line_of_submit_names_the_figures(
    capsys: pytest.CaptureFixture[str], figures: dict[str, Any], line: str
) -> None:
    submit_verb._say_earlier({"runs": 2, "learned": False, **figures})
    assert capsys.readouterr().err == f"nodemgr: 2 earlier runs of this command: {line}\n"


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
