"""The watch of a checkpoint: changes of files count, and no time of the clock."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from client_plugin.elastic.checkpoints import SETTLED_S, CheckpointWatch
from client_plugin.elastic.orders import NO_CHECKPOINT

WALL_S = 1_000_000.0


class Clock:
    """A watch, and a time that the test moves."""

    def __init__(self, path: Path | str | None) -> None:
        self.faults: list[str] = []
        self.watch = CheckpointWatch(None if path is None else str(path), self.faults.append)
        self.now_s = 10.0
        self.wall_s = WALL_S

    def look(self, after_s: float = 0.0) -> tuple[int, int]:
        self.now_s += after_s
        self.wall_s += after_s
        found = self.watch.check(self.now_s, self.wall_s)
        return found.seen, found.complete


def save(path: Path, text: str, wall_s: float) -> None:
    """As a careful script does it: beside the old file, then renamed."""
    new = path.with_name("new")
    new.write_text(text)
    os.utime(new, (wall_s, wall_s))
    new.rename(path)


def test_a_file_counts_once_it_has_been_quiet(tmp_path: Path) -> None:
    path = tmp_path / "state"
    clock = Clock(path)
    assert clock.look() == (0, 0)
    save(path, "1", WALL_S)
    assert clock.look() == (1, 0)
    assert clock.look(SETTLED_S / 2) == (1, 0)
    save(path, "22", clock.wall_s)
    assert clock.look() == (2, 0)
    assert clock.look(SETTLED_S) == (2, 2)
    assert clock.watch.check(clock.now_s, clock.wall_s).written_s == pytest.approx(10.5)


def test_an_old_file_is_complete_at_once(tmp_path: Path) -> None:
    save(tmp_path / "state", "1", WALL_S - 3_600)
    assert Clock(tmp_path / "state").look() == (1, 1)


@pytest.mark.parametrize("apart_s", [-86_400.0, -1e-3, 86_400.0])
def test_a_clock_that_jumps_hides_no_checkpoint(tmp_path: Path, apart_s: float) -> None:
    path = tmp_path / "state"
    save(path, "1", WALL_S)
    clock = Clock(path)
    clock.look()
    assert clock.look(SETTLED_S) == (1, 1)
    clock.wall_s += apart_s
    save(path, "1", clock.wall_s)
    assert clock.look() == (2, 1)
    assert clock.look(SETTLED_S) == (2, 2)


def test_a_directory_has_a_new_checkpoint_with_each_new_file(tmp_path: Path) -> None:
    clock = Clock(tmp_path)
    assert clock.look() == (0, 0)
    for number in (1, 2):
        (tmp_path / f"epoch {number}").mkdir()
        save(tmp_path / f"epoch {number}" / "model", "x", clock.wall_s - number)
        assert clock.look() == (number, number)
    (tmp_path / "epoch 1" / "model").unlink()
    assert clock.look() == (2, 2), "a removal is no checkpoint"


def test_an_empty_file_is_no_checkpoint(tmp_path: Path) -> None:
    """A full disk leaves one."""
    save(tmp_path / "state", "", WALL_S - 60)
    assert Clock(tmp_path / "state").look() == (0, 0)


def test_no_path_and_an_absent_file_are_no_faults(tmp_path: Path) -> None:
    assert Clock(None).watch.check(1.0, WALL_S) == NO_CHECKPOINT
    for path in ("", tmp_path / "none", tmp_path / "none" / "none"):
        clock = Clock(path)
        assert clock.look() == (0, 0)
        assert clock.faults == []


def test_what_cannot_be_read_is_said_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    clock = Clock(pipe)
    clock.look()
    clock.look(1.0)
    assert clock.faults == ["it is neither a file nor a directory"]
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    clock = Clock(loop)
    clock.look()
    assert clock.faults == ["Too many levels of symbolic links"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_directory_without_the_right_to_read_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o000)
    clock = Clock(tmp_path / "closed" / "state")
    assert clock.look() == (0, 0)
    assert clock.faults == ["Permission denied"]
