"""A user of a container without a capability fills no more of the node's disk than its bounds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.containers.conftest import container_node
from tests.containers.podman import Containers
from tests.containers.test_jobs import CPU, submit
from tests.support.limits import until
from tests.support.manager import ROOT, Manager
from tests.support.queue_pages import queue_rows

MIB = 2**20
FILLER = Path(__file__).with_name("filler.py")
JOBS = 6
SMALL_BYTES = 65_536
"""Order, record and limit of one attempt, and its directories."""
LOG_BYTES, LOGS_BYTES = MIB, 3 * MIB
ENDED_BYTES = LOGS_BYTES + JOBS * SMALL_BYTES


@pytest.fixture
def node(make_manager: Callable[..., Manager], kind: str) -> Iterator[Manager]:
    yield from container_node(
        make_manager, kind,
        NODEMGR_JOB_LOG_BYTES=str(LOG_BYTES), NODEMGR_JOB_LOGS_BYTES=str(LOGS_BYTES),
    )  # fmt: skip


def used_bytes(directory: Path) -> int:
    found = [directory, *directory.rglob("*")]
    return sum(path.lstat().st_blocks * 512 for path in found if path.exists())


@pytest.mark.slow
def test_output_and_reports_of_a_container_have_bounds(
    node: Manager, containers: Containers
) -> None:
    node.quota("mallory", 1)
    jobs = node.state_dir / "jobs"
    box = containers.start("mallory")
    printing = ("sh", "-c", f"head -c {20 * MIB} /dev/zero; : > /proc/self/fd/1; exit 0")
    job = submit(containers, box, *CPU, "--array", f"1-{JOBS}", "--", *printing, user="nobody")
    assert containers.execute(box, "nodemgr", "wait", job)[0] == 0
    until(lambda: used_bytes(jobs) <= ENDED_BYTES, "the logs of ended jobs have their bound")

    held = (*CPU, "--hold", "--array", f"1-{JOBS}", "--", "true")
    job = submit(containers, box, *held, user="nobody")
    containers.execute(box, "sh", "-c", "kill -9 $(pidof nodemgr-runner)")
    options = (
        "--user=nobody", "--env=NODEMGR_ENV_DIR=/run/nodemgr-env", f"--env=PYTHONPATH={ROOT}",
    )  # fmt: skip
    filler = containers.spawn(box, sys.executable, str(FILLER), str(JOBS), options=options)
    filler.line_with("ready")
    node.call("job_free", job=job)
    told = filler.json()
    assert told.get("grown", 0) == 0, told
    assert told["OUTPUT ACK"] >= JOBS * LOG_BYTES // SMALL_BYTES, told
    assert used_bytes(jobs) <= ENDED_BYTES + JOBS * (LOG_BYTES + SMALL_BYTES), told
    filler.write("end\n")
    told = filler.json()
    assert told["ENDED ACK"] == JOBS, told
    filler.end()
    until(lambda: queue_rows(node.call) == [], "each ends with the process that claimed it")
    until(lambda: used_bytes(jobs) <= ENDED_BYTES, "the logs of ended jobs have their bound")
    containers.close()
    assert used_bytes(jobs) <= ENDED_BYTES
    assert "Traceback" not in node.log
