"""Quotas from a file: the output of `nodemgr quota show --json`, or the state.db of a manager.

The manager may have any version.

Knows: where the two have quotas, and queues. Must not know: the manager, which checks the values.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from client_plugin.ways.faults import Fault
from nodemgr.core.model.entities import QueueRow, Quota

DATABASE_MAGIC = b"SQLite format 3\0"
SAID = tuple(field.name for field in fields(Quota))
"""The fields of a quota; the other fields of a row follow from it, or are another version's."""
QUEUE = tuple(field.name for field in fields(QueueRow) if field.name != "name")
"""The fields of a queue that are set."""
STDIN = "-"
MAX_TEXT_BYTES = 2**24
"""Of what `quota show` printed: some 10 000 environments."""


@dataclass(frozen=True, slots=True)
class SavedQuotas:
    quotas: dict[str, dict[str, Any]]
    """Environment -> its quota, as arguments of quota_set."""
    queues: list[dict[str, Any]]
    """Arguments of queue_create. Of a database only: a quota may name one of them."""


def read(path: str) -> SavedQuotas:
    """Raises Fault."""
    try:
        with (
            contextlib.nullcontext(sys.stdin.buffer) if path == STDIN else open(path, "rb")
        ) as file:
            beginning = file.read(len(DATABASE_MAGIC))
            if beginning == DATABASE_MAGIC:
                return _of_database(Path(path))
            text = beginning + file.read(MAX_TEXT_BYTES)
        if len(text) > MAX_TEXT_BYTES:
            raise Fault(
                f"{path} has more than {MAX_TEXT_BYTES} bytes",
                "name what `nodemgr quota show --json` printed",
            )
        return _of_rows(json.loads(text)["quotas"])
    except OSError as error:
        raise Fault(
            f"{path} cannot be read ({error.strerror})", "name a file that this user may read"
        ) from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise Fault(
            f"{path} has no quotas",
            "name what `nodemgr quota show --json` printed, or a manager's state.db",
        ) from None
    except sqlite3.Error as error:
        raise Fault(
            f"{path} has no quotas that can be read ({error})",
            "name a whole state.db of a manager, or a backup of one",
        ) from None


def _of_rows(rows: list[dict[str, Any]]) -> SavedQuotas:
    return SavedQuotas({str(row["env"]): _said(row) for row in rows}, [])


def _of_database(path: Path) -> SavedQuotas:
    """The quotas of a database. Only tables that all versions have are read."""
    with contextlib.closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    ) as database:
        envs = list(_values(database, "env"))
        queues = [
            {"queue": row["name"], **{name: row[name] for name in QUEUE if name in row}}
            for row in _values(database, "queue")
        ]
    return SavedQuotas({str(row["name"]): _said(row["quota"]) for row in envs}, queues)


def _values(database: sqlite3.Connection, kind: str) -> Iterator[dict[str, Any]]:
    for (text,) in database.execute(
        "SELECT value FROM current WHERE kind = ? ORDER BY key", (kind,)
    ):
        yield json.loads(text)


def _said(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in SAID if name in row}
