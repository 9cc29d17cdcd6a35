"""`nodemgr report`: GPU hours, waits and jobs of each environment."""

from __future__ import annotations

import csv
import sys
import time

from client_plugin.messages import status as messages
from client_plugin.messages.form import notice, sentence, stated
from client_plugin.verbs import VERBS
from client_plugin.verbs.arguments import kinds
from client_plugin.verbs.arguments.parser import JSON, RUN_DIR, Said, Verb, VerbOption, mistake
from client_plugin.verbs.presentation import cells, tables
from client_plugin.verbs.presentation.tables import Column, TableRow
from client_plugin.ways import choice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

DEFAULT_S = 7 * 86_400
MONTH_S = 30 * 86_400

COLUMNS = (
    Column("ENV", lambda e: e["env"]),
    Column("GPU HOURS", lambda e: hours(e), right=True),
    Column("OF THE NODE", lambda e: percent(e), right=True, spare=2),
    Column("GRANTS", lambda e: e["allocations"], right=True, spare=4),
    Column("WAIT: MEDIAN", lambda e: tables.seconds(e["wait_median_seconds"]), right=True, spare=1),
    Column("90 %", lambda e: tables.seconds(e["wait_p90_seconds"]), right=True, spare=3),
    Column("LONGEST", lambda e: tables.seconds(e["wait_max_seconds"]), right=True, spare=3),
    Column("JOBS DONE", lambda e: e["jobs_done"], right=True),
    Column("FAILED", lambda e: e["jobs_failed"], right=True),
    Column("WITHDRAWN", lambda e: e["jobs_withdrawn"], right=True, spare=5),
    Column("TRIED AGAIN", lambda e: e["restarts"], right=True, spare=6),
    Column("JOBS' CPU HOURS", lambda e: cpu_hours(e), right=True, spare=7, optional=True),
    Column(
        "MOST HOST MEMORY", lambda e: tables.size(e.get("jobs_host_peak_bytes")), right=True,
        spare=8, optional=True,
    ),
    Column(
        "READ", lambda e: tables.size(e.get("jobs_read_bytes")), right=True, spare=9, optional=True
    ),
    Column(
        "WRITTEN", lambda e: tables.size(e.get("jobs_written_bytes")), right=True, spare=9,
        optional=True,
    ),
)  # fmt: skip


def cpu_hours(row: TableRow) -> Optional[str]:
    used_s = row.get("jobs_cpu_seconds")
    return None if used_s is None else f"{used_s / 3_600:.2f}"


def hours(row: TableRow) -> str:
    least = "at least " if row["gpu_seconds_at_least"] else ""
    return f"{least}{row['gpu_seconds'] / 3_600:.{1 if row['gpu_seconds'] >= 36_000 else 2}f}"


def percent(row: TableRow) -> str:
    return f"{row['utilisation_ratio'] * 100:.1f} %"


GPUS = (
    Column("GPU", lambda g: g["index"], right=True),
    Column("NAME", lambda g: g["name"], spare=2),
    Column("DRAINED BY", lambda g: g["drained_by"] or None, optional=True),
    Column("FAILURES", cells.failures, right=True),
    Column("IN 1000 H", cells.failure_rate, right=True),
    Column(
        "LAST",
        lambda g: g["last_failure"] and tables.wall_time(g["last_failure"] * 10**9),
        spare=1,
    ),
    Column("EVIDENCE", lambda g: "; ".join(g["last_failure_evidence"]) or None, rest=True),
)

FIGURES = (
    Column("GPU MODEL", lambda e: e["gpu_model"]),
    Column("FIGURE", lambda e: e["figure"]),
    Column("TASKS", lambda e: e["tasks"], right=True),
    Column("MEDIAN ERROR", lambda e: error(e, "median_error"), right=True),
    Column("90 %", lambda e: error(e, "p90_error"), right=True),
    Column("TOO LOW", lambda e: e["underestimated"], right=True),
)


def error(row: TableRow, name: str) -> str:
    return f"{row[name]:.1f} {'%' if row['unit'] == 'percent' else 'points'}"


def samples(said: Said) -> int:
    """The samples of finished tasks as CSV, or as JSON."""
    told = choice.admins_way(said.whom()).ask("report_samples")
    if said.as_json:
        tables.print_json(told)
        return 0
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(told["columns"])
    writer.writerows(told["rows"])
    return 0


def forecasts(said: Said) -> int:
    """How good the forecasts of the last month were."""
    since_wall_ns = time.time_ns() - MONTH_S * 10**9 if said.since is None else said.since
    told = choice.admins_way(said.whom()).ask("report_forecast", since_wall_ns=since_wall_ns)
    if said.as_json:
        tables.print_json(told)
        return 0
    tables.show(FIGURES, told["figures"], empty="No job with a forecast has ended in this time.")
    return 0


def run(said: Said) -> int:
    if said.samples and said.forecast:
        mistake(VERB, stated("--samples and --forecast are two tables", "ask for one at a time"))
    if said.samples and said.since is not None:
        mistake(VERB, messages.OF_ALL_TASKS(table="--samples", option="--since"))
    if (said.samples or said.forecast) and said.env is not None:
        table = "--samples" if said.samples else "--forecast"
        mistake(VERB, messages.OF_ALL_TASKS(table=table, option="--env"))
    if said.samples:
        return samples(said)
    if said.forecast:
        return forecasts(said)
    since_wall_ns = time.time_ns() - DEFAULT_S * 10**9 if said.since is None else said.since
    ways = choice.choose(said.whom(), has_past=True)
    answers = [way.ask("report", since_wall_ns=since_wall_ns) for way in ways]
    told = {
        **answers[0],
        "since": min(answer["since"] for answer in answers),
        "until": max(answer["until"] for answer in answers),
        "envs": [row for answer in answers for row in answer["envs"]],
    }
    if not told["envs"]:
        choice.refuse_unknown(said.whom())
    if said.as_json:
        tables.print_json(told)
        return 0
    nothing = (
        messages.NO_QUOTA_YET() if said.env is None else notice(f"nothing is known of {said.env}")
    )
    tables.show(COLUMNS, told["envs"], empty=sentence(nothing))
    span = f"{tables.wall_time(told['since'] * 10**9)} to {tables.wall_time(told['until'] * 10**9)}"
    node = told.get("node")
    held = (
        ""
        if node is None
        else f"; {node['gpus']} GPUs, {hours(node)} GPU hours held, {percent(node)}"
    )
    print(f"\n{span}{held}")
    if any(gpu["failures"] or gpu["drained"] for gpu in told.get("gpus", ())):
        print()
        tables.show(GPUS, told["gpus"])
    return 0


VERB = Verb(
    "report",
    VERBS["report"],
    run,
    (
        VerbOption("--env", kind=kinds.ENV, help="Only this environment."),
        VerbOption("--since", kind=kinds.MOMENT, help="From this time on: 2h, 30d, 2026-01-01."),
        VerbOption(
            "--forecast",
            help="How good the forecasts of the last month were.",
        ),
        VerbOption(
            "--samples",
            help="The measured tasks that forecasts learn from, as CSV without users.",
        ),
        RUN_DIR,
        JSON,
    ),
    text="An admin sees the node, a user the environments that the user may "
    "enter.\n\n"
    "A GPU counts for an environment while the environment holds it, and "
    "once, however many of its tasks share it.",
)
