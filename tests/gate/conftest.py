"""Fixtures for the device gate: cgroups, processes in them, device nodes without a driver.

A node with NVIDIA's major number and no driver tells what the kernel's gate says: EPERM where it is
shut, ENXIO (no such device) where it is open.
"""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodemgr.edge.gate.ebpf import prepare_bpf
from nodemgr.edge.kernel import cgroups
from nodemgr.edge.kernel.device_nodes import DeviceNode

PROBE = """
import errno, os, sys
print(os.getpid(), flush=True)
for line in sys.stdin:
    what, path, *numbers = line.split()
    try:
        if what == "open":
            os.close(os.open(path, os.O_RDWR))
        elif what == "mknod":
            os.mknod(path, 0o20666, os.makedev(*map(int, numbers)))
        elif what == "become":
            os.setresuid(*[int(path)] * 3)
        elif what == "enter":
            open(path, "w").write("0")
        print("OK", flush=True)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
"""


class Probe:
    """A process that tries what it is told to."""

    def __init__(self, nodes: Path) -> None:
        self._nodes = nodes
        self.cgroup = Path("/")
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", PROBE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = int(self._answer())

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def order(self, text: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        return self._answer()

    def enter(self, cgroup: Path) -> None:
        assert self.order(f"enter {cgroup}/cgroup.procs") == "OK"
        self.cgroup = cgroup

    def opens(self, device: DeviceNode) -> bool:
        """Does the kernel let it through to the driver, which is not there?"""
        path = self._nodes / f"{device.major}-{device.minor}"
        if not path.exists():
            os.mknod(path, stat.S_IFCHR, os.makedev(*device))
            path.chmod(0o666)  # whatever the umask
        said = self.order(f"open {path}")
        assert said in ("EPERM", "ENXIO"), f"{said}: neither a gate nor a missing driver"
        return said == "ENXIO"

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def make_probe() -> Iterator[Callable[[], Probe]]:
    probes: list[Probe] = []
    with tempfile.TemporaryDirectory(prefix="nmg", dir="/dev/shm") as nodes:
        os.chmod(nodes, 0o755)
        if (fault := _mounted_for_nodes(Path(nodes))) is not None:
            pytest.skip(fault)

        def make() -> Probe:
            probes.append(Probe(Path(nodes)))
            return probes[-1]

        yield make
        for probe in probes:
            probe.close()


def _mounted_for_nodes(directory: Path) -> str | None:
    """Why no device node can be made there, or be opened."""
    node = directory / "null"
    try:
        os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        os.close(os.open(node, os.O_RDWR))
    except OSError as error:
        return f"device nodes in {directory}: {errno.errorcode[error.errno or 0]}"
    return None


@pytest.fixture
def cgroup() -> Iterator[Callable[[], Path]]:
    """Makes an empty cgroup; removed at the end with those below it, when the probes are dead."""
    made: list[Path] = []

    def make() -> Path:
        mount = cgroups.mount_point()
        if os.geteuid() != 0 or mount is None:
            pytest.skip("needs root" if mount else "no cgroup version 2 here")
        made.append(Path(tempfile.mkdtemp(prefix="nodemgr-test-", dir=mount)))
        return made[-1]

    yield make
    for directory in made:
        for path in sorted(
            (path for path in [directory, *directory.rglob("*")] if path.is_dir()), reverse=True
        ):
            path.rmdir()


@pytest.fixture
def bpf() -> None:
    """Skips where the kernel takes no such program."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if (fault := prepare_bpf()) is not None:
        pytest.skip(fault)
