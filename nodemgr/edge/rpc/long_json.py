"""JSON that is read in turns of the loop: a megabyte of it takes some ten milliseconds.

Knows: JSON. Must not know: what a text is for.

Arrays and objects of at most PIECE characters are read by the library, longer ones entry by entry.
"""

from __future__ import annotations

import json
import re
from typing import Any

from nodemgr.edge.rpc.turns import Work

PIECE = 2**14
"""Characters that the library reads at once; a single string may be longer."""
TURN_CHARACTERS = 2**16
ENTRY_CHARACTERS = 64
"""An entry takes as long as so many characters, beside its own."""
MAX_DEPTH = 16
"""Of arrays and objects longer than a piece."""

_decoder = json.JSONDecoder()
_blank = re.compile(r"[ \t\n\r]*")
_Read = Work[tuple[Any, int]]
"""A value, and where it ends."""


def read(body: bytes | str) -> Work[Any]:
    """The value that json.loads returns. Raises ValueError, RecursionError."""
    text = body if isinstance(body, str) else body.decode(json.detect_encoding(body))
    value, end = yield from _Entries(text).value(_skip(text, 0), 0)
    if _skip(text, end) != len(text):
        raise ValueError("more than one value")
    return value


def _skip(text: str, at: int) -> int:
    found = _blank.match(text, at)
    assert found is not None
    return found.end()


class _Entries:
    def __init__(self, text: str) -> None:
        self._text = text
        self._left = TURN_CHARACTERS

    def value(self, at: int, depth: int) -> _Read:
        text = self._text
        is_list = text[at : at + 1] == "["
        if not is_list and text[at : at + 1] != "{":
            value, end = _decoder.raw_decode(text, at)
        else:
            try:
                value, end = _decoder.raw_decode(text[at : at + PIECE])
                end += at
            except ValueError:
                if len(text) - at <= PIECE:
                    raise
                self._left -= PIECE
                return (yield from self._entries(at, depth + 1, is_list=is_list))
        self._left -= end - at + ENTRY_CHARACTERS
        if self._left <= 0:
            self._left = TURN_CHARACTERS
            yield
        return value, end

    def _entries(self, at: int, depth: int, *, is_list: bool) -> _Read:
        """A long array or object. It is not empty: that would be a short one."""
        if depth > MAX_DEPTH:
            raise RecursionError
        text, values, entries = self._text, [], {}
        while True:
            at = _skip(text, at + 1)
            key = None
            if not is_list:
                key, at = _decoder.raw_decode(text, at)
                at = _skip(text, at)
                if not isinstance(key, str) or text[at : at + 1] != ":":
                    raise ValueError("an object has a name before each value")
                at = _skip(text, at + 1)
            value, at = yield from self.value(at, depth)
            if is_list:
                values.append(value)
            else:
                entries[key] = value
            at = _skip(text, at)
            if text[at : at + 1] == ("]" if is_list else "}"):
                return (values if is_list else entries), at + 1
            if text[at : at + 1] != ",":
                raise ValueError("an entry has a comma or the end behind it")
