"""Root of a container and an ordinary account on the node together: neither becomes root there.

The container's root makes each thing that it was handed a setuid program; the account executes it
by the node's path.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.containers.podman import Containers
from tests.support.manager import ROOT, Manager

USER = 65_534
SCRIPT = Path(__file__).with_name("handed_out.py")


def effective_user(path: str | Path) -> str:
    """The effective uid that the program there has, for an ordinary user of the node."""
    user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    done = subprocess.run(
        [*user, str(path), "-u"], capture_output=True, text=True, check=False, cwd="/"
    )
    return done.stdout.strip() or f"not run: {done.stderr.strip()}"


@pytest.mark.slow
def test_nothing_that_a_container_is_handed_runs_as_root_on_the_node(
    node: Manager, containers: Containers, tmp_path: Path
) -> None:
    node.quota("alice", 1)
    shared = Path("/var/tmp") / f"shared-{tmp_path.parent.name}-{tmp_path.name}"
    shared.mkdir(mode=0o755)
    try:
        (shared / "control").touch()
        box = containers.start("alice", f"--volume={shared}:{shared}:rw")
        held = ("--gpus", "0", "--hold", "--", "true")
        code, said = containers.execute(box, "nodemgr", "submit", *held)
        assert code == 0, said
        job = said.split()[0]
        state = "/opt/nodemgr/sim/node.state"
        variables = ("--env=NODEMGR_ENV_DIR=/run/nodemgr-env", f"--env=PYTHONPATH={ROOT}")
        # the runner that `submit` started has the place: its end frees it for the program
        containers.execute(box, "sh", "-c", "kill -9 $(pidof nodemgr-runner)")
        program = containers.spawn(
            box, sys.executable, str(SCRIPT), job, str(USER), state, str(shared / "control"),
            options=variables,
        )  # fmt: skip
        node.call("job_free", job=job)
        told = program.json()
        assert len(told["files"]) >= 5, "order, two sheets, two files of the ledger"
        pid = next(
            one.pid
            for one in psutil.process_iter(["cmdline", "uids"])
            if str(SCRIPT) in (one.info["cmdline"] or ()) and one.info["uids"].real == USER
        )
        assert effective_user(shared / "control") == "0", "the attack itself works, on this file"
        for number in told["files"]:
            assert effective_user(f"/proc/{pid}/fd/{number}") != "0", told["said"]
        for path in (node.run_dir / "sim" / "node.state", node.run_dir / "sim/apart/node.state"):
            assert path.stat().st_mode & 0o7777 == 0o4755
            assert "Permission denied" in effective_user(path), told["said"]
        program.close()
    finally:
        for path in shared.iterdir():
            path.unlink()
        shared.rmdir()
