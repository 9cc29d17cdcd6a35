"""Which row of a table of messages made a line."""

from __future__ import annotations

import re
from string import Formatter

from client_plugin.messages.form import Message


def is_of(row: Message, line: str) -> bool:
    """Whether the line is the row's template with some values in its fields."""
    parts = Formatter().parse(row.template)
    return (
        re.fullmatch(
            "".join(re.escape(text) + (".*" if name else "") for text, name, *_ in parts), line
        )
        is not None
    )
