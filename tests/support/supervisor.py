"""A stand-in for systemd: it hears a service's datagrams, and keeps descriptors.

The service's next process gets them.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.limits import WAIT_LIMIT_S

LAUNCH = """
import os, sys
kept = [int(fd) for fd in sys.argv[1].split(",") if fd]
high = [os.dup2(fd, 1_000 + index) for index, fd in enumerate(kept)]
for index, fd in enumerate(high):
    os.dup2(fd, 3 + index)
os.closerange(1_000, 1_000 + len(high))
if kept:
    os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(kept)),
        "LISTEN_FDNAMES": sys.argv[2]}
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Becomes a service; it alone knows its own PID."""


class Supervisor:
    """Listens on a socket in `directory`; reads only when it is asked to."""

    def __init__(self, directory: Path, abstract: bool = False) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        name = f"nodemgr-test-{os.getpid()}" if abstract else str(directory / "notify")
        self._socket.bind("\0" + name if abstract else name)
        self.address = "@" + name if abstract else name
        self.store: dict[str, int] = {}
        """The kept descriptors, by name."""
        self.heard: list[str] = []
        self.watchdog_us: int | None = None

    def fileno(self) -> int:
        """Readable when something was said."""
        return self._socket.fileno()

    def hear(self, timeout_s: float = WAIT_LIMIT_S) -> str:
        """The next message, waited for."""
        ready, _, _ = select.select([self._socket], [], [], timeout_s)
        assert ready, f"nothing was said; before that: {self.heard}"
        text, fds, _, _ = socket.recv_fds(self._socket, 4_096, 8)
        message = text.decode()
        fields = dict(line.partition("=")[::2] for line in message.split("\n"))
        if fields.get("FDSTORE") == "1":
            (self.store[fields["FDNAME"]],) = fds
        elif fields.get("FDSTOREREMOVE") == "1":
            os.close(self.store.pop(fields["FDNAME"]))
        self.heard.append(message)
        return message

    def hear_until(self, wanted: str) -> None:
        while self.hear() != wanted:
            pass

    def hear_all(self) -> None:
        """The words so far."""
        while select.select([self._socket], [], [], 0)[0]:
            self.hear()

    def environment(self) -> dict[str, str]:
        """The variables that a service is started with."""
        said = {"NOTIFY_SOCKET": self.address}
        if self.watchdog_us is not None:
            said["WATCHDOG_USEC"] = str(self.watchdog_us)
        return said

    def wrap(self, command: Sequence[str]) -> list[str]:
        """The command with the kept descriptors where systemd puts them.

        The descriptors of `store` must be passed on.
        """
        return [
            sys.executable,
            "-c",
            LAUNCH,
            ",".join(map(str, self.store.values())),
            ":".join(self.store),
            *command,
        ]

    def close(self) -> None:
        for fd in self.store.values():
            os.close(fd)
        self._socket.close()
