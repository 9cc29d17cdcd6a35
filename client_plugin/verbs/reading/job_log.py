"""The output of one attempt of a job, read piece by piece over a way to the manager.

Knows: answers of the manager, the last lines in the history. Must not know: how it is shown.
"""

from __future__ import annotations

import binascii

from client_plugin.ways.choice import ASK_TIMEOUT_S
from client_plugin.ways.log_pieces import Piece

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from client_plugin.verbs.presentation.tables import TableRow
    from client_plugin.ways.choice import Way


class Log:
    """One attempt's output. If the file is gone: the last lines that the history has."""

    def __init__(self, way: Way, told: TableRow) -> None:
        """`told`: the first piece."""
        self._way = way
        self._first: Optional[TableRow] = told
        self._job: str = told["job"]
        self.attempt: int = told["attempt"]
        self.living: bool = told["living"]
        self.tail: Optional[str] = told.get("tail")
        self.offset = 0
        """The offset of the next piece."""
        self._size: int = told.get("size_bytes", 0)

    def read(self, wait: bool = False) -> Piece:
        """The output that was written since the last read; no data: no new output.

        `wait`: returns when there is some, or when the attempt has ended.
        """
        if self.tail is not None:
            piece, self.tail = (
                Piece(self.offset, self.tail.encode(errors="surrogateescape")),
                "",
            )
        else:
            told, self._first = self._first, None
            if told is None or (wait and not told["data"]):
                told = self._way.ask(
                    "job_log_read",
                    timeout_s=None if wait else ASK_TIMEOUT_S,
                    job=self._job,
                    attempt=self.attempt,
                    offset=self.offset,
                    wait=wait,
                )
            piece = Piece(told.get("at", self.offset), binascii.a2b_base64(told.get("data", "")))
        self.offset = piece.at + len(piece.data)
        return piece

    def skip_to_tail(self, most_bytes: int) -> None:
        """The next piece begins at most so far before the present end."""
        if self._size > most_bytes:
            self.offset, self._first = self._size - most_bytes, None

    def close(self) -> None:
        self._way.leave()


def open_log(way: Way, job_id: str, attempt: Optional[int]) -> Log:
    way = way.stay()
    return Log(way, way.ask("job_log_read", job=job_id, attempt=attempt))
