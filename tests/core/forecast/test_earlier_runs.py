"""When earlier runs of a program foretell the next one."""

from __future__ import annotations

import json

import pytest

from nodemgr.core.forecast import earlier_runs
from nodemgr.core.forecast.earlier_runs import EarlierRun, Expected, Numbers, ProgramRuns, expected
from nodemgr.core.forecast.least_squares import solve

MODEL = "Test GPU"
LEAST_MS = earlier_runs.LEAST_MS
MIB, GIB = 1 << 20, 1 << 30
FILES = json.dumps([["/home/ann/net.py", 10, 5, "ab"], ["/usr/lib/site-packages", -1, 7, ""]])


@pytest.fixture(autouse=True)
def _short_runs_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlier_runs, "LEAST_MS", 0)


def of(*times: tuple[Numbers, int], gpus: int = 1, model: str = MODEL) -> ProgramRuns:
    found = ProgramRuns()
    for numbers, run_ms in times:
        found = found.after(EarlierRun(numbers, gpus, model, run_ms), None)
    return found


def told(
    program: ProgramRuns, *numbers: float, gpus: int = 1, model: str = MODEL
) -> Expected | None:
    return expected(program, numbers, gpus, [model])


def test_the_time_is_the_median_of_the_last_five_with_the_same_numbers() -> None:
    same = [((3.0,), run_ms) for run_ms in (9_000, 100, 500, 200, 400, 300)]
    assert told(of(*same, ((4.0,), 7)), 3.0) == (300, 5, False, None)


def test_nothing_is_known_of_other_numbers_gpus_or_models() -> None:
    known = of(((3.0,), 100))
    assert told(known, 3.0) == (100, 1, False, None)
    assert told(known, 4.0) is None
    assert told(known) is None
    assert told(known, 3.0, gpus=2) is None
    assert told(known, 3.0, model="Another GPU") is None


def test_of_two_models_of_the_node_the_slower_one_counts() -> None:
    runs = of(((), 100)).after(EarlierRun((), 1, "Slow GPU", 900), None)
    assert expected(runs, (), 1, [MODEL, "Slow GPU"]) == (900, 1, False, None)


def test_a_job_without_a_gpu_needs_no_model() -> None:
    assert expected(of(((), 50), gpus=0, model=""), (), 0, []) == (50, 1, False, None)


def test_a_short_run_changes_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlier_runs, "LEAST_MS", LEAST_MS)
    assert told(of(((), LEAST_MS - 1))) is None
    assert told(of(((), LEAST_MS))) == (LEAST_MS, 1, False, None)


GRID = [(float(epochs), 0.1) for epochs in (1, 2, 3, 4, 6, 8, 10, 12)]


def test_other_numbers_are_learned_within_the_ranges_that_were_seen() -> None:
    runs = of(*[(row, round(2_000 + 1_000 * row[0])) for row in GRID])
    assert told(runs, 5.0, 0.1) == (7_000, 8, True, None)
    assert told(runs, 13.0, 0.1) is None, "outside"
    assert told(runs, 5.0, 0.2) is None, "a number that never changed"


def test_a_product_of_two_numbers_is_learned() -> None:
    rows = [(float(epochs), float(width)) for epochs in (1, 2, 4) for width in (8, 16, 32)]
    runs = of(*[(row, round(100 * row[0] * row[1])) for row in rows])
    found = told(runs, 3.0, 20.0)
    assert found is not None
    assert found.run_ms == pytest.approx(6_000, rel=0.01)


def test_the_memory_is_the_largest_peak_with_a_margin_where_the_modules_are_known() -> None:
    runs = [EarlierRun((3.0,), 1, MODEL, 100, gib * GIB) for gib in (2, 5, 4)]
    known = ProgramRuns(tuple(runs), FILES)
    needed_bytes = 5 * GIB * 1_100 // 1_000 + 64 * MIB
    assert told(known, 3.0) == (100, 3, False, needed_bytes)
    assert told(ProgramRuns(tuple(runs)), 3.0) == (100, 3, False, None), "of its arguments alone"
    unknown = EarlierRun((3.0,), 1, MODEL, 100)
    assert told(ProgramRuns((unknown,), FILES), 3.0) == (100, 1, False, None)


def test_a_short_run_foretells_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlier_runs, "LEAST_MS", LEAST_MS)
    known = ProgramRuns((EarlierRun((), 1, MODEL, 100, 10 * GIB),), FILES)
    assert told(known) == (0, 1, False, 11 * GIB + 64 * MIB)


def test_a_run_that_lacked_memory_raises_the_floor_and_is_no_time() -> None:
    run = EarlierRun((), 1, MODEL, 100, 2 * GIB)
    lacking = EarlierRun((), 1, MODEL, 0, 10 * GIB)
    assert told(ProgramRuns().after(run, FILES).lacking(lacking)) == (
        100, 1, False, 11 * GIB + 64 * MIB,
    )  # fmt: skip
    assert told(ProgramRuns((lacking,), FILES)) is None, "no run has ended well"
    other = EarlierRun((4.0,), 1, MODEL, 0, 10 * GIB)
    assert told(ProgramRuns((run, other), FILES)) == (100, 1, False, 2_429_340_876)


@pytest.mark.parametrize(
    "rows",
    [
        GRID[:7],
        [(float(1 + number % 2), 0.1) for number in range(8)],
        [(row[0], 0.1) for row in GRID[:7]] + [(30.0, 0.1)],
    ],
)
def test_too_few_runs_or_values_or_too_large_an_error_teach_nothing(rows: list[Numbers]) -> None:
    steady = {row: 1_000 * row[0] for row in rows}
    runs = of(*[(row, round(steady[row] if row[0] < 30 else 90_000)) for row in rows])
    assert told(runs, 1.5, 0.1) is None


def test_only_the_newest_ten_runs_are_kept() -> None:
    assert len(of(*[((float(number),), 1) for number in range(15)]).runs) == 10


def test_another_module_begins_anew_and_the_same_content_does_not() -> None:
    run = EarlierRun((), 1, MODEL, 100)
    first = ProgramRuns().after(run, FILES)
    touched = FILES.replace("5", "6", 1)
    assert len(first.after(run, touched).runs) == 2
    assert len(first.after(run, FILES.replace("ab", "cd")).runs) == 1
    assert len(first.after(run, FILES.replace("7", "8", 1)).runs) == 1, "other packages"


def test_a_run_without_a_report_adds_nothing_to_runs_with_one() -> None:
    run = EarlierRun((), 1, MODEL, 100)
    assert ProgramRuns().after(run, FILES).after(run, None) == ProgramRuns().after(run, FILES)
    assert ProgramRuns().after(run, None).after(run, FILES) == ProgramRuns().after(run, FILES)


def test_the_store_s_text_is_read_back_and_a_strange_one_says_nothing() -> None:
    known = ProgramRuns().after(EarlierRun((1.0, 2.5), 1, MODEL, 100, 5), FILES)
    assert earlier_runs.parse(earlier_runs.packed(known).replace(",5]", "]")).runs == (
        EarlierRun((1.0, 2.5), 1, MODEL, 100),
    ), "of the first version"
    assert earlier_runs.parse(earlier_runs.packed(known)) == known
    for text in (None, "", "[]", "5", '{"runs": 5}', '{"runs": [[1]]}', "{"):
        assert earlier_runs.parse(text) == ProgramRuns()


@pytest.mark.parametrize(
    "given",
    [
        5,
        [5],
        [["/a", 1, 2]],
        [["/a", 1, True, ""]],
        [["/a", -2, 2, ""]],
        [["/" * 5_000, 1, 2, ""]],
        [["/a", 1, 2, ""]] * (earlier_runs.MAX_FILES + 1),
    ],
)
def test_a_report_of_another_form_is_refused(given: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        earlier_runs.closure_of(given)


def test_a_report_of_long_names_keeps_nothing() -> None:
    rows = [[f"/{number}/" + "x" * 4_000, 1, 2, ""] for number in range(66)]
    assert earlier_runs.closure_of(rows) is None
    halves = [earlier_runs.closure_of(some) for some in (rows[:33], rows[33:])]
    assert None not in halves
    assert earlier_runs.joined(*halves) is None


def test_the_reports_of_two_processes_are_one() -> None:
    rows = [["/a", 1, 2, ""], ["/b", 1, 2, ""]]
    one, other = (earlier_runs.closure_of([row]) for row in rows)
    assert earlier_runs.joined(one, other) == earlier_runs.closure_of(rows)
    assert earlier_runs.joined(one, None) is None


def test_equations_whose_columns_depend_on_each_other_have_no_answer() -> None:
    assert solve([[1, 2], [2, 4], [3, 6]], [1, 2, 3]) is None
    assert solve([[1, 1], [1, 2], [1, 4]], [3, 5, 9]) == pytest.approx([1, 2])
