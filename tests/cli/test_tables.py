"""Tables for people."""

from __future__ import annotations

import pytest

from nodemgr.cli import tables
from nodemgr.cli.tables import Column

COLUMNS = (
    Column("N", lambda row: row["n"], right=True),
    Column("NAME", lambda row: row["name"]),
    Column("COMMAND", lambda row: row["command"], rest=True),
)


def test_columns_are_aligned_and_nothing_trails() -> None:
    lines = tables.render(COLUMNS, [{"n": 7, "name": "a", "command": "x y"}, {"n": 100, "name": "long name", "command": None}])
    assert lines == [
        "  N  NAME       COMMAND",
        "  7  a          x y",
        "100  long name  -",
    ]  # fmt: skip


def test_text_from_outside_steers_no_terminal() -> None:
    (_, line) = tables.render(COLUMNS, [{"n": 1, "name": "\x1b[31mred\n", "command": "a\rb\u202e"}])
    assert line == "1  ?[31mred?  a?b?"


def test_colour_is_for_terminals_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert not tables.colours_wanted(), "the output of a test is no terminal"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert tables.colours_wanted()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not tables.colours_wanted()


def test_on_a_terminal_the_last_column_ends_at_its_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "20")
    row = {"n": 1, "name": "a", "command": "c" * 100}
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert all(len(line) <= 20 for line in tables.render(COLUMNS, [row]))
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    assert tables.render(COLUMNS, [row])[1].endswith("c" * 100), "a file gets it whole"
