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

from client_plugin.messages.form import relayed, stated
from client_plugin.ways.faults import Away, Busy, Exit, Fault, Lost, Mute, Stopped

# _socket instead of socket: the import of socket makes enumerations of all constants, and takes
# half as long as the start of Python.

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    from client_plugin.ways.locations import AnyPath

MAX_PACKET_BYTES = 2**16
"""Of an administrator's answer; on other sockets a packet has at most 1 200."""
INLINE_BYTES = 500
"""The longest order that travels in one packet.

A longer order is written on a sheet (nodemgr/edge/rpc/shared_buffers.py).
"""
CONNECT_TIMEOUT_S = 5
ANSWER_TIMEOUT_S = 5.0

REFUSAL_EXITS = {
    "usage": Exit.USAGE, "quota": Exit.QUOTA_REFUSES, "unknown_env": Exit.QUOTA_REFUSES,
}  # fmt: skip
"""A refusal's code, where it is no plain failure."""
PASSING_CODES = {"busy": Busy, "away": Away, "lost": Lost}
"""Codes of refusals that a moment later may be none.

The last two are of a node of a cluster whose head does not answer: it was not asked, or it was.
"""
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
        raise Fault(
            "the manager's answer is no JSON", "use a nodemgr of the manager's version"
        ) from None
    if not isinstance(answer, dict):
        raise Fault(
            "the manager's answer is no JSON object", "use a nodemgr of the manager's version"
        )
    if "error" in answer:
        from client_plugin.ways.refusals import refusal

        said = str(answer.get("code"))
        fault = fault_of(refusal(answer), said)
        fault.refusal = said
        raise fault
    return answer


def fault_of(line: str, code: str) -> Fault:
    """The fault of a refusal."""
    if code in PASSING_CODES:
        return PASSING_CODES[code](line)
    return Fault(line, code=REFUSAL_EXITS.get(code, Exit.FAILED))


def wait_readable(sock: Any, timeout_s: Optional[float] = None) -> bool:
    """Whether there is something to read within the time (None: however long it takes).

    A signal's handler runs meanwhile, however narrowly the signal came before the wait: Python
    notes it and would go to sleep on it, but also writes a byte to the wakeup descriptor.
    """
    import math
    import select
    import signal
    import socket
    import time

    end_s = None if timeout_s is None else time.monotonic() + timeout_s
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        try:
            before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        except ValueError:  # outside of the main thread no handler runs
            before = -2
        try:
            poll = select.poll()
            for one in (sock, ours):
                poll.register(one, select.POLLIN)
            while True:
                left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
                ready = dict(poll.poll(None if left_s is None else math.ceil(left_s * 1_000)))
                if sock.fileno() in ready or not ready:
                    return bool(ready)
                ours.recv(4096)
        finally:
            if before != -2:
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
        self._send(what, argument)
        return self.answer()

    def order(self, verb: str, arguments: Dict[str, Any]) -> Tuple[Any, List[int]]:
        """The same of an order, however long."""
        self.send_order(verb, arguments)
        return self.answer()

    def send_order(self, verb: str, arguments: Dict[str, Any]) -> None:
        """Sends an order, of which `answer` has the result."""
        text = order_text(verb, arguments)
        if len(text) > INLINE_BYTES:
            text = f"[0,{self._write(text.encode('ascii'))}]"
        self._send("order", text)

    def _send(self, what: str, argument: Optional[str]) -> None:
        self._rid += 1
        try:
            self._socket.send(question(self._rid, what, argument))
        except OSError as error:
            raise self._lost(error) from None

    def answer(self) -> Tuple[Any, List[int]]:
        """The answer to the last question, and the descriptors that came with it."""
        descriptors: List[int] = []
        try:
            return parsed(self._pages(descriptors)), descriptors
        except OSError as error:
            raise self._lost(error) from None
        except (KeyError, ValueError):
            line = stated(
                f"no manager answers behind {self._path} (the process that answers has another "
                "version); tasks that run go on",
                "use a nodemgr of the manager's version",
            )
            raise Fault(line, code=Exit.UNREACHABLE) from None

    def fileno(self) -> int:
        """Readable once there is an answer."""
        return self._socket.fileno()

    def _lost(self, error: OSError) -> Fault:
        if isinstance(error, timeout):
            return Mute(
                f"the manager behind {self._path} does not answer",
                "its log says why; try again later",
            )
        return Lost(
            f"the manager behind {self._path} went away ({error.strerror}); tasks that run go on",
            "try again, or see `nodemgr doctor`",
        )

    def _write(self, text: bytes) -> int:
        """Puts an order on the connection's sheet; its length."""
        if self._sheet is None:
            _told, descriptors = self.ask("sheet")
            if not descriptors:
                raise Fault(
                    "the kernel lets no file into this container (SELinux or AppArmor), and a long "
                    "order needs one",
                    "give a shorter order, or give it on the node",
                )
            self._sheet = descriptors[0]
        room_bytes = os.fstat(self._sheet).st_size
        if len(text) > room_bytes:
            line = stated(
                f"this order has {len(text)} bytes, and may have {room_bytes}",
                "shorten its command or its environment (env -u NAME, or env -i)",
            )
            raise Fault(line, code=Exit.USAGE)
        return os.pwrite(self._sheet, text, 0)

    def _gone(self, error: OSError) -> Fault:
        why = error.strerror or error
        text = stated(
            f"no manager answers behind {self._path} ({why}); tasks that run go on",
            "try again, or ask an admin to start it",
        )
        if isinstance(error, PermissionError):
            return Fault(text, code=Exit.UNREACHABLE)
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
                raise Fault(
                    relayed(reason)
                    if reason
                    else stated("the manager refused", "its log says why"),
                    code=code,
                )
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
            MAX_PACKET_BYTES, CMSG_SPACE(numbers.itemsize), MSG_CMSG_CLOEXEC
        )
        for level, kind, data in ancillary:
            if (level, kind) == (SOL_SOCKET, SCM_RIGHTS):
                numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
        descriptors += numbers
        if not packet:
            raise Lost(
                f"the manager behind {self._path} closed the connection",
                "its log says why; try again later",
            )
        return unpacked(packet)


def order_text(verb: str, arguments: Dict[str, Any], **more: Any) -> str:
    """The order in JSON. It has no character that takes more than one byte in a packet."""
    text = json.dumps({"verb": verb, "args": arguments, **more}, separators=(",", ":"))
    return text.replace("%", "\\u0025").replace("\x7f", "\\u007f")


def question(rid: int, what: str, argument: Optional[str] = None) -> bytes:
    """The packet."""
    said = "" if argument is None else f"argument={argument.translate(_ESCAPED)}\n"
    return f"NODEMGR/1 ASK\nrid={rid}\nwhat={what}\n{said}".encode("utf-8", "replace")


def unpacked(packet: bytes) -> Tuple[str, Dict[str, str]]:
    """The verb and the fields of a packet of the manager. Raises ValueError: it is none."""
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
