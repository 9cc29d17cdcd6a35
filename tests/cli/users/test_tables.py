"""Tables for people."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from client_plugin import waiting
from client_plugin.messages.form import joined_reasons, reason_fields, reason_of
from client_plugin.verbs.presentation import cells, tables
from client_plugin.verbs.presentation.tables import Column
from client_plugin.ways import terminal
from nodemgr.core.views import job_rows

COLUMNS = (
    Column("N", lambda row: row["n"], right=True),
    Column("NAME", lambda row: row["name"]),
    Column("COMMAND", lambda row: row["command"], rest=True),
)


def test_columns_are_aligned_and_nothing_trails() -> None:
    lines = tables.render(
        COLUMNS,
        [{"n": 7, "name": "a", "command": "x y"}, {"n": 100, "name": "long name", "command": None}],
    )
    assert lines == [
        "  N  NAME       COMMAND",
        "  7  a          x y",
        "100  long name  -",
    ]  # fmt: skip


SHARED = {"class": "best-effort", "compute_percent": 40}


def test_a_column_without_any_value_is_left_out_where_it_is_optional() -> None:
    columns = (*COLUMNS[:2], Column("SHARE", cells.share, right=True, optional=True))
    plain, shared = {"n": 1, "name": "a"}, {"n": 2, "name": "b", **SHARED}
    assert tables.render(columns, [plain]) == ["N  NAME", "1  a"]
    assert tables.render(columns, [plain, shared]) == [
        "N  NAME  SHARE",
        "1  a         -",
        "2  b      40 %",
    ]


@pytest.mark.parametrize(
    ("row", "task_class", "share"),
    [
        ({}, None, None),
        ({"class": "normal", "compute_percent": None}, None, None),
        (SHARED, "best-effort", "40 %"),
        ({**SHARED, "compute_granted_percent": 40}, "best-effort", "40 %"),
        ({**SHARED, "compute_granted_percent": 60}, "best-effort", "60 %"),
        ({**SHARED, "compute_granted_percent": 0}, "best-effort", "0 of 40 %"),
    ],
)
def test_a_class_and_a_share_stand_where_a_task_has_one(
    row: dict[str, object], task_class: str | None, share: str | None
) -> None:
    assert (cells.task_class(row), cells.share(row)) == (task_class, share)


def test_a_predicted_run_time_is_a_span_where_the_models_differ() -> None:
    def row(*seconds: int | None) -> dict[str, object]:
        return {"predicted": [{"run_seconds": one} for one in seconds]}

    assert cells.predicted({}) is None
    assert cells.predicted(row()) is cells.predicted(row(None)) is None
    assert cells.predicted(row(60, None, 60)) == tables.seconds(60)
    assert cells.predicted(row(90, 60, None)) == (f"{tables.seconds(60)} to {tables.seconds(90)}")


def test_the_forecast_of_a_job_has_a_span_for_each_figure() -> None:
    rows = [
        {"memory_bytes": 9 << 30, "utilization_percent": 40, "run_seconds": 60},
        {"memory_bytes": 8 << 30, "utilization_percent": 40, "run_seconds": None},
    ]
    expected = f"{tables.size(8 << 30)} to {tables.size(9 << 30)}, 40 %, {tables.seconds(60)}"
    assert cells.predicted({"predicted": rows}) == expected


def test_the_jobs_of_an_array_are_one_row_with_the_greatest_peak() -> None:
    row = {"state": "running", "reason": "", "utilization_percent": 40}
    (together,) = cells.folded(
        [
            {**row, "id": f"j1.{index}", "peak_bytes": peak_bytes}
            for index, peak_bytes in enumerate((None, 3 << 30, 2 << 30))
        ]
    )
    assert together["id"] == "j1 (3 jobs)"
    assert cells.peak(together) == tables.size(3 << 30)
    assert cells.peak({**row, "peak_bytes": None}) is None
    assert together["utilization_percent"] is None


def test_a_reason_names_the_array_in_place_of_its_job() -> None:
    row = {"state": "held", "position": None, "peak_bytes": None, "utilization_percent": None}
    rows = [
        {**row, "id": one, **reason_fields(job_rows.held(one, "held by ann: j1.0 is bad"))}
        for one in ("j1.0", "j1.1")
    ]
    (together,) = cells.folded(rows)
    assert tables.why(together) == "held by ann: j1.0 is bad (nodemgr queue unhold j1)"
    assert cells.standing(rows[1]) == "held by ann: j1.0 is bad (nodemgr queue unhold j1.1)"


def test_the_forecast_of_a_task_has_what_was_predicted() -> None:
    assert cells.predicted({}) is cells.predicted({"predicted": None}) is None
    row = {"memory_bytes": 5 << 30, "utilization_percent": 40, "run_seconds": 60}
    expected = f"{tables.size(5 << 30)}, 40 %, {tables.seconds(60)}"
    assert cells.predicted({"predicted": row}) == expected
    assert cells.predicted({"predicted": {**row, "utilization_percent": None}}) == (
        f"{tables.size(5 << 30)}, {tables.seconds(60)}"
    )


def test_progress_is_percent_where_the_whole_is_known() -> None:
    assert cells.progress({}) is None
    assert cells.progress({"progress": None}) is None
    assert cells.progress({"progress": {"done": 7, "total": None}}) == "7"
    assert cells.progress({"progress": {"done": 2, "total": 3}}) == "66 %"


def test_text_from_outside_steers_no_terminal() -> None:
    _, line = tables.render(COLUMNS, [{"n": 1, "name": "\x1b[31mred\n", "command": "a\rb\u202e"}])
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


WIDE = (
    Column("N", lambda row: row["n"], right=True),
    Column("UUID", lambda row: "GPU-0123456789", spare=2),
    Column("SIZE", lambda row: "80 GiB", spare=1),
    Column("COMMAND", lambda row: row["command"], rest=True),
)


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (51, "N UUID SIZE COMMAND"),
        (50, "N SIZE COMMAND"),
        (35, "N SIZE COMMAND"),
        (34, "N COMMAND"),
        (10, "N COMMAND"),
    ],
)
def test_a_narrow_terminal_leaves_out_what_can_be_spared(
    monkeypatch: pytest.MonkeyPatch, width: int, titles: str
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    row = {"n": 1, "command": "c" * 100}
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    lines = tables.render(WIDE, [row])
    assert lines[0].split() == titles.split()
    assert all(len(line) <= width for line in lines)
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    assert "GPU-0123456789  80 GiB  " + "c" * 100 in tables.render(WIDE, [row])[1], (
        "a file gets them all"
    )


@pytest.mark.parametrize(
    ("zone", "shown"),
    [
        ("UTC0", ("22:50 UTC", "23:38:12 UTC")),
        ("Somewhere-05:30", ("04:20 Somewhere", "05:08:12 Somewhere")),
        ("Elsewhere08", ("14:50 Elsewhere", "15:38:12 Elsewhere")),
    ],
)
def test_times_in_the_managers_words_are_those_of_the_reader(
    monkeypatch: pytest.MonkeyPatch, zone: str, shown: tuple[str, str]
) -> None:
    form = "next known end {end_minute}: {task}"
    end = reason_of(form, end_minute=82_200, task="bob/eval {text}")
    paused = reason_of("paused until {a_second}", a_second=85_092)
    reason = joined_reasons([reason_of("needs 1 GPU"), end, paused])
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        told = tables.why({"clauses": json.loads(json.dumps(reason.clauses)), "reason": reason})
    finally:
        monkeypatch.undo()
        time.tzset()
    assert reason == (
        "needs 1 GPU; next known end 22:50 UTC: bob/eval {text}; paused until 23:38:12 UTC"
    )
    end, until = shown
    assert told == f"needs 1 GPU; next known end {end}: bob/eval {{text}}; paused until {until}"
    older = {"reason": "needs 1 GPU; next known end 22:50 UTC"}
    assert tables.why(older) == older["reason"], "an older manager names no clauses"


@pytest.mark.parametrize(
    ("said", "width"),
    [
        ("120", 120),
        ("", 80),
        ("0", 80),
        ("-5", 80),
        ("\u0663", 80),
        ("1e3", 80),
        ("9" * 5_000, 80),
        (None, 80),
    ],
)
def test_the_width_of_what_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, said: str | None, width: int
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if said is not None:
        monkeypatch.setenv("COLUMNS", said)
    monkeypatch.setattr("sys.__stdout__", None)
    assert terminal.columns() == width


def test_an_elastic_task_shows_its_range() -> None:
    row = {"gpu_indices": [0, 1, 2], "gpus_min": 1, "gpus_max": 4}
    assert cells.gpus(row).endswith(" (3 of 1-4)")
    assert cells.gpus({**row, "borrowed": 1}).endswith(" (3 of 1-4, 1 borrowed)")
    assert "of" not in cells.gpus({**row, "gpus_max": None})


def test_a_task_with_a_range_of_memory_shows_its_present_limit() -> None:
    row = {"memory_min_bytes": 2**30, "memory_max_bytes": 8 * 2**30, "memory_limit_bytes": None}
    assert cells.memory_range(row) == "1-8 GiB"
    limits = [4 * 2**30 + 2**29, 6 * 2**30]
    assert cells.memory_range({**row, "memory_limit_bytes": limits}) == "4.5 of 1-8 GiB"
    assert cells.memory_range({**row, "memory_limit_bytes": [16 * 2**30]}) == "8 of 1-8 GiB"
    assert cells.memory_range({**row, "memory_max_bytes": None}) is None


def test_a_request_for_a_range_shows_it() -> None:
    row = {"gpus": 2, "gpus_min": 2, "gpus_max": 8}
    assert cells.asked_gpus(row) == "2-8"
    assert cells.asked_gpus({**row, "gpus_max": None}) == 2


def test_a_failure_rate_has_few_digits_and_no_exponent() -> None:
    row = {
        "failures_per_1000_hours": 123.4,
        "failures_per_1000_hours_low": 14.2,
        "failures_per_1000_hours_high": 260.0,
    }
    assert cells.failure_rate(row) == "120 (10 to 300)"
    assert cells.failure_rate({}) is None


# -- one form in a column


def test_measured_time_spans_have_one_form() -> None:
    spans = [0, 59, 119, 3_600, 86_399, 86_400, 1_000_000]
    assert [tables.seconds(span) for span in spans] == [
        "0:00:00", "0:00:59", "0:01:59", "1:00:00", "23:59:59", "1 d 00:00:00", "11 d 13:46:40",
    ]  # fmt: skip
    assert tables.seconds(None) is None
    assert cells.idle({"idle_seconds": 119, "idle_source": cells.AT_LEAST}) == ">0:01:59"
    assert waiting.duration(119) == tables.seconds(119), "a program's wait has the same form"


@pytest.mark.parametrize(
    ("sizes", "texts"),
    [
        ([], []),
        ([0, 0], ["0 GiB", "0 GiB"]),
        ([16 << 30, 8 << 30, 0], ["16 GiB", "8 GiB", "0 GiB"]),
        ([1180 << 20, 764 << 20, 0], ["1.2 GiB", "0.7 GiB", "0.0 GiB"]),
        ([16 << 30, 1 << 20], ["16.0 GiB", "<0.1 GiB"]),
        ([3 << 40, 80 << 30], ["3072 GiB", "80 GiB"]),
        ([764 << 20, 2 << 20], ["764 MiB", "2 MiB"]),
        ([5], ["5 B"]),
    ],
)
def test_the_sizes_of_a_column_have_one_unit_and_one_number_of_digits(
    sizes: list[int], texts: list[str]
) -> None:
    column = tables.SizeColumn("USED", lambda row: row["size"])
    assert column.texts([{"size": size} for size in sizes]) == texts
    assert column.texts([{"size": None}, {"size": "whole GPUs"}]) == ["-", "whole GPUs"]


# -- reasons at 80 columns

QUEUE = (
    Column("PLACE", lambda row: row["place"], right=True),
    Column("ID", lambda row: row["id"]),
    Column("WHY", lambda row: row["why"], rest=True, below=True),
)


def test_a_reason_that_does_not_fit_stands_below_its_rows_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, other = "needs 8.0 GiB free on a GPU that alice holds", "needs 2 GPUs; j1 comes first"
    rows = [
        {"place": place, "id": f"r{place}", "why": why}
        for place, why in ((1, first), (2, other), (3, other), (4, first))
    ]
    assert tables.render(QUEUE, rows)[2] == f"    2  r2  {other}", "a file has it in each row"
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    assert tables.render(QUEUE, rows) == [
        "PLACE  ID",
        "    1  r1",
        "       needs 8.0 GiB free on a GPU that",
        "       alice holds",
        "    2  r2",
        "    3  r3",
        "       needs 2 GPUs; j1 comes first",
        "    4  r4",
        "       needs 8.0 GiB free on a GPU that",
        "       alice holds",
    ]
    monkeypatch.setenv("COLUMNS", "55")
    assert tables.render(QUEUE, rows)[2] == f"    2  r2  {other}", "there is room"


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({}, "place 2 in queue low: needs 1 GPU"),
        ({"ahead": 3}, "place 2 in queue low (after 3 in other queues): needs 1 GPU"),
        ({"reason": ""}, "place 2 in queue low: its turn comes next"),
        ({"position": None}, "needs 1 GPU"),
    ],
)
def test_the_place_of_a_waiting_job_is_made_of_its_fields(
    more: dict[str, object], line: str
) -> None:
    row = {"state": "queued", "priority": "low", "position": 2, "ahead": 0}
    assert cells.standing({**row, "reason": "needs 1 GPU", **more}) == line


# -- zones


def test_each_time_that_is_shown_carries_its_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Somewhere-05:30")
    time.tzset()
    try:
        assert tables.wall_time(10**18) == "2001-09-09 07:16:40 Somewhere"
        assert tables.clock_time(10**9, 10**9) == "07:16 Somewhere"
        assert tables.clock_time(10**9, 2 * 10**9) == "09-09 07:16 Somewhere"
        assert cells.expected({"expected_start": 10**9}, 10**9) == "~07:16 Somewhere"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_no_other_module_writes_a_time() -> None:
    root = Path(tables.__file__).parents[3]
    writes = re.compile(r"strftime|ctime\(|isoformat\(")
    found = [
        str(path.relative_to(root))
        for folder in ("client_plugin", "nodemgr")
        for path in (root / folder).rglob("*.py")
        if writes.search(path.read_text().replace("fromisoformat", ""))
    ]
    assert found == ["client_plugin/verbs/presentation/tables.py"]


def test_those_of_an_array_that_wait_together_count_with_the_others() -> None:
    row = {"state": "queued", "reason": "why", "job": "j1"}
    waiting = {**row, "id": "j1.*", "jobs": 7, "indices": "2-8"}
    rows = [waiting, {**row, "id": "j1.0"}, {**row, "id": "j2", "job": "j2"}]
    assert [row["id"] for row in cells.folded(rows)] == ["j1 (8 jobs)", "j2"]
    assert [row["id"] for row in cells.unfolded(rows)] == ["j1.[2-8]", "j1.0", "j2"]
    (last,) = cells.folded([{**waiting, "jobs": 1, "indices": "8"}])
    assert (last["id"], last["jobs"]) == ("j1.8", 1)
