"""docs/inside/theory.md drives the core as it is."""

from __future__ import annotations

import doctest

from tests.conftest import ROOT


def test_the_core_answers_as_the_page_says() -> None:
    page = str(ROOT / "docs" / "inside" / "theory.md")
    failed, tried = doctest.testfile(page, module_relative=False)
    assert failed == 0
    assert tried > 10
