"""A log is read while its middle goes, while it begins anew, and after any write of its user."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_plugin.ways import log_pieces
from client_plugin.ways.log_pieces import MOST_HOLES, PIECE_BYTES, Piece

PUNCH, KEEP_SIZE = 2, 1


def punch(log: int, start: int, end: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (ctypes.c_int64(start), ctypes.c_int64(end - start))
    assert libc.fallocate(log, PUNCH | KEEP_SIZE, *arguments) == 0, os.strerror(ctypes.get_errno())


@pytest.fixture
def log(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    yield descriptor
    os.close(descriptor)


def everything(log: int, offset: int = 0) -> list[Piece]:
    pieces = []
    while (piece := log_pieces.read(log, offset)).data:
        pieces.append(piece)
        offset = piece.at + len(piece.data)
    return pieces


def test_a_whole_one_comes_in_pieces(log: int) -> None:
    assert log_pieces.read(log, 0) == Piece(0, b"")
    os.write(log, b"x" * (PIECE_BYTES + 3))
    assert everything(log) == [Piece(0, b"x" * PIECE_BYTES), Piece(PIECE_BYTES, b"xxx")]


def test_a_hole_is_passed(log: int) -> None:
    os.write(log, b"a" * 2 * PIECE_BYTES + b"b" * 10 * PIECE_BYTES + b"c")
    punch(log, PIECE_BYTES, 12 * PIECE_BYTES)
    assert everything(log) == [Piece(0, b"a" * PIECE_BYTES), Piece(12 * PIECE_BYTES, b"c")]
    assert log_pieces.read(log, 5 * PIECE_BYTES + 7) == Piece(12 * PIECE_BYTES, b"c"), (
        "for who was in the middle of it"
    )


def test_a_hole_that_comes_while_it_is_read_is_never_shown(
    log: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The piece ends where the hole begins, and is what was written."""
    os.write(log, b"a" * 3 * PIECE_BYTES)
    plain = os.pread

    def late(descriptor: int, size: int, offset: int) -> bytes:
        punch(log, PIECE_BYTES // 2, 2 * PIECE_BYTES)
        return plain(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", late)
    assert everything(log) == [
        Piece(0, b"a" * (PIECE_BYTES // 2)),
        Piece(2 * PIECE_BYTES, b"a" * PIECE_BYTES),
    ]


def test_one_that_begins_anew_is_read_from_its_beginning(log: int) -> None:
    os.write(log, b"a" * 100)
    os.ftruncate(log, 0)
    os.write(log, b"anew")
    assert log_pieces.read(log, 100) == Piece(0, b"anew")


def test_nothing_but_a_hole_has_an_end(log: int) -> None:
    os.ftruncate(log, 2**40)
    assert log_pieces.read(log, 0) == Piece(2**40, b"")
    os.write(log, b"b")
    assert everything(log) == [Piece(2**40, b"b")]


def test_one_that_always_changes_is_left_after_some_looks(
    log: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.write(log, b"a" * PIECE_BYTES)
    offsets = []

    def ever_on(descriptor: int, offset: int, whence: int) -> int:
        offsets.append(offset)
        return offset + 1

    monkeypatch.setattr(os, "lseek", ever_on)
    assert log_pieces.read(log, 0) == Piece(MOST_HOLES, b"")
    assert len(offsets) == MOST_HOLES


def test_a_file_system_that_knows_of_no_holes_has_none(
    log: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(descriptor: int, offset: int, whence: int) -> int:
        raise OSError(22, "Invalid argument")

    os.write(log, b"a" * 10)
    monkeypatch.setattr(os, "lseek", unknown)
    assert everything(log) == [Piece(0, b"a" * 10)]
