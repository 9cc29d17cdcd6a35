"""The scope of all jobs: what systemd is asked for, by a stand-in for systemd-run."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from nodemgr.edge.executor.launcher import PROGRAM
from nodemgr.edge.setup import installation

SCOPE = "/sys/fs/cgroup/system.slice/nodemgr-jobs.scope"
HIERARCHY = "mount -t tmpfs none /sys/fs/cgroup && touch /sys/fs/cgroup/cgroup.controllers"
UNIT = Path(installation.__file__).parents[2] / "_service" / "nodemgr-jobs.service"


def asked(tmp_path: Path, body: str) -> list[list[str]]:
    """The options of each call, where `body` is what systemd-run does."""
    for command in (["unshare", "--mount", "true"], ["mount", "--version"]):
        if os.geteuid() != 0 or subprocess.run(command, check=False).returncode:
            pytest.skip("no file system can be mounted here")
    stand_in = tmp_path / "systemd-run"
    stand_in.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" end >> {tmp_path}/asked\n{body}\n')
    stand_in.chmod(0o755)
    words = f"{HIERARCHY} && PATH={tmp_path}:$PATH exec {PROGRAM} scope {SCOPE}"
    subprocess.run(["unshare", "--mount", "sh", "-c", words], check=False)
    calls = (tmp_path / "asked").read_text().split("end\n")[:-1]
    return [call.splitlines() for call in calls]


def test_where_systemd_knows_no_policy_of_a_scope_it_is_asked_without(tmp_path: Path) -> None:
    first, second = asked(tmp_path, "exit 1")
    assert "--property=OOMPolicy=continue" in first
    assert "--property=MemoryAccounting=no" in second
    assert (first[-2:], second[-2:]) == (["keep", SCOPE], ["keep", SCOPE])


def test_the_service_ends_before_the_scope_and_no_file_names_the_scope(tmp_path: Path) -> None:
    """An ended scope that a file names stays in systemd's memory, and no other can be made."""
    (call,) = asked(tmp_path, f"mkdir -p {SCOPE}")
    assert "--property=Before=nodemgr-jobs.service" in call
    assert "--unit=nodemgr-jobs" in call
    (after,) = [word for word in call if word.startswith("--property=After=")]
    assert {"local-fs.target", "remote-fs.target", "network-online.target"} <= set(
        after.removeprefix("--property=After=").split()
    )
    orders = re.findall(r"^(?:After|Before|Wants|Requires|PartOf)=(.*)$", UNIT.read_text(), re.M)
    assert orders
    assert not [line for line in orders if ".scope" in line]
