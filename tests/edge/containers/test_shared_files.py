"""A file that is kept open gets no write lease, and costs no descriptor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nodemgr.edge.containers.shared_files import OpenFiles, files_below
from tests.support.limits import until
from tests.support.processes import lasting_fds, open_fds

LEASE = """
import fcntl, os, sys
fcntl.fcntl(os.open(sys.argv[1], os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_WRLCK)
"""
GIVES_BACK = """
import fcntl, os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
descriptor = os.open(sys.argv[1], os.O_RDONLY)
fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("held", flush=True)
signal.sigwait([signal.SIGIO])
fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
"""


def takes_lease(path: Path) -> bool:
    command = [sys.executable, "-I", "-c", LEASE, path]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_no_process_gets_a_write_lease(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    paths = [tmp_path / "empty", tmp_path / "below" / "file"]
    for path in paths:
        path.write_bytes(b"" if path.name == "empty" else b"content")
    if not takes_lease(paths[0]):
        pytest.skip("no leases on this file system")
    before = lasting_fds()
    kept = OpenFiles()
    for _ in range(2):
        kept.keep(files_below([tmp_path]))
    until(lambda: open_fds() == before, open_fds)  # a thread of an earlier test may end meanwhile
    assert [takes_lease(path) for path in paths] == [False, False]
    maps = Path("/proc/self/maps").read_text()
    assert maps.count(str(tmp_path)) == 2, "each file once"
    kept.close()
    kept.keep(paths)
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert takes_lease(paths[0])


def test_it_waits_for_the_end_of_a_lease(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    program = subprocess.Popen(
        [sys.executable, "-I", "-c", GIVES_BACK, path],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert program.stdout is not None
    if program.stdout.readline() != "held\n":
        pytest.skip("no leases on this file system")
    kept = OpenFiles()
    kept.keep([path])
    assert program.wait() == 0
    assert not takes_lease(path)


def test_it_follows_no_link_and_waits_for_no_fifo(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    os.mkfifo(tmp_path / "fifo")
    OpenFiles().keep(files_below([tmp_path, tmp_path / "gone"]))


def test_a_directory_that_is_removed_meanwhile_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("content")
    read = os.scandir

    def scandir(path: str) -> object:
        if path == str(tmp_path / "b"):
            raise FileNotFoundError(path)
        return read(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = files_below([tmp_path])
    assert sorted(found) == [tmp_path / "a" / "file", tmp_path / "c" / "file"]
