"""`nodemgr wait JOB…`: until jobs have ended; its exit code is theirs."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import click

from nodemgr.cli import jobs, options, status, tables
from nodemgr.cli.faults import Exit, Fault, Lost, say

AWAY_S = 600.0
"""A manager that went away meanwhile is waited for so long: jobs outlive it, and it finds them again."""
PAUSE_S = 1.0
LOOKED_AT = 5
"""Of so many it is asked whether they can start at all."""


@click.command(short_help="Wait until jobs have ended; its exit code is theirs.")
@click.argument("job", type=jobs.JOB, nargs=-1, required=True)
@click.option("--env", type=options.ENV, help="As a user of this environment.")
@options.run_dir_option
@options.json_option
def command(job: tuple[str, ...], env: str | None, run_dir: Path | None, as_json: bool) -> int:
    """Wait until each JOB has ended (of an array: all its jobs).

    Ends with the exit code of the first that did not end well, in the order named: the job's own, 128 + N for signal N, 77 if it was
    withdrawn; 0 if all ended well.
    """
    job_ids = list(dict.fromkeys(job))
    rows = _outcomes(job_ids, run_dir, env)
    if as_json:
        options.print_json({"schema_version": 1, "jobs": rows})
    for row in rows:
        if row["exit"] != 0:
            of = f" ({row['of']})" if row["of"] != row["job"] else ""
            say(tables.printable(f"{row['job']}{of}: {row['state'] or 'unknown'}{', ' + row['why'] if row['why'] else ''}"))
    return next((int(row["exit"]) for row in rows if row["exit"] != 0), 0)


def _outcomes(job_ids: list[str], run_dir: Path | None, env: str | None) -> list[tables.Row]:
    """How each ended, in this order. Those of several environments are waited for one environment after the other."""
    if len(ways := jobs.choose(run_dir, env)) == 1:
        told: list[tables.Row] = _ask(ways[0], job_ids)["jobs"]
        return told
    env_of = {job_id: jobs.way_to(job_id, run_dir, env).env for job_id in job_ids}
    rows = {
        row["job"]: row
        for way in ways
        if (of_it := [job_id for job_id in job_ids if env_of[job_id] == way.env])
        for row in _ask(way, of_it)["jobs"]
    }
    return [rows[job_id] for job_id in job_ids]


def _say_what_stalls(way: jobs.Way, job_ids: list[str]) -> None:
    """Who waits for what cannot start should know."""
    with contextlib.suppress(Fault):  # the answer itself says what is wrong
        health = way.ask("queue", limit=1)
        if health["launcher"]["state"] != "ok":
            rows = [row for job_id in job_ids[:LOOKED_AT] for row in way.ask("job_show", job=job_id)["jobs"]]
            status.say_if_failing(None, health["launcher"], rows)


def _ask(way: jobs.Way, job_ids: list[str]) -> Any:
    """The answer, which comes when all have ended; asked for again where the manager went away."""
    _say_what_stalls(way, job_ids)
    gone_at: float | None = None
    while True:
        try:
            return way.ask("job_wait", timeout_s=None, jobs=job_ids)
        except Fault as fault:
            if isinstance(fault, Lost):
                if gone_at is None:
                    say(f"{fault.message}; waiting for it to come back")
                gone_at = time.monotonic()
            elif gone_at is None or fault.code != Exit.UNREACHABLE or time.monotonic() - gone_at > AWAY_S:
                raise
            time.sleep(PAUSE_S)
