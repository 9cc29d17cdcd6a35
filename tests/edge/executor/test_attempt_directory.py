"""The files that the manager writes for an attempt, byte for byte: csrc/jobs/order.c reads them."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path

import pytest

from nodemgr.core.model.entities import Cause, RunSpec
from nodemgr.edge.executor.attempt_directory import NOT_WRITTEN, AttemptFiles, End, Facts
from nodemgr.edge.executor.interface import RunOrder

ORDER = RunOrder(
    job_id="j12.3",
    attempt=2,
    env="alice",
    user="ann",
    uid=1000,
    gid=100,
    argv=("sh", "-c", "echo \udcff"),
    cwd="/home/ann",
    environ=("A=b", "NODEMGR_ENV_DIR=/run/envs/alice", "NODEMGR_JOB=j12.3:2"),
    run=RunSpec("sh", 1, 2**30, 60_000, "alice/1000/box"),
    gpus=("GPU-0",),
    umask=0o027,
)
TEXT = (
    b"nodemgr-order 1\0job=j12.3:2\0user=ann\0uid=1000\0gid=100\0grace_ms=30000\0"
    b"log_bytes=4096\0place=alice/1000/box\0umask=23\0"
    b"env_dir=/run/envs/alice\0leaf=alice/j12.3.2\0cwd=/home/ann\0limit=pids.max 32768\0"
    b"arg=sh\0arg=-c\0arg=echo \xff\0"
    b"env=A=b\0env=NODEMGR_ENV_DIR=/run/envs/alice\0env=NODEMGR_JOB=j12.3:2\0end\0"
)


def test_the_bytes_of_an_attempts_files_stay(tmp_path: Path) -> None:
    files = AttemptFiles(tmp_path, "j12.3", 2)
    files.write(ORDER, 30_000, "the-boot", 4_096)
    assert {path.name: path.read_bytes() for path in files.directory.iterdir()} == {
        "order": TEXT,
        "record": b" " * 1_536,
        "free": b"the-boot",
        "log": b"",
        "limit": b"60000\n".ljust(32),
    }
    assert files.facts() == Facts(1000, 100, "alice/1000/box", "/run/envs/alice", "alice/j12.3.2")


def test_a_limit_is_changed_in_its_place(tmp_path: Path) -> None:
    files = AttemptFiles(tmp_path, "j12.3", 2)
    files.write(ORDER, 30_000, "the-boot", 4_096)
    path = files.directory / "limit"
    number = path.stat().st_ino
    for limit_ms, text in ((None, b""), (7, b"7\n")):
        files.limit(limit_ms)
        assert files.limit_ms() == limit_ms
        assert path.read_bytes() == text.ljust(32)
    assert path.stat().st_ino == number
    path.unlink()
    assert files.limit_ms() is None


@pytest.mark.parametrize(
    ("name", "exit_code", "number", "why"),
    [("0.-", 0, None, ""), ("-.9", None, 9, ""), ("-.-", None, None, NOT_WRITTEN)],
)
def test_an_end_that_the_record_lacks_is_in_the_name_of_the_claim(
    tmp_path: Path, name: str, exit_code: int | None, number: int | None, why: str
) -> None:
    files = AttemptFiles(tmp_path, "j1", 1)
    files.write(ORDER, 1_000, "boot")
    (files.directory / "free").rename(files.directory / f"claim.7.8.ended.5:6.{name}.0")
    assert files.record() == (None, End(5, exit_code, number, Cause.OWN, why, 6))


@pytest.mark.parametrize("size", [2**30, 2**42])
def test_a_file_that_is_far_too_large_costs_no_memory_and_no_disk(
    tmp_path: Path, size: int
) -> None:
    """A program of a container could write them, as an earlier version handed them out."""
    files = AttemptFiles(tmp_path, "j1", 1)
    files.write(ORDER, 1_000, "boot")
    for name in ("limit", "record", "free"):
        try:
            os.truncate(files.directory / name, size)
        except OSError as error:
            pytest.skip(f"not on this file system: {error}")
    assert files.limit_ms() == 60_000
    assert files.record() == (None, None)
    assert files.boot().rstrip("\0") == "boot"
    files.bound_log(2**20)
    assert (files.directory / "record").stat().st_size == 1536
    assert (files.directory / "limit").stat().st_size == 32


def test_no_lease_of_a_program_makes_a_reading_wait(tmp_path: Path) -> None:
    """The kernel makes each open wait for its end, 45 s by default, that does not refuse to."""
    files = AttemptFiles(tmp_path, "j1", 1)
    files.write(ORDER, 1_000, "boot")
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    held = [os.open(files.directory / name, os.O_RDONLY) for name in ("limit", "log", "record")]
    try:
        for fd in held:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as error:
        pytest.skip(f"not on this file system: {error}")
    else:
        assert files.limit_ms() is None
        with pytest.raises(FileNotFoundError):
            files.open_log()
        assert files.log_tail() == ""
        assert files.record() == (None, None)
        files.bound_log(1)
        with pytest.raises(BlockingIOError):
            files.limit(5)
        files.remove()
        assert not files.exist()
    finally:
        for fd in held:
            os.close(fd)
        signal.signal(signal.SIGIO, before)


def test_files_that_a_process_still_has_open_hold_no_disk_when_they_are_removed(
    tmp_path: Path,
) -> None:
    files = AttemptFiles(tmp_path, "j1", 1)
    files.write(ORDER, 1_000, "boot")
    with files.log.open("r+b") as held:
        held.write(b"x" * 2**20)
        held.flush()
        assert files.room_bytes() >= 2**20
        files.remove()
        assert os.fstat(held.fileno()).st_blocks == 0
    assert not files.exist()


def test_the_last_output_steers_no_terminal(tmp_path: Path) -> None:
    """It is shown among lines of ours (`history`)."""
    files = AttemptFiles(tmp_path, "j12.3", 2)
    files.write(ORDER, 1_000, "boot")
    files.log.write_bytes(b"a\x1b[2Jb\x9b\xe2\x80\xae\x07\tc\rd\n")
    assert files.log_tail() == r"a\x1b[2Jb\x9b\u202e\x07    c" "\nd\n"
