"""A second decoder of the wire, written from its contract and csrc/wire/wire.def alone.

Results of both are compared.

Knows: the table's text, and what the contract says of packets. Must not know: csrc/wire/wire.c.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from tests.client_c.compiled import CSRC

PACKET_BYTES, LIST_MOST, UNKNOWN_MOST = 1200, 16, 32

Fields = dict[str, bytes]
"""Values without their escapes."""

NUMBER = re.compile(rb"[0-9]+")
NAME = re.compile(rb"[A-Za-z0-9._-]{1,64}")
HEX = re.compile(rb"[0-9a-f]{1,64}")
TEXT = re.compile(rb"([^\x00-\x1f\x7f%]|%[0-9a-f]{2})*")
KEY = re.compile(rb"[a-z_]{1,16}")


class Refused(Exception):
    """str() is how the C codec says it."""


@cache
def table() -> tuple[dict[str, tuple[str, frozenset[str]]], dict[str, dict[str, str]]]:
    """Verbs with their direction and required keys; keys with their type by direction."""
    text, wishes = ((CSRC / "wire" / name).read_text() for name in ("wire.def", "wishes.def"))
    text = text.replace(
        '#include "wire/wishes.def"',
        re.sub(r"(?m)^NM_WISH\((\w+),.*", r"NM_KEY(\1, NUMBER, NUMBER)", wishes),
    )
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    verbs = re.findall(r"^NM_VERB\((\w+), (\w+), ((?:K\(\w+\) ?)*)\)", text, flags=re.MULTILINE)
    keys = re.findall(r"^NM_KEY\((\w+), (\w+), (\w+)\)", text, flags=re.MULTILINE)
    return (
        {
            name: (direction, frozenset(re.findall(r"K\((\w+)\)", required)))
            for name, direction, required in verbs
        },
        {name: {"UP": up, "DOWN": down} for name, up, down in keys},
    )


def _number(value: bytes) -> bool:
    return NUMBER.fullmatch(value) is not None and int(value) < 1 << 64


def _matches(pattern: re.Pattern[bytes]) -> Callable[[bytes], bool]:
    return lambda value: pattern.fullmatch(value) is not None


def _list_of(entry: Callable[[bytes], bool]) -> Callable[[bytes], bool]:
    return lambda value: len(entries := value.split(b",")) <= LIST_MOST and all(map(entry, entries))


VALID: dict[str, Callable[[bytes], bool]] = {
    "NUMBER": _number, "NAME": _matches(NAME), "HEX": _matches(HEX), "TEXT": _matches(TEXT),
    "NUMBERS": _list_of(_number), "NAMES": _list_of(_matches(NAME)),
}  # fmt: skip


def unescaped(value: bytes) -> bytes:
    return re.sub(rb"%(..)", lambda match: bytes([int(match[1], 16)]), value, flags=re.DOTALL)


def _refuse_if(wrong: bool, how: str) -> None:
    if wrong:
        raise Refused(how)


def decode(packet: bytes, direction: str) -> tuple[str, Fields]:
    """(verb, fields). Raises Refused."""
    verbs, keys = table()
    _refuse_if(len(packet) > PACKET_BYTES, "longer than a packet may be")
    _refuse_if(not packet.startswith(b"NODEMGR/1 "), "does not begin with NODEMGR/1")
    head, end, rest = packet[len(b"NODEMGR/1 ") :].partition(b"\n")
    _refuse_if(not end, "a line that is not KEY=value and a line end")
    verb = head.decode("latin-1")
    _refuse_if(verb not in verbs, "unknown verb")
    _refuse_if(verbs[verb][0] != direction, "a verb of the other direction")
    found: Fields = {}
    unknown: set[bytes] = set()
    while rest:
        line, end, rest = rest.partition(b"\n")
        name, equal, value = line.partition(b"=")
        _refuse_if(
            not (end and equal and KEY.fullmatch(name)),
            "a line that is not KEY=value and a line end",
        )
        key = name.decode()
        _refuse_if(key in found or name in unknown, "a key appears twice")
        if key in keys:
            _refuse_if(not VALID[keys[key][direction]](value), "a value is not of its key's type")
            found[key] = unescaped(value) if keys[key][direction] == "TEXT" else value
        else:
            _refuse_if(len(unknown) == UNKNOWN_MOST, "too many unknown keys")
            _refuse_if(not VALID["TEXT"](value), "a value is not of its key's type")
            unknown.add(name)
    _refuse_if(not verbs[verb][1] <= found.keys(), "a required key is missing")
    return verb, found
