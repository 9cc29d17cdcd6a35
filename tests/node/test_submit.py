"""`nodemgr submit` and a manager that restarts: each job once, and one line where it takes long."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from client_plugin.ways import retry_timeout
from client_plugin.ways.choice import UserWay
from client_plugin.ways.faults import Away, Fault, Lost
from tests.cli.conftest import clean_environment
from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import Manager
from tests.support.queue_pages import queue_rows

Make = Callable[..., Manager]
LINES, SINGLES, PIECE, KILLS = 160, 40, 20, 6


def submit(node: Manager, *words: str, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "nodemgr", "submit", "--env", "alice", "--gpus", "0", "--hold",
            *words],
        env=clean_environment(NODEMGR_RUN_DIR=str(node.run_dir), **more), text=True, cwd="/",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def queued(node: Manager) -> list[str]:
    """The names of all that wait."""
    return [row["name"] for row in queue_rows(node.call)]


@pytest.mark.slow
def test_two_hundred_are_submitted_once_while_managers_are_killed(make_manager: Make) -> None:
    node = make_manager(simulate="1x8GiB")
    node.quota("alice", 1)
    many = submit(node, "--from", "-")
    ids: list[str] = []
    assert many.stdin is not None
    assert many.stdout is not None
    singles = []
    for piece in range(LINES // PIECE):
        for number in range(piece * PIECE, (piece + 1) * PIECE):
            many.stdin.write(json.dumps({"command": "true", "name": f"line{number}"}) + "\n")
        many.stdin.flush()
        singles += [
            submit(node, "--name", f"one{number}", "--", "true")
            for number in range(piece * 5, piece * 5 + 5)
        ]
        if piece < KILLS:
            node.restart()
        # so that no submission meets more than one restart
        ids += [many.stdout.readline().strip() for _ in range(PIECE)]
    said = [single.communicate(timeout=WAIT_LIMIT_S) for single in singles]
    rest, stderr = many.communicate(timeout=WAIT_LIMIT_S)
    assert (many.returncode, rest, [single.returncode for single in singles]) == (
        0,
        "",
        [0] * SINGLES,
    ), (stderr, said)
    wanted = [f"line{number}" for number in range(LINES)] + [
        f"one{number}" for number in range(SINGLES)
    ]
    assert sorted(queued(node)) == sorted(wanted)
    told = ids + [out.strip() for out, _ in said]
    assert len(told) == len(set(told)) == LINES + SINGLES, "each has an id of its own"


def test_it_says_after_a_second_why_nothing_happens_and_submits_when_there_is_a_manager(
    make_manager: Make,
) -> None:
    node = make_manager(simulate="1x8GiB")
    node.quota("alice", 1)
    node.kill()
    waiting = submit(node, "--", "true")
    assert waiting.stderr is not None
    line = waiting.stderr.readline()
    assert "no manager answers behind" in line
    assert "trying for 30 s in all (--no-wait: not at all)" in line
    node.start()
    out, _ = waiting.communicate(timeout=WAIT_LIMIT_S)
    assert (waiting.returncode, out) == (0, "j1\n")


@pytest.mark.parametrize("words", [("--", "true"), ("--from", "-")])
def test_with_no_wait_it_fails_at_once(make_manager: Make, words: tuple[str, ...]) -> None:
    node = make_manager(simulate="1x8GiB")
    node.quota("alice", 1)
    node.kill()
    out, line = submit(node, "--no-wait", *words).communicate("true\n", timeout=WAIT_LIMIT_S)
    assert out == ""
    assert "trying" not in line
    assert "no manager answers behind" in line.splitlines()[-1]
    node.start()


def test_a_key_is_known_again_by_the_next_manager(make_manager: Make) -> None:
    """Killed between commit and answer, which the client cannot tell from a lost request."""
    node = make_manager(simulate="1x8GiB")
    node.quota("alice", 1)
    way = UserWay(node.env_dir("alice"))
    jobs = [
        {"argv": ["/bin/true"], "key": f"{number:032x}", "gpus": 0, "hold": number > 0}
        for number in range(3)
    ]
    order = {"cwd": "/", "environ": ["PATH=/bin"], "jobs": jobs}
    first = way.ask("job_submit_many", **order)["jobs"]
    assert [row["job"] for row in first] == ["j1", "j2", "j3"]
    node.call("job_wait", jobs=["j1"])
    assert way.ask("job_submit_many", **order)["jobs"] == first
    node.restart()
    assert way.ask("job_submit_many", **order)["jobs"] == first, "held ones, and one that has ended"
    (refused,) = way.ask("job_submit_many", **{**order, "jobs": [{"argv": [], "key": "0" * 32}]})[
        "jobs"
    ]
    fault = "names no command: name one after --"
    assert refused == {
        "error": f"argv: {fault}", "code": "usage", "argument": "argv", "fault": fault,
    }  # fmt: skip
    for jobs in ([], [{}] * 257, {}):
        with pytest.raises(Fault, match="must be a list of 1 to 256 jobs"):
            way.ask("job_submit_many", **{**order, "jobs": jobs})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Each pause is told here, and takes no time."""
    now = [0.0]
    monkeypatch.setattr(retry_timeout.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(
        retry_timeout.time, "sleep", lambda pause_s: now.append(now.pop() + pause_s)
    )
    return now


def test_the_retry_timeout_ends_and_knows_whether_it_was_heard(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    def never() -> None:
        raise (Lost if clock[0] == 0 else Away)("nobody")

    patient = retry_timeout.RetryTimeout()
    with pytest.raises(Away, match=r"^nobody; given up after 30 s$"):
        patient.outlast(never)
    assert retry_timeout.WAIT_S <= clock[0] < retry_timeout.WAIT_S + 1
    assert patient.lost
    assert capsys.readouterr().err.count("\n") == 1
    patient.outlast(lambda: None)
    assert not patient.lost


def test_without_a_retry_timeout_no_time_is_named(clock: list[float]) -> None:
    with pytest.raises(Away, match=r"^nobody$"):
        retry_timeout.RetryTimeout(0).outlast(lambda: (_ for _ in ()).throw(Away("nobody")))
    assert clock == [0.0]


def test_a_refusal_is_not_asked_again(clock: list[float], tmp_path: Path) -> None:
    with pytest.raises(Fault, match="no"):
        retry_timeout.RetryTimeout().outlast(lambda: (_ for _ in ()).throw(Fault("no")))
    assert clock == [0.0]
