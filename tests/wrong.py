"""Wrong values for each field of a message, and messages that have one of them.

Tables of the fuzz of the link's messages, both ways (tests/head, tests/edge/member).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

WRONG: tuple[Any, ...] = (
    None, True, -1, 0, 2**70, 1.5, 1e308, "", "x", "\0", "\ud800", "../x", "ä" * 300, [], [1],
    [[]], [{}], [None] * 5_000, {}, {"a": []}, {"key": {}}, [["x"]], [["x", True]],
)  # fmt: skip


def spoiled(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The message with one field of each value, without each field, and so in what it contains."""
    for name, value in message.items():
        yield {key: row for key, row in message.items() if key != name}
        for wrong in WRONG:
            yield message | {name: wrong}
        if isinstance(value, dict):
            for inner in spoiled(value):
                yield message | {name: inner}
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for inner in spoiled(value[0]):
                yield message | {name: [inner]}
