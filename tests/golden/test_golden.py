"""The things that users, their scripts and older stores rely on stay as they are.

A difference here is a change that they notice. Where it is wanted: name it in the commit (after the
first release in CHANGELOG.md), then write the record anew by `python -m tests.golden.recorder >
tests/golden/recorded.json`. The stores in the other files were written by versions before the store
had a number: earlier_store.json lacks the tables of the web page's tokens, of the GPUs' use and of
samples, store.json the last two. numbered_store.json is of version 1, flat_store.json of version 8.
A version with a further migration adds its predecessor's store.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.golden import recorder

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
MEASURED = re.compile(r',"(asked|granted|ended|started|entered|resumes)_ns":(null|-?[0-9]+)')
"""The fields that migration 2 adds to a row."""
JOB_ROW = re.compile(r"""(INSERT INTO "(?:history|current" VALUES\('job').*?')(\{.*\})('\);)""")
KEPT = re.compile(
    r"""CREATE |INSERT INTO "(payloads|history|records|web_tokens)"|"""
    r"""INSERT INTO "current" VALUES\('(env'|job'|queue'|spec'|counter','(?!service'))|PRAGMA """
)
"""Lines of a store that a start and a stop of the manager leave as they are."""
ADDED = ("PRAGMA user_version", "CREATE TABLE web_tokens", "CREATE TABLE gpu_minutes",
         "CREATE INDEX gpu_minutes_by_minute", "CREATE TABLE samples",
         "CREATE INDEX samples_of_env", "CREATE TABLE programs",
         """INSERT INTO "current" VALUES('counter','service'""")  # fmt: skip
"""Beginnings of the lines that a start may add to a store of an earlier version."""
LAYOUT = """
#include "ledger/ledger.h"
#include <stdio.h>
#define AT(type, member) printf("%s.%s %zu\\n", #type, #member, offsetof(struct type, member))
int main(void)
{
    printf("version %u, sizes %zu %zu %zu\\n", NM_LEDGER_VERSION, sizeof(struct nm_limits),
           sizeof(struct nm_limit_row), sizeof(struct nm_usage));
    AT(nm_limits, magic); AT(nm_limits, version); AT(nm_limits, rows); AT(nm_limits, slots);
    AT(nm_limits, slots_used); AT(nm_limits, caps_used); AT(nm_limits, row);
    AT(nm_limits, slot_state); AT(nm_limits, slot_cap); AT(nm_limits, cap);
    AT(nm_limits, slot_hold);
    AT(nm_cap, kept_bytes); AT(nm_cap, most_bytes); AT(nm_cap, rows);
    AT(nm_cap, correction_bytes);
    AT(nm_limit_row, uuid); AT(nm_limit_row, limit_bytes); AT(nm_limit_row, total_bytes);
    AT(nm_limit_row, correction_bytes);
    AT(nm_usage, word); AT(nm_usage, slots_used); AT(nm_usage, beat);
    AT(nm_usage, peak);
    return 0;
}
"""
OFFSETS = """\
version 4, sizes 180288 128 270400
nm_limits.magic 0
nm_limits.version 8
nm_limits.rows 12
nm_limits.slots 16
nm_limits.slots_used 20
nm_limits.caps_used 24
nm_limits.row 64
nm_limits.slot_state 2112
nm_limits.slot_cap 10304
nm_limits.cap 12352
nm_limits.slot_hold 176192
nm_cap.kept_bytes 0
nm_cap.most_bytes 8
nm_cap.rows 16
nm_cap.correction_bytes 32
nm_limit_row.uuid 0
nm_limit_row.limit_bytes 48
nm_limit_row.total_bytes 56
nm_limit_row.correction_bytes 64
nm_usage.word 0
nm_usage.slots_used 131072
nm_usage.beat 131136
nm_usage.peak 139328
"""


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return recorder.record(sys.executable)


@pytest.mark.parametrize("part", ["verbs", "exit codes", "json", "events"])
def test_the_surface_is_as_recorded(recorded: dict[str, Any], part: str) -> None:
    assert recorded[part] == json.loads((HERE / "recorded.json").read_text())[part]


@pytest.fixture(
    scope="module",
    params=[
        f"{name}.json"
        for name in ("earlier_store", "store", "unnumbered_store", "numbered_store", "flat_store")
    ],
)
def old_store(
    request: pytest.FixtureRequest,
) -> Iterator[tuple[dict[str, Any], recorder.Node]]:
    """The store of an earlier version, and this version's manager on a copy of it."""
    store = json.loads((HERE / request.param).read_text())
    with recorder.manager_on(sys.executable, store["sql"]) as asked:
        yield store, asked


def test_an_earlier_store_is_read_as_its_own_version_read_it(
    old_store: tuple[dict[str, Any], recorder.Node],
) -> None:
    store, asked = old_store
    answers = recorder.answers(asked)
    assert _known(answers, store["answers"]) == store["answers"]


def _known(value: Any, recorded: Any) -> Any:
    """The value without the keys that a later version has added."""
    if isinstance(value, dict) and isinstance(recorded, dict):
        return {key: _known(value[key], recorded[key]) for key in recorded if key in value}
    if isinstance(value, list) and isinstance(recorded, list) and len(value) == len(recorded):
        return [_known(one, other) for one, other in zip(value, recorded, strict=True)]
    return value


def test_an_earlier_store_is_left_as_it_is(
    old_store: tuple[dict[str, Any], recorder.Node],
) -> None:
    store, asked = old_store
    asked.close_manager()
    before = list(map(_flat, filter(KEPT.match, store["sql"])))
    lines = list(map(_flat, recorder.dump(asked.state / "state.db")))
    after = list(filter(KEPT.match, lines))
    kept = [line for line in before if not line.startswith("PRAGMA user_version")]
    assert [line for line in after if line in kept] == kept
    added = [line for line in after if line not in before]
    assert all(line.startswith(ADDED) for line in added)


def _flat(line: str) -> str:
    """The line without what migration 2 adds, and a job's fields in one order for migration 9."""
    line = MEASURED.sub("", line)
    found = JOB_ROW.fullmatch(line)
    if found is None:
        return line
    begin, text, end = found.groups()
    row = json.loads(text.replace("''", "'"))
    job = row.get("job", row)
    job |= job.pop("run", {})
    return f"{begin}{json.dumps(row, sort_keys=True)}{end}"


def test_the_ledgers_layout_is_as_recorded(tmp_path: Path) -> None:
    """A task of an earlier version goes on with the manager of this one, on the same memory."""
    source = tmp_path / "layout.c"
    source.write_text(LAYOUT)
    program = tmp_path / "layout"
    subprocess.run(["cc", f"-I{ROOT / 'csrc'}", "-o", program, source], check=True)
    assert subprocess.check_output([program], text=True) == OFFSETS
