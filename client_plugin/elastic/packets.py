"""Packets between the leader of an elastic task and the manager, on the environment's socket.

Knows: the text form of csrc/wire/wire.def. Must not know: the meaning of a verb.
"""

from __future__ import annotations

import array
import re
import socket
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Union

MAGIC = b"NODEMGR/1 "
PACKET_BYTES = 1_200
MAX_DESCRIPTORS = 64
_ESCAPED = {code: f"%{code:02x}" for code in (*range(0x20), 0x7F, ord("%"))}
_DIGITS = re.compile(b"%([0-9A-Fa-f]{2})")


class Packet(NamedTuple):
    """A packet of the manager; the descriptors are the receiver's to close."""

    verb: str
    fields: Dict[str, str]
    descriptors: List[int]


def encode(verb: str, fields: Mapping[str, Union[int, str, None]]) -> bytes:
    """The packet; a field that is None is left out."""
    lines = [
        f"{key}={str(value).translate(_ESCAPED)}\n"
        for key, value in fields.items()
        if value is not None
    ]
    return MAGIC + f"{verb}\n{''.join(lines)}".encode("utf-8", "replace")


def send(sock: socket.socket, packet: bytes, descriptors: Sequence[int] = ()) -> None:
    """Raises OSError."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors).tobytes())]
    sock.sendmsg([packet], rights if descriptors else [])


def receive(sock: socket.socket) -> Optional[Packet]:
    """The next packet; None: the other end is closed.

    Raises OSError, and ValueError for a packet of another program.
    """
    numbers = array.array("i")
    room = socket.CMSG_SPACE(MAX_DESCRIPTORS * numbers.itemsize)
    data, ancillary, _, _ = sock.recvmsg(PACKET_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, rights in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            numbers.frombytes(rights[: len(rights) - len(rights) % numbers.itemsize])
    if not data and not numbers:
        return None
    head, *lines = data.split(b"\n")
    pairs = [line.partition(b"=") for line in lines if line]
    fields = {key.decode("ascii", "replace"): _text(value) for key, _, value in pairs}
    verb = head[len(MAGIC) :] if head.startswith(MAGIC) else b""
    return Packet(verb.decode("ascii", "replace"), fields, list(numbers))


def _text(value: bytes) -> str:
    if b"%" in value:
        value = _DIGITS.sub(lambda found: bytes((int(found[1], 16),)), value)
    return value.decode("utf-8", "replace")
