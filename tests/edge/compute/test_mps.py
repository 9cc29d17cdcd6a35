"""MPS is believed only of a trusted user's daemon."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodemgr.edge.compute import mps

OWN = frozenset([os.geteuid()])


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A table of processes with a daemon, 4711, and another program, 4712."""
    for pid, name in ((4711, "nvidia-cuda-mps\n"), (4712, "bash\n")):
        (tmp_path / "proc" / str(pid)).mkdir(parents=True)
        (tmp_path / "proc" / str(pid) / "comm").write_text(name)
    return tmp_path / "proc"


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    directory = tmp_path / "mps"
    directory.mkdir()
    (directory / mps.PID_FILE).write_text("4711\n")
    return directory


def test_a_running_daemon_is_found(pipe: Path, proc: Path) -> None:
    assert mps.is_running(pipe, OWN, proc)


def test_without_a_directory_there_is_none(tmp_path: Path, proc: Path) -> None:
    assert not mps.is_running(tmp_path / "none", OWN, proc)


@pytest.mark.parametrize(
    "text", ["", "4712", "4713", "-1", "0x1", "47 11", "9" * 40, "\x00\xff", "4711\n4712"]
)
def test_a_file_that_names_no_daemon_is_none(pipe: Path, proc: Path, text: str) -> None:
    (pipe / mps.PID_FILE).write_text(text)
    assert not mps.is_running(pipe, OWN, proc)


def test_anothers_directory_or_daemon_is_not_believed(pipe: Path, proc: Path) -> None:
    assert not mps.is_running(pipe, frozenset([os.geteuid() + 1]), proc)


def test_a_link_or_a_pipe_is_not_followed(pipe: Path, proc: Path, tmp_path: Path) -> None:
    file = pipe / mps.PID_FILE
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert not mps.is_running(pipe, OWN, proc)
    file.unlink()
    os.mkfifo(file)
    assert not mps.is_running(pipe, OWN, proc)
    link = tmp_path / "link"
    link.symlink_to(pipe)
    assert not mps.is_running(link, OWN, proc)


@pytest.mark.parametrize(
    ("environment", "directory"),
    [
        ({}, "/tmp/nvidia-mps"),
        ({"CUDA_MPS_PIPE_DIRECTORY": ""}, "/tmp/nvidia-mps"),
        ({"CUDA_MPS_PIPE_DIRECTORY": "/run/mps"}, "/run/mps"),
    ],
)
def test_the_directory_is_where_clients_look(environment: dict[str, str], directory: str) -> None:
    assert mps.pipe_directory(environment) == Path(directory)
