"""Word to a service manager, by the sd_notify protocol: one datagram. Without NOTIFY_SOCKET nothing happens.

Knows: NOTIFY_SOCKET, WATCHDOG_USEC. Must not know: what the manager does.
"""

from __future__ import annotations

import contextlib
import os
import socket


def notify(message: str) -> None:
    """Sends e.g. `READY=1`; a service manager that does not listen is no reason to fail."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.sendto(message.encode(), address)


def watchdog_period_s() -> float | None:
    """How often WATCHDOG=1 is due: half of what the service manager allows; None: it does not watch us."""
    allowed = os.environ.get("WATCHDOG_USEC", "")
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(allowed) / 2e6 if allowed.isascii() and allowed.isdigit() and 0 < int(allowed) < 10**12 else None
