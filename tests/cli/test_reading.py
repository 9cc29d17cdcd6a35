"""status, allocations, release and events: the question, the output, and the way.

The way is that of a user without admin rights, too.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nodemgr.cli.admins import events
from tests.cli.conftest import (
    WAIT_LIMIT_S,
    EnvStandIn,
    Run,
    RunningManager,
    clean_environment,
    event,
    one_line,
    status,
)

# -- status


def test_status_as_json_is_the_manager_s_object(nodemgr: Run, manager: RunningManager) -> None:
    manager.answers["status"] = status()
    result = nodemgr("status", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout) == status()


def test_status_for_people(nodemgr: Run, manager: RunningManager) -> None:
    manager.answers["status"] = status()
    lines = nodemgr("status").stdout.splitlines()
    assert lines == [
        "GPU  NAME  STATE    MEMORY  GRANTED   USED  UTIL  TEMP  POWER  TASKS  UUID",
        "  0  Sim   healthy  16 GiB   12 GiB  1 GiB     -     -      -      1  GPU-0",
        "order of free GPUs: most remaining memory first (placement = auto: spread)",
        "",
        "ENV    GPUS  MEMORY QUOTA  AVAILABLE  QUEUE",
        "alice   1/2        24 GiB     12 GiB  normal",
        "",
        (
            "TASK  ENV    STATE    MEMORY  GPUS  USED  UTIL  IDLE      FOR  LAST SEEN  CPU  HOST"
            "  PIDS       WHO             COMMAND"
        ),
        (
            "t1    alice  running  shared  0        -     -     -  0:01:15    0:00:00    -     -"
            "  1,2,3,4+2  eve,root@web-1  python train.py"
        ),
        "",
        "PLACE  WHAT  ENV    GPUS  QUEUE   WHO  WHY",
        "    1  r2    alice     2  normal  eve  needs 2 GPUs, 1 free",
    ]


def test_held_entries_beyond_the_first_ten_are_counted(
    nodemgr: Run, manager: RunningManager
) -> None:
    """The length of the queue counts those that wait, and none that is held."""
    (row,) = status()["queue"]
    rows = [{**row, "id": f"j{number}", "position": None} for number in range(13)]
    manager.answers["status"] = status(queue=rows, queue_length=1)
    assert nodemgr("status").stdout.splitlines()[-1] == "and 3 more: nodemgr queue"


def test_what_the_audit_found_stands_below(nodemgr: Run, manager: RunningManager) -> None:
    found = {
        "pid": 77, "env": None, "gpu_index": 0, "memory_bytes": 2**31, "allowed_bytes": 0,
        "offence": "no_lease",
        "duration_seconds": 5, "enforce": "warn", "command": "./a.out",
    }  # fmt: skip
    manager.answers["status"] = status(violations=[found])
    assert nodemgr("status").stdout.splitlines()[-2:] == [
        "PID  ENV  GPU   USES  MAY USE  WHAT          FOR  ENFORCE  COMMAND",
        " 77  -      0  2 GiB      0 B  no lease  0:00:05  warn     ./a.out",
    ]


def test_memory_that_no_lease_accounts_for_names_who_has_it(
    nodemgr: Run, manager: RunningManager
) -> None:
    holder = {
        "pid": 77,
        "env": "alice",
        "gpu_index": 0,
        "memory_bytes": 3 * 2**30,
        "alive": True,
        "at_most": False,
    }
    place = {
        "pid": 77,
        "pid_inside": 5,
        "user": "eve",
        "container": "3f3f",
        "container_name": "web-1",
    }
    dead = {
        "pid": 78,
        "env": "bob",
        "gpu_index": 1,
        "memory_bytes": 2**30,
        "alive": False,
        "at_most": True,
        "places": [],
    }
    manager.answers["status"] = {**status(), "residues": [{**holder, "places": [place]}, dead]}
    assert nodemgr("status").stdout.splitlines()[-3:] == [
        "GPU  STILL HOLDS  PID  ENV    WHO        WHY",
        "  0        3 GiB   77  alice  eve@web-1  lives without a lease",
        "  1  up to 1 GiB   78  bob    -          is dead: the driver has not let go of it",
    ]


def test_an_env_with_all_its_connections_is_a_warning(
    nodemgr: Run, manager: RunningManager
) -> None:
    manager.answers["status"] = status(crowds=[{"text": "environment mallory has all"}])
    result = nodemgr("status")
    assert (result.returncode, result.stderr) == (
        0,
        "nodemgr: warning: environment mallory has all\n",
    )


def test_an_entry_that_is_set_aside_is_a_warning(nodemgr: Run, manager: RunningManager) -> None:
    manager.answers["status"] = status(set_aside=[{"entry": "j3", "reason": "KeyError: 'x'"}])
    assert nodemgr("status").stderr == (
        "nodemgr: warning: j3 is set aside after a fault of the manager: KeyError: 'x'"
        " (nodemgr doctor)\n"
    )


def test_an_empty_node(nodemgr: Run, manager: RunningManager) -> None:
    manager.answers["status"] = status(gpus=[], envs=[], tasks=[], queue=[])
    assert nodemgr("status").stdout.splitlines() == [
        "There is no GPU.",
        "",
        "No environment has a quota yet (nodemgr quota set ENV --gpus N).",
    ]


def test_a_reader_that_leaves(manager: RunningManager) -> None:
    """`nodemgr status | head -1`: no traceback, and the shell's code for it."""
    manager.answers["status"] = status(tasks=status()["tasks"] * 5_000)
    with subprocess.Popen(
        [sys.executable, "-m", "nodemgr", "status"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(NODEMGR_RUN_DIR=str(manager.run_dir)),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


# -- the manager or the environment


@pytest.fixture
def alice(env_stand_in: Callable[[str], EnvStandIn]) -> EnvStandIn:
    stand_in = env_stand_in("alice")
    stand_in.answers["status"] = status()
    (stand_in.directory / "socket").chmod(0o666)
    return stand_in


@pytest.fixture
def bob(env_stand_in: Callable[[str], EnvStandIn]) -> EnvStandIn:
    stand_in = env_stand_in("bob")
    stand_in.answers["status"] = ("forbidden_user", "user eve may not enter bob")
    (stand_in.directory / "socket").chmod(0o666)
    return stand_in


def test_inside_an_environment_its_own_manager_is_asked(nodemgr: Run, alice: EnvStandIn) -> None:
    result = nodemgr(
        "status", "--json", run_dir=None, environment={"NODEMGR_ENV_DIR": str(alice.directory)}
    )
    assert json.loads(result.stdout) == status()
    assert alice.asked == [("status", None)]


def test_a_named_environment_is_asked_as_one_of_its_users(
    nodemgr: Run, manager: RunningManager, alice: EnvStandIn
) -> None:
    assert json.loads(nodemgr("status", "--json", "--env", "alice").stdout) == status()
    assert manager.orders == []


def test_a_user_sees_the_environment_that_lets_him_in(
    stranger: Run, manager: RunningManager, alice: EnvStandIn, bob: EnvStandIn
) -> None:
    (manager.run_dir / "control.sock").chmod(0o660)
    result = stranger("status", "--json")
    assert json.loads(result.stdout) == status(), result.stderr
    assert bob.asked == [("status", None)]


def test_a_user_of_several_names_one(
    stranger: Run, manager: RunningManager, alice: EnvStandIn, bob: EnvStandIn
) -> None:
    (manager.run_dir / "control.sock").chmod(0o660)
    bob.answers["status"] = status("bob")
    result = stranger("status")
    assert result.returncode == 2
    assert (
        one_line(result) == "you may enter several environments (alice, bob): name one with --env"
    )


def test_a_user_of_none(stranger: Run, manager: RunningManager, bob: EnvStandIn) -> None:
    (manager.run_dir / "control.sock").chmod(0o660)
    result = stranger("status")
    assert result.returncode == 77
    assert "no environment" in one_line(result)


@pytest.mark.parametrize(
    ("answer", "code", "line"),
    [
        (("forbidden_user", "user eve may not enter alice"), 77, "user eve may not enter alice"),
        (("too_many_processes", "alice has 1024 processes"), 1, "alice has 1024 processes"),
        ({"error": "no task t9 in alice", "code": "not_found"}, 1, "no task t9 in alice"),
        (
            [b"NODEMGR/1 PART\nrid=1\nindex=0\ncount=1\ndata=[\n"],
            1,
            "the manager's answer is no JSON",
        ),
        ([b"\0\0"], 69, "no manager answers behind"),
        ([], 69, "closed the connection"),
    ],
)
def test_an_answer_that_is_none(
    nodemgr: Run, alice: EnvStandIn, answer: Any, code: int, line: str
) -> None:
    alice.answers["status"] = answer
    result = nodemgr("status", "--env", "alice")
    assert result.returncode == code
    assert line in one_line(result)


def test_an_environment_without_its_manager(nodemgr: Run, short_dir: Path) -> None:
    (short_dir / "client.conf").write_text("env=alice\naddress=unix:socket\n")
    result = nodemgr("status", run_dir=None, environment={"NODEMGR_ENV_DIR": str(short_dir)})
    assert result.returncode == 69
    assert "tasks that run go on" in one_line(result)


# -- release


def test_release(nodemgr: Run, manager: RunningManager) -> None:
    manager.answers["release"] = {"task": "t1"}
    manager.answers["status"] = status()
    manager.answers["status"]["tasks"][0]["memory_bytes"] = 3 << 29
    result = nodemgr("release", "t1")
    assert (result.returncode, one_line(result)) == (
        0,
        "t1 is released; process 1,2,3,4+2 lives on and keeps 1.5 GiB of GPU memory until it frees"
        " the memory or ends",
    )
    _, (verb, arguments) = manager.orders
    assert (verb, arguments["task"]) == ("release", "t1")


def test_release_by_a_user(nodemgr: Run, alice: EnvStandIn) -> None:
    alice.answers["release"] = {"task": "r7"}
    assert (
        nodemgr(
            "release", "r7", run_dir=None, environment={"NODEMGR_ENV_DIR": str(alice.directory)}
        ).returncode
        == 0
    )
    assert alice.asked == [("release", "r7")]


@pytest.mark.parametrize("task", ["", "1", "x1", "t", "t1 t2", "t-1", "t1\n", "T1", "t\u0661"])
def test_no_task(nodemgr: Run, manager: RunningManager, task: str) -> None:
    result = nodemgr("release", "--", task)
    assert result.returncode == 2
    assert "is no task" in one_line(result)
    assert manager.orders == []


# -- allocations


def record(**changes: Any) -> dict[str, Any]:
    return {
        "record_id": 1, "env": "alice", "task_id": "t1", "command": "python train.py",
        "gpus_new": ["GPU-0"], "gpus_reused": ["GPU-1"],
        "gpus_new_index": [0], "gpus_reused_index": [1], "grant_bytes": [12 * 2**30],
        "remaining_gpus": 0, "remaining_memory_bytes": None,
        "asked_wall_ns": 10**18, "granted_wall_ns": 10**18 + 1_500_000_000, "ended_wall_ns": None,
        "waited_seconds": 1.5, "waited_at_least": False,
        "why": None, **changes,
    }  # fmt: skip


def test_allocations(nodemgr: Run, manager: RunningManager) -> None:
    manager.answers["allocations"] = answer = {
        "schema_version": 1,
        "allocations": [record(), record(ended_wall_ns=10**18, why="ended")],
    }
    assert json.loads(nodemgr("allocations", "--json").stdout) == answer
    title, first, _ = nodemgr("allocations", "alice").stdout.splitlines()
    assert title.startswith("TASK  ENV    NEW GPUS  REUSED")
    assert first.split()[:6] == ["t1", "alice", "0", "1", "12", "GiB"]
    assert manager.orders == [("allocations", {}), ("allocations", {"env": "alice"})]


@pytest.mark.parametrize(("since", "ago_s"), [("2h", 7_200), ("90s", 90)])
def test_allocations_since_a_while(
    nodemgr: Run, manager: RunningManager, since: str, ago_s: int
) -> None:
    manager.answers["allocations"] = {"schema_version": 1, "allocations": []}
    before_ns = time.time_ns()
    nodemgr("allocations", "--since", since)
    ((_, arguments),) = manager.orders
    assert before_ns <= arguments["since_wall_ns"] + ago_s * 10**9 <= time.time_ns()


def test_allocations_since_a_date(nodemgr: Run, manager: RunningManager) -> None:
    manager.answers["allocations"] = {"schema_version": 1, "allocations": []}
    nodemgr("allocations", "--since", "2026-11-20T10:00:00+00:00")
    assert manager.orders == [("allocations", {"since_wall_ns": 1_795_168_800 * 10**9})]


@pytest.mark.parametrize("since", ["yesterday", "5", "-2h", ""])
def test_allocations_since_nonsense(nodemgr: Run, manager: RunningManager, since: str) -> None:
    result = nodemgr("allocations", "--since", since)
    assert result.returncode == 2
    assert "is no time" in one_line(result)


# -- events


def test_past_events(nodemgr: Run, manager: RunningManager) -> None:
    granted = event(
        7, "task.granted", env="alice", gpus=[0, 1], memory_bytes=2**30, waited_ns=1_500_000_000
    )
    past = [granted, event(8, "task.ended", why=None)]
    manager.answers["events"] = {"schema_version": 1, "events": past}
    assert [json.loads(line) for line in nodemgr("events", "--json").stdout.splitlines()] == past
    first, second = nodemgr("events").stdout.splitlines()
    assert first.endswith(
        "     7  task.granted      env=alice  gpus=0,1  memory=1 GiB  waited=1.5 s"
    )
    assert second.endswith("     8  task.ended")
    nodemgr("events", "--since", "5")
    nodemgr("events", "--since", "5", "--count", "3")
    nodemgr("events", "--count", "0")
    wanted = [{"limit": 50}, {"limit": 50}, {"since": 5, "limit": 1_000}, {"since": 5, "limit": 3}]
    assert [arguments for _, arguments in manager.orders] == wanted


def test_on_a_terminal_an_event_ends_at_its_edge(
    nodemgr: Run, manager: RunningManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = [event(7, "task.granted", env="alice", command="python train.py " * 20, gpus=[1])]
    manager.answers["events"] = {"schema_version": 1, "events": past}
    whole = nodemgr("events").stdout
    told: list[str] = []
    monkeypatch.setattr("nodemgr.cli.admins.events.click.echo", told.append)
    for width in (None, 80):
        events._print(past[0], (), False, width)
    assert told[0] == whole[:-1]
    assert "    7 task.granted  env=alice gpus=1 command=python" in told[1]
    assert told[1].endswith("…")
    assert len(told[1]) == 80


def test_on_a_terminal_an_event_of_today_has_no_date(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 80 columns the date took a quarter of what is left for the event."""
    told: list[str] = []
    monkeypatch.setattr("nodemgr.cli.admins.events.click.echo", told.append)
    drained = event(7, "gpu.drained", gpu_indices=[1], by="root", reason="fan", warning="GPU 1 …")
    monkeypatch.setattr(events.time, "time_ns", lambda: drained["time_ns"] + 1_000)
    for width in (None, 80):
        events._print(drained, (), False, width)
    whole, short = told
    assert whole.endswith("     7  gpu.drained       gpu_indices=1  by=root  reason=fan")
    at = " ".join(whole.split(" ")[1:3])
    assert short == f"{at}    7 gpu.drained   gpu_indices=1 by=root reason=fan"


def test_events_since_a_time(nodemgr: Run, manager: RunningManager) -> None:
    began_ns = time.time_ns() - 4_000 * 10**9
    stored = [
        {**event(number, "task.granted"), "time_ns": began_ns + number * 10**9}
        for number in range(1, 2_501)
    ]

    def page(since: int | None = None, limit: int = 1_000) -> dict[str, Any]:
        rows = stored[-limit:] if since is None else stored[since : since + limit]
        return {"schema_version": 1, "events": rows}

    manager.answers["events"] = page
    told = [
        json.loads(line)["sequence"]
        for line in nodemgr("events", "--json", "--since", "2000s").stdout.splitlines()
    ]
    assert 2_000 <= told[0] <= 2_100
    assert told == list(range(told[0], 2_501))
    assert nodemgr("events", "--since", "0s").stdout == ""


def test_more_events_than_an_answer_holds(nodemgr: Run, manager: RunningManager) -> None:
    stored = [event(number, "task.granted") for number in range(1, 2_501)]

    def page(since: int, limit: int) -> dict[str, Any]:
        return {"schema_version": 1, "events": stored[since : since + min(limit, 1_000)]}

    manager.answers["events"] = page
    for asked, first, last in (
        (["--since", "0"], 1, 2_500),
        (["--since", "100", "--count", "1500"], 101, 1_600),
    ):
        told = [
            json.loads(line)["sequence"]
            for line in nodemgr("events", "--json", *asked).stdout.splitlines()
        ]
        assert told == list(range(first, last + 1))


def test_events_of_a_family(nodemgr: Run, manager: RunningManager) -> None:
    past = [
        event(1, "task.granted"),
        event(2, "quota.set"),
        event(3, "task.ended"),
        event(4, "taskless"),
    ]
    manager.answers["events"] = {"schema_version": 1, "events": past}
    assert [
        json.loads(line)["sequence"]
        for line in nodemgr("events", "--json", "--name", "task").stdout.splitlines()
    ] == [1, 3]
    assert [
        json.loads(line)["sequence"]
        for line in nodemgr("events", "--json", "--name", "quota.set").stdout.splitlines()
    ] == [2]


@contextmanager
def follow(manager: RunningManager) -> Iterator[subprocess.Popen[str]]:
    """`nodemgr events --follow`, which ends with the test, failed or not."""
    process = subprocess.Popen(
        [sys.executable, "-m", "nodemgr", "events", "--follow", "--json"], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
        env=clean_environment(NODEMGR_RUN_DIR=str(manager.run_dir)),
    )  # fmt: skip
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_events_as_they_happen_until_ctrl_c(manager: RunningManager) -> None:
    """Past events first, none twice, none left out between past and present."""
    stored = [event(1, "quota.set")]

    def events(since: int = 0, limit: int = 1_000) -> dict[str, Any]:
        """Event 2 happens between the first reading and the subscription: only the store has it."""
        told = [one for one in stored if one["sequence"] > since][-limit:]
        if not manager.subscribed.is_set():
            stored.append(event(2, "task.granted"))
        return {"schema_version": 1, "events": told}

    manager.answers["events"] = events
    with follow(manager) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["sequence"] == 1
        assert manager.subscribed.wait(WAIT_LIMIT_S)
        stored.append(event(3, "task.ended"))
        manager.publish(stored[-1])
        assert [json.loads(process.stdout.readline())["sequence"] for _ in range(2)] == [2, 3]
        process.send_signal(signal.SIGINT)
        assert (process.wait(WAIT_LIMIT_S), process.stderr.read()) == (130, "")


def test_events_without_a_manager(nodemgr: Run) -> None:
    result = nodemgr("events", "--follow")
    assert result.returncode == 69
    assert "nodemgr serve" in one_line(result)
