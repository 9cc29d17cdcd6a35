"""The output of a program on a terminal: its colours stay, all else that steers is written out.

Knows: control characters, and how UTF-8 and SGR sequences may be cut between two pieces. Must not
know: where the output comes from.
"""

from __future__ import annotations

import codecs
import re

SGR = r"\x1b\[[0-9;:]{0,64}m"
CUT_SGR = re.compile(r"\x1b(\[[0-9;:]{0,64})?\Z")
RESET = "\x1b[0m"
STEERS = re.compile(
    f"({SGR})|"
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\udc80-\udcff]"
)
"""TAB, LF and CR stay. Bytes that are no UTF-8 are surrogates here."""


class TerminalText:
    """Pieces of output as text that a terminal may have; `end` is what is left, and the reset."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._held = ""
        """The beginning of a sequence whose end has not come."""
        self._is_styled = False

    def add(self, data: bytes, is_last: bool = False) -> str:
        text = self._held + self._decoder.decode(data, is_last)
        cut = None if is_last else CUT_SGR.search(text)
        self._held = cut[0] if cut else ""
        return STEERS.sub(self._written, text[: cut.start()] if cut else text)

    def end(self) -> str:
        rest = self.add(b"", is_last=True)
        return rest + (RESET if self._is_styled else "")

    def _written(self, found: re.Match[str]) -> str:
        if found[1]:
            self._is_styled = True
            return found[1]
        return written(found[0])


def written(mark: str) -> str:
    """`\\x1b`, `\\u202e`: a character that steers, as text."""
    code = ord(mark)
    return f"\\x{code & 0xFF:02x}" if code < 0x100 or code >= 0xDC80 else f"\\u{code:04x}"


def one_line(text: str) -> str:
    """A line of output among ours: no colours, and of a line that was written over the last."""
    last = text.rstrip("\r").rpartition("\r")[2]
    return re.sub(
        r"[^\t -~]", lambda found: found[0] if found[0].isprintable() else written(found[0]), last
    )
