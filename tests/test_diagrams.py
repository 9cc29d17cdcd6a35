"""The state diagrams of the documents say what the tables of the code say."""

from __future__ import annotations

import pytest

from tests import diagrams
from tests.diagrams import Arrow


def test_the_page_shows_the_tables() -> None:
    """`python -m tests.diagrams` writes them again."""
    text = diagrams.PAGE.read_text()
    assert diagrams.page(text) == text


def test_a_row_more_changes_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    machines = diagrams.machines()
    for name, arrows in machines.items():
        more = {**machines, name: [*arrows, Arrow("a", "b", "c", "d")]}
        monkeypatch.setattr(diagrams, "machines", lambda more=more: more)
        text = diagrams.PAGE.read_text()
        made = diagrams.page(text)
        assert "    a --> c: b\n" in made
        assert "| a | b | c | d |\n" in made
        assert made != text


def test_a_page_without_a_place_for_a_diagram_is_an_error() -> None:
    with pytest.raises(ValueError, match="0 places"):
        diagrams.page("# Architecture\n")


def test_each_row_has_a_reason_of_one_sentence() -> None:
    for arrows in diagrams.machines().values():
        for arrow in arrows:
            assert not arrow.event or (arrow.why.endswith(".") and len(arrow.why) <= 100), arrow
