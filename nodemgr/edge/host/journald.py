"""An entry for the system's journal, by its native protocol: one datagram of fields.

Knows: that protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL). Must not know: the message.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from pathlib import Path

SOCKET = Path("/run/systemd/journal/socket")
INFO, WARNING = 6, 4
"""Priorities of syslog."""


def entry(fields: Mapping[str, object]) -> bytes:
    """The fields as they travel.

    A name is of capital letters, digits and underscores, and ours to choose; a value is any text.
    """
    parts = []
    for name, value in fields.items():
        data = str(value).encode(errors="replace")
        if b"\n" in data:
            parts.append(name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n")
        else:
            parts.append(name.encode() + b"=" + data + b"\n")
    return b"".join(parts)


class Journald:
    def __init__(self, path: Path = SOCKET) -> None:
        self._path = path
        self._socket = socket.socket(
            socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        )

    def write(self, fields: Mapping[str, object]) -> None:
        """Raise OSError if no journal listens, or it does not keep up; never block."""
        self._socket.sendto(entry(fields), str(self._path))

    def close(self) -> None:
        self._socket.close()
