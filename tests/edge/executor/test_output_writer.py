"""Output from containers in its file: in its place, once, within its room."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from client_plugin.ways import log_pieces
from nodemgr.edge.executor.output_writer import CHUNK_BYTES, write_output


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.touch()
    return path


def test_a_piece_that_is_said_again_changes_nothing(log: Path) -> None:
    for at, text in ((0, b"one"), (0, b"one"), (1, b"ne two"), (0, b"XXX")):
        assert write_output(log, at, text, 0)
    assert log.read_bytes() == b"one two"


def test_what_was_dropped_is_a_hole(log: Path) -> None:
    write_output(log, 0, b"one\n", 0)
    write_output(log, 2**20, b"two\n", 0)
    assert log.stat().st_blocks * 512 <= 2**17
    descriptor = os.open(log, os.O_RDONLY)
    first = log_pieces.read(descriptor, 0)
    second = log_pieces.read(descriptor, first.at + len(first.data))
    os.close(descriptor)
    assert first.data.startswith(b"one\n")
    assert second.at + len(second.data) == 2**20 + 4
    assert second.data.endswith(b"two\n")


def test_the_middle_is_dropped_where_there_is_no_more_room(log: Path) -> None:
    most = 16 * CHUNK_BYTES
    pieces = [bytes([65 + number % 26]) * CHUNK_BYTES for number in range(100)]
    for number, piece in enumerate(pieces):
        write_output(log, number * CHUNK_BYTES, piece, most)
        assert log.stat().st_blocks * 512 <= most
    with log.open("rb") as file:
        assert file.read(2 * CHUNK_BYTES) == b"".join(pieces[:2])
        file.seek(-4 * CHUNK_BYTES, os.SEEK_END)
        assert file.read() == b"".join(pieces[-4:])


def test_a_link_in_its_place_is_not_followed(log: Path) -> None:
    other = log.with_name("other")
    other.touch()
    log.unlink()
    log.symlink_to(other)
    with pytest.raises(OSError, match="symbolic"):
        write_output(log, 0, b"text", 0)
    assert other.read_bytes() == b""
