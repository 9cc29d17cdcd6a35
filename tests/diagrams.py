"""The state diagrams of docs/ARCHITECTURE.md, made from the tables that the code uses.

    python -m tests.diagrams

writes them into the page again, each between its two marks. tests/test_diagrams.py compares.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from nodemgr.core.model.transitions import JOB_TRANSITIONS, TASK_TRANSITIONS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "ARCHITECTURE.md"
OUTSIDE = "[*]"
"""Mermaid's name for the time before the first state and after the last."""


class Arrow(NamedTuple):
    before: str
    event: str
    after: str
    why: str


def of_table(table: Mapping[Any, Any], final: frozenset[str] = frozenset()) -> list[Arrow]:
    """A table of model/transitions.py. `final`: states that an entity reaches as it leaves."""
    arrows = [
        Arrow(_name(before), event.value, _name(after), row.why)
        for (before, event), row in table.items()
        for after in row.states
    ]
    reached = dict.fromkeys(arrow.after for arrow in arrows)
    return arrows + [Arrow(state, "", OUTSIDE, "") for state in reached if state in final]


def _name(state: Any) -> str:
    return OUTSIDE if state is None else state.name.lower()


def machines() -> dict[str, list[Arrow]]:
    """Each diagram of the page by the name in its marks."""
    return {
        "jobs": of_table(JOB_TRANSITIONS, frozenset(("done", "failed", "withdrawn"))),
        "tasks": of_table(TASK_TRANSITIONS),
    }


def diagram(arrows: list[Arrow]) -> str:
    """A Mermaid diagram, and below it a table with the reason for each arrow."""
    events: dict[tuple[str, str], list[str]] = {}
    for arrow in arrows:
        events.setdefault((arrow.before, arrow.after), []).append(arrow.event)
    lines = ["```mermaid", "stateDiagram-v2"]
    for (before, after), names in events.items():
        label = ", ".join(name for name in names if name)
        lines.append(f"    {before} --> {after}" + (f": {label}" if label else ""))
    lines += ["```", "", "| from | event | to | reason |", "|---|---|---|---|"]
    return "\n".join((*lines, *_rows(arrows)))


def _rows(arrows: list[Arrow]) -> Iterator[str]:
    targets: dict[tuple[str, str, str], list[str]] = {}
    for arrow in arrows:
        if arrow.event:
            targets.setdefault((arrow.before, arrow.event, arrow.why), []).append(arrow.after)
    for (before, event, why), after in targets.items():
        yield f"| {_shown(before)} | {event} | {', '.join(map(_shown, after))} | {why} |"


def _shown(state: str) -> str:
    return "none" if state == OUTSIDE else state


def page(text: str) -> str:
    """The page's text with each diagram as its table is now. Raises ValueError without marks."""
    for name, arrows in machines().items():
        begin, end = f"<!-- states of {name}: begin -->", f"<!-- states of {name}: end -->"
        made, count = re.subn(
            f"{re.escape(begin)}.*?{re.escape(end)}",
            lambda _: f"{begin}\n{diagram(arrows)}\n{end}",  # noqa: B023 (called at once)
            text,
            flags=re.DOTALL,
        )
        if count != 1:
            raise ValueError(f"{PAGE.name} has {count} places for the states of {name}")
        text = made
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
