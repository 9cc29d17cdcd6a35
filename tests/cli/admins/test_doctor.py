"""`nodemgr doctor`: each row of its table on something whole and on something broken."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from client_plugin.verbs.commands import doctor as client_doctor
from client_plugin.ways import choice
from client_plugin.ways.locations import client_library
from nodemgr import paths
from nodemgr.cli.admins import checks
from nodemgr.cli.admins.checks import CHECKS, CheckResult, Subject
from tests.cli.conftest import EnvStandIn, Run, RunningManager, clean_environment, one_line, status

needs_library = pytest.mark.skipif(
    not os.path.isfile(client_library()), reason="the client library is not built"
)


@pytest.fixture
def nodemgr(nodemgr_process: Run) -> Run:
    """It loads libraries and looks at its own process."""
    return nodemgr_process


@pytest.fixture
def subject(short_dir: Path, tmp_path: Path) -> Subject:
    return Subject(short_dir, tmp_path / "state", None, inside=False)


@pytest.fixture
def payload(tmp_path: Path) -> Path:
    """An installation's client of our own, to break."""
    for name in ("client_plugin", "sitecustomize"):
        shutil.copytree(
            paths.payload_dir() / name,
            tmp_path / "payload" / name,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    return tmp_path / "payload"


@pytest.fixture
def node(manager: RunningManager) -> RunningManager:
    """A manager that is well."""
    manager.answers |= {
        "ping": {"version": version("nodemgr"), "pid": os.getpid(), "abi": checks.ABI},
        "status": status(envs=[]),
        "doctor": {
            "schema_version": 1,
            "checks": [{"name": "store", "ok": True, "detail": "writable", "cure": None}],
        },
    }
    return manager


def broken(outcome: CheckResult | list[dict[str, Any]], word: str) -> None:
    assert isinstance(outcome, CheckResult)
    assert outcome.ok is False
    assert word in outcome.detail


def whole(outcome: CheckResult | list[dict[str, Any]]) -> None:
    assert isinstance(outcome, CheckResult)
    assert outcome.ok is True, outcome.detail


# -- the installation


@needs_library
def test_client_library(subject: Subject, payload: Path) -> None:
    whole(checks.client_library(subject))
    theirs = Subject(subject.run_dir, subject.state_dir, None, inside=False, payload=payload)
    theirs.library.write_bytes(b"no library")
    broken(checks.client_library(theirs), "/bin/true")
    theirs.library.unlink()
    broken(checks.client_library(theirs), "is missing")


@needs_library
def test_the_client_that_programs_load_is_examined_where_the_installed_one_has_a_blank(
    subject: Subject, payload: Path, tmp_path: Path
) -> None:
    blank = payload.rename(tmp_path / "my env")
    theirs = Subject(subject.run_dir, subject.state_dir, None, inside=False, payload=blank)
    broken(checks.client_library(theirs), "ERROR: ld.so")
    env_dir = subject.run_dir / "envs" / "alice"
    env_dir.mkdir(parents=True)
    (env_dir / "client.conf").write_text(f"client={paths.payload_dir()}\n")
    whole(checks.client_library(theirs))


@needs_library
def test_client_library_with_an_undefined_symbol(
    subject: Subject, payload: Path, tmp_path: Path
) -> None:
    """Found only because every symbol is bound: the mistake of preloading a Python extension."""
    theirs = Subject(subject.run_dir, subject.state_dir, None, inside=False, payload=payload)
    (tmp_path / "x.c").write_text("void PyErr_Clear(void); void nothing(void) { PyErr_Clear(); }\n")
    subprocess.run(
        ["cc", "-shared", "-fPIC", str(tmp_path / "x.c"), "-o", str(theirs.library)], check=True
    )
    broken(checks.client_library(theirs), "PyErr_Clear")


@needs_library
def test_versions(subject: Subject, node: RunningManager) -> None:
    whole(checks.versions(subject))
    node.answers["ping"] = {"version": "0.0.1", "pid": 1, "abi": checks.ABI}
    broken(
        checks.versions(Subject(subject.run_dir, subject.state_dir, None, inside=False)), "0.0.1"
    )
    node.answers["ping"] = {"version": version("nodemgr"), "pid": 1, "abi": 99}
    broken(checks.versions(Subject(subject.run_dir, subject.state_dir, None, inside=False)), "99")


@needs_library
def test_versions_where_nothing_is_installed(
    subject: Subject, node: RunningManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(name: str) -> str:
        raise PackageNotFoundError(name)

    paths.installed_version.cache_clear()
    monkeypatch.setattr("importlib.metadata.version", nothing)
    broken(checks.versions(subject), "here is unknown")
    paths.installed_version.cache_clear()


def test_versions_of_a_library_of_another_time(
    subject: Subject, payload: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "ABI", checks.ABI + 1)
    broken(checks.versions(subject), "this nodemgr")
    (payload / "client_plugin" / "_lib" / "libnodemgr.so").write_bytes(b"")
    broken(
        checks.versions(
            Subject(subject.run_dir, subject.state_dir, None, inside=False, payload=payload)
        ),
        "libnodemgr.so",
    )


def test_extension(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    whole(checks.extension(subject))
    monkeypatch.setitem(sys.modules, "nodemgr._native", None)
    broken(checks.extension(subject), "_native")


def test_import_hook(subject: Subject, payload: Path) -> None:
    whole(checks.hook(subject))
    (payload / "sitecustomize" / "sitecustomize.py").write_text(
        "raise RuntimeError('half installed')\n"
    )
    broken(
        checks.hook(
            Subject(subject.run_dir, subject.state_dir, None, inside=False, payload=payload)
        ),
        "half installed",
    )


# -- the node


def test_manager(subject: Subject, node: RunningManager) -> None:
    whole(checks.manager(subject))


def test_manager_that_is_not_there(subject: Subject) -> None:
    broken(checks.manager(subject), "no manager answers")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_manager_that_is_stuck(subject: Subject, node: RunningManager) -> None:
    node.answers["ping"] = ("refused", "busy")
    with locked(subject.run_dir / "manager.lock"):
        broken(checks.manager(subject), "runs but does not answer")


def test_leftovers(subject: Subject) -> None:
    whole(checks.leftovers(subject))
    lock = subject.run_dir / "manager.lock"
    with locked(lock):
        whole(checks.leftovers(subject))
    whole(checks.leftovers(subject))
    (subject.run_dir / "envs" / "alice").mkdir(parents=True)
    for name in ("control.sock", "envs/alice/socket"):
        (subject.run_dir / name).touch()
    broken(checks.leftovers(subject), "died and left control.sock, envs/alice/socket")
    os.utime(lock, (0, 0))  # as a manager does that is stopped: its sockets stay
    whole(checks.leftovers(subject))


@pytest.mark.parametrize(
    ("name", "mode"),
    [(".", 0o777), ("control.sock", 0o666), ("events.sock", 0o664 | 0o004), ("envs", 0o777)],
)
def test_modes(subject: Subject, node: RunningManager, name: str, mode: int) -> None:
    (subject.run_dir / "envs").mkdir(mode=0o755)
    for socket_name in ("control.sock", "events.sock"):
        (subject.run_dir / socket_name).chmod(0o660)
    whole(checks.modes(subject))
    (subject.run_dir / name).chmod(mode)
    broken(checks.modes(subject), str(subject.run_dir / name))


def test_modes_of_something_else_in_a_socket_s_place(subject: Subject) -> None:
    (subject.run_dir / "control.sock").write_text("")
    broken(checks.modes(subject), "control socket")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_modes_of_another_user_s_file(subject: Subject) -> None:
    (subject.run_dir / "envs").mkdir()
    os.chown(subject.run_dir / "envs", 4711, 4711)
    broken(checks.modes(subject), "uid 4711")


def test_state(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.state(subject).ok is None
    subject.state_dir.mkdir(mode=0o700)
    whole(checks.state(subject))
    subject.state_dir.chmod(0o755)
    broken(checks.state(subject), "drwxr-xr-x")
    subject.state_dir.chmod(0o700)
    monkeypatch.setattr(checks, "MIN_FREE_BYTES", 2**62)
    broken(checks.state(subject), "free under")


def at(subject: Subject, state_dir: Path | None) -> Subject:
    return replace(subject, state_dir=state_dir)


def test_the_state_is_the_one_of_the_manager_that_answers(
    subject: Subject, node: RunningManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODEMGR_STATE_DIR", str(tmp_path / "elsewhere"))
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o700)
    node.answers["ping"] = {**node.answers["ping"], "state_dir": str(theirs)}
    assert checks.state(at(subject, None)).detail.startswith(f"{theirs}: ")
    assert (
        checks.state(at(subject, tmp_path / "named")).detail
        == f"{tmp_path}/named does not exist yet"
    )


def test_the_state_without_a_manager_is_where_one_would_have_it(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODEMGR_STATE_DIR", str(tmp_path / "here"))
    assert checks.state(at(subject, None)).detail == f"{tmp_path}/here does not exist yet"


def test_a_state_directory_that_is_none(subject: Subject) -> None:
    subject.state_dir.write_text("")
    broken(checks.state(subject), "is no directory")


def test_state_that_cannot_be_written(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    subject.state_dir.mkdir(mode=0o700)
    monkeypatch.setattr(os, "access", lambda *_: False)
    broken(checks.state(subject), "not writable")


def test_driver(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(checks.ctypes, "CDLL", absent)
    broken(checks.driver(subject), "libcuda.so.1: cannot open")
    monkeypatch.setattr(checks.ctypes, "CDLL", lambda _: None)
    whole(checks.driver(subject))


def test_driver_of_a_simulated_node(subject: Subject) -> None:
    (subject.run_dir / "sim").mkdir()
    (subject.run_dir / "sim" / "node.state").touch()
    whole(checks.driver(subject))


def test_descriptors(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.resource, "getrlimit", lambda _: (1_024, 20_000))
    whole(checks.descriptors(subject))
    monkeypatch.setattr(checks.resource, "getrlimit", lambda _: (256, 256))
    broken(checks.descriptors(subject), "256 files, enough for 128 processes")


def test_environments(
    subject: Subject, node: RunningManager, env_stand_in: Callable[[str], EnvStandIn]
) -> None:
    stand_in = env_stand_in("alice")
    node.answers["status"] = status("alice")
    whole(checks.env_directories(subject))
    (stand_in.directory / "socket").unlink()
    broken(checks.env_directories(subject), "envs/alice/socket")
    (stand_in.directory / "client.conf").unlink()
    broken(checks.env_directories(subject), "envs/alice/client.conf")


@needs_library
def test_a_manager_that_this_user_may_not_ask_is_not_said_to_be_absent(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "may_control", lambda _: False)
    lines = [check(subject).detail for check in (checks.env_directories, checks.versions)]
    assert {line.partition(" the manager at ")[0] for line in lines} == {
        "only root, the manager's user and the group nodemgr may ask"
    }


def test_what_the_manager_finds_itself(subject: Subject, node: RunningManager) -> None:
    found = [
        {"name": "store", "ok": False, "detail": "disk full", "cure": "make room"},
        {"name": "gpus", "ok": False, "detail": "ill: GPU 0", "cure": "see dmesg"},
    ]
    node.answers["doctor"] = {"schema_version": 1, "checks": found}
    assert checks.managers_own(subject) == found


# -- an environment


@pytest.fixture
def inside(
    env_stand_in: Callable[[str], EnvStandIn], subject: Subject
) -> tuple[Subject, EnvStandIn]:
    stand_in = env_stand_in("alice")
    stand_in.answers["doctor"] = {"schema_version": 1, "checks": []}
    return Subject(subject.run_dir, subject.state_dir, stand_in.directory, inside=True), stand_in


def test_env_directory(inside: tuple[Subject, EnvStandIn]) -> None:
    subject, stand_in = inside
    whole(checks.env_directory(subject))
    (stand_in.directory / "client.conf").write_text("half a line")
    broken(checks.env_directory(subject), "names no env")
    (stand_in.directory / "client.conf").unlink()
    broken(checks.env_directory(subject), "client.conf")


def test_socket(inside: tuple[Subject, EnvStandIn]) -> None:
    subject, stand_in = inside
    assert checks.env_answer(subject) == [
        {"name": "socket", "ok": True, "detail": "the manager answers", "cure": None}
    ]
    (stand_in.directory / "socket").unlink()
    broken(checks.env_answer(subject), "no manager answers")
    stale = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stale.bind(str(stand_in.directory / "socket"))
    stale.close()
    broken(checks.env_answer(subject), "no manager answers")


def test_an_environment_with_all_its_connections_gets_another_cure(
    inside: tuple[Subject, EnvStandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes the connection, and nobody reads it."""
    subject, stand_in = inside
    (stand_in.directory / "socket").unlink()
    monkeypatch.setattr(choice, "ANSWER_TIMEOUT_S", 0.2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as full:
        full.bind(str(stand_in.directory / "socket"))
        full.listen(1)
        (row,) = checks.env_answer(subject)
    assert (row["name"], row["ok"]) == ("socket", False)
    assert "an environment with all its connections gets none" in row["detail"]
    assert "max_connections_per_env" in row["cure"]
    assert "mount the directory" not in row["cure"]


def ledger(env_dir: Path | None, monkeypatch: pytest.MonkeyPatch) -> CheckResult:
    monkeypatch.setenv("NODEMGR_ENV_DIR", str(env_dir))
    return CheckResult(*client_doctor.ledger())


def test_ledger_over_udp(
    inside: tuple[Subject, EnvStandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, stand_in = inside
    stand_in.configure(address="udp:127.0.0.1:7000")
    assert "fixed cap" in ledger(subject.env_dir, monkeypatch).detail


DOCTOR = ["doctor", "--json"]


def result_of(name: str, output: str) -> dict[str, Any]:
    (found,) = [result for result in json.loads(output)["checks"] if result["name"] == name]
    return dict(found)


@needs_library
def test_preload_and_hook_of_the_very_process(
    nodemgr: Run, inside: tuple[Subject, EnvStandIn]
) -> None:
    subject, stand_in = inside
    shim: dict[str, str | None] = {"NODEMGR_ENV_DIR": str(stand_in.directory)}
    bare = nodemgr(*DOCTOR, run_dir=None, environment=shim)
    assert bare.returncode == 1
    assert result_of("preload", bare.stdout)["ok"] is False
    assert result_of("hook", bare.stdout)["ok"] is False
    active = nodemgr(
        *DOCTOR, run_dir=None, environment={**shim, "LD_PRELOAD": str(subject.library)}
    )
    assert result_of("preload", active.stdout)["ok"] is True
    assert result_of("hook", active.stdout)["ok"] is True, active.stdout


def test_ledger(
    inside: tuple[Subject, EnvStandIn],
    env_stand_in: Callable[[str], EnvStandIn],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that has a libcuda.so mapped and no ledger: what a bypass looks like."""
    subject, _ = inside
    library = tmp_path / "libcuda.so.1"
    library.write_bytes(b"x" * 4096)
    program = (
        "import mmap, sys\n"
        "library = open(sys.argv[1])\n"
        "held = mmap.mmap(library.fileno(), 0, prot=mmap.PROT_READ)\n"
        "print('mapped', flush=True)\n"
        "sys.stdin.read()\n"
    )
    ours = clean_environment(NODEMGR_ENV_DIR=str(subject.env_dir))
    command = [sys.executable, "-c", program, str(library)]
    assert ledger(subject.env_dir, monkeypatch).ok is None
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ours
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        broken(ledger(subject.env_dir, monkeypatch), str(process.pid))
        neighbour = env_stand_in("bob").directory
        assert ledger(neighbour, monkeypatch).ok is None, (
            "a neighbour's program is not ours to judge"
        )
        assert process.stdin is not None
        process.stdin.close()


# -- the verb


@needs_library
def test_a_node_that_is_well(nodemgr: Run, node: RunningManager) -> None:
    node.run_dir.joinpath("sim").mkdir()
    node.run_dir.joinpath("sim", "node.state").touch()
    for name in ("control.sock", "events.sock"):
        (node.run_dir / name).chmod(0o660)
    result = nodemgr("doctor", "--state-dir", node.run_dir / "absent")
    assert "Traceback" not in result.stderr
    assert [line for line in result.stdout.splitlines() if line.startswith("FAIL")] == []
    assert result.returncode == 0


def test_a_failure_comes_with_its_cure_and_exit_1(nodemgr: Run) -> None:
    result = nodemgr("doctor")
    assert result.returncode == 1
    (line,) = [line for line in result.stdout.splitlines() if line.split()[1] == "manager"]
    assert line.startswith("FAIL")
    assert "-> start one of your own: nodemgr serve" in line


def test_as_json(nodemgr: Run) -> None:
    result = nodemgr(*DOCTOR)
    assert result.returncode == 1
    told = json.loads(result.stdout)
    assert told["schema_version"] == 1
    assert all(set(row) == {"name", "ok", "detail", "cure"} for row in told["checks"])
    assert result_of("manager", result.stdout)["cure"] == (
        "start one of your own: nodemgr serve; the node's, as an administrator: systemctl "
        "start nodemgr"
    )


def test_one_environment_more(
    nodemgr: Run, node: RunningManager, env_stand_in: Callable[[str], EnvStandIn]
) -> None:
    stand_in = env_stand_in("alice")
    stand_in.answers["doctor"] = ("forbidden_user", "user eve may not enter alice")
    result = nodemgr(*DOCTOR, "--env", "alice")
    assert result_of("socket", result.stdout)["detail"] == "user eve may not enter alice"
    assert result_of("env directory", result.stdout)["ok"] is True


def test_a_name_that_is_none(nodemgr: Run) -> None:
    result = nodemgr("doctor", "--env", "../x")
    assert result.returncode == 2
    assert "is no name" in one_line(result)


def test_by_somebody_who_may_not_look_everywhere(stranger: Run, node: RunningManager) -> None:
    state_dir = node.run_dir / "state"
    state_dir.mkdir(mode=0o700)
    (node.run_dir / "control.sock").chmod(0o660)
    result = stranger(*DOCTOR, "--state-dir", state_dir)
    assert result_of("state", result.stdout) == {
        "name": "state",
        "ok": None,
        "detail": f"{state_dir} is uid 0's",
        "cure": None,
    }
    assert result_of("manager", result.stdout)["ok"] is None
    unasked = result_of("state", stranger("doctor", "--json").stdout)
    assert (unasked["ok"], unasked["cure"]) == (None, None)
    assert (
        unasked["detail"]
        == "only root, the manager's user and the group nodemgr may ask the manager at"
        f" {node.run_dir} for its state directory (--state-dir names one)"
    )
    closed = result_of("state", stranger(*DOCTOR, "--state-dir", state_dir / "within").stdout)
    assert (closed["ok"], closed["detail"]) == (None, f"{state_dir}/within is not open to you")


def test_a_cure_that_is_an_administrator_s_is_said_to_be_one(
    stranger: Run, nodemgr: Run, node: RunningManager
) -> None:
    (node.run_dir / "control.sock").chmod(0o664)
    cure = "stop the manager, remove the run directory, start the manager again"
    assert result_of("modes", nodemgr(*DOCTOR).stdout)["cure"] == cure
    by_stranger = result_of("modes", stranger(*DOCTOR).stdout)
    assert by_stranger["cure"] == f"for an administrator: {cure}"


def test_every_check_is_tried_broken_above() -> None:
    """A row without a test in this file would be a row that was never seen to fail."""
    text = Path(__file__).read_text()
    untried = [
        check.name
        for check in CHECKS
        if f"checks.{check.examine.__name__}(" not in text and check.place != checks.INSIDE
    ]
    assert not untried


def test_a_strangers_run_directory_holds_nobody_up(tmp_path: Path) -> None:
    """With a FIFO, or a link to one, in the place of the lock."""
    (tmp_path / "fifo").mkdir()
    (tmp_path / "link").mkdir()
    os.mkfifo(tmp_path / "fifo" / "manager.lock")
    (tmp_path / "link" / "manager.lock").symlink_to(tmp_path / "fifo" / "manager.lock")
    for name in ("fifo", "link"):
        assert not checks.manager_holds(tmp_path / name)
