"""The files that the manager writes for an attempt, byte for byte: csrc/jobs/order.c reads them."""

from __future__ import annotations

from pathlib import Path

from nodemgr.core.model.entities import RunSpec
from nodemgr.edge.executor.attempt_directory import AttemptFiles, Facts
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
    b"env_dir=/run/envs/alice\0cwd=/home/ann\0arg=sh\0arg=-c\0arg=echo \xff\0"
    b"env=A=b\0env=NODEMGR_ENV_DIR=/run/envs/alice\0env=NODEMGR_JOB=j12.3:2\0end\0"
)


def test_the_bytes_of_an_attempts_files_stay(tmp_path: Path) -> None:
    files = AttemptFiles(tmp_path, "j12.3", 2)
    files.write(ORDER, 30_000, "the-boot", 4_096)
    assert {path.name: path.read_bytes() for path in files.directory.iterdir()} == {
        "order": TEXT,
        "record": b" " * 1_024,
        "free": b"the-boot",
        "log": b"",
        "limit": b"60000\n".ljust(32),
    }
    assert files.facts() == Facts(1000, 100, "alice/1000/box", "/run/envs/alice")


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
