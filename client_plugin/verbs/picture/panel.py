"""One table of the picture: which columns it has, the order of its rows, the rows in view.

Knows: columns and rows. Must not know: their meaning, the other panels.
"""

from __future__ import annotations

from client_plugin.verbs.picture.columns import worth
from client_plugin.verbs.picture.spans import chosen, cut, filled, fitted, width, wrapped
from client_plugin.verbs.presentation.tables import GAP, REST_LEAST, fitting, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Optional, Sequence

    from client_plugin.verbs.picture.columns import PictureColumn
    from client_plugin.verbs.picture.rows import PictureRow
    from client_plugin.verbs.picture.spans import PictureLine

TITLES = "bold underline"
RISING, FALLING = "▲", "▼"
REST_SHARE = 3
"""The last column may shrink to this part of the terminal, and in a wide one further."""
MOST_CELLS = 24
"""A column that is no rest is cut to it in the middle: names have any length."""


class Panel:
    """Its rows, the chosen one, the order."""

    def __init__(
        self, title: str, columns: Sequence[PictureColumn], empty: str, id_key: str = "id"
    ) -> None:
        """`empty`: the line in place of rows. `id_key`: the field that names a row."""
        self.title = title
        self.columns = columns
        self.empty = empty
        self.rows: List[PictureRow] = []
        self.sorted_by: Optional[str] = None
        self.is_reversed = False
        self._id_key = id_key
        self._given: Sequence[PictureRow] = []
        self._worth = columns
        self._at = 0
        self._chosen: object = None
        self._offset = 0
        self._widths: Dict[str, int] = {}
        self._widths_of: object = None

    # -- rows --

    def show(self, rows: Sequence[PictureRow]) -> None:
        """The rows are these now; the chosen one stays chosen, wherever it is."""
        self._given = rows
        self.rows = self._in_order(rows)
        if not (self._at < len(self.rows) and self.rows[self._at][self._id_key] == self._chosen):
            ids = [row[self._id_key] for row in self.rows]
            self._at = ids.index(self._chosen) if self._chosen in ids else self._at
        self.move(0)

    def learn(self, rows: Sequence[PictureRow]) -> None:
        """All rows are new, not only their figures: other columns may be worth their place."""
        self._worth = worth(self.columns, rows)

    def _in_order(self, rows: Sequence[PictureRow]) -> List[PictureRow]:
        column = next((one for one in self.columns if one.title == self.sorted_by), None)
        key = None if column is None else column.key
        if column is None or key is None:
            return list(rows)
        known = [row for row in rows if key(row) is not None]
        known.sort(key=key, reverse=column.falls is not self.is_reversed)
        return known + [row for row in rows if key(row) is None]

    def sort_by_next(self) -> None:
        """The next column that has an order, and behind the last one the order of the view."""
        titles: List[Optional[str]] = [
            None,
            *(column.title for column in self._worth if column.key),
        ]
        at = titles.index(self.sorted_by) if self.sorted_by in titles else 0
        self.sorted_by = titles[(at + 1) % len(titles)]
        self.is_reversed = False
        self.show(self._given)

    def reverse(self) -> None:
        if self.sorted_by is not None:
            self.is_reversed = not self.is_reversed
            self.show(self._given)

    def move(self, by: int) -> None:
        self._at = max(0, min(len(self.rows) - 1, self._at + by))
        self._chosen = self.rows[self._at][self._id_key] if self.rows else None

    @property
    def chosen(self) -> Optional[PictureRow]:
        return self.rows[self._at] if self.rows else None

    # -- lines --

    def wanted(self) -> int:
        """Lines, with the titles."""
        return 1 + max(1, len(self.rows))

    def lines(
        self, cells: int, height: int, now_s: float, has_cursor: bool = False
    ) -> List[PictureLine]:
        """At most `height` lines, the titles first; the chosen row is among them."""
        rows = self._in_view(height - 1)
        for row in rows:
            if "began_s" in row:
                began_s = row["began_s"]
                row["age"] = None if began_s is None else max(0, int(now_s - began_s))
        texts = {one.title: [_text(one, row) for row in rows] for one in self._worth}
        columns, widths = self._layout(self._worth, texts, cells)
        found = [self._titles(columns, widths, cells, self._range_in_view(height))]
        if not rows:
            return [*found, fitted([(self.empty, "dim")], cells)][:height]
        for at, row in enumerate(rows, self._offset):
            line = fitted(_line(columns, widths, row, texts, at - self._offset), cells)
            found.append(chosen(line) if has_cursor and at == self._at else line)
        return found[:height]

    def _in_view(self, room: int) -> List[PictureRow]:
        room = max(1, room)
        if self._at < self._offset:
            self._offset = self._at
        self._offset = max(self._offset, self._at - room + 1)
        self._offset = max(0, min(self._offset, len(self.rows) - room))
        return self.rows[self._offset : self._offset + room]

    def _range_in_view(self, height: int) -> str:
        """`3-9 of 40`; empty if all rows are in view."""
        room = max(1, height - 1)
        if len(self.rows) <= room:
            return ""
        return f"{self._offset + 1}-{self._offset + room} of {len(self.rows)}"

    def _layout(
        self, columns: Sequence[PictureColumn], texts: Dict[str, List[str]], cells: int
    ) -> tuple[List[PictureColumn], Dict[str, int]]:
        """The columns that fit, and their widths, which do not shrink while the picture stays."""
        of = (cells, self.sorted_by, self.is_reversed)
        if of != self._widths_of:
            self._widths, self._widths_of = {}, of
        needed = {}
        for column in columns:
            own = max([width(self._title(column)), *map(width, texts[column.title])])
            own = min(own, MOST_CELLS) if not column.rest else own
            needed[column.title] = self._widths[column.title] = max(
                own, self._widths.get(column.title, 0), column.least if column.bar else 0
            )
        least = dict(needed)
        for column in columns:
            if column.rest:
                most = min(column.least or REST_LEAST, cells // REST_SHARE)
                least[column.title] = min(needed[column.title], max(4, most))
        shown = fitting(columns, least, cells)
        free = cells - sum(least[one.title] + len(GAP) for one in shown) + len(GAP)
        return shown, _shared_out(shown, least, needed, free)

    def _title(self, column: PictureColumn) -> str:
        if column.title != self.sorted_by:
            return column.title
        return column.title + (FALLING if column.falls is not self.is_reversed else RISING)

    def _titles(
        self, columns: Sequence[PictureColumn], widths: Dict[str, int], cells: int, part: str
    ) -> PictureLine:
        """`part`: the rows in view, at the right end."""
        titles = [
            filled(self._title(column), widths[column.title], column.right) for column in columns
        ]
        part = f" {part}" if part and 2 * len(part) < cells else ""
        return [(filled(GAP.join(titles), cells - len(part)) + part, TITLES)]


def _shared_out(
    columns: Sequence[PictureColumn], least: Dict[str, int], needed: Dict[str, int], free: int
) -> Dict[str, int]:
    """The widths, when the free cells went to the rest as far as it needs them, then to bars."""
    widths = {column.title: least[column.title] for column in columns}
    for column in columns:
        if column.rest:
            more = max(0, min(free, needed[column.title] - least[column.title]))
            widths[column.title] += more
            free -= more
    for column in reversed(columns):  # the last bar is the one with the most to tell
        if column.bar is not None:
            more = max(0, min(free, column.most - widths[column.title]))
            widths[column.title] += more
            free -= more
    return widths


def _text(column: PictureColumn, row: PictureRow) -> str:
    if column.bar is not None:
        return ""
    value = column.cell(row)
    return printable("-" if value is None else str(value))


def _line(
    columns: Sequence[PictureColumn],
    widths: Dict[str, int],
    row: PictureRow,
    texts: Dict[str, List[str]],
    at: int,
) -> PictureLine:
    """`at`: the row's place in `texts`. A span has the gap behind its column, too."""
    line: PictureLine = []
    for column in columns:
        cells = widths[column.title]
        gap = GAP if column is not columns[-1] else ""
        if column.bar is not None:
            line += [*column.bar(row, cells), (gap, "")]
            continue
        text = filled(texts[column.title][at], cells, column.right, is_name=not column.rest)
        style: Callable[[PictureRow], str] = column.style or _no_style
        line.append((text + gap, style(row)))
    return line


def _no_style(_row: PictureRow) -> str:
    return ""


def details(columns: Sequence[PictureColumn], row: PictureRow, cells: int) -> List[str]:
    """All cells of a row, one below the other, also those that a narrow table lacks."""
    named = [column for column in columns if column.bar is None]
    left = max(width(column.title) for column in named) + len(GAP)
    found = []
    for column in named:
        parts = wrapped(_text(column, row), max(8, cells - left)) or ["-"]
        found.append(filled(column.title, left) + parts[0])
        found += [" " * left + part for part in parts[1:]]
    return [cut(line, cells) for line in found]
