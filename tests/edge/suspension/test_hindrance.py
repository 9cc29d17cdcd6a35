"""Why no process of a node can be suspended: an old driver, or MPS."""

from __future__ import annotations

import pytest

from nodemgr.edge.suspension.hindrance import hindrance


@pytest.mark.parametrize("version", [12_080, 13_000, None])
def test_a_driver_that_may_have_the_calls_is_asked(version: int | None) -> None:
    assert hindrance(version, has_mps=False) is None


@pytest.mark.parametrize(
    ("version", "has_mps", "words"),
    [
        (12_070, False, "version 570 or newer"),
        (12_070, True, "version 570 or newer"),
        (13_000, True, "the control daemon of MPS runs"),
        (None, True, "the control daemon of MPS runs"),
    ],
)
def test_the_reason_is_named(version: int | None, has_mps: bool, words: str) -> None:
    found = hindrance(version, has_mps=has_mps)
    assert found is not None
    assert words in found
