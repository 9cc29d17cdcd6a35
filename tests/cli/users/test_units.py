"""Sizes, durations and nodes as people write them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client_plugin import units
from client_plugin.units import (
    TASK_CLASSES,
    UnitError,
    format_duration,
    format_size,
    parse_duration_ms,
    parse_node,
    parse_percent,
    parse_size,
)
from nodemgr.core.model.entities import TaskClass
from tests.support.examples import examples


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("8GiB", 8 * 2**30),
        ("8Gi", 8 * 2**30),
        ("8GB", 8 * 10**9),
        ("8G", 8 * 10**9),
        ("1.5GiB", 3 * 2**29),
        ("512MiB", 2**29),
        ("2097152kB", 2_097_152_000),
        ("1TiB", 2**40),
        (" 8 GiB ", 8 * 2**30),
        ("1MiB", 2**20),
        ("0.1GB", 10**8),
    ],
)
def test_a_size_has_a_unit(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("8", "bare number"),
        ("8589934592", "bare number"),
        ("-8GiB", "has no sign"),
        ("+8GiB", "has no sign"),
        ("0GiB", "zero"),
        ("0.0000000001GiB", "is no size"),
        ("1kB", "less than 1MiB"),
        ("256TiB", "more memory than any node has"),
        ("999999999999999999TiB", "more memory than any node has"),
        ("1" * 30 + "GiB", "is no size"),
        ("8gib", "no unit"),
        ("8 GiB of", "is no size"),
        ("GiB", "is no size"),
        ("", "is no size"),
        ("1e3GiB", "is no size"),
        ("0x10GiB", "is no size"),
        ("٨GiB", "is no size"),
        ("8GiB\n9GiB", "is no size"),
        ("nan", "is no size"),
        ("1,5GiB", "is no size"),
    ],
)
def test_a_wrong_size_is_refused_with_the_right_form(text: str, complaint: str) -> None:
    with pytest.raises(UnitError) as refused:
        parse_size(text)
    assert complaint in str(refused.value)
    assert units.SIZE_FORM in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("500ms", 500), ("30s", 30_000), ("10min", 600_000), ("10m", 600_000), ("2h", 7_200_000),
        ("1d", 86_400_000),
        ("1.5s", 1_500), ("0", 0),
    ],
)  # fmt: skip
def test_a_duration_has_a_unit_unless_it_is_nothing(text: str, duration_ms: int) -> None:
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize("text", ["30", "-1s", "1y", "367d", "s", "", "1 2s", "inf"])
def test_a_wrong_duration_is_refused_with_the_right_form(text: str) -> None:
    with pytest.raises(UnitError, match="30s"):
        parse_duration_ms(text)


@pytest.mark.parametrize(
    ("text", "percent"), [("1%", 1), ("40%", 40), ("100%", 100), (" 7 % ", 7), ("007%", 7)]
)
def test_a_share_is_whole_percent(text: str, percent: int) -> None:
    assert parse_percent(text) == percent


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("40", "bare number"),
        ("0", "bare number"),
        ("0%", "a share of zero"),
        ("101%", "more than a whole GPU"),
        ("9" * 9 + "%", "more than a whole GPU"),
        ("9" * 30 + "%", "is no share"),
        ("-5%", "is no share"),
        ("+5%", "is no share"),
        ("33.3%", "is no share"),
        ("0.4", "is no share"),
        ("\u0664\u0660%", "is no share"),
        ("%", "is no share"),
        ("", "is no share"),
        ("nan%", "is no share"),
    ],
)
def test_a_wrong_share_is_refused_with_the_right_form(text: str, complaint: str) -> None:
    with pytest.raises(UnitError, match=complaint) as wrong:
        parse_percent(text)
    assert "1% to 100%, e.g. 40%" in str(wrong.value)


def test_the_classes_are_those_of_the_core() -> None:
    assert list(TASK_CLASSES) == [*TaskClass]


def test_a_node_is_a_count_and_a_size() -> None:
    assert parse_node("4x80GiB") == (4, 80 * 2**30)
    assert parse_node("16x1GiB") == (16, 2**30)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4",
        "x80GiB",
        "4x",
        "0x80GiB",
        "17x80GiB",
        "4x80",
        "4X80GiB",
        "-1x80GiB",
        "4.5x80GiB",
        "4x80GiBx2",
    ],
)
def test_a_wrong_node_is_refused(text: str) -> None:
    with pytest.raises(UnitError):
        parse_node(text)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (80 * 2**30, "80 GiB"),
        (3 * 2**29, "1.5 GiB"), (2**40, "1 TiB"),
        (2**30 - 1, "1024 MiB"),
    ],
)  # fmt: skip
def test_sizes_for_people(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        (0, "0 ms"), (340, "340 ms"), (1_000, "1 s"), (4_250, "4.2 s"), (59_999, "59 s"),
        (60_000, "1 min"), (185_000, "3 min 5 s"),
        (3_600_000, "1 h"), (5_400_000, "1 h 30 min"), (90_000_000, "1 d 1 h"),
    ],
)  # fmt: skip
def test_durations_for_people(duration_ms: int, text: str) -> None:
    assert format_duration(duration_ms) == text


@settings(deadline=None, max_examples=examples(100))
@given(st.integers(units.MIN_SIZE_BYTES, units.MAX_SIZE_BYTES))
def test_a_size_that_is_shown_can_be_given_back(size_bytes: int) -> None:
    """Rounded to a tenth of its unit."""
    back = parse_size(format_size(size_bytes))
    assert abs(back - size_bytes) <= size_bytes * 0.051


@settings(deadline=None, max_examples=examples(100))
@given(st.text(max_size=12), st.sampled_from([parse_size, parse_duration_ms, parse_node]))
def test_no_text_makes_anything_but_a_number_or_a_refusal(
    text: str, parse: Callable[[str], object]
) -> None:
    with contextlib.suppress(UnitError):
        parse(text)
