"""`nodemgr history`: the jobs that have ended, newest last; of one job the whole story."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from nodemgr.cli import jobs, options, tables
from nodemgr.cli.tables import Column, Row

DEFAULT_COUNT = 100
PAGE = 200

COLUMNS = (
    Column("JOB", lambda j: j["job"]),
    Column("ENV", lambda j: j["env"]),
    Column("STATE", lambda j: j["state"]),
    Column("EXIT", lambda j: exit_word(j), right=True),
    Column("GPUS", lambda j: j["gpus"], right=True, spare=2),
    Column("STARTS", lambda j: len(j["attempts"]) or None, right=True, spare=4),
    Column("WAITED", lambda j: tables.seconds(_between(j, "entered", "started")), right=True, spare=3),
    Column("RAN", lambda j: tables.seconds(_between(j, "started", "ended")), right=True),
    Column("ENDED", lambda j: _moment(j["ended"])),
    Column("USER", lambda j: j["user"], spare=5),
    Column("NAME", lambda j: j["name"], spare=1),
    Column("WHY", lambda j: j["why"] or None, spare=1),
    Column("COMMAND", lambda j: j["command"], rest=True),
)
ATTEMPTS = (
    Column("START", lambda a: a["number"], right=True),
    Column("STARTED", lambda a: _moment(a["started"])),
    Column("RAN", lambda a: tables.seconds(_between(a, "started", "ended")), right=True),
    Column("EXIT", lambda a: exit_word(a), right=True),
    Column("GPUS", lambda a: tables.gpu_list(a["gpu_indices"])),
    Column("WHY", lambda a: a["why"] or None, rest=True),
)
DEEDS = (
    Column("WHEN", lambda d: _moment(d["time"])),
    Column("WHO", lambda d: d["who"]),
    Column("WHAT", lambda d: d["what"], rest=True),
)


def exit_word(row: Row) -> str | None:
    """An exit code, or a signal."""
    if row["signal"]:
        return f"signal {row['signal']}"
    return None if row["exit_code"] is None else str(row["exit_code"])


def _between(row: Row, first: str, last: str) -> int | None:
    began, ended = row[first], row[last]
    return None if began is None or ended is None else max(0, ended - began)


def _moment(wall_s: int | None) -> str | None:
    return tables.wall_time(None if wall_s is None else wall_s * 10**9)


@click.command(short_help="Show the jobs that have ended; of one job the whole story.")
@click.argument("job", type=jobs.JOB_OR_ENDED, required=False)
@click.option("--env", type=options.ENV, help="Only this environment's.")
@click.option("--since", type=options.MOMENT, help="Those that ended since then: 2h, 7d, 2026-01-31T12:00.")
@click.option("--count", "-n", type=options.Count(1), help=f"So many at most, the last ones (without --since {DEFAULT_COUNT}).")
@options.run_dir_option
@options.json_option
def command(job: str | None, env: str | None, since: int | None, count: int | None, run_dir: Path | None, as_json: bool) -> None:
    """Show the jobs that have ended, newest last; or all about JOB: its starts, who did what to it, and what it wrote last."""
    if job is None:
        if count is None and since is None:
            count = DEFAULT_COUNT
        told: dict[str, Any] = {"schema_version": 1, "history": _past(jobs.choose(run_dir, env), since or 0, count)}
    else:
        told = jobs.way_to(job, run_dir, env).ask("job_show", job=job)
    if as_json:
        options.print_json(told)
    elif job is None:
        tables.show(COLUMNS, told["history"], empty=f"No job{' of ' + env if env else ''} has ended{' since then' if since else ''}.")
    else:
        _stories(told["jobs"])


def _past(ways: Sequence[jobs.Way], since: int, count: int | None) -> list[Row]:
    """Newest last."""
    if len(ways) == 1:
        return _past_of(ways[0], since, count)
    rows = sorted((row for way in ways for row in _past_of(way, since, count)), key=lambda row: row["ended"])
    return rows if count is None else rows[-count:]


def _past_of(way: jobs.Way, since: int, count: int | None) -> list[Row]:
    rows: list[Row] = []
    before = None
    while count is None or len(rows) < count:
        limit = PAGE if count is None else min(PAGE, count - len(rows))
        page = way.ask("history", since_wall_ns=since, before=before, limit=limit)
        rows = page["history"] + rows
        before = page["before"]
        if before is None:
            break
    return rows


def _stories(rows: list[Row]) -> None:
    """Of an array only the table."""
    tables.show(COLUMNS, rows)
    if len(rows) != 1:
        return
    (row,) = rows
    if row["attempts"]:
        click.echo()
        tables.show(ATTEMPTS, row["attempts"])
    click.echo()
    tables.show(DEEDS, row["deeds"])
    tail = row["attempts"][-1]["log_tail"] if row["attempts"] else ""
    if tail:
        click.echo()
        for line in tail.splitlines():
            click.echo(tables.printable(line))
