"""`nodemgr history`: the jobs that have ended, newest last; of one job the whole story."""

from __future__ import annotations

from client_plugin.verbs import VERBS
from client_plugin.verbs.arguments import kinds
from client_plugin.verbs.arguments.parser import JSON, RUN_DIR, Said, Verb, VerbOption
from client_plugin.verbs.commands.queue import EXPAND, NODE
from client_plugin.verbs.presentation import cells, tables
from client_plugin.verbs.presentation.tables import Column, TableRow
from client_plugin.verbs.presentation.terminal_text import one_line
from client_plugin.ways import choice
from client_plugin.ways.faults import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

    from client_plugin.ways.choice import Way

DEFAULT_COUNT = 100
PAGE = 200
LOOKED_BACK = 10_000
"""The most jobs that are read for the lines without --count or --since: the size of one array."""

COLUMNS = (
    Column("JOB", lambda j: j["job"]),
    NODE,
    Column("ENV", lambda j: j["env"]),
    Column("STATE", lambda j: j["state"]),
    Column("EXIT", lambda j: exit_word(j), right=True),
    Column("GPUS", cells.asked_gpus, right=True, spare=2),
    Column("CLASS", cells.task_class, spare=6, optional=True),
    Column("SHARE", cells.share, right=True, spare=6, optional=True),
    Column("STARTS", lambda j: _starts(j) or None, right=True, spare=4),
    Column("WAITED", lambda j: cells.duration(j, "waited"), right=True, spare=3),
    Column("RAN", lambda j: cells.duration(j, "ran"), right=True),
    Column("PEAK", cells.peak, right=True, spare=6, optional=True),
    Column("PREDICTED", cells.predicted, right=True, spare=6, optional=True),
    Column("ENDED", lambda j: _moment(j["ended"])),
    Column("USER", lambda j: j["user"], spare=5),
    Column("NAME", lambda j: j["name"], spare=1),
    Column("WHY", lambda j: j["why"] or None, spare=1),
    Column("COMMAND", lambda j: j["command"], rest=True),
)
ATTEMPTS = (
    Column("START", lambda a: a["number"], right=True),
    NODE,
    Column("STARTED", lambda a: _moment(a["started"])),
    Column("RAN", lambda a: cells.duration(a, "ran"), right=True),
    Column("PEAK", cells.peak, right=True, optional=True),
    Column("CPU", cells.cpu_time, right=True, optional=True),
    Column("HOST MEMORY", cells.host_peak, right=True, optional=True),
    Column("READ", lambda a: tables.size(a.get("read_bytes")), right=True, optional=True),
    Column("WRITTEN", lambda a: tables.size(a.get("written_bytes")), right=True, optional=True),
    Column("EXIT", lambda a: exit_word(a), right=True),
    Column("GPUS", lambda a: tables.gpu_list(a["gpu_indices"])),
    Column("WHY", lambda a: a["why"] or None, rest=True, below=True),
)
CHOICES = (
    Column("START", lambda a: a["number"], right=True),
    Column("GPUS", lambda a: tables.gpu_list(a["gpu_indices"])),
    Column("CHOSEN", lambda a: a.get("chosen"), rest=True, below=True),
)
RESIZES = (
    Column("WHEN", lambda r: _moment(r["time"])),
    Column("GPUS", lambda r: f"{r['from']} to {r['to']}"),
    Column("GPU", lambda r: r["gpu"] if r["gpu_index"] is None else r["gpu_index"], right=True),
    Column("WHY", lambda r: r["why"], rest=True, below=True),
)
TASKS = (
    Column("TASK", lambda t: t["task"]),
    Column("ENV", lambda t: t["env"]),
    Column("JOB", lambda t: t["job"], optional=True),
    Column("STARTED", lambda t: _moment(t["began"])),
    Column("RAN", lambda t: cells.duration(t, "ran"), right=True),
    Column("BEGAN ON", lambda t: tables.gpu_list(t["gpu_indices"])),
    Column("USER", lambda t: t["user"], spare=5),
    Column("WHY", lambda t: t["why"] or None, spare=1),
    Column("COMMAND", lambda t: t["command"], rest=True),
)
TASK_CHOICES = (
    Column("GPUS", lambda t: tables.gpu_list(t["gpu_indices"])),
    Column("CHOSEN", lambda t: t["chosen"], rest=True, below=True),
)
HISTORY_ENTRIES = (
    Column("WHEN", lambda d: _moment(d["time"])),
    Column("WHO", lambda d: d["who"]),
    Column("WHAT", lambda d: d["what"], rest=True, below=True),
)


def exit_word(row: TableRow) -> Optional[str]:
    """An exit code, or a signal."""
    if row["signal"]:
        return f"signal {row['signal']}"
    return None if row["exit_code"] is None else str(row["exit_code"])


def _starts(row: TableRow) -> int:
    """Of a job of a cluster, the rows of its attempts are fewer."""
    count: int = row.get("starts", len(row["attempts"]))
    return count


def _moment(wall_s: Optional[int]) -> Optional[str]:
    return tables.wall_time(None if wall_s is None else wall_s * 10**9)


def folded(rows: Sequence[TableRow]) -> List[TableRow]:
    """Rows with the jobs of one array that ended alike as one row.

    The row stands at the place of the last of them, and counts them.
    """
    groups = cells.by_array(list(reversed(rows)), "job")
    return [_together(group) for group in reversed(groups)]


def _together(group: List[TableRow]) -> TableRow:
    """Newest first."""
    last = group[0]
    if cells.is_one(group):
        return last
    same = {
        key: last[key]
        for key in ("signal", "exit_code", "why")
        if all(row[key] == last[key] for row in group)
    }
    began = [row["started"] for row in group if row["started"] is not None]
    return {
        **last, "signal": None, "exit_code": None, "why": "", **same,
        "job": cells.together(group, "job"), "node": cells.nodes(group),
        "attempts": [attempt for row in group for attempt in row["attempts"]],
        "starts": sum(map(_starts, group)),
        "started": min(began, default=None), **_longest(group, "waited"), **_longest(group, "ran"),
        "peak_bytes": max([row.get("peak_bytes") or 0 for row in group]) or None,
    }  # fmt: skip


def _longest(group: List[TableRow], name: str) -> TableRow:
    """The longest wait or run of these jobs."""
    row = max(group, key=lambda row: row[f"{name}_seconds"] or -1)
    return {key: row[key] for key in (f"{name}_seconds", f"{name}_at_least")}


def run(said: Said) -> int:
    if said.job is None:
        told: Dict[str, Any] = {"schema_version": 1, "history": Past(said).rows()}
    else:
        told = _told(choice.way_to(said.job, said.whom()), said.job)
    if said.job is None and not told["history"]:
        choice.refuse_unknown(said.whom())
    if said.as_json:
        tables.print_json(told)
    elif said.job is None:
        of, since = f" of {said.env}" if said.env else "", " since then" if said.since else ""
        rows = told["history"] if said.expand else folded(told["history"])
        tables.show(COLUMNS, rows, empty=f"No job{of} has ended{since}.")
    elif "tasks" in told:
        tables.show(TASKS, told["tasks"])
        print()
        tables.show(TASK_CHOICES, told["tasks"])
        _resizes(told["tasks"])
    else:
        _stories(told["jobs"], said.expand)
    return 0


def _told(way: Way, name: str) -> Dict[str, Any]:
    """All about a job, or about a task."""
    is_task = name.startswith("t")
    told: Dict[str, Any] = (
        way.ask("task_show", task=name) if is_task else way.ask("job_show", job=name)
    )
    return told


def _resizes(rows: Sequence[TableRow]) -> None:
    """The resizes of these attempts or tasks, if there are any."""
    found = [resize for row in rows for resize in row.get("resizes", ())]
    if found:
        print()
        tables.show(RESIZES, found)


class Past:
    """The jobs that a command line asks for, newest last. A number is one of lines."""

    def __init__(self, said: Said) -> None:
        self._ways: Sequence[Way] = choice.choose(said.whom(), has_past=True)
        self._since: int = said.since or 0
        self._is_folded = not (said.expand or said.as_json)
        by_default = said.count is None and said.since is None
        self._count: Optional[int] = DEFAULT_COUNT if by_default else said.count
        self._most: Optional[int] = LOOKED_BACK if by_default else None

    def rows(self) -> List[TableRow]:
        rows = [row for way in self._ways for row in self._read(way)]
        if len(self._ways) > 1:
            rows.sort(key=lambda row: row["ended"])
        if self._count is None:
            return rows
        lines = list(dict.fromkeys(self._line(row) for row in reversed(rows)))
        last = set(lines[: self._count])
        return [row for row in rows if self._line(row) in last]

    def _line(self, row: TableRow) -> Tuple[str, ...]:
        return cells.line_of(row, "job") if self._is_folded else (row["job"],)

    def _read(self, way: Way) -> List[TableRow]:
        """Read until there is one line more than asked for.

        No line then lacks a job because the page ended.
        """
        rows: List[TableRow] = []
        lines: Set[Tuple[str, ...]] = set()
        before = None
        while self._count is None or len(lines) <= self._count:
            if self._most is not None and len(rows) >= self._most:
                say(
                    f"only the last {len(rows)} jobs were read for these lines (--count N reads as "
                    "many as N lines take)"
                )
                break
            limit = (
                PAGE
                if self._count is None
                else min(PAGE, max(self._count + 1 - len(lines), len(rows)))
            )
            page = way.ask("history", since_wall_ns=self._since, before=before, limit=limit)
            rows = page["history"] + rows
            lines.update(self._line(row) for row in page["history"])
            before = page["before"]
            if before is None:
                break
        return rows


def _stories(rows: List[TableRow], expand: bool) -> None:
    """Prints each job's story; of an array only the table."""
    tables.show(COLUMNS, rows if expand else folded(rows))
    if not cells.is_one(rows):
        return
    (row,) = rows
    if row["attempts"]:
        print()
        tables.show(ATTEMPTS, row["attempts"])
        _resizes(row["attempts"])
    chosen = [attempt for attempt in row["attempts"] if attempt.get("chosen")]
    if chosen:
        print()
        tables.show(CHOICES, chosen)
    print()
    tables.show(HISTORY_ENTRIES, row["deeds"])
    tail = row["attempts"][-1]["log_tail"] if row["attempts"] else ""
    if tail:
        print()
        for line in tail.rstrip("\n").split("\n"):
            print("  " + one_line(line))


VERB = Verb(
    "history",
    VERBS["history"],
    run,
    (
        VerbOption("job", kind=kinds.JOB_OR_TASK),
        VerbOption("--env", kind=kinds.ENV, help="Only this environment's."),
        VerbOption(
            "--since",
            kind=kinds.MOMENT,
            help="Jobs that ended since this time: 2h, 7d, 2026-01-31T12:00.",
        ),
        VerbOption(
            "--count",
            "-n",
            kind=kinds.count(1),
            help="At most this many lines, the last ones (with --expand or --json: jobs).",
        ),
        EXPAND,
        RUN_DIR,
        JSON,
    ),
    text="Shows the jobs that have ended, newest last; or all about JOB: its "
    "starts, why its GPUs were chosen, each action on it with its user, each "
    "change of the number of its GPUs, and its last output. The jobs of an "
    "array that ended alike are one line. With a task (t17) in place of JOB: "
    "its GPUs, why they were chosen, and each change.",
)
