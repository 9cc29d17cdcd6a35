"""Names that a mistyped name may stand for.

Knows: how alike two names are. Must not know: the meaning of the names.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable

MAX_NAME = 64
"""Characters of a name that are compared: what comes from outside may be long."""
LIKENESS = 0.7


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: `; did you mean 'alice'?`.

    Empty if no known name is near.
    """
    from difflib import (
        get_close_matches,
    )  # imported for a mistake alone: the import takes milliseconds

    by_lower = {one.lower(): one for one in known}
    near = get_close_matches(name[:MAX_NAME].lower(), by_lower, 1, LIKENESS)
    return f"; did you mean {by_lower[near[0]]!r}?" if near else ""
