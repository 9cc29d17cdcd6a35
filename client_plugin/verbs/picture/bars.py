"""Bars: the memory of a GPU by env, and its utilisation.

Knows: how shares of a whole become cells. Must not know: where the shares come from.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, NamedTuple, Optional, Sequence

    from client_plugin.verbs.picture.spans import PictureLine

    class MemoryPart(NamedTuple):
        used_bytes: int
        granted_bytes: int
        style: str

else:
    from collections import namedtuple

    MemoryPart = namedtuple("MemoryPart", "used_bytes granted_bytes style")
    """One env's part of a GPU: what it uses, and what it was granted."""

USED, GRANTED, FREE = "█", "░", "·"
EIGHTHS = " ▏▎▍▌▋▊▉"


def memory_bar(parts: Sequence[MemoryPart], total_bytes: int, cells: int) -> PictureLine:
    """Each part as its used cells and the rest of its grant; behind them the free memory."""
    spans: PictureLine = []
    at_bytes = done = 0
    for part in parts:
        steps = (
            (USED, part.used_bytes, part.style),
            (GRANTED, max(0, part.granted_bytes - part.used_bytes), part.style),
        )
        for letter, size_bytes, style in steps:
            at_bytes += size_bytes
            until = _cell(at_bytes, total_bytes, cells)
            if until > done:
                spans.append((letter * (until - done), style))
                done = until
    if done < cells:
        spans.append((FREE * (cells - done), "dim"))
    return spans


def _cell(at_bytes: int, total_bytes: int, cells: int) -> int:
    """The nearest boundary between two cells."""
    if total_bytes <= 0:
        return 0
    return min(cells, (2 * at_bytes * cells + total_bytes) // (2 * total_bytes))


def use_bar(percent: Optional[int], cells: int) -> PictureLine:
    if percent is None:
        return [(" " * cells, "")]
    eighths = min(100, max(0, percent)) * cells * 8 // 100
    text = USED * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else "")
    return [(text, "green"), (" " * (cells - len(text)), "")]


def unattributed(parts: List[MemoryPart], used_bytes: int, granted_bytes: int) -> List[MemoryPart]:
    """The parts, and one more for use and grants of which no env is known."""
    rest_used = max(0, used_bytes - sum(part.used_bytes for part in parts))
    rest_granted = max(0, granted_bytes - sum(part.granted_bytes for part in parts))
    if not rest_used and not rest_granted:
        return parts
    return [*parts, MemoryPart(rest_used, max(rest_used, rest_granted), "")]
