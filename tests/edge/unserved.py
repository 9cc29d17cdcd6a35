"""A file of a user-space file system with a server that answers only its open.

To ask for its size, to read and to close it waits for ever. It is the worst descriptor that a
client can hand to the manager.

Knows: the kernel's FUSE protocol, as far as opening one file takes. Must not know: the receiver of
the file.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import os
import select
import socket
import struct
import tempfile
import threading
from pathlib import Path

from tests.session import TMP

DEVICE = Path("/dev/fuse")
LOOKUP, GETATTR, OPEN, INIT = 1, 3, 14, 26
ROOT_NODE, FILE_NODE = 1, 2
REGULAR, DIRECTORY = 0o100644, 0o040755
MNT_DETACH = 2
_REQUEST = struct.Struct("=IIQQ16x")
"""Length, operation, its number, node; then the asker."""
_libc = ctypes.CDLL(None, use_errno=True)


def _attributes(node: int) -> bytes:
    mode = DIRECTORY if node == ROOT_NODE else REGULAR
    return struct.pack("=6Q10I", node, 4_096, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4_096, 0)


ANSWERS = {
    INIT: lambda node: struct.pack("=IIIIHHIIHHI28x", 7, 31, 65_536, 0, 12, 9, 65_536, 1, 0, 0, 0),
    LOOKUP: lambda node: struct.pack("=QQQQII", FILE_NODE, 1, 0, 0, 0, 0) + _attributes(FILE_NODE),
    GETATTR: lambda node: struct.pack("=QII", 0, 0, 0) + _attributes(node),
    OPEN: lambda node: struct.pack("=QII", 1, 0, 0),
}


class UnservedFile:
    """One, open here. `close` ends every wait for it."""

    @staticmethod
    def impossible() -> str | None:
        """Why there can be none here."""
        if os.geteuid() != 0:
            return "a file system in user space is mounted by root"
        try:
            os.close(os.open(DEVICE, os.O_RDWR))
        except OSError as error:
            return f"{DEVICE}: {error.strerror}"
        return None

    def __init__(self) -> None:
        self._device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
        self._over = os.pipe()
        self._is_silent = False
        with tempfile.TemporaryDirectory(prefix="nmf", dir=TMP) as place:
            options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0"
            if _libc.mount(b"unserved", place.encode(), b"fuse", 0, options.encode()) != 0:
                os.close(self._device)
                # EPERM is a PermissionError
                raise OSError(ctypes.get_errno(), "nothing can be mounted here")
            self._server = threading.Thread(target=self._serve)
            self._server.start()
            try:
                self.fd = os.open(f"{place}/file", os.O_RDWR | os.O_CLOEXEC)
                self._is_silent = True
            finally:
                _libc.umount2(place.encode(), MNT_DETACH)

    def _serve(self) -> None:
        try:
            while self._over[0] not in select.select([self._device, self._over[0]], [], [])[0]:
                self._answer(os.read(self._device, 2**17))
        finally:
            os.close(self._device)  # from now on the kernel answers for it

    def _answer(self, request: bytes) -> None:
        _, operation, number, node = _REQUEST.unpack_from(request)
        if operation in ANSWERS and not self._is_silent:
            body = ANSWERS[operation](node)
            os.write(self._device, struct.pack("=IiQ", 16 + len(body), 0, number) + body)

    def give_away(self, sock: socket.socket, packet: bytes) -> None:
        """It stays open here as well: each close asks the server."""
        sock.sendmsg(
            [packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [self.fd]))]
        )

    def close(self) -> None:
        os.write(self._over[1], b"!")
        self._server.join()
        for fd in (self.fd, *self._over):
            with contextlib.suppress(OSError):  # "not connected"
                os.close(fd)
