"""Lines of styled text: their width in a terminal, cuts, and forms for poorer terminals.

A span is a text and its style: words of ATTRIBUTES and names of colours, as rich writes
them. Knows: widths of letters. Must not know: the picture.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, List, Tuple

    Span = Tuple[str, str]
    PictureLine = List[Span]

ATTRIBUTES = frozenset({"bold", "dim", "reverse", "underline"})
"""The words of a style that are no colours."""
JOINED_JAMO = frozenset(map(chr, range(0x1160, 0x1200)))
"""Hangul vowels and final consonants: a terminal draws them in the cells of the first consonant."""
MORE = "…"
TO_ASCII = str.maketrans("…█░·▲▼±─↑↓▏▎▍▌▋▊▉", "~#=.^v~-^v.....##")
"""Each letter of the picture that ASCII lacks, by one of the same width."""


def width(text: str) -> int:
    """Cells of a terminal."""
    if text.isascii() or text.translate(TO_ASCII).isascii():
        return len(text)
    from unicodedata import category, east_asian_width

    return sum(
        0
        if category(letter) in ("Mn", "Me") or letter in JOINED_JAMO
        else 2
        if east_asian_width(letter) in "WF"
        else 1
        for letter in text
    )


def cut(text: str, most: int) -> str:
    """At most so many cells; a text that is cut ends with an ellipsis."""
    if width(text) <= most:
        return text
    if most <= 0:
        return ""
    left = text[: most - 1]
    while width(left) > most - 1:
        left = left[:-1]
    return left + MORE


def cut_inside(text: str, most: int) -> str:
    """At most so many cells; the ellipsis stands in the middle, since names differ at both ends."""
    if width(text) <= most or most < 3:
        return cut(text, most)
    right = (most - 1) // 2
    tail = text[-right:]
    while width(tail) > right:
        tail = tail[1:]
    return cut(text, most - width(tail)) + tail


def filled(text: str, cells: int, right: bool = False, *, is_name: bool = False) -> str:
    """Exactly so many cells; `is_name`: cut in the middle."""
    has = width(text)
    if has > cells:
        text = (cut_inside if is_name else cut)(text, cells)
        has = width(text)
    gap = " " * (cells - has)
    return gap + text if right else text + gap


def fitted(line: Iterable[Span], cells: int) -> PictureLine:
    """Exactly so many cells."""
    left, found = cells, []
    for text, style in line:
        if left <= 0:
            break
        has = width(text)
        if has > left:
            text = cut(text, left)
            has = width(text)
        left -= has
        found.append((text, style))
    return [*found, (" " * left, "")] if left > 0 else found


def chosen(line: Iterable[Span]) -> PictureLine:
    """The line of the chosen row: one colour, since others may be unreadable on it."""
    return [(plain(line, is_whole=True), "reverse")]


def without_colours(line: Iterable[Span]) -> PictureLine:
    return [
        (text, " ".join(word for word in style.split() if word in ATTRIBUTES))
        for text, style in line
    ]


def in_ascii(line: Iterable[Span]) -> PictureLine:
    """For an output that has no other letters."""
    return [
        (text.translate(TO_ASCII).encode("ascii", "replace").decode(), style)
        for text, style in line
    ]


def plain(line: Iterable[Span], is_whole: bool = False) -> str:
    """`is_whole`: with the blanks at its end."""
    text = "".join(text for text, _ in line)
    return text if is_whole else text.rstrip()


def wrapped(text: str, cells: int) -> List[str]:
    """Lines of at most so many cells; a word that is longer is broken."""
    found, line = [], ""
    for word in text.split():
        while width(word) > cells:
            room = cells - width(line) - bool(line)
            if room < 1:
                found.append(line)
                line = ""
                continue
            part = cut(word, room + 1)[:-1] if width(word) > room else word
            line, word = f"{line} {part}".strip(), word[len(part) :]
        if line and width(line) + 1 + width(word) > cells:
            found.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return [*found, line] if line else found


def broken(text: str, cells: int) -> List[str]:
    """Rows of at most so many cells, as a terminal breaks a long line."""
    rows, start = [], 0
    while start + cells < len(text) or width(text[start:]) > cells > 1:
        row = text[start : start + max(1, cells)]
        while width(row) > cells > 1:
            row = row[:-1]
        rows.append(row)
        start += len(row)
    return [*rows, text[start:]]
