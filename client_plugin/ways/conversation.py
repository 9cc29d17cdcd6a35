"""Questions on one connection to an environment's client socket.

A long order is written on a sheet of the manager's memory.

Knows: the few packets that this takes (csrc/wire/wire.def), how an answer is put together. Must not
know: the question, the meaning of an answer. A program uses this module instead of the C client,
because to load that costs more than the question.
"""

from __future__ import annotations

import array
import json
import os
import re
import struct
from _socket import (
    AF_UNIX,
    CMSG_SPACE,
    MSG_CMSG_CLOEXEC,
    SCM_RIGHTS,
    SO_SNDTIMEO,
    SOCK_SEQPACKET,
    SOL_SOCKET,
    timeout,
)
from _socket import socket as Socket

from client_plugin.messages import ways as messages
from client_plugin.messages.form import relayed
from client_plugin.ways.faults import Away, Busy, Exit, Fault, Lost, Mute, Stopped

# _socket instead of socket: the import of socket makes enumerations of all constants, and takes
# half as long as the start of Python.

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    from client_plugin.ways.locations import AnyPath

PACKET_BYTES = 1_200
INLINE_BYTES = 500
"""The longest order that travels in one packet.

A longer order is written on a sheet (nodemgr/edge/rpc/shared_buffers.py).
"""
CONNECT_TIMEOUT_S = 5
ANSWER_TIMEOUT_S = 5.0

BUSY_CODE = "busy"
"""The code of a refusal that a moment later may be none."""
REFUSAL_EXITS = {
    "usage": Exit.USAGE, "quota": Exit.QUOTA_REFUSES, "unknown_env": Exit.QUOTA_REFUSES,
    "away": Exit.UNREACHABLE,
}  # fmt: skip
"""A refusal's code, where it is no plain failure."""
DENIAL_EXITS = {
    "over_quota": Exit.QUOTA_REFUSES, "more_than_node": Exit.QUOTA_REFUSES,
    "no_gpu": Exit.QUOTA_REFUSES,
    "unknown_env": Exit.QUOTA_REFUSES, "forbidden_user": Exit.QUOTA_REFUSES,
    "memory_above_limit": Exit.QUOTA_REFUSES, "class_above_limit": Exit.QUOTA_REFUSES,
    "compute_above_limit": Exit.QUOTA_REFUSES, "wait_timeout": Exit.WAIT_TIMED_OUT,
}  # fmt: skip
"""The codes of a DENY (nodemgr/core/model/entities.py) that have an exit code of their own."""
_ESCAPED = {code: f"%{code:02x}" for code in (*range(0x20), 0x7F, ord("%"))}


def parsed(text: str) -> Any:
    """The answer that `text` is. Raises Fault where it is a refusal."""
    try:
        answer = json.loads(text)
    except ValueError:
        raise Fault(messages.ANSWER_NOT_JSON()) from None
    if not isinstance(answer, dict):
        raise Fault(messages.ANSWER_NOT_OBJECT())
    if "error" in answer:
        from client_plugin.ways.refusals import refusal

        if answer.get("code") == BUSY_CODE:
            raise Busy(refusal(answer))
        code = REFUSAL_EXITS.get(str(answer.get("code")), Exit.FAILED)
        raise Fault(refusal(answer), code)
    return answer


def wait_readable(sock: Socket) -> None:
    """However long it takes.

    A signal's handler runs meanwhile, however narrowly the signal came before the wait: Python
    notes it and would go to sleep on it, but also writes a byte to the wakeup descriptor.
    """
    import select
    import signal
    import socket

    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        try:
            before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        except ValueError:  # outside of the main thread no handler runs
            return
        try:
            poll = select.poll()
            for one in (sock, ours):
                poll.register(one, select.POLLIN)
            while not any(descriptor == sock.fileno() for descriptor, _ in poll.poll()):
                ours.recv(4096)
        finally:
            signal.set_wakeup_fd(before, warn_on_full_buffer=False)


class Conversation:
    """One connection. Every method raises Fault.

    Away: no manager answers. Lost: the manager went away after it was asked.
    """

    def __init__(self, path: AnyPath, timeout_s: Optional[float] = ANSWER_TIMEOUT_S) -> None:
        """`timeout_s`: for each packet; None: however long it takes."""
        self._path = os.fspath(path)
        self._timeout_s = timeout_s
        self._socket = Socket(AF_UNIX, SOCK_SEQPACKET)
        self._rid = 0
        self._sheet: Optional[int] = None

    def __enter__(self) -> Conversation:
        # A connection that waits for room in the backlog ends with EAGAIN after this time.
        self._socket.setsockopt(SOL_SOCKET, SO_SNDTIMEO, struct.pack("ll", CONNECT_TIMEOUT_S, 0))
        try:
            self._socket.connect(self._path)
        except OSError as error:
            self._socket.close()
            raise self._gone(error) from None
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        if self._sheet is not None:
            os.close(self._sheet)

    def ask(self, what: str, argument: Optional[str] = None) -> Tuple[Any, List[int]]:
        """The answer, and the descriptors that came with it, which are the caller's to close."""
        self._rid += 1
        said = "" if argument is None else f"argument={argument.translate(_ESCAPED)}\n"
        descriptors: List[int] = []
        try:
            self._socket.send(
                f"NODEMGR/1 ASK\nrid={self._rid}\nwhat={what}\n{said}".encode("utf-8", "replace")
            )
            return parsed(self._pages(descriptors)), descriptors
        except timeout:
            raise Mute(messages.SOCKET_MUTE(path=self._path)) from None
        except OSError as error:
            raise Lost(messages.SOCKET_WENT(path=self._path, why=error.strerror)) from None
        except (KeyError, ValueError):
            line = messages.SOCKET_OF_ANOTHER(path=self._path)
            raise Fault(line, Exit.UNREACHABLE) from None

    def order(self, verb: str, arguments: Dict[str, Any]) -> Tuple[Any, List[int]]:
        """The same of an order about jobs, however long."""
        text = json.dumps({"verb": verb, "args": arguments}, separators=(",", ":"))
        if len(text) <= INLINE_BYTES:
            return self.ask("order", text)
        return self.ask("order", f"[0,{self._write(text.encode('ascii'))}]")

    def _write(self, text: bytes) -> int:
        """Puts an order on the connection's sheet; its length."""
        if self._sheet is None:
            _told, descriptors = self.ask("sheet")
            if not descriptors:
                raise Fault(messages.NO_FILE_LET_IN())
            self._sheet = descriptors[0]
        room_bytes = os.fstat(self._sheet).st_size
        if len(text) > room_bytes:
            line = messages.LONG_ORDER(size_bytes=len(text), room_bytes=room_bytes)
            raise Fault(line, Exit.USAGE)
        return os.pwrite(self._sheet, text, 0)

    def _gone(self, error: OSError) -> Fault:
        why = error.strerror or error
        text = messages.SOCKET_WITHOUT_MANAGER(path=self._path, why=why)
        if isinstance(error, PermissionError):
            return Fault(text, Exit.UNREACHABLE)
        run_dir = os.path.join(os.path.dirname(self._path), "..", "..")
        return Stopped(text, run_dir) if isinstance(error, ConnectionRefusedError) else Away(text)

    def _pages(self, descriptors: List[int]) -> str:
        """The pages of one answer, put together."""
        pages: Dict[int, str] = {}
        while True:
            verb, said = self._receive(descriptors)
            if verb == "DENY":
                code = DENIAL_EXITS.get(said.get("code", ""), Exit.FAILED)
                reason = said.get("reason")
                raise Fault(relayed(reason) if reason else messages.REFUSED_WITHOUT_REASON(), code)
            if verb == "PART" and said.get("rid") == str(self._rid):
                pages[int(said["index"])] = said["data"]
                if len(pages) == int(said["count"]):
                    return "".join(pages[index] for index in sorted(pages))

    def _receive(self, descriptors: List[int]) -> Tuple[str, Dict[str, str]]:
        """The next packet. Raises ValueError where it is none of ours."""
        if self._timeout_s is None:
            wait_readable(self._socket)
        self._socket.settimeout(self._timeout_s)
        numbers = array.array("i")
        packet, ancillary, _, _ = self._socket.recvmsg(
            PACKET_BYTES, CMSG_SPACE(numbers.itemsize), MSG_CMSG_CLOEXEC
        )
        for level, kind, data in ancillary:
            if (level, kind) == (SOL_SOCKET, SCM_RIGHTS):
                numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
        descriptors += numbers
        if not packet:
            raise Lost(messages.SOCKET_CLOSED(path=self._path))
        head, *lines = packet.split(b"\n")
        magic, _, verb = head.partition(b" ")
        if magic != b"NODEMGR/1":
            raise ValueError
        pairs = (line.partition(b"=") for line in lines)
        return verb.decode("ascii", "replace"), {
            key.decode("ascii", "replace"): _unescaped(value) for key, _, value in pairs
        }


def _unescaped(value: bytes) -> str:
    if b"%" in value:
        value = re.sub(b"%([0-9A-Fa-f]{2})", lambda found: bytes((int(found[1], 16),)), value)
    return value.decode("utf-8", "replace")
