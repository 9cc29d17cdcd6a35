"""The service manager's protocol of systemd: datagrams, descriptor store, watchdog.

Knows: NOTIFY_SOCKET, WATCHDOG_USEC, LISTEN_FDS and their meaning. Must not know: the use of a kept
descriptor.

Without those variables each message is dropped, and nothing fails. They are removed from the
environment when they are read: the programs that the manager starts are no services. A kept
descriptor outlives the manager, until it is dropped or the service is stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
from collections.abc import MutableMapping

from nodemgr.edge.host import descriptors

FIRST_FD = 3
MOST_FDS = 65_536
SEND_TIMEOUT_S = 0.2
"""A service manager that does not read costs the loop no more than this."""
_NAME = re.compile(r"[!-9;-~]{1,255}", re.ASCII)
"""The name of a kept descriptor: systemd takes printable ones without a colon."""


class ServiceManager:
    """The service manager that the environment names, or none."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        said = {name: environment.pop(name, "") for name in _VARIABLES}
        is_ours = said["LISTEN_PID"] == str(os.getpid())
        self._address = _address(said["NOTIFY_SOCKET"])
        self._handed_over = (
            _handed_over(said["LISTEN_FDS"], said["LISTEN_FDNAMES"]) if is_ours else []
        )
        self._stored = {name for name, _ in self._handed_over}
        watched_pid = said["WATCHDOG_PID"] or str(os.getpid())
        self.watchdog_period_s = (
            _period_s(said["WATCHDOG_USEC"]) if watched_pid == str(os.getpid()) else None
        )
        """The period of WATCHDOG=1: half of the service manager's limit; None: no watchdog."""

    @property
    def is_there(self) -> bool:
        return self._address is not None

    def notify(self, message: str, fd: int | None = None) -> None:
        """Sends a message such as `READY=1`; a service manager that does not listen is no error."""
        if self._address is None:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock,
        ):
            sock.settimeout(SEND_TIMEOUT_S)
            rights = [] if fd is None else descriptors.rights([fd])
            sock.sendmsg([message.encode()], rights, 0, self._address)

    # -- the descriptor store --

    def take_over(self) -> list[tuple[str, int]]:
        """(name, descriptor) of everything that an earlier manager kept, once.

        The caller closes the descriptors.
        """
        taken, self._handed_over = self._handed_over, []
        return taken

    def keep(self, name: str, fd: int) -> None:
        """Hand a copy of this descriptor to the next manager, under a name of this file alone."""
        if name not in self._stored and _NAME.fullmatch(name):
            self._stored.add(name)
            self.notify(f"FDSTORE=1\nFDNAME={name}\nFDPOLL=0", fd)

    def drop(self, name: str) -> None:
        """Drops a kept descriptor."""
        if name in self._stored:
            self._stored.remove(name)
            self.notify(f"FDSTOREREMOVE=1\nFDNAME={name}")


class Watchdog:
    """Notifies the service manager, which restarts a manager that hangs."""

    def __init__(self, loop: asyncio.AbstractEventLoop, service_manager: ServiceManager) -> None:
        self._loop, self._service_manager = loop, service_manager

    def pat(self) -> None:
        """Now and every half WatchdogSec=. An idle manager wakes only for this."""
        period_s = self._service_manager.watchdog_period_s
        if period_s is None:
            return
        self._service_manager.notify("WATCHDOG=1")
        self._loop.call_later(period_s, self.pat)


_VARIABLES = (
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
)


def _address(text: str) -> str | None:
    if text.startswith("@"):
        return "\0" + text[1:]
    return text if text.startswith("/") else None


def _number(text: str, most: int) -> int:
    """0 for what is no number of this size."""
    return int(text) if re.fullmatch(r"[0-9]{1,12}", text, re.ASCII) and int(text) <= most else 0


def _period_s(allowed_us: str) -> float | None:
    return _number(allowed_us, 10**12) / 2e6 or None


def _handed_over(count: str, names: str) -> list[tuple[str, int]]:
    """The descriptors that are really open; none is inherited by a child."""
    found = []
    named = names.split(":")
    for index in range(_number(count, MOST_FDS)):
        with contextlib.suppress(OSError):
            os.set_inheritable(FIRST_FD + index, False)
            found.append((named[index] if index < len(named) else "", FIRST_FD + index))
    return found
