"""JSON that is read in turns: what json.loads gives, in pieces."""

from __future__ import annotations

import json

import pytest

from nodemgr.edge.rpc import long_json
from nodemgr.edge.rpc.turns import Work

LONG = [
    {"jobs": [{"argv": ["true", str(of)], "work": [[1.5, None, True]] * 9} for of in range(900)]},
    {str(number): {"a": [number]} for number in range(9_000)},
    [["x"] * 9_000, {"deep": {"deep": list(range(9_000))}}, "\u00e9\udc80" * 20_000],
]  # fmt: skip


def turns(work: Work[object]) -> tuple[object, int]:
    """The result, and how many turns it took."""
    count = 1
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value, count
        count += 1


@pytest.mark.parametrize("value", [*LONG, "short", 1, [], {}, [[]]])
@pytest.mark.parametrize("indent", [None, 1])
def test_the_result_is_the_librarys(value: object, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    assert turns(long_json.read(text))[0] == value
    assert turns(long_json.read(f" {text}\n".encode()))[0] == value


@pytest.mark.parametrize("value", LONG[:2])
def test_a_turn_reads_a_bounded_part(value: object) -> None:
    text = json.dumps(value)
    assert turns(long_json.read(text))[1] > len(text) // long_json.TURN_CHARACTERS


LONG_LIST = json.dumps(list(range(20_000)))


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[1,", "nonsense", "[1] 2", LONG_LIST[:-1], LONG_LIST + "]", LONG_LIST[:-1] + ",]",
        LONG_LIST.replace(", 9999", " 9999"), '{"a": ' + LONG_LIST, '{1: ' + LONG_LIST + "}",
        '{"a" ' + LONG_LIST + "}", "[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_json_is_refused(text: str) -> None:
    for reader in (json.loads, lambda given: turns(long_json.read(given))):
        with pytest.raises((ValueError, RecursionError)):
            reader(text)
