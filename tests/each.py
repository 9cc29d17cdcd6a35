"""One test of many files or rows: it reports each that does not hold, not the first alone.

A test for each of thousands of files costs more in pytest than in its work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def each(
    values: Iterable[T], name: Callable[[T], object] = str
) -> Callable[[Callable[[T], None]], Callable[[], None]]:
    """Makes a test of a check of one value. It fails where the check fails for any value.

    `name`: what the failure calls a value. Without values the test fails too.
    """
    known = list(values)

    def decorate(check: Callable[[T], None]) -> Callable[[], None]:
        def test_of_all() -> None:
            faults = []
            for value in known:
                try:
                    check(value)
                except AssertionError as fault:
                    faults.append(f"{name(value)}: {fault}")
            assert not faults, f"{len(faults)} of {len(known)}:\n" + "\n".join(faults)
            assert known, "there is nothing to check"

        test_of_all.__name__ = test_of_all.__qualname__ = check.__name__
        test_of_all.__doc__, test_of_all.__module__ = check.__doc__, check.__module__
        return test_of_all

    return decorate
