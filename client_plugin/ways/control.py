"""Orders on the manager's control socket, for administrators.

Knows: ZMTP 3.0 (rfc.zeromq.org/spec/23) as far as one DEALER without security needs it: the
greeting, the READY command, messages of one frame. Must not know: what a verb does. The manager's
end is pyzmq; importing that here would cost more than a whole verb.
"""

from __future__ import annotations

import json
import os
import struct
from _socket import AF_UNIX, SOCK_STREAM, timeout
from _socket import socket as Socket

from client_plugin.messages import ways as messages
from client_plugin.ways.conversation import REFUSAL_EXITS, wait_readable
from client_plugin.ways.faults import Away, Exit, Fault, Lost, Stopped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional, Tuple

    from client_plugin.ways.locations import AnyPath

CONTROL_SOCKET = "control.sock"
TIMEOUT_S = 10.0
MAX_FRAME_BYTES = 2**28
MORE, LONG, COMMAND = 1, 2, 4
"""Flags of a frame."""
GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_READY = b"\x05READY" + b"\x0bSocket-Type"
DEALER = _READY + struct.pack(">I", 6) + b"DEALER"
SUBSCRIBER = _READY + struct.pack(">I", 3) + b"SUB"


def may_control(run_dir: AnyPath) -> Optional[bool]:
    """Whether this user may talk on the control socket; None: there is none."""
    path = os.path.join(run_dir, CONTROL_SOCKET)
    try:
        os.stat(path)
    except PermissionError:
        return False
    except OSError:
        return None
    return os.access(path, os.W_OK)


class ControlConnection:
    """One conversation with the manager of a run directory."""

    def __init__(self, run_dir: AnyPath, timeout_s: Optional[float] = TIMEOUT_S) -> None:
        """`timeout_s`: for each answer; None: however long it takes."""
        self._run_dir = os.fspath(run_dir)
        self._timeout_s = timeout_s
        self._socket: Optional[Socket] = None

    def call(self, verb: str, **arguments: Any) -> Any:
        """The verb's result.

        Raises Fault: Away where no manager answers, Lost where one ended after it was asked.
        """
        sock = self._socket or self._connect()
        try:
            sock.sendall(frame(json.dumps({"verb": verb, "args": arguments}).encode()))
            if self._timeout_s is None:
                wait_readable(sock)
            sock.settimeout(self._timeout_s)
            flags, body = COMMAND, b""
            while flags & COMMAND:
                flags, body = receive(sock)
        except BaseException as error:
            self.close()  # a late answer must not be taken for the next one's
            if isinstance(error, timeout):
                raise Away(messages.MANAGER_MUTE(run_dir=self._run_dir)) from None
            if isinstance(error, OSError):
                raise Lost(messages.MANAGER_ENDED_EARLY(run_dir=self._run_dir)) from None
            raise
        reply = json.loads(body)
        if not reply["ok"]:
            from client_plugin.ways.refusals import refusal

            raise Fault(refusal(reply), REFUSAL_EXITS.get(str(reply["code"]), Exit.FAILED))
        return reply["result"]

    def _connect(self) -> Socket:
        path = os.path.join(self._run_dir, CONTROL_SOCKET)
        sock = Socket(AF_UNIX, SOCK_STREAM)
        try:
            sock.settimeout(self._timeout_s or TIMEOUT_S)
            sock.connect(path)
            sock.sendall(GREETING + frame(DEALER, COMMAND))
            exactly(sock, len(GREETING))
        except PermissionError:
            sock.close()
            raise Fault(messages.CONTROL_CLOSED(path=path), Exit.UNREACHABLE) from None
        except timeout:
            sock.close()
            raise Away(messages.MANAGER_MUTE(run_dir=self._run_dir)) from None
        except OSError as error:
            sock.close()
            line = messages.NO_MANAGER_ON(run_dir=self._run_dir)
            if isinstance(error, ConnectionRefusedError):
                raise Stopped(line, self._run_dir) from None
            raise Away(line) from None
        self._socket = sock
        return sock

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def frame(body: bytes, flags: int = 0) -> bytes:
    if len(body) > 255:
        return struct.pack(">BQ", flags | LONG, len(body)) + body
    return struct.pack(">BB", flags, len(body)) + body


def receive(sock: Socket) -> Tuple[int, bytes]:
    """The next frame. Raises OSError."""
    (flags,) = exactly(sock, 1)
    length = int.from_bytes(exactly(sock, 8 if flags & LONG else 1), "big")
    if length > MAX_FRAME_BYTES:
        raise ConnectionError(f"a frame of {length} bytes")
    return flags, exactly(sock, length)


def exactly(sock: Socket, length: int) -> bytes:
    """Raises OSError, also at the end of the connection."""
    data = bytearray()
    while len(data) < length:
        piece = sock.recv(min(length - len(data), 2**20))
        if not piece:
            raise ConnectionResetError
        data += piece
    return bytes(data)
