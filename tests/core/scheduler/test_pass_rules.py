"""The rules at the head of scheduler/passes.py: each has its letter at its branch."""

from __future__ import annotations

import re
from pathlib import Path

from nodemgr.core.scheduler import passes


def test_each_rule_of_the_table_stands_at_its_branch() -> None:
    text = passes.__doc__ or ""
    rules = re.findall(r"^    ([A-Z])  ", text, re.MULTILINE)
    assert rules == [chr(ord("A") + place) for place in range(len(rules))]
    code = Path(passes.__file__).read_text().partition(text)[2]
    comments = re.findall(r"# ((?:[A-Z](?:, |; |: |$))+)", code, re.MULTILINE)
    assert sorted(re.findall("[A-Z]", "".join(comments))) == sorted([*rules, "L"])
