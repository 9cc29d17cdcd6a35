"""Files of ended jobs are removed by age, number and size; the journal's datagram."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import pytest

from nodemgr.edge.executor import log_retention as module
from nodemgr.edge.executor.log_retention import DAY_NS, LogRetention
from nodemgr.edge.host.journald import Journald, entry


class OnDisk:
    """A journal with all commits on the disk, until a test changes that."""

    commits = on_disk = 1
    takes = False

    def sync(self) -> None:
        if self.takes:
            self.on_disk = self.commits


class Files:
    """A factory as far as its files go."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.stuck = False

    def write(self, job_id: str, size_bytes: int) -> None:
        (self.directory / job_id).write_bytes(b"x" * size_bytes)

    def room_bytes(self, job_id: str) -> int:
        path = self.directory / job_id
        return path.stat().st_size if path.exists() else 0

    def delete(self, job_id: str) -> None:
        if self.stuck:
            raise OSError(30, "Read-only file system")
        (self.directory / job_id).unlink(missing_ok=True)

    def left(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir())


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def keeper(
    files: Files,
    most_bytes: int = 1_000,
    days: int = 7,
    living: tuple[str, ...] = (),
    journal: OnDisk | None = None,
) -> LogRetention:
    return LogRetention(
        files, journal or OnDisk(), most_bytes, days, lambda job_id: job_id in living
    )  # type: ignore[arg-type]


def test_the_oldest_go_when_all_together_are_too_much(files: Files) -> None:
    retention = keeper(files)
    for number in range(5):
        files.write(f"j{number}", 400)
        retention.add(f"j{number}", number)
    assert files.left() == ["j3", "j4"]


def test_the_too_old_go_when_another_ends(files: Files) -> None:
    retention = keeper(files)
    files.write("j1", 1)
    retention.add("j1", 0)
    files.write("j2", 1)
    retention.add("j2", 7 * DAY_NS)
    assert files.left() == ["j1", "j2"]
    retention.add("j3", 7 * DAY_NS + 1)
    assert files.left() == ["j2"]


def test_so_many_are_kept_and_no_more(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_JOBS", 3)
    retention = keeper(files)
    for number in range(5):
        files.write(f"j{number}", 1)
        retention.add(f"j{number}", 0)
    assert files.left() == ["j2", "j3", "j4"]


def test_one_that_ended_again_is_the_youngest(files: Files) -> None:
    retention = keeper(files)
    for job_id in ("j1", "j2", "j1", "j3"):
        files.write(job_id, 400)
        retention.add(job_id, 0)
    assert files.left() == ["j1", "j3"]


def test_the_files_of_one_that_is_to_run_again_are_left_alone(files: Files) -> None:
    retention = keeper(files, living=("j1",))
    for job_id in ("j1", "j2", "j3"):
        files.write(job_id, 600)
        retention.add(job_id, 0)
    assert files.left() == ["j1", "j3"]


def test_the_next_manager_goes_on_where_the_last_one_was(files: Files) -> None:
    for number in range(4):
        files.write(f"j{number}", 400)
    retention = keeper(files)
    retention.begin([(f"j{number}", number) for number in range(4)], 4)
    assert files.left() == ["j2", "j3"]
    files.write("j4", 400)
    retention.add("j4", 5)
    assert files.left() == ["j3", "j4"]


def test_files_stay_while_a_power_failure_could_lose_the_end_that_they_tell(files: Files) -> None:
    journal = OnDisk()
    retention = keeper(files, journal=journal)
    files.write("j1", 2_000)
    journal.commits = 2
    retention.add("j1", 0)
    assert files.left() == ["j1"]
    journal.commits = 3
    retention.add("j2", 0)
    assert files.left() == ["j1"]
    journal.on_disk = 2
    retention.add("j3", 0)
    assert files.left() == []


def test_beyond_the_bounds_the_store_is_synced_first(files: Files) -> None:
    """Else all jobs that end after the last start would stay, however much they wrote."""
    journal = OnDisk()
    journal.takes = True
    retention = keeper(files, journal=journal)
    for number in range(4):
        files.write(f"j{number}", 500)
        journal.commits += 1
        retention.add(f"j{number}", 0)
    assert files.left() == ["j2", "j3"]
    assert journal.on_disk == 4, "at the third end alone"


def test_what_cannot_be_removed_is_told_and_stops_nobody(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    retention = keeper(files)
    files.stuck = True
    for job_id in ("j1", "j2"):
        files.write(job_id, 800)
        retention.add(job_id, 0)
    assert "what job j1 left cannot be removed" in capsys.readouterr().err


# -- the journal --


def test_an_entrys_bytes() -> None:
    assert entry({"MESSAGE": "hello", "PRIORITY": 6}) == b"MESSAGE=hello\nPRIORITY=6\n"
    assert entry({"MESSAGE": "two\nlines"}) == b"MESSAGE\n" + struct.pack("<Q", 9) + b"two\nlines\n"
    assert entry({"MESSAGE": "half a character \udce9"}) == b"MESSAGE=half a character ?\n"


def test_an_entry_arrives_as_one_datagram_and_a_missing_journal_says_so(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    journald = Journald(path)
    with pytest.raises(OSError, match="No such file"):
        journald.write({"MESSAGE": "nobody listens"})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        journald.write({"MESSAGE": "hello"})
        assert listener.recv(1_000) == b"MESSAGE=hello\n"
    journald.close()
