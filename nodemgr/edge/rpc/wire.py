"""A packet's bytes to its verb and typed fields, and back; MACs for UDP.

Knows: the C codec (csrc/wire/wire.c); its one table is csrc/wire/wire.def. Must not know: sockets,
the meaning of a verb, the core.

Decoding is one call into C, which checks everything, and one slice per field. In Python a NUMBER is
an int, a list a tuple, all else a str (TEXT that is not UTF-8 gets replacement characters: it is
for people).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from operator import methodcaller
from typing import Any
from urllib.parse import unquote_to_bytes

from nodemgr._native import ffi, lib

Value = int | str | tuple[int, ...] | tuple[str, ...]
Fields = Mapping[str, Any]
"""The fields of a packet, by the keys of csrc/wire/wire.def, each with a Value of its type."""

PACKET_BYTES = 1200
KEY_BYTES = 32


class WireError(ValueError):
    """A packet that does not keep to the table, or fields that do not fit it. str() is one line."""


class Direction(IntEnum):
    UP = lib.NM_UP
    """client to manager"""
    DOWN = lib.NM_DOWN


def _listed(name_of: Callable[[int], object], first: int) -> list[str]:
    names: list[str] = []
    while (name := name_of(first + len(names))) != ffi.NULL:
        names.append(ffi.string(name).decode())
    return names


def _decode_numbers(raw: bytes) -> tuple[int, ...]:
    return tuple(map(int, raw.split(b",")))


def _decode_names(raw: bytes) -> tuple[str, ...]:
    return tuple(raw.decode().split(","))


_DECODERS: dict[int, Callable[[bytes], Value]] = {
    lib.NM_NUMBER: int,
    lib.NM_TEXT: methodcaller("decode", "utf-8", "replace"),
    lib.NM_NAME: bytes.decode,
    lib.NM_HEX: bytes.decode,
    lib.NM_NUMBERS: _decode_numbers,
    lib.NM_NAMES: _decode_names,
}

_KEYS = _listed(lib.nm_wire_key_name, 0)
_KEY_INDEX = {name: index for index, name in enumerate(_KEYS)}
_VERBS = ["", *_listed(lib.nm_wire_verb_name, 1)]
_VERB_INDEX = {name: index for index, name in enumerate(_VERBS) if name}
_DIRECTION = {
    name: Direction(lib.nm_wire_verb_direction(index)) for name, index in _VERB_INDEX.items()
}
_REQUIRED = {
    name: frozenset(
        key for bit, key in enumerate(_KEYS) if lib.nm_wire_verb_required(index) >> bit & 1
    )
    for name, index in _VERB_INDEX.items()
}
_FIELDS = {
    direction: [
        (name, _DECODERS[lib.nm_wire_key_type(key, direction)]) for key, name in enumerate(_KEYS)
    ]
    for direction in Direction
}

VERBS: Mapping[str, Direction] = _DIRECTION
REQUIRED: Mapping[str, frozenset[str]] = _REQUIRED

_TEXTS = frozenset(
    name
    for key, name in enumerate(_KEYS)
    if lib.nm_wire_key_type(key, Direction.DOWN) == lib.NM_TEXT
)
_spans, _found = (ffi.new("uint16_t[]", 1 + 4 * len(_KEYS)) for _ in Direction)
"""The fields that C finds in a packet that is decoded, and in one that was just encoded."""


def _check(result: int) -> int:
    if result < 0:
        raise WireError(ffi.string(lib.nm_wire_error_text(result)).decode())
    return result


def decode(packet: bytes, direction: Direction = Direction.UP) -> tuple[str, Fields]:
    """The verb and the fields of `packet` (without its MAC line), read as going in `direction`.

    Raises WireError.

    Not to be called from several threads at once.
    """
    spans = ffi.unpack(_spans, _check(lib.nm_wire_spans(packet, len(packet), direction, _spans)))
    table = _FIELDS[direction]
    fields = {}
    rest = iter(spans)
    verb = _VERBS[next(rest)]
    for key, offset, length, escaped in zip(rest, rest, rest, rest, strict=True):
        name, decoder = table[key]
        raw = packet[offset : offset + length]
        fields[name] = decoder(unquote_to_bytes(raw) if escaped else raw)
    if verb == "GRANT":
        fields.setdefault("visible", fields["gpus"])
    return verb, fields


_ESCAPES = {code: f"%{code:02x}" for code in (*range(0x20), 0x7F, ord("%"))}


def encode(verb: str, **fields: Value | None) -> bytes:
    """The packet for `verb` with `fields` (None: left out).

    Raises WireError where they do not fit the table or a packet.

    GRANT's `visible` is left out where it says the same as `gpus` (sixteen UUIDs twice do not fit);
    decode puts it back.
    """
    if verb == "GRANT" and fields.get("visible") == fields.get("gpus"):
        fields["visible"] = None
    lines = [
        f"{key}={value if type(value) is int else _text_of(key, value)}\n"
        for key, value in fields.items()
        if value is not None
    ]
    packet = f"NODEMGR/1 {verb}\n{''.join(lines)}".encode("utf-8", "replace")
    size, found = (
        len(packet),
        lib.nm_wire_spans(packet, len(packet), _DIRECTION.get(verb, Direction.DOWN), _found),
    )
    if found != 1 + 4 * len(lines) or packet.count(b"\n") != 1 + len(lines):
        raise WireError(
            _mistake(verb, {key: value for key, value in fields.items() if value is not None}, size)
        )
    return packet


def _mistake(verb: str, given: Mapping[str, Value], size: int) -> str:
    """Why this is no packet, in one line."""
    direction = _DIRECTION.get(verb)
    if direction is None:
        return f"unknown verb {verb!r}"
    if missing := _REQUIRED[verb] - given.keys():
        return f"{verb} without {', '.join(sorted(missing))}"
    if size > PACKET_BYTES:
        return f"{verb} of {size} bytes: more than a packet's {PACKET_BYTES}"
    wrong = (_wrong_value(key, value, direction) for key, value in given.items())
    return next(filter(None, wrong), f"{verb} with these fields is no packet")


def _text_of(key: str, value: Value) -> str:
    """The value as it stands in a packet, if it is of its key's type."""
    if isinstance(value, str):
        return value.translate(_ESCAPES) if key in _TEXTS else value
    return ",".join(map(str, value)) if type(value) is tuple else str(value)


def _wrong_value(key: str, value: Value, direction: Direction) -> str | None:
    index = _KEY_INDEX.get(key)
    if index is None:
        return f"unknown key {key!r}"
    text = _text_of(key, value)
    raw = text.encode("utf-8", "replace")
    right = lib.nm_wire_check_value(index, direction, raw, len(raw)) == lib.NM_WIRE_OK
    return None if right else f"{key}={text!r} is not of the key's type"


def cut_text(value: str, most_bytes: int) -> str:
    """The longest beginning of `value` that takes at most `most_bytes` of a packet as a TEXT."""
    size = 0
    for at, character in enumerate(value):
        size += len(character.translate(_ESCAPES).encode("utf-8", "replace"))
        if size > most_bytes:
            return value[:at]
    return value


def sign(packet: bytes, key: bytes) -> bytes:
    """`packet` with its MAC line. Raises WireError where it does not fit any more."""
    room = bytearray(packet) + bytearray(PACKET_BYTES)
    size = _check(lib.nm_wire_sign(ffi.from_buffer(room), len(packet), len(room), _key(key)))
    return bytes(room[:size])


def verify(packet: bytes, key: bytes) -> bytes:
    """`packet` without its MAC line. Raises WireError where that is missing or wrong."""
    return packet[: _check(lib.nm_wire_verify(packet, len(packet), _key(key)))]


def _key(key: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise WireError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
    return key
