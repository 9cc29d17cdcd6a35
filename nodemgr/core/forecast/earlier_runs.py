"""Earlier runs of a program, and the time and the memory that they foretell of the next one.

Pure: the runs of one key in, figures out. Knows: when runs count. Must not know: how a program is
recognised, where runs are kept.

Memory is foretold for the same numbers alone, and for a program whose modules are known.

A run with the same numbers among its arguments is *known*. Other numbers are *learned*, from enough
runs around them, by a sum or a product of powers of the numbers that changed, whichever foretells
each run better from the others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any, NamedTuple

from nodemgr.core.forecast.least_squares import solve
from nodemgr.core.model.entities import Uuid
from nodemgr.core.model.values import replace, value

RUN_KEY = "NODEMGR_RUN_KEY"
"""The variable of a job that was recognised (client_plugin/prediction/closure.py)."""
RETAINED_RUNS = 10
MIB = 1 << 20
MARGIN_PER_MILLE, MARGIN_BYTES = 1_100, 64 * MIB
"""Of memory: so much of the largest peak, and so much beside it."""
LEAST_MS = 10_000
"""A shorter time changes no plan, and is not worth a line to the user."""
COUNTED_RUNS = 5
"""The newest with the same numbers."""
LEAST_RUNS = 8
"""To learn from, with LEAST_VALUES values of each number that changed."""
LEAST_VALUES = 3
MAX_ERROR = 0.1
"""Of each run, foretold from the others."""
MAX_FILES = 600
MAX_PATH_CHARACTERS = 4_095
MAX_DIGEST_CHARACTERS = 64
MAX_CLOSURE_CHARACTERS = 2**18
MAX_NUMBERS = 64

Numbers = tuple[float, ...]
Closure = str
"""The JSON text of a list: of each file its path, size, time of change and digest."""


@value
class EarlierRun:
    """A run that ended well, or for lack of GPU memory."""

    numbers: Numbers
    gpus: int
    gpu_model: str
    """Empty: no GPU."""
    run_ms: int
    """0: it ended for lack of memory, and only its peak counts."""
    peak_bytes: int | None = None
    """On one GPU; None: not known."""


@value
class ProgramRuns:
    """The runs of one key, the oldest first, and the files that all of them had."""

    runs: tuple[EarlierRun, ...] = ()
    closure: Closure | None = None
    """None: no process reported it."""

    def after(self, run: EarlierRun, closure: Closure | None) -> ProgramRuns:
        """With one run more. Other files begin anew; a run without a report adds nothing then."""
        if closure is None and self.closure is not None:
            return self
        is_same = closure is None or self.closure is None or _same(closure, self.closure)
        runs = self.runs if is_same and (self.closure is None) == (closure is None) else ()
        return replace(self, runs=(*runs, run)[-RETAINED_RUNS:], closure=closure)

    def lacking(self, run: EarlierRun) -> ProgramRuns:
        """With a run that ended for lack of memory: it has reported no files."""
        return replace(self, runs=(*self.runs, run)[-RETAINED_RUNS:])


class Recognised(NamedTuple):
    """A program as its user's client recognised it."""

    key: str
    numbers: Numbers
    holds: bool
    """The modules of the earlier runs are what they were."""


class GoodRun(NamedTuple):
    """A good run of a task that was no job, as its client reports it."""

    gpus: tuple[Uuid, ...]
    run_ms: int
    closure: Closure | None
    """None: its modules are too many."""


class Expected(NamedTuple):
    """The time and the memory of the next run."""

    run_ms: int
    """0: too short for a plan."""
    runs: int
    """So many earlier ones say so."""
    is_learned: bool
    memory_bytes: int | None = None
    """On each GPU, with a margin; None: not known."""


def _same(one: Closure, other: Closure) -> bool:
    """A file that was written again, with the same content, is the same."""
    return one == other or _content(one) == _content(other)


def _content(closure: Closure) -> set[tuple[str, int, int, str]]:
    rows = json.loads(closure)
    return {(path, size, 0 if known else time, known) for path, size, time, known in rows}


def joined(one: Closure | None, other: Closure | None) -> Closure | None:
    """Of two processes of one run; None: too many files, or too long names."""
    if one is None or other is None:
        return None
    rows = {row[0]: row for row in (*json.loads(one), *json.loads(other))}
    return _bounded(list(rows.values())) if len(rows) <= MAX_FILES else None


def expected(
    program: ProgramRuns, numbers: Numbers, gpus: int, models: Sequence[str]
) -> Expected | None:
    """On these GPUs: of several models the longest time, since it may get any of them."""
    runs = [
        run for run in program.runs if run.gpus == gpus and (run.gpu_model in models or not gpus)
    ]
    good = [run for run in runs if run.run_ms]
    found = [
        one
        for model in sorted({run.gpu_model for run in good})
        if (one := _on_model([run for run in good if run.gpu_model == model], numbers))
    ]
    if not found:
        return None
    longest = max(found, key=lambda one: one.run_ms)
    peaks = [run.peak_bytes for run in runs if run.numbers == numbers and run.peak_bytes]
    if peaks and program.closure is not None and not longest.is_learned:
        needed_bytes = max(peaks) * MARGIN_PER_MILLE // 1_000 + MARGIN_BYTES
        longest = longest._replace(memory_bytes=needed_bytes)
    if longest.run_ms < LEAST_MS:
        return None if longest.memory_bytes is None else longest._replace(run_ms=0)
    return longest


def _on_model(runs: Sequence[EarlierRun], numbers: Numbers) -> Expected | None:
    same = [run.run_ms for run in runs if run.numbers == numbers][-COUNTED_RUNS:]
    if same:
        return Expected(round(median(same)), len(same), False)
    return _learned([run for run in runs if len(run.numbers) == len(numbers)], numbers)


def _learned(runs: Sequence[EarlierRun], numbers: Numbers) -> Expected | None:
    if len(runs) < LEAST_RUNS:
        return None
    columns = list(zip(*[run.numbers for run in runs], strict=True))
    changed = [place for place, column in enumerate(columns) if len(set(column)) > 1]
    fixed = [place for place in range(len(numbers)) if place not in changed]
    if any(numbers[place] != columns[place][0] for place in fixed):
        return None
    for place in changed:
        column = columns[place]
        if len(set(column)) < LEAST_VALUES or not min(column) <= numbers[place] <= max(column):
            return None
    rows = [[run.numbers[place] for place in changed] for run in runs]
    times = [float(max(1, run.run_ms)) for run in runs]
    forms = [_Form(*form) for form in FORMS if form[0] is float or all(map(all, rows))]
    tried = [(error, form) for form in forms if (error := form.error(rows, times)) is not None]
    if not tried:
        return None
    error, form = min(tried, key=lambda pair: pair[0])
    found = form.foretell(rows, times, [numbers[place] for place in changed])
    if error > MAX_ERROR or found is None:
        return None
    return Expected(round(found), len(runs), True)


class _Form(NamedTuple):
    """A sum of the numbers, or of their logarithms."""

    of: Callable[[float], float]
    back: Callable[[float], float]

    def foretell(
        self, rows: Sequence[Sequence[float]], times: Sequence[float], wanted: Sequence[float]
    ) -> float | None:
        try:
            known = [[1.0, *map(self.of, row)] for row in rows]
            weights = solve(known, [self.of(time) for time in times])
            if weights is None:
                return None
            parts = zip(weights, [1.0, *map(self.of, wanted)], strict=True)
            found = self.back(sum([weight * part for weight, part in parts]))
        except (ValueError, OverflowError):
            return None
        return found if math.isfinite(found) and found >= 1 else None

    def error(self, rows: Sequence[Sequence[float]], times: Sequence[float]) -> float | None:
        """The largest, of each run foretold from the others."""
        worst = 0.0
        for left in range(len(rows)):
            others = [place for place in range(len(rows)) if place != left]
            found = self.foretell(
                [rows[place] for place in others], [times[place] for place in others], rows[left]
            )
            if found is None:
                return None
            worst = max(worst, abs(found - times[left]) / times[left])
        return worst


FORMS = ((float, float), (math.log, math.exp))


# -- the text of the store --


def packed(program: ProgramRuns) -> str:
    runs = [
        [run.numbers, run.gpus, run.gpu_model, run.run_ms, run.peak_bytes] for run in program.runs
    ]
    return json.dumps({"runs": runs, "closure": program.closure}, separators=(",", ":"))


def parse(text: str | None) -> ProgramRuns:
    """Nothing is known from a text that is none of this form."""
    try:
        row = json.loads(text or "{}")
        runs = tuple(
            EarlierRun(
                tuple(map(float, numbers)),
                int(gpus),
                str(model),
                int(run_ms),
                int(peak[0]) if peak and peak[0] else None,
            )
            for numbers, gpus, model, run_ms, *peak in row.get("runs", [])
        )
        closure = row.get("closure")
        return ProgramRuns(runs, None if closure is None else str(closure))
    except (ValueError, TypeError, AttributeError):
        return ProgramRuns()


def closure_of(given: Any) -> Closure | None:
    """Of a list from outside; None: its names are too long. Raises ValueError: another form."""
    if given is None:
        return None
    if not isinstance(given, list) or len(given) > MAX_FILES or not all(map(_is_file, given)):
        raise ValueError
    return _bounded(given)


def _bounded(rows: list[Any]) -> Closure | None:
    text = json.dumps(sorted(rows), separators=(",", ":"))
    return text if len(text) <= MAX_CLOSURE_CHARACTERS else None


def _is_file(row: Any) -> bool:
    if not isinstance(row, list) or [type(part) for part in row] != [str, int, int, str]:
        return False
    path, size, time, known = row
    is_short = len(path) <= MAX_PATH_CHARACTERS and len(known) <= MAX_DIGEST_CHARACTERS
    return is_short and -1 <= size < 2**63 and abs(time) < 2**63


# -- the variable of a job --


def with_key(environ: tuple[str, ...], known: Recognised | None) -> tuple[str, ...]:
    """The variables of a job; it may itself be submitted by one that has a key."""
    others = tuple([entry for entry in environ if not entry.startswith(f"{RUN_KEY}=")])
    if known is None:
        return others
    return (*others, f"{RUN_KEY}={json.dumps([known.key, *known.numbers])}")


def key_of(environ: Iterable[str]) -> tuple[str, Numbers] | None:
    text = next((entry for entry in environ if entry.startswith(f"{RUN_KEY}=")), "")
    try:
        key, *numbers = json.loads(text.partition("=")[2] or "[]")
        return str(key), tuple(map(float, numbers))
    except (ValueError, TypeError):
        return None
