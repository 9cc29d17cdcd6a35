"""A viewer that merges the changes has the view, whatever happened."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from nodemgr.edge.page.changes import ROW_KEYS, changes
from tests.support.examples import examples


def merged(view: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """As the page does it (static/page.js, merge)."""
    after = {**copy.deepcopy(view), **change.get("set", {}), "now": change["now"]}
    for name in {*change.get("rows", {}), *change.get("gone", {}), *change.get("order", {})}:
        rows = {key_of(name, row): row for row in after[name]}
        for key in change.get("gone", {}).get(name, ()):
            del rows[key]
        for key, fields in change.get("rows", {}).get(name, {}).items():
            rows[key] = {**rows.get(key, {}), **fields}
        after[name] = [rows[key] for key in change.get("order", {}).get(name, rows)]
    return after


def key_of(name: str, row: dict[str, Any]) -> str:
    return str(next(row[field] for field in ROW_KEYS[name] if row.get(field) is not None))


ROW = st.fixed_dictionaries({"env": st.sampled_from("ab"), "state": st.integers(0, 2)})
TASKS = st.dictionaries(st.sampled_from(["t1", "t2", "t3"]), ROW).map(
    lambda rows: [{"id": key, **row} for key, row in rows.items()]
)
QUEUE = st.lists(st.sampled_from(["r1", "r2", "r3"]), unique=True).map(
    lambda names: [{"request": name if name != "r3" else None, "id": f"j{name}"} for name in names]
)
VIEW = st.fixed_dictionaries(
    {"now": st.integers(), "queue_length": st.integers(0, 2), "tasks": TASKS, "queue": QUEUE}
)


@settings(max_examples=examples(100))
@given(VIEW, VIEW)
def test_a_viewer_that_merges_has_the_view(before: dict[str, Any], after: dict[str, Any]) -> None:
    change = changes(before, after)
    if change is None:
        assert {**before, "now": 0} == {**after, "now": 0}
    else:
        assert merged(before, change) == after


def test_time_alone_is_no_change() -> None:
    before = {"now": 1.0, "tasks": [{"id": "t1", "duration_seconds": 4, "state": "running"}]}
    after = {"now": 2.0, "tasks": [{"id": "t1", "duration_seconds": 5, "state": "running"}]}
    assert changes(before, after) is None


def test_a_change_holds_only_the_fields_that_changed() -> None:
    before = {"now": 1, "tasks": [{"id": "t1", "state": "running", "command": "x" * 1_000}]}
    after = {"now": 2, "tasks": [{"id": "t1", "state": "stalled", "command": "x" * 1_000}]}
    assert changes(before, after) == {"now": 2, "rows": {"tasks": {"t1": {"state": "stalled"}}}}
