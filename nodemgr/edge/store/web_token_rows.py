"""Tokens of the web page in the store: a row each, without the secret.

Knows: the table `web_tokens`. Must not know: the right that a token gives, transactions
(database.py).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import NamedTuple


class WebTokenRow(NamedTuple):
    """One token."""

    token_id: str
    """Its name for people, as in `w3`. It is no secret."""
    env: str | None
    """The environment that the token speaks for; None: it is an administrator's."""
    sha256: str
    """Of the whole token, in hexadecimal."""
    made_by: str
    made_wall_ns: int
    expires_wall_ns: int


def write(cursor: sqlite3.Cursor, rows: Mapping[str, WebTokenRow | None]) -> None:
    """Within the caller's transaction. None deletes."""
    for token_id, row in rows.items():
        if row is None:
            cursor.execute("DELETE FROM web_tokens WHERE token_id = ?", (token_id,))
        else:
            cursor.execute("INSERT OR REPLACE INTO web_tokens VALUES (?, ?, ?, ?, ?, ?)", row)
