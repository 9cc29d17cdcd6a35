"""Frames: literal bytes both ways, garbage, numbers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodemgr.edge.links.frames import MAX_FRAME_BYTES, FrameTooLong, SessionNumbers, decode, encode
from tests.each import each
from tests.support.examples import examples


def test_a_frame_is_one_json_object() -> None:
    raw = encode("report", {"gpus": 8}, 7, 1)
    assert raw == b'{"gpus":8,"t":"report","s":7,"n":1}'
    assert decode(raw) == {"gpus": 8, "t": "report", "s": 7, "n": 1}
    assert encode("hello", {}) == b'{"t":"hello"}'
    assert encode("beat", {"t": "other", "s": 9}, 7, 2) == b'{"t":"beat","s":7,"n":2}'


GARBAGE = {
    "empty": b"",
    "no JSON": b"NODEMGR/1",
    "no object": b"[1]",
    "no kind": b'{"s":1,"n":1}',
    "a kind that is no word": b'{"t":"Beat!"}',
    "a kind that is a number": b'{"t":1}',
    "a session below zero": b'{"t":"beat","s":-1,"n":1}',
    "a number that is true": b'{"t":"beat","s":1,"n":true}',
    "a number that is a text": b'{"t":"beat","s":1,"n":"1"}',
    "a number without end": b'{"t":"beat","s":1,"n":' + b"9" * 5_000 + b"}",
    "no number": b'{"t":"beat","x":NaN}',
    "an endless depth": b'{"t":"beat","x":' + b"[" * 100_000,
    "no UTF-8": b'{"t":"beat","x":"\xff"}',
    "too long": b'{"t":"beat","x":"' + b"a" * MAX_FRAME_BYTES + b'"}',
}


@each(GARBAGE)
def test_garbage_is_no_frame(what: str) -> None:
    assert decode(GARBAGE[what]) is None


@settings(max_examples=examples(200))
@given(st.binary(max_size=200))
def test_no_bytes_raise(raw: bytes) -> None:
    frame = decode(raw)
    assert frame is None or isinstance(frame["t"], str)


def test_numbers_show_each_gap_and_each_repetition() -> None:
    ours, theirs = SessionNumbers(5), SessionNumbers(5)
    frames = [json.loads(ours.stamped("report", {})) for _ in range(4)]
    assert [frame["n"] for frame in frames] == [1, 2, 3, 4]
    assert theirs.takes(frames[0])
    assert theirs.takes(frames[1])
    assert not theirs.takes(frames[1])
    assert not theirs.takes(frames[3])
    assert theirs.takes(frames[2])


def test_a_frame_that_is_too_long_uses_no_number() -> None:
    numbers = SessionNumbers(5)
    with pytest.raises(FrameTooLong):
        numbers.stamped("report", {"text": "a" * MAX_FRAME_BYTES})
    assert json.loads(numbers.stamped("report", {}))["n"] == 1
