"""An order that is longer than a packet, written on a sheet of the manager's memory: one conversation on a connection of its own.

Knows: the few packets that it takes (csrc/wire.def). Must not know: what is ordered, what an answer means. The client in C has no part in
it: that one closes its connection after each question, and a sheet belongs to a connection.
"""

from __future__ import annotations

import array
import os
import socket
from typing import Any, Dict, List, Tuple
from urllib.parse import unquote

PACKET_BYTES = 1_200
NO_FILE = "the kernel lets no file into this container (SELinux or AppArmor), and a long order needs one"


class NotTaken(Exception):
    """One line."""


def send(path: str, text: bytes, timeout_s: float) -> str:
    """The answer to the order `text`, as JSON; `timeout_s` for each packet of it. Raises OSError where there is no manager or it went
    away, NotTaken where it refused."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(timeout_s)
        sock.connect(path)
        told, files = _ask(sock, 1, "sheet")
        try:
            if "error" not in told and not files:
                raise NotTaken(NO_FILE)
            if files:
                _write(files[0], text)
        finally:
            for descriptor in files:
                os.close(descriptor)
        return told if not files else _ask(sock, 2, "order")[0]


def _write(sheet: int, text: bytes) -> None:
    room_bytes = os.fstat(sheet).st_size
    if len(text) > room_bytes:
        raise NotTaken(
            f"this order has {len(text)} bytes, and may have {room_bytes}: "
            "shorten its command or its environment (env -u NAME, or env -i)"
        )
    os.pwrite(sheet, text, 0)


def _ask(sock: socket.socket, rid: int, what: str) -> Tuple[str, List[int]]:
    """What was said, and the descriptors that came with it."""
    sock.send(f"NODEMGR/1 ASK\nrid={rid}\nwhat={what}\n".encode())
    pages: Dict[int, str] = {}
    files: List[int] = []
    while True:
        verb, said = _receive(sock, files)
        if said.get("rid") != str(rid):
            continue
        if verb == "DENY":
            raise NotTaken(said.get("reason", "refused"))
        if verb == "PART":
            pages[int(said["index"])] = said["data"]
            if len(pages) == int(said["count"]):
                return "".join(pages[index] for index in sorted(pages)), files


def _receive(sock: socket.socket, files: List[int]) -> Tuple[str, Dict[str, str]]:
    numbers: Any = array.array("i")
    packet, ancillary, _, _ = sock.recvmsg(PACKET_BYTES, socket.CMSG_SPACE(4 * numbers.itemsize), socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
    files += numbers
    if not packet:
        raise ConnectionResetError("it closed the connection")
    head, *lines = packet.decode("utf-8", "replace").split("\n")
    pairs = (line.partition("=") for line in lines)
    return head.rpartition(" ")[2], {key: unquote(value) for key, _, value in pairs}
