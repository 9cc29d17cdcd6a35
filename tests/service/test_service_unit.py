"""`nodemgr setup` on a machine with systemd, as its first administrator runs it.

Then the manager is killed, restarted, removed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.programs import finish, said
from tests.service.booted import Booted, shown, unusable
from tests.support.manager import HOLD

GIB = 2**30
NODEMGR = str(Path(sysconfig.get_path("scripts")) / "nodemgr")
PATHS = " ".join({*map(str, shown()), *(path for path in sys.path if "site-packages" in path)})
PREPARE = f"""
rm -rf /var/lib/nodemgr /etc/nodemgr
{NODEMGR} setup --yes >/run/setup.log 2>&1
printf 'simulate = "2x8GiB"\\ndevice_gate = "on"\\n' >> /etc/nodemgr/config.toml
mkdir -p /etc/systemd/system/nodemgr.service.d /etc/systemd/system/nodemgr-jobs.service.d
printf '[Unit]\\nDefaultDependencies=no\\n' > /etc/systemd/system/nodemgr-jobs.service.d/test.conf
printf '[Unit]\\nDefaultDependencies=no\\n[Service]\\nBindReadOnlyPaths={PATHS}\\n' \\
    > /etc/systemd/system/nodemgr.service.d/test.conf
"""
"""The program may lie under /tmp, which the service does not see by itself.

The overlay's files are removed.
"""

pytestmark = pytest.mark.skipif(unusable() is not None, reason=str(unusable()))


@pytest.fixture
def machine() -> Iterator[Booted]:
    try:
        machine = Booted(PREPARE)
    except RuntimeError as error:
        pytest.skip(str(error))
    yield machine
    machine.close()


def manager_pid(machine: Booted) -> int:
    """The manager's PID on this machine."""
    inner = machine.show("MainPID")
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            pids = re.search(r"^NSpid:\t(.*)$", status.read_text(), re.MULTILINE)
        except OSError:
            continue
        if (
            pids is not None
            and pids[1].split()[1:] == [inner]
            and os.readlink(status.parent / "ns/pid") == os.readlink(f"/proc/{machine.init}/ns/pid")
        ):
            return int(status.parent.name)
    raise AssertionError(f"no process {inner} in the machine")


def kill_manager(machine: Booted) -> None:
    """Returns when its successor is there."""
    before = machine.show("MainPID")
    os.kill(manager_pid(machine), signal.SIGKILL)
    while machine.show("MainPID") == before:
        # until systemd has seen it, a start would find it running
        pass
    machine.run("systemctl", "start", "nodemgr")  # waits for the restart that is due


@pytest.mark.slow
def test_the_life_of_a_node(machine: Booted) -> None:
    machine.run("systemctl", "start", "nodemgr", check=False)  # waits until it is there
    assert machine.show("ActiveState") == "active", machine.run("cat", "/run/setup.log")
    machine.run(NODEMGR, "env", "create", "alice", "--gpus", "1", "--memory", "4GiB")
    program = subprocess.Popen(
        machine.command(NODEMGR, "run", "--env", "alice", "--", str(HOLD), "-b", str(GIB)),
        text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert said(program)["error"] is None
    assert machine.show("NFileDescriptorStore") == "2"

    kill_manager(machine)
    assert machine.show("NFileDescriptorStore") == "2"
    assert re.search(r"^t1 +alice +running", machine.run(NODEMGR, "status"), re.MULTILINE)
    machine.run("systemctl", "restart", "nodemgr")
    assert re.search(r"^t1 +alice +running", machine.run(NODEMGR, "status"), re.MULTILINE)
    doctor = machine.run(NODEMGR, "doctor")
    assert "FAIL" not in doctor
    assert re.search(r"^ok +device gate +on, by eBPF", doctor, re.MULTILINE), doctor
    assert re.search(
        r"^ok +jobs +started by the service nodemgr-jobs .*: systemd delegates no cgroup",
        doctor,
        re.MULTILINE,
    ), doctor
    gates = machine.run("find", "/sys/fs/bpf", "-path", "*/nodemgr-*", "-type", "f").split()
    assert [path.rpartition("/")[2] for path in sorted(gates)] == ["map", "program"]

    jobs_go_on(machine)
    is_confined(manager_pid(machine))
    assert finish(program)[0] == 0
    removed = machine.run(NODEMGR, "setup", "--uninstall", "--yes")
    assert re.search(r"^keep +/var/lib/nodemgr", removed, re.MULTILINE)
    assert machine.show("ActiveState") == "inactive"
    assert (
        machine.run(
            "systemctl", "show", "nodemgr-jobs", "--property=ActiveState", "--value"
        ).strip()
        == "inactive"
    )
    assert machine.run("ls", "/etc/nodemgr", "/var/lib/nodemgr").split() == [
        "/etc/nodemgr:", "config.toml", "/var/lib/nodemgr:", "client", "formats", "jobs",
        "manager.lock", "state.db",
        "state.db-mark", "state.db-shm", "state.db-wal",
    ]  # fmt: skip
    assert "No such file" in machine.run("ls", "/run/nodemgr", check=False)
    assert machine.run("find", "/sys/fs/bpf", "-path", "*/nodemgr-*", "-type", "f") == ""


def jobs_go_on(machine: Booted) -> None:
    """A job is its user's process in another service, so no restart or death ends it."""
    machine.run(NODEMGR, "env", "create", "bob", "--gpus", "0")
    shows = "id -un; grep -E 'NoNewPrivs|Seccomp:' /proc/self/status; cat /proc/self/cgroup"
    script = f"{shows}; until test -e /run/go; do sleep 0.1; done; exit 5"
    job = machine.run(
        NODEMGR,
        "submit",
        "--env",
        "bob",
        "--gpus",
        "0",
        "--max-restarts",
        "0",
        "--",
        "sh",
        "-c",
        script,
    ).strip()
    while "nodemgr-jobs.service" not in (said := machine.run(NODEMGR, "logs", job)):
        pass
    assert said.splitlines()[:3] == ["root", "NoNewPrivs:\t0", "Seccomp:\t0"]
    machine.run("systemctl", "restart", "nodemgr-jobs")
    kill_manager(machine)
    later = machine.run(NODEMGR, "submit", "--env", "bob", "--gpus", "0", "--", "true").strip()
    assert machine.run(NODEMGR, "wait", later) == ""
    machine.run("touch", "/run/go")
    machine.run("sh", "-c", f"{NODEMGR} wait {job} 2>/dev/null; test $? = 5")
    assert machine.run(NODEMGR, "logs", job) == said


def is_confined(pid: int) -> None:
    """The unit's promises of a running manager."""
    status = Path(f"/proc/{pid}/status").read_text()
    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status
    for path in (
        *(f"/{top}/nodemgr-test" for top in ("etc", "usr", "root", "var", "run", "sys")),
        "/proc/sys/kernel/hostname",
    ):
        touched = subprocess.run(
            ["nsenter", f"--target={pid}", "--mount", "--root", "touch", path],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Read-only file system" in touched.stderr, f"{path}: {touched.stderr}"
