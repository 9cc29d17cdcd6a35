"""A test of many values fails for each of them, and where there is none."""

from __future__ import annotations

import pytest

from tests.each import each


def test_each_value_that_does_not_hold_is_named() -> None:
    @each(["a", "b", "c", "d"], str.upper)
    def checked(letter: str) -> None:
        """The check."""
        assert letter in "ac", f"{letter} is wrong"

    with pytest.raises(AssertionError) as raised:
        checked()
    assert str(raised.value).splitlines()[0] == "2 of 4:"
    assert "B: b is wrong" in str(raised.value)
    assert "D: d is wrong" in str(raised.value)
    assert (checked.__name__, checked.__doc__) == ("checked", "The check.")


def test_a_check_of_nothing_fails() -> None:
    @each([])
    def checked(_value: str) -> None: ...

    with pytest.raises(AssertionError, match="nothing to check"):
        checked()


def test_a_check_that_cannot_be_made_fails() -> None:
    @each([1])
    def checked(value: int) -> None:
        raise KeyError(value)

    with pytest.raises(KeyError):
        checked()
