"""The output and the end of a container's job, while managers come, go and are killed.

The manager's log of the job has each line once, and its history has each end once.
"""

from __future__ import annotations

import os
import time

import pytest

from tests.inside.boxes import WAIT_LIMIT_S, Box, outcome
from tests.inside.test_life import CPU, gate, holding, wait
from tests.support.manager import Manager

MIB = 2**20
KILLS = 25
JOBS = 3


def until_there(path: str) -> None:
    deadline = time.monotonic() + WAIT_LIMIT_S
    while not os.path.exists(path):
        assert time.monotonic() < deadline, path
        time.sleep(0.01)


def test_output_that_no_manager_takes_is_kept_at_both_ends_and_nothing_waits(
    node: Manager, box: Box
) -> None:
    """40 MiB while no manager is there: the job runs to its end, 16 MiB are kept at most."""
    path, done = gate(box), f"{box.env_dir}.done"
    script = (
        f"echo begun; read line < {path}; head -c {40 * MIB} /dev/zero | tr '\\0' x;"
        f" echo; echo last; touch {done}; exit 4"
    )
    job = box.submit(*CPU, "--", "sh", "-c", script)
    node.events().expect("job.started", job=job)
    node.kill()
    path.write_text("go\n")
    until_there(done)
    node.start()
    assert wait(node, job)[:2] == ("failed", 4)
    (log,) = (node.state_dir / "jobs" / job).glob("*/log")
    assert log.stat().st_size == len("begun\n") + 40 * MIB + len("\nlast\n")
    assert 14 * MIB <= log.stat().st_blocks * 512 <= 17 * MIB
    with log.open("rb") as file:
        assert file.read(MIB) == b"begun\n" + b"x" * (MIB - 6)
        file.seek(-MIB, os.SEEK_END)
        assert file.read() == b"x" * (MIB - 6) + b"\nlast\n"
    said = box.say("logs", job)
    (line,) = said.stderr.splitlines()
    assert "of its output were dropped here" in line


def test_a_new_time_limit_reaches_the_job_in_a_packet(node: Manager, box: Box) -> None:
    """Also one that was given while its supervisor had no connection."""
    job, path = holding(node, box, "--time", "1h")
    (limit,) = (node.state_dir / "jobs" / job).glob("*/limit")
    node.kill()
    limit.write_bytes(b"200\n".ljust(32))
    node.start()
    assert wait(node, job)[2] == "time limit"
    assert path.exists()


@pytest.mark.slow
def test_kills_of_the_manager_lose_and_repeat_no_line_and_no_end(node: Manager, box: Box) -> None:
    script = "i=0; while [ -e {go} ]; do echo $i; i=$((i+1)); sleep 0.003; done; echo last; exit 5"
    go = f"{box.env_dir}.go"
    open(go, "w").close()
    jobs = [box.submit(*CPU, "--", "sh", "-c", script.format(go=go)) for _ in range(JOBS)]
    for job in jobs:
        node.events().expect("job.started", job=job)
    for count in range(KILLS):
        node.kill()
        if count == KILLS - 1:
            os.unlink(go)
        node.start()
    for job in jobs:
        assert (outcome(node, job)["state"], outcome(node, job)["exit"]) == ("failed", 5)
        lines = box.say("logs", job).stdout.splitlines()
        assert lines == [*map(str, range(len(lines) - 1)), "last"]
        assert len(lines) > KILLS
        (story,) = node.call("job_show", job=job)["jobs"]
        assert [attempt["exit_code"] for attempt in story["attempts"]] == [5]
    rows = [row["job"] for row in node.call("history")["history"]]
    assert [rows.count(job) for job in jobs] == [1] * JOBS
