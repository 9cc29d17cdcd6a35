"""`nodemgr` as a container's users have it: started through its shell wrapper, by any Python.

The manager is real.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from client_plugin.messages.ways import NO_MANAGER_ON
from client_plugin.ways import retry_timeout
from client_plugin.ways.control import ControlConnection
from client_plugin.ways.faults import Fault, Stopped
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import ROOT, Manager

VERBS = ROOT / "client_plugin" / "bin" / "nodemgr"
VERBS_THERE = (
    "submit, predict, queue, logs, wait, history, report, status, top, release, suspend, resume,"
    " keep, doctor"
)
GIB = 2**30
PATIENT_MANAGER = {"NODEMGR_TIMEOUT_MS": str(int(WAIT_LIMIT_S * 1_000))}
"""It takes no program that is kept waiting for stalled."""
PYTHONS = sorted(
    path
    for version in range(8, 14)
    for path in Path.home().glob(f".pyenv/versions/3.{version}.*/bin/python3")
    if path.exists()
) or [Path(sys.executable)]


@pytest.fixture(scope="module")
def busy_node() -> Iterator[Manager]:
    """One for all Pythons, with a task of alice's."""
    manager = Manager(simulate="2x16GiB", environment=PATIENT_MANAGER).start()
    manager.quota("alice", 1, memory_bytes=4 * GIB)
    manager.quota("bob", 1)
    holder = manager.hold("alice")
    assert holder.stdout is not None
    holder.stdout.readline()
    yield manager
    manager.close()


@pytest.fixture
def node(make_manager: Callable[..., Manager]) -> Manager:
    manager = make_manager(simulate="2x16GiB", environment=PATIENT_MANAGER)
    manager.quota("alice", 1, memory_bytes=4 * GIB)
    manager.quota("bob", 1)
    return manager


def run(
    node: Manager, *arguments: str, python: Path | None = None, env: str = "alice", **variables: str
) -> subprocess.CompletedProcess[str]:
    """The verb as one of the env's users, with this `python3` alone in PATH."""
    around = node.environment_of(env) | variables
    if python is not None:
        folder = node.directory / "bin"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "python3").symlink_to(python)
        around["PATH"] = str(folder)
    return subprocess.run(
        ["/bin/sh", str(VERBS), *arguments],
        env=around,
        capture_output=True,
        text=True,
        timeout=WAIT_LIMIT_S,
        check=False,
    )


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.parent.parent.name)
def test_every_python_shows_the_same(busy_node: Manager, python: Path) -> None:
    ((holder,),) = (task["pids"] for task in busy_node.status()["tasks"])
    shown = run(busy_node, "status", python=python)
    assert shown.stderr == ""
    assert shown.returncode == 0
    assert "alice   1/1         4 GiB" in shown.stdout
    assert f" {holder} " in shown.stdout
    picture = run(busy_node, "top", "--once", python=python)
    assert (picture.returncode, picture.stderr) == (0, "")
    assert "env alice  1 of 2 GPUs held  1 task" in picture.stdout
    assert "bob" not in shown.stdout
    said = run(busy_node, "doctor", python=python)
    rows = dict(
        line.split(maxsplit=1)[::-1]
        for line in (line[:18].strip() for line in said.stdout.splitlines())
        if " " in line
    )
    assert said.returncode == 0, said.stdout
    assert (rows["preload"], rows["hook"], rows["socket"], rows["ledger"]) == (
        "ok",
        "ok",
        "ok",
        "ok",
    )


def test_a_user_releases_his_own_and_nobody_elses(node: Manager) -> None:
    for env in ("alice", "bob"):
        holder = node.hold(env)
        assert holder.stdout is not None
        holder.stdout.readline()
    assert re.fullmatch(
        r"nodemgr: t1 is released; process \d+ lives on and keeps \S+ \S+ of GPU memory until it"
        r" frees the memory or ends\n",
        run(node, "release", "t1").stderr,
    )
    others = run(node, "release", "t2")
    assert others.returncode == 1
    assert (
        others.stderr
        == "nodemgr: alice has no task or waiting request 't2': `nodemgr status` lists them\n"
    )
    assert [task["id"] for task in node.status()["tasks"]] == ["t2"]


def test_the_queue_tells_place_and_reason(node: Manager) -> None:
    node.quota("carol", 2)
    node.quota("dave", 2)
    first = node.hold("carol")
    assert first.stdout is not None
    first.stdout.readline()
    assert run(node, "queue", env="dave").stdout == "Nothing waits.\n"
    events = node.events(since=None)
    node.hold("dave")
    events.expect("task.waiting", env="dave")
    (request,) = (row["id"] for row in node.status()["queue"])
    told = run(node, "queue", env="dave")
    assert told.stdout.splitlines()[1].split()[:2] == ["1", request]
    (row,) = json.loads(run(node, "queue", "--json", env="dave").stdout)["queue"]
    assert row["id"] == request


def test_what_an_administrator_does_is_said_to_be_the_nodes(node: Manager) -> None:
    wrong = run(node, "quota", "set", "alice", "--gpus", "9")
    assert wrong.returncode == 2
    assert (
        wrong.stderr
        == "nodemgr: quota is a verb of the node's own nodemgr: in a container there are"
        f" {VERBS_THERE}\n"
    )
    assert run(node, "nonsense").returncode == 2
    assert run(node).returncode == 2


def test_outside_of_any_environment_the_flag_is_named(node: Manager, tmp_path: Path) -> None:
    lost = run(node, "status", NODEMGR_ENV_DIR=str(tmp_path))
    assert lost.returncode == 69
    assert "--device nodemgr.local/env=NAME" in lost.stderr
    assert len(lost.stderr.splitlines()) == 1
    examined = run(node, "doctor", NODEMGR_ENV_DIR=str(tmp_path))
    assert examined.returncode == 1
    assert "FAIL  environment" in examined.stdout


def test_without_a_manager_every_verb_says_so(node: Manager) -> None:
    node.stop()
    gone, socket = run(node, "status", "--no-wait"), node.env_dir("alice") / "socket"
    assert gone.returncode == 69
    assert (
        gone.stderr
        == f"nodemgr: no manager answers behind {socket} (Connection refused); tasks that run go"
        " on: try again, or ask an admin to start it\n"
    )
    assert "FAIL  socket" in run(node, "doctor").stdout


PATIENT = f"""
import sys
from client_plugin.ways import retry_timeout
retry_timeout.RESTART_S = {WAIT_LIMIT_S}  # on a busy machine a start takes more than 10 s
from nodemgr.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        ("status", ""), ("queue", ""), ("history", ""), ("quota show", ""),
        ("wait j99", "j99"), ("suspend t99", "t99"),
    ],
)  # fmt: skip
def test_a_verb_waits_for_a_manager_that_restarts(node: Manager, verb: str, said: str) -> None:
    """`said` is in the line of a refusal by the new manager."""
    node.kill()
    soon_s = time.time() + WAIT_LIMIT_S  # on a busy machine the verb starts late
    os.utime(node.run_dir / "manager.lock", (soon_s, soon_s))
    command = [sys.executable, "-c", PATIENT, *verb.split(), "--run-dir", str(node.run_dir)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as waiting:
        assert waiting.stderr is not None
        line = waiting.stderr.readline()
        assert re.search(r"trying for [0-9]+ s in all \(--no-wait", line), line
        node.start()
        stdout, stderr = waiting.communicate(timeout=WAIT_LIMIT_S)
    assert waiting.returncode == bool(said), stderr
    assert (stderr == "", said in stderr, bool(stdout)) == (not said, True, not said)


@pytest.mark.parametrize(
    "verb",
    [
        "status", "queue", "history", "report", "top --once", "env list", "quota show",
        "events -n 2", "allocations", "release t99", "suspend t99", "keep t99 --for 1h",
        "queue position j99", "queue withdraw j99", "wait j99", "doctor", "status --env alice",
        "submit --env alice --gpus 0 -- true", "run --env alice --gpus 0 -- true",
    ],
)  # fmt: skip
def test_a_verb_leaves_no_descriptor_open(busy_node: Manager, verb: str) -> None:
    said = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-m", "nodemgr", *verb.split()],
        env={**os.environ, "NODEMGR_RUN_DIR": str(busy_node.run_dir)},
        cwd=ROOT, capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False,
    )  # fmt: skip
    assert "Warning" not in said.stderr
    assert "Traceback" not in said.stderr


def test_a_verb_gives_up_when_no_manager_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 4.0, 9.9, 10.0])
    monkeypatch.setattr(retry_timeout.time, "monotonic", lambda: next(now))
    monkeypatch.setattr(retry_timeout.time, "sleep", lambda _seconds: None)

    def absent() -> int:
        raise Stopped(NO_MANAGER_ON(run_dir="/run/nodemgr"))

    with pytest.raises(Stopped):
        retry_timeout.through_restart(absent, no_wait=False)
    assert next(now, None) is None


@pytest.mark.parametrize("verb", ["status", "quota show", "submit --env alice -- true"])
def test_a_verb_waits_for_no_manager_that_has_been_silent(node: Manager, verb: str) -> None:
    """No restart is under way: neither long after its end, nor after Ctrl-C."""
    node.kill()
    long_ago_s = time.time() - 60
    os.utime(node.run_dir / "manager.lock", (long_ago_s, long_ago_s))
    command = [*verb.split()[:1], "--run-dir", str(node.run_dir), *verb.split()[1:]]
    if verb.startswith("quota"):
        command = [*verb.split(), "--run-dir", str(node.run_dir)]
    said = subprocess.run(
        [sys.executable, "-m", "nodemgr", *command],
        cwd=ROOT, capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False,
    )  # fmt: skip
    assert said.returncode == 69
    assert "trying for" not in said.stderr
    node.start()


@pytest.mark.parametrize(("number", "waits"), [(signal.SIGINT, False), (signal.SIGTERM, True)])
def test_a_manager_ended_by_ctrl_c_is_not_waited_for(
    node: Manager, number: signal.Signals, waits: bool
) -> None:
    """A service is stopped and restarted by the same signal, SIGTERM."""
    assert node.process is not None
    node.process.send_signal(number)
    node.wait()
    with pytest.raises(Stopped) as away:
        ControlConnection(node.run_dir).call("status")
    assert (away.value.silent_s() < WAIT_LIMIT_S) is waits
    node.start()


def test_where_no_manager_ran_a_verb_fails_at_once(tmp_path: Path) -> None:
    with pytest.raises(Fault) as fault:
        retry_timeout.through_restart(
            lambda: ControlConnection(tmp_path).call("status"), no_wait=False
        )
    assert not isinstance(fault.value, Stopped)


def test_doctor_without_the_shim_says_how_to_bring_it_in(node: Manager) -> None:
    said = run(node, "doctor", LD_PRELOAD="")
    assert said.returncode == 1
    assert "FAIL  preload" in said.stdout
    assert "FAIL  hook" in said.stdout
    assert "--device nodemgr.local/env=NAME" in said.stdout


def test_an_old_python_is_passed_over(node: Manager) -> None:
    """The first in PATH may be any."""
    folder = node.directory / "old"
    folder.mkdir()
    (folder / "python3").write_text("#!/bin/sh\nexit 1\n")
    (folder / "python3").chmod(0o755)
    (folder / "python").symlink_to(sys.executable)
    assert run(node, "status", PATH=str(folder)).returncode == 0


def test_its_interpreter_is_its_own(node: Manager, tmp_path: Path) -> None:
    """A user's modules of the same names are not the verbs'."""
    (tmp_path / "json.py").write_text("raise SystemExit('hijacked')")
    found = run(node, "status", PYTHONPATH=str(tmp_path), PYTHONHOME="/nonexistent")
    assert found.returncode == 0, found.stderr
