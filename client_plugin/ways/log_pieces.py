"""A job's log, piece by piece, past the parts that were dropped while the job runs.

Knows: descriptors of files that grow, lose their middle (csrc/jobs/log.c) or begin anew. Must not
know: the owner, the reader.
"""

from __future__ import annotations

import errno
import os
from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple

    class Piece(NamedTuple):
        at: int
        data: bytes

else:
    Piece = namedtuple("Piece", "at data")
    """`data` was read at offset `at` of the log.

    `at` is beyond the wanted offset if the bytes there were dropped, and before it if the log began
    anew. No data: the log has no more bytes now.
    """

PIECE_BYTES = 2**16
MOST_HOLES = 8
"""Holes in a row that one call passes before its reader has to ask again.

A log belongs to its user, and the user can make it all holes.
"""


def read(descriptor: int, offset: int) -> Piece:
    """The first piece from `offset` on. Raises OSError."""
    for _ in range(MOST_HOLES):
        data = os.pread(descriptor, PIECE_BYTES, offset)
        size = os.fstat(descriptor).st_size
        if not data and offset <= size:
            break
        # asked after the read: a part that is a hole now may have been read as zeros
        found = _data_from(descriptor, offset, size)
        if found == offset and (data := data[: _hole_from(descriptor, offset, size) - offset]):
            return Piece(offset, data)
        offset = found
    return Piece(offset, b"")


def _data_from(descriptor: int, offset: int, size: int) -> int:
    if offset > size:
        return 0
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError as error:
        # a file system without holes
        return size if error.errno == errno.ENXIO else offset


def _hole_from(descriptor: int, offset: int, size: int) -> int:
    try:
        return os.lseek(descriptor, offset, os.SEEK_HOLE)
    except OSError:
        return size
