"""The state diagrams of docs/inside/states.md, made from the tables that the code uses.

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
PAGE = ROOT / "docs" / "inside" / "states.md"
TRANSITIONS = ROOT / "csrc" / "client" / "transitions.def"
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
        "client": of_session(),
    }


class SessionRow(NamedTuple):
    """A row of csrc/client/transitions.def."""

    event: str
    before: tuple[str, ...]
    after: str
    why: str


def session_rows() -> list[SessionRow]:
    text = re.sub(r"/\*.*?\*/", "", TRANSITIONS.read_text(), flags=re.DOTALL)
    rows = re.findall(r'^NM_TRANSITION\((\w+), ([^,]*), (\w+),\s*"(.*)"\)$', text, re.MULTILINE)
    return [
        SessionRow(event, tuple(re.findall(r"S\((\w+)\)", before)), after, why)
        for event, before, after, why in rows
    ]


def of_session() -> list[Arrow]:
    return [Arrow(OUTSIDE, "", "none", "")] + [
        Arrow(before.lower(), row.event.lower().replace("_", " "), row.after.lower(), row.why)
        for row in session_rows()
        for before in row.before
    ]


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
    """A row for each event in a state, or from each state that the event leads to the same one."""
    targets: dict[tuple[str, str, str], list[str]] = {}
    for arrow in arrows:
        if arrow.event:
            targets.setdefault((arrow.before, arrow.event, arrow.why), []).append(arrow.after)
    sources: dict[tuple[str, str, str], list[str]] = {}
    for (before, event, why), after in targets.items():
        to = ", ".join(map(_shown, after))
        sources.setdefault((event, to, why), []).append(_shown(before))
    for (event, to, why), before in sources.items():
        yield f"| {', '.join(before)} | {event} | {to} | {why} |"


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
