"""The output of one attempt of a job, read piece by piece over a way to the manager.

Knows: its sources: an open file, answers of the manager, the last lines in the history. Must not
know: how it is shown.
"""

from __future__ import annotations

import os

from client_plugin.ways import log_pieces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from client_plugin.verbs.presentation.tables import TableRow
    from client_plugin.ways.choice import Way


class Log:
    """One attempt's output, from a file or, for an administrator, piece by piece from the manager.

    If the file is gone: the last lines that the history has.
    """

    def __init__(self, way: Way, told: TableRow, descriptor: Optional[int]) -> None:
        self._way = way
        self._descriptor = descriptor
        self._first: Optional[TableRow] = told
        """The first piece, if the log is read piece by piece."""
        self._job: str = told["job"]
        self.attempt: int = told["attempt"]
        self.living: bool = told["living"]
        self.tail: Optional[str] = told.get("tail")
        self.offset = 0
        """The offset of the next piece."""
        self._size: int = told.get("size_bytes", 0) if descriptor is None else 0

    def read(self) -> log_pieces.Piece:
        """The output that was written since the last read; no data: no new output."""
        if self.tail is not None:
            piece, self.tail = (
                log_pieces.Piece(self.offset, self.tail.encode(errors="surrogateescape")),
                "",
            )
        elif self._descriptor is not None:
            piece = log_pieces.read(self._descriptor, self.offset)
        else:
            told, self._first = self._first, None
            if told is None:
                told = self._way.ask(
                    "job_log_read", job=self._job, attempt=self.attempt, offset=self.offset
                )
            piece = log_pieces.Piece(
                told.get("at", self.offset), bytes.fromhex(told.get("data", ""))
            )
        self.offset = piece.at + len(piece.data)
        return piece

    def skip_to_tail(self, most_bytes: int) -> None:
        """The next piece begins at most so far before the present end."""
        size = self._size if self._descriptor is None else os.fstat(self._descriptor).st_size
        if size > most_bytes:
            self.offset, self._first = size - most_bytes, None

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def open_log(way: Way, job_id: str, attempt: Optional[int]) -> Log:
    return Log(way, *way.log(job_id, attempt))
