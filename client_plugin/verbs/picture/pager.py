"""A text over the whole picture: help, all fields of a row, the log of a job.

Knows: lines and a place in them. Must not know: where they come from.
"""

from __future__ import annotations

from client_plugin.verbs.picture.spans import broken, fitted
from client_plugin.verbs.presentation.terminal_text import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Sequence

    from client_plugin.verbs.picture.spans import PictureLine

MOST_LINES = 2_000
"""Of a log that grows: the last ones."""
LONGEST_LINE = 4_096
"""The letters of a line: the rest of a longer one is the next line."""
TAB = "    "


class Pager:
    """It stays at its end while lines are added there, unless the reader has moved away."""

    def __init__(self, title: str, lines: Sequence[str] = (), at_end: bool = False) -> None:
        """`at_end`: of a text that grows, its end is shown."""
        self.title = title
        self._lines: List[str] = list(lines)
        self._unended = ""
        """The beginning of a line whose end has not come."""
        self._offset = 0
        self._follows = self._at_end = at_end
        self._room = 1
        self._count = len(self._lines)
        """The rows of the last picture, into which the lines were broken."""

    def add(self, data: bytes) -> None:
        """Output of a program."""
        text = self._unended + data.decode("utf-8", "replace")
        *whole, self._unended = text.replace("\r\n", "\n").split("\n")
        while len(self._unended) > LONGEST_LINE:
            whole.append(self._unended[:LONGEST_LINE])
            self._unended = self._unended[LONGEST_LINE:]
        self._lines += map(_shown, whole)
        del self._lines[:-MOST_LINES]

    def move(self, by: int) -> None:
        most = max(0, self._count - self._room)
        self._offset = max(0, min(most, (most if self._at_end else self._offset) + by))
        self._at_end = self._follows and by > 0 and self._offset == most

    def lines(self, cells: int, height: int) -> List[PictureLine]:
        self._room = max(1, height - 1)
        texts = [row for line in self._all() for row in broken(line, cells)]
        self._count = len(texts)
        most = max(0, len(texts) - self._room)
        self._offset = most if self._at_end else min(self._offset, most)
        shown = texts[self._offset : self._offset + self._room]
        head = fitted([(self.title, "bold")], cells)
        return [head, *(fitted([(text, "")], cells) for text in shown)][:height]

    def _all(self) -> List[str]:
        return [*self._lines, _shown(self._unended)] if self._unended else self._lines


def _shown(line: str) -> str:
    """As a terminal would leave it, and apart from our own lines."""
    return "  " + one_line(line.replace("\t", TAB))
