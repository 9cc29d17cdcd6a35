"""Room on the store's disk for grants and releases alone, and how far its write-ahead log has come.

Knows: the files of a SQLite database in WAL mode (sqlite.org/walformat.html), the file system's
figures. Must not know: what is stored.

The reserve is a bound: while the file system has less than it, the store takes nothing that tenants
can do without. Three quarters of it are held inside the database's own files, where no other
program can take them: the log is allocated in advance, and the database has free pages.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from pathlib import Path

PAGE_BYTES = 4_096
FRAME_BYTES = PAGE_BYTES + 24
SHARE_OF_DISK = 20
"""The reserve is at most that part of the file system."""
CHUNK_BYTES = 2**20
CHUNK_NAME = "reserve"
"""Key of the rows that make free pages when they are deleted; no spec has it."""
_MAX_FRAME, _BACKFILLED, _INDEX_BYTES = slice(16, 20), slice(96, 100), 100


class DiskReserve:
    """The disk reserve of one database file."""

    def __init__(self, path: Path, wanted_bytes: int) -> None:
        figures = os.statvfs(path.parent)
        self._path = path
        self._directory = str(path.parent)  # a Path would be made anew for each commit
        self.bytes = min(wanted_bytes, figures.f_blocks * figures.f_frsize // SHARE_OF_DISK)
        self.log_bytes = self.bytes // 2
        self.pages = self.bytes // 4 // PAGE_BYTES

    def free_bytes(self) -> int:
        """Room for an unprivileged writer on the database's disk."""
        figures = os.statvfs(self._directory)
        return figures.f_bavail * figures.f_frsize

    def is_low(self) -> bool:
        return self.bytes > 0 and self.free_bytes() < self.bytes

    def hold(self, db: sqlite3.Connection) -> None:
        """Takes what of the reserve is not held yet, as far as there is room.

        Not while another thread writes.
        """
        if not self.bytes:
            return
        with contextlib.suppress(OSError):
            log = os.open(f"{self._path}-wal", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(log, 0, self.log_bytes)
            finally:
                os.close(log)
        missing = self.pages - free_pages(db)
        if missing > self.pages // 8 and self.free_bytes() > 2 * missing * PAGE_BYTES:
            with contextlib.suppress(sqlite3.Error):
                _add_free_pages(db, missing)

    def refusal(self, db: sqlite3.Connection, needed_bytes: int) -> str | None:
        """Why so much more of tenants' data is not taken now; None: it is.

        A commit needs its room twice, in the log and in the database; what was freed in the
        database counts as free.
        """
        free_bytes = self.free_bytes()
        if not self.bytes or free_bytes >= self.bytes + 2 * needed_bytes:
            return None
        spare_bytes = max(0, free_pages(db) - self.pages) * PAGE_BYTES
        if needed_bytes <= min(spare_bytes, self.log_bytes // 4) and spare_bytes >= self.log_bytes:
            return None
        return (
            f"the disk of {self._path.parent} has {_mib(free_bytes)} free, and its last "
            f"{_mib(self.bytes)} are kept for grants and releases (disk_reserve_bytes): try again "
            "when space was freed there"
        )


def free_pages(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA freelist_count").fetchone()[0])


def _add_free_pages(db: sqlite3.Connection, count: int) -> None:
    """Rows that are written, so that their pages have their place on the disk, and deleted."""
    db.execute("BEGIN IMMEDIATE")
    try:
        for number in range(-(-count * PAGE_BYTES // CHUNK_BYTES)):
            size_bytes = min(CHUNK_BYTES, count * PAGE_BYTES - number * CHUNK_BYTES)
            row = (f"{CHUNK_NAME}{number}", size_bytes)
            db.execute(
                "INSERT OR REPLACE INTO payloads VALUES (?, NULL, NULL, 0, x'', zeroblob(?))", row
            )
        db.execute("COMMIT")
    except sqlite3.Error:
        db.rollback()
        raise
    finally:
        db.execute(
            "DELETE FROM payloads WHERE spec_id >= ? AND spec_id < ?",
            (CHUNK_NAME, f"{CHUNK_NAME}:"),
        )
    db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.1f} MiB"


class LogIndex:
    """How many frames the log has, read off the database's -shm file.

    Its descriptor stays open as long as the database is: closing one would drop the locks that
    SQLite has on the file.
    """

    def __init__(self, path: Path) -> None:
        """When the database has been read once. Raises OSError."""
        self._descriptor = os.open(f"{path}-shm", os.O_RDONLY | os.O_CLOEXEC)

    def frames(self) -> tuple[int, int]:
        """(frames in the log, those of them that are in the database, too).

        When they are equal the next commit begins anew.
        """
        if self._descriptor < 0:
            return 0, 0
        index = os.pread(self._descriptor, _INDEX_BYTES, 0)
        return int.from_bytes(index[_MAX_FRAME], sys.byteorder), int.from_bytes(
            index[_BACKFILLED], sys.byteorder
        )

    def close(self) -> None:
        """Closes the reserve, after the database is closed."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
