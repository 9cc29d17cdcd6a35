"""Each threat that docs/security.md names has a program here that tries it, or a reason."""

from __future__ import annotations

import re

import pytest

from tests.support.manager import ROOT

HEAD = "| an attacker | is stopped by | what remains | tried by |"


def threats() -> list[list[str]]:
    lines = (ROOT / "docs" / "security.md").read_text().splitlines()
    first = lines.index(HEAD) + 2
    rows = []
    for line in lines[first:]:
        if not line.startswith("|"):
            return rows
        rows.append([cell.strip() for cell in line[1:-1].split("|")])
    raise AssertionError("the table has no end")


@pytest.mark.parametrize("row", threats(), ids=lambda row: row[0][:40])
def test_a_row_names_the_program_that_tries_it_or_why_none_does(row: list[str]) -> None:
    assert len(row) == 4, row
    if row[3].startswith("not tried: "):
        return
    named = re.findall(r"`(tests/[\w/.]+)`", row[3])
    assert named, row
    for path in named:
        assert "def test_" in (ROOT / path).read_text(), path
