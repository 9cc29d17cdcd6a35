"""A disk full of other files: grants and releases go on, and jobs are refused.

The refusal is one line with the reason.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.manager import Manager
from tests.support.udp_clients import FakeClient

CLONE_NEWNS = 0x20000
DISK_MIB = 64
MOUNT = (
    'mount --make-rprivate / && mkdir -p "$0" && mount -t tmpfs -o size=$1m,mode=700 disk "$0" &&'
    " echo mounted && exec sleep infinity"
)
Make = Callable[..., Manager]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")


class SmallDisk:
    """The manager's state directory is a small file system, in a mount namespace of its own.

    The namespace outlives the manager.
    """

    def __init__(self, make_manager: Make) -> None:
        self.manager = make_manager(
            simulate="2x16GiB",
            start=False,
            environment={"NODEMGR_DISK_RESERVE_BYTES": str(2**26)},
            before_exec=self._enter,
        )
        command = ["unshare", "-m", "sh", "-c", MOUNT, str(self.manager.state_dir), str(DISK_MIB)]
        self._holder = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"mounted\n"
        self.directory = Path(f"/proc/{self._holder.pid}/root{self.manager.state_dir}")

    def _enter(self) -> None:
        namespace = os.open(f"/proc/{self._holder.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        directory = os.getcwd()
        assert ctypes.CDLL(None).setns(namespace, CLONE_NEWNS) == 0
        os.chdir(directory)

    def fill(self) -> None:
        """To the last byte, by a file that is not the manager's."""
        with open(self.directory / "other", "wb", buffering=0) as other:
            try:
                while True:
                    other.write(b"x" * 4_096)
            except OSError:
                return

    def empty(self) -> None:
        (self.directory / "other").unlink()

    def free_bytes(self) -> int:
        figures = os.statvfs(self.directory)
        return figures.f_bavail * figures.f_frsize

    def submit(self, *options: str) -> subprocess.CompletedProcess[str]:
        return self._nodemgr("submit", "--env", "alice", "--hold", *options, "--", "true")

    def order(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self._nodemgr("queue", *words)

    def _nodemgr(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "NODEMGR_RUN_DIR": str(self.manager.run_dir)}
        return subprocess.run(
            [sys.executable, "-m", "nodemgr", *words],
            env=environment,
            capture_output=True,
            text=True,
        )

    def leases(self, count: int) -> None:
        """Grants and releases this number of leases, one after the other."""
        with FakeClient(self.manager.env_dir("alice")) as client:
            for _ in range(count):
                client.acquire(1)
                client.release()

    def close(self) -> None:
        self._holder.kill()
        self._holder.communicate()


@pytest.fixture
def disk(make_manager: Make) -> Iterator[SmallDisk]:
    disk = SmallDisk(make_manager)
    yield disk
    disk.manager.close()
    disk.close()


@pytest.mark.slow
@needs_root
def test_on_a_full_disk_leases_come_and_go_over_restarts_and_jobs_are_refused(
    disk: SmallDisk,
) -> None:
    manager = disk.manager.start()
    manager.quota("alice", 2)
    assert disk.submit().stdout == "j1\n"
    disk.fill()
    assert disk.free_bytes() == 0
    for end in (manager.kill, manager.stop, manager.stop):
        disk.leases(400)
        said = disk.submit()
        assert (said.returncode, said.stdout) == (1, "")
        (line,) = said.stderr.splitlines()
        assert "the manager cannot store a job now: the disk of" in line
        assert "its last 3.2 MiB are kept for grants and releases (disk_reserve_bytes)" in line
        assert "are kept for grants and releases" in disk.order("move", "j1", "high").stderr
        assert manager.call("status")["envs"][0]["jobs"] == 1
        end()
        manager.start()
    manager.quota("bob", 1)  # an administrator's orders are taken
    disk.leases(10)
    assert disk.order("withdraw", "j1").returncode == 0, "what makes room is taken"
    disk.empty()
    assert disk.submit().stdout == "j2\n"


@pytest.mark.slow
@needs_root
def test_jobs_cannot_use_up_the_disk(disk: SmallDisk) -> None:
    manager = disk.manager.start()
    manager.quota("alice", 2)
    long = {f"LONG{number}": "x" * 100_000 for number in range(8)}
    os.environ.update(long)
    try:
        refused = next(
            said for said in (disk.submit() for _ in range(DISK_MIB * 2)) if said.returncode
        )
    finally:
        for name in long:
            del os.environ[name]
    assert "are kept for grants and releases" in refused.stderr
    assert disk.free_bytes() > 2**20
    disk.leases(100)
