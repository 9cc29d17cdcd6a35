"""Sheets: memory files of the manager, lent to clients for orders longer than a packet.

Knows: memory files and their seals. Must not know: the content, sockets.

A client writes its order on a sheet and then announces it. The manager never reads a file that a
client could have made (descriptor_filter.py has the reason). A sheet cannot be made longer or
shorter, so it costs its writer a megabyte at most. The manager reads a copy: later writes of the
client change nothing. A client with many orders keeps its sheet: it names the place of each order
on it, and may write the next ones beside those that are not answered yet.
"""

from __future__ import annotations

import fcntl
import os
import re
from typing import NamedTuple

from nodemgr.core.model.entities import ConnectionId
from nodemgr.edge.host import descriptors
from nodemgr.edge.rpc.operation import OperationError

SHEET_BYTES = 2**20
MAX_SHEETS = 16
"""The most sheets that an env has at a time.

Each sheet costs the manager a descriptor until its client has sent the order or is gone.
"""
_RANGE = re.compile(r"\[([0-9]{1,8}),([0-9]{1,8})\]", re.ASCII)
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def new_sheet(size_bytes: int) -> int:
    """Memory that its holders can write and not resize. Raises OSError."""
    sheet = descriptors.memory("nodemgr-sheet", size_bytes)
    try:
        fcntl.fcntl(sheet, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(sheet)
        raise
    return sheet


class SheetRange(NamedTuple):
    """The place of an order on a sheet."""

    start_bytes: int
    length_bytes: int

    @classmethod
    def parse(cls, text: str) -> SheetRange | None:
        """None: this is no place, but perhaps an order.

        Raises OperationError for one beyond the sheet.
        """
        found = _RANGE.fullmatch(text)
        if found is None:
            return None
        place = cls(*map(int, found.groups()))
        if not 0 < place.length_bytes <= SHEET_BYTES - place.start_bytes:
            raise OperationError(
                f"a sheet has {SHEET_BYTES} bytes, and no order of {place.length_bytes} at "
                f"{place.start_bytes} is on it",
                "send a range on the sheet",
            )
        return place


class Sheets:
    """The sheets, one for each connection at most."""

    def __init__(self) -> None:
        self._lent: dict[ConnectionId, tuple[str, int]] = {}

    def lend(self, connection: ConnectionId, env: str) -> int:
        """The descriptor, to be sent and kept. Raises OperationError, OSError."""
        if connection in self._lent:
            return self._lent[connection][1]
        if sum(owner == env for owner, _ in self._lent.values()) >= MAX_SHEETS:
            raise OperationError(
                "too many long orders are being written at this moment",
                "try again in a second",
                "busy",
            )
        sheet = new_sheet(SHEET_BYTES)
        self._lent[connection] = env, sheet
        return sheet

    def take(self, connection: ConnectionId) -> bytes:
        """The sheet's text up to the first NUL; the sheet is used up. Raises OperationError."""
        _, sheet = self._lent.pop(connection, ("", None))
        if sheet is None:
            raise OperationError(
                "an order without an argument is written on a sheet",
                "ask for a sheet first, on the same connection",
            )
        try:
            written_bytes = os.lseek(sheet, 0, os.SEEK_HOLE)  # beyond are NULs, which need no copy
            return os.pread(sheet, written_bytes, 0).partition(b"\0")[0]
        finally:
            os.close(sheet)

    def read(self, connection: ConnectionId, place: SheetRange) -> bytes:
        """The text at one place of the sheet, which stays lent. Raises OperationError."""
        _, sheet = self._lent.get(connection, ("", None))
        if sheet is None:
            raise OperationError(
                "an order that stands on a sheet needs one",
                "ask for a sheet first, on the same connection",
            )
        return os.pread(sheet, place.length_bytes, place.start_bytes)

    def forget(self, connection: ConnectionId) -> None:
        """The client is gone."""
        _, sheet = self._lent.pop(connection, ("", None))
        if sheet is not None:
            os.close(sheet)

    def __len__(self) -> int:
        return len(self._lent)
