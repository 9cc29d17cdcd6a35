"""Tables for people: one list of columns a table, aligned.

Colours are used only on a terminal without NO_COLOR.

Knows: how text is laid out. Must not know: where rows come from.
"""

from __future__ import annotations

import os
import re
import sys
import time

from client_plugin import units
from client_plugin.messages.form import sentence_of
from client_plugin.ways import terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Mapping, Optional, Sequence, TypeVar

    TableRow = Mapping[str, Any]
    SomeColumn = TypeVar("SomeColumn", bound="Column")
else:
    TableRow = dict

GAP = "  "
REST_LEAST = 24
"""The least width of the last column (command, reason) before other columns get room."""

ACTING = (
    "[\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff0-\uffff"
    "\U000e0000-\U000e0fff]"
)
"""Control and format characters beyond those that JSON escapes itself."""
COLOURS = {
    "healthy": "green", "running": "green", "ok": "green", "done": "green", "drained": "yellow",
    "waiting": "yellow", "stalled": "yellow", "away": "yellow", "held": "yellow",
    "suspending": "yellow", "suspended": "yellow", "resuming": "yellow",
    "paused": "yellow", "withdrawn": "yellow",
    "lost": "red", "unhealthy": "red", "failed": "red", "FAIL": "red",
}  # fmt: skip
"""Words of state that stand out."""


class Column:
    """A column of a table: its title, and the function that makes a row's cell."""

    __slots__ = ("below", "cell", "optional", "rest", "right", "spare", "title")

    def __init__(
        self,
        title: str,
        cell: Callable[[TableRow], object],
        right: bool = False,
        rest: bool = False,
        spare: int = 0,
        optional: bool = False,
        below: bool = False,
    ) -> None:
        """`right`: numbers stand at the right.

        `rest`: the last column may be long, and is cut at the terminal's edge. `spare`, not 0: left
        out where the terminal is too narrow for the table, the highest first. `optional`: left out
        where no row has a value for it. `below`, of the last column: where the terminal is too
        narrow for it, its text stands below the row, once for rows in a row that share it.
        """
        self.title = title
        self.cell = cell
        self.right = right
        self.rest = rest
        self.spare = spare
        self.optional = optional
        self.below = below

    def texts(self, rows: Sequence[TableRow]) -> List[str]:
        """Its cells; a value of None shows as `-`."""
        values = [self.cell(row) for row in rows]
        return [printable("-" if value is None else str(value)) for value in values]


class SizeColumn(Column):
    """A column of bytes (or texts in their place), in one unit with one number of digits."""

    def __init__(
        self,
        title: str,
        cell: Callable[[TableRow], object],
        spare: int = 0,
        optional: bool = False,
    ) -> None:
        super().__init__(title, cell, right=True, spare=spare, optional=optional)

    def texts(self, rows: Sequence[TableRow]) -> List[str]:
        values = [self.cell(row) for row in rows]
        sizes = iter(units.format_sizes([value for value in values if isinstance(value, int)]))
        return [
            next(sizes) if isinstance(value, int) else "-" if value is None else str(value)
            for value in values
        ]


ANSI = {"green": 32, "yellow": 33, "red": 31}


def styled(text: str, colour: Optional[str] = None) -> str:
    """Coloured, or without a colour bold."""
    return f"\x1b[{ANSI[colour] if colour else 1}m{text}\x1b[0m"


def colours_wanted() -> bool:
    return (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


def printable(text: str) -> str:
    """Text from outside (a command line, say) on one line, without terminal control characters."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _line(
    cells: Sequence[str],
    columns: Sequence[Column],
    widths: Sequence[int],
    width_limit: Optional[int],
) -> str:
    parts = [
        cell.rjust(width) if column.right else cell.ljust(width)
        for cell, column, width in zip(cells, columns, widths)
    ]
    line = GAP.join(parts).rstrip()
    if width_limit is not None and len(line) > width_limit and columns[-1].rest:
        line = line[: width_limit - 1] + "…"
    return line


def fitting(
    columns: Sequence[SomeColumn], needed: Mapping[str, int], width_limit: int
) -> List[SomeColumn]:
    """The columns that fit, by the width that each needs: the highest `spare` goes first."""
    shown = list(columns)
    for column in sorted(
        (column for column in columns if column.spare), key=lambda column: -column.spare
    ):
        if sum(needed[one.title] + len(GAP) for one in shown) - len(GAP) <= width_limit:
            break
        shown.remove(column)
    return shown


def render(columns: Sequence[Column], rows: Sequence[TableRow]) -> List[str]:
    """The lines of a table with its titles; a value of None shows as `-`."""
    columns = [
        column
        for column in columns
        if not column.optional or any(column.cell(row) is not None for row in rows)
    ]
    texts = {column.title: column.texts(rows) for column in columns}
    width_of = {title: max(len(text) for text in (title, *cells)) for title, cells in texts.items()}
    below = None
    limit = terminal.columns() if sys.stdout.isatty() else None
    if limit is not None:
        if columns[-1].below and sum(width_of.values()) + len(GAP) * (len(columns) - 1) > limit:
            *columns, below = columns
        # of a column that may be cut, a part stays that is still readable
        needed = {
            column.title: min(width_of[column.title], REST_LEAST if column.rest else sys.maxsize)
            for column in columns
        }
        columns = fitting(columns, needed, limit)
    widths = [width_of[column.title] for column in columns]
    indent = " " * (widths[0] + len(GAP))
    widths[-1] = 0 if not columns[-1].right else widths[-1]
    cells = zip(*(texts[column.title] for column in columns))
    titles = [column.title for column in columns]
    lines = [_line(line, columns, widths, limit) for line in (titles, *cells)]
    if below is not None and limit is not None:
        lines = _with_texts_below(lines, texts[below.title], limit, indent)
    if not colours_wanted():
        return lines
    return [styled(lines[0]), *(_coloured(line) for line in lines[1:])]


def _with_texts_below(
    lines: Sequence[str], texts: Sequence[str], width_limit: int, indent: str
) -> List[str]:
    """The lines of a table, and below each group of rows the text that they share."""
    import textwrap

    found = [lines[0]]
    for number, (line, text) in enumerate(zip(lines[1:], texts)):
        found.append(line)
        if texts[number + 1 : number + 2] != [text]:
            found += textwrap.wrap(
                text, width_limit, initial_indent=indent, subsequent_indent=indent
            )
    return found


def _coloured(line: str) -> str:
    return " ".join(
        styled(word, COLOURS[word]) if word in COLOURS else word for word in line.split(" ")
    )


def show(
    columns: Sequence[Column],
    rows: Sequence[TableRow],
    *,
    heading: Optional[str] = None,
    empty: Optional[str] = None,
) -> None:
    """Prints a table, or where it has no rows the line `empty`."""
    if heading is not None:
        print(styled(heading) if colours_wanted() else heading)
    if rows:
        for line in render(columns, rows):
            print(line)
    elif empty is not None:
        print(empty)


def size(size_bytes: Optional[int]) -> Optional[str]:
    return None if size_bytes is None else units.format_size(size_bytes)


def seconds(value: Optional[float]) -> Optional[str]:
    return None if value is None else units.format_span(int(value))


def wall_time(wall_ns: Optional[int]) -> Optional[str]:
    """Local time with its zone, to the second."""
    return None if wall_ns is None else local_time("%Y-%m-%d %H:%M:%S", wall_ns // 1_000_000_000)


def clock_time(wall_s: int, now_s: Optional[float] = None) -> str:
    """Local time of a near moment, to the minute; of another day than now with its date."""
    is_today = time.localtime(wall_s)[:3] == time.localtime(now_s)[:3]
    return local_time("%H:%M" if is_today else "%m-%d %H:%M", wall_s)


def local_time(form: str, wall_s: Optional[float] = None) -> str:
    """A local time, of now where none is named, with its zone: each time that is shown has one."""
    return time.strftime(f"{form} %Z", time.localtime(wall_s))


def why(row: TableRow) -> str:
    """The reason why a request waits.

    Times have the form of the other columns. A GPU that an elastic task is asked to leave for the
    request stands behind the reason. An older manager names no clauses.
    """
    found = row.get("clauses")
    reason = sentence_of(found, _clock) if found else row["reason"] or ""
    return "; ".join([reason, *map(_received, row.get("receives") or ())])


def _received(coming: TableRow) -> str:
    return (
        f"GPU {coming['gpu_index']} comes from {coming['task']} of {coming['env']}"
        f" within {coming['within_seconds']} s"
    )


def _clock(wall_s: int, to_seconds: bool) -> str:
    return local_time("%H:%M:%S" if to_seconds else "%H:%M", wall_s)


def gpu_list(indices: Sequence[object] | None) -> str:
    return ",".join(str(index) for index in indices) if indices else "-"


def print_json(value: object) -> None:
    """One object, readable; streams print one line an object instead."""
    print(json_text(value, indent=2))


def json_text(value: object, **form: Any) -> str:
    """JSON in which a character that could act on a terminal is an escape, also one of C1 or bidi.

    A reader of JSON gets the same value.
    """
    import json

    def escaped(found: Any) -> str:
        letter = found[0]
        code = ord(letter)
        return f"\\u{code:04x}" if code < 1 << 16 else json.dumps(letter)[1:-1]

    return re.sub(ACTING, escaped, json.dumps(value, ensure_ascii=False, **form))
