"""A frame's bytes to its fields and back, and the numbers by which both ends see a gap.

Knows: JSON, the limits of a frame, what a number means. Must not know: sockets, keys, the meaning
of a kind.

A frame is one JSON object: `t` its kind, `s` its session, `n` its number. Numbers count from 1 in
each direction of a session. ZeroMQ drops silently at its high-water mark, so a number that is not
the next one ends the session; its successor begins with the node's whole state.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

MAX_FRAME_BYTES = 2**20
VERSION = 1
"""Of the messages: it grows where an earlier end would read one falsely.

Fields and kinds that are added change nothing. A head takes nodes of its version and earlier ones.
"""
_KIND = re.compile(r"[a-z_]{1,32}", re.ASCII)
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False, allow_nan=False).encode

Frame = Mapping[str, Any]


class FrameTooLong(ValueError):
    """A frame of more than MAX_FRAME_BYTES: a mistake of the sender."""


def _no_constant(_name: str) -> None:
    raise ValueError("JSON has no such number")


def decode(raw: bytes) -> Frame | None:
    """The fields of a frame; None: it is garbage."""
    if len(raw) > MAX_FRAME_BYTES:
        return None
    try:
        frame = json.loads(raw.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
    if not isinstance(frame, dict):
        return None
    kind, session, number = frame.get("t"), frame.get("s", 0), frame.get("n", 0)
    if not isinstance(kind, str) or _KIND.fullmatch(kind) is None:
        return None
    return frame if _is_count(session) and _is_count(number) else None


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def encode(kind: str, fields: Frame, session: int = 0, number: int = 0) -> bytes:
    """Raises FrameTooLong. A frame outside of a session has no number."""
    head = {"t": kind, "s": session, "n": number} if session else {"t": kind}
    raw = _encode({**fields, **head}).encode()
    if len(raw) > MAX_FRAME_BYTES:
        raise FrameTooLong(f"a frame {kind!r} of {len(raw)} bytes")
    return raw


class SessionNumbers:
    """The numbers of one session at one end."""

    def __init__(self, session: int) -> None:
        self.session = session
        self._sent = self._heard = 0

    def stamped(self, kind: str, fields: Frame) -> bytes:
        """The next frame to send. Raises FrameTooLong, and then no number is used up."""
        raw = encode(kind, fields, self.session, self._sent + 1)
        self._sent += 1
        return raw

    def takes(self, frame: Frame) -> bool:
        """Whether a frame has the next number of its session."""
        if frame.get("n") != self._heard + 1:
            return False
        self._heard += 1
        return True
