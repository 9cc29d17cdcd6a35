"""The line of Slurm's Epilog: it waits until the cluster has left the node."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from tests.support.limits import WAIT_LIMIT_S
from tests.support.manager import ROOT, Manager


def emptied(manager: Manager, within_s: int) -> subprocess.Popen[str]:
    command = ["node", "emptied", "--within", str(within_s), "--run-dir", str(manager.run_dir)]
    return subprocess.Popen(
        [sys.executable, "-m", "nodemgr", *command], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )


def test_it_waits_for_the_next_manager_and_fails_without_one(
    make_manager: Callable[..., Manager],
) -> None:
    """A failure would make Slurm drain the node; and what runs outlives a manager."""
    manager = make_manager(environment={"NODEMGR_SLURM_POOL": "true"})
    assert emptied(manager, 60).wait(WAIT_LIMIT_S) == 0
    manager.kill()
    waits, fails = emptied(manager, 60), emptied(manager, 1)
    assert fails.wait(WAIT_LIMIT_S) == 69
    assert waits.poll() is None
    manager.start()
    assert waits.wait(WAIT_LIMIT_S) == 0, waits.stderr and waits.stderr.read()
