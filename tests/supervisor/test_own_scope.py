"""Jobs of an ordinary user's manager have cgroups where the user's own systemd delegates them.

Real cgroups, made below a directory in place of user@UID.service; a program stands in for
systemd-run. Their hierarchy has no controllers of CPUs and memory here; tests/vm has.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from client_plugin.messages import attempts
from nodemgr.edge.executor.launcher import PROGRAM
from nodemgr.edge.kernel import cgroups
from tests.supervisor.own_scope import UID
from tests.supervisor.world import remove_cgroup

SYSTEMD_RUN = "/usr/bin/systemd-run"
DELEGATES = """\
while [ "${1#--}" != "$1" ]; do shift; done
for scope; do :; done
mkdir -p "$scope" && echo 0 > "$scope/cgroup.procs" && exec "$@"
"""
HANGS = 'for scope; do :; done; mkdir "${scope%/*}/asked-$$"; exec sleep 600\n'
NO_SCOPE = "--cpus and --host-memory reserve, and limit nothing: "


class User(NamedTuple):
    """Directory and program in place of the user's systemd."""

    service: Path
    stand_in: Path

    def sees(self, case: str, place: str = "app.slice/serve.service") -> tuple[Any, list[str]]:
        """The report of a manager, and its lines about limits."""
        mount = cgroups.mount_point()
        home = self.service / place
        for path in (home, *home.parents):
            if path.is_relative_to(self.service):
                path.mkdir(exist_ok=True)
        steps = [f"mount --bind {self.stand_in} {SYSTEMD_RUN}"]
        if str(mount) != "/sys/fs/cgroup":
            steps += [f"umount {mount}", "mount -t cgroup2 none /sys/fs/cgroup"]
        below = f"/sys/fs/cgroup/{home.relative_to(mount or '')}"
        words = f"exec {sys.executable} -m tests.supervisor.own_scope {below} {case}"
        command = ["unshare", "--mount", "sh", "-c", " && ".join([*steps, words])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        lines = [line for line in done.stderr.splitlines() if "limit" in line]
        return json.loads(done.stdout), lines


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    mount = cgroups.mount_point()
    is_possible = os.geteuid() == 0 and mount is not None and Path(SYSTEMD_RUN).exists()
    for command in (["unshare", "--mount", "true"], ["setpriv", f"--reuid={UID}", PROGRAM]):
        done = is_possible and subprocess.run(command, stderr=subprocess.DEVNULL, check=False)
        if not done or done.returncode not in (0, 2):
            pytest.skip("no other user can have cgroups here")
    assert mount is not None
    outer = mount / f"nodemgr-test-{os.getpid()}"
    service = outer / f"user@{UID}.service"
    try:
        service.mkdir(parents=True)
    except OSError:
        pytest.skip("no cgroup of version 2 can be made here")
    made = User(service, tmp_path / "systemd-run")
    serves(made, DELEGATES)
    owns(service)
    yield made
    for path in sorted(outer.rglob("*/"), reverse=True):
        if path.is_dir():
            remove_cgroup(path)
    remove_cgroup(outer)


def serves(user: User, body: str) -> None:
    user.stand_in.write_text(f"#!/bin/sh\n{body}")
    user.stand_in.chmod(0o755)


def owns(service: Path) -> None:
    for path in (service, service / "app.slice", service / "app.slice" / "serve.service"):
        path.mkdir(exist_ok=True)
        for name in (".", "cgroup.procs", "cgroup.subtree_control"):
            os.chown(path / name, UID, UID)


def test_jobs_have_cgroups_in_a_scope_of_the_users_own(user: User) -> None:
    (scope, state, found), lines = user.sees("plain")
    assert re.search(rf"/user@{UID}.service/app.slice/nodemgr-jobs-[0-9a-f-]+.scope$", scope)
    assert found == scope.removeprefix("/sys/fs/cgroup") + "/alice/l1.1"
    lacking = "their cgroups lack controllers (cpu and memory): an administrator delegates them"
    assert f"{NO_SCOPE}{lacking}" in state
    assert len(lines) == 1
    assert lacking in lines[0]


def test_a_scope_that_vanishes_is_made_anew_by_a_spare_launcher(user: User) -> None:
    (scope, _, (before, is_launcher_in, after)), _ = user.sees("vanishes")
    inside = scope.removeprefix("/sys/fs/cgroup")
    assert is_launcher_in
    assert (before, after) == (f"{inside}/alice/l1.1", f"{inside}/alice/l3.1")


def test_cgroups_that_the_user_makes_in_that_of_a_job_go_with_it(user: User) -> None:
    assert user.sees("nests")[0][2] == ["enough", False, False]


def test_a_command_is_moved_where_the_users_systemd_has_started_it(user: User) -> None:
    answers, name = user.sees("moves")[0][2]
    assert answers == [attempts.NOT_DELEGATED(), None]
    assert name == "/alice/run-PID"


@pytest.mark.parametrize("fault", ["no systemd", "hangs", "not the user's", "not below it"])
def test_without_delegation_jobs_run_without_limits_and_it_is_said_once(
    user: User, fault: str
) -> None:
    why, place = "the user's systemd delegates no cgroup to them", "app.slice/serve.service"
    if fault == "no systemd":
        serves(user, "exit 1\n")
    elif fault == "hangs":
        serves(user, HANGS)
    elif fault == "not the user's":
        for path in (user.service, *user.service.rglob("*")):
            os.chown(path, 0, 0)
    else:
        why, place = "and of a manager that `systemd-run --user` starts", "../session.scope"
    (scope, state, found), lines = user.sees("plain", place)
    assert (scope, "nodemgr-jobs" in found) == ("", False)
    asked = len(list(user.service.rglob("asked-*")))
    assert asked == (fault == "hangs"), "each time costs the jobs 10 s"
    assert why in state
    assert len(lines) == 1
    assert lines[0].startswith("nodemgr: CPUs and host memory of jobs have no limits")
    assert why in lines[0]
