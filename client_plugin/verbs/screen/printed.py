"""Prints a picture once, by rich."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence

    from client_plugin.verbs.picture.spans import PictureLine


def show(lines: Sequence[PictureLine], width: int) -> None:
    """On stdout; rich knows the terminal's colours, and what NO_COLOR and TERM ask for."""
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    for line in lines:
        text = Text(no_wrap=True, end="")
        for span, style in line:
            text.append(span, style or None)
        text.rstrip()
        console.print(text, soft_wrap=True)
