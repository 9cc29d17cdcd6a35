"""`nodemgr logs JOB`: what a job wrote, and with --follow what it writes, until it has ended."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click

from nodemgr.cli import jobs, options
from nodemgr.cli.faults import Exit, Fault, Lost, say
from nodemgr.cli.queue import standing
from nodemgr.units import format_size

LOOK_S = 0.25
ASK_EVERY = 4
"""Looks in vain, after which the manager is asked whether the job still lives."""
FINAL = frozenset({"done", "failed", "withdrawn"})


@click.command(short_help="Show what a job wrote, and with --follow what it writes.")
@click.argument("job", type=jobs.JOB_OR_ENDED)
@click.option("--follow", "-f", is_flag=True, help="Go on with what it writes, over its restarts, until it has ended.")
@click.option("--attempt", type=options.Count(1), help="Of an earlier start of it: 1 is the first.")
@click.option("--env", type=options.ENV, help="As a user of this environment.")
@options.run_dir_option
def command(job: str, follow: bool, attempt: int | None, env: str | None, run_dir: Path | None) -> None:
    """Show what JOB wrote to stdout and stderr in its last start. Of an array, name one job: j12.3."""
    way = jobs.way_to(job, run_dir, env)
    if not follow:
        _copy(way.log(job, attempt))
    elif attempt is not None:
        raise click.UsageError("--follow goes on with the present start: leave --attempt out")
    else:
        _follow(way, job)


def _copy(log: jobs.Log) -> None:
    if log.tail is not None:
        say("the log is gone, these are its last lines")
    while _write_next(log):
        pass
    log.close()


def _write_next(log: jobs.Log) -> bool:
    """False: nothing more is there now."""
    expected = log.offset
    piece = log.read()
    sys.stdout.flush()
    if piece.at != expected:
        sys.stdout.buffer.write(b"\n")
        sys.stdout.buffer.flush()
        what = f"{format_size(piece.at - expected)} of its output were dropped here, beyond the room that a log may take (job_log_bytes)"
        say(what if piece.at > expected else "its log begins anew here")
    sys.stdout.buffer.write(piece.data)
    sys.stdout.buffer.flush()
    return bool(piece.data)


def _follow(way: jobs.Way, job: str) -> None:
    """Over all starts of the job from the present one on."""
    told = _started(way, job)
    while True:
        log = way.log(job, None)
        ended = _follow_one(way, job, log)
        log.close()
        if ended["state"] in FINAL:
            return
        number = log.attempt
        say(f"{job}: start {number} has ended ({_how(ended, number)}); waiting for the next")
        told = _started(way, job, after=number)
        if told["state"] in FINAL and not _has(told, number + 1):
            return


def _has(told: dict[str, Any], number: int) -> bool:
    return any(attempt["number"] == number for attempt in told["attempts"])


def _how(told: dict[str, Any], number: int) -> str:
    attempt = next((attempt for attempt in told["attempts"] if attempt["number"] == number), None)
    if attempt is None:
        return "unknown"
    if attempt["signal"]:
        return f"signal {attempt['signal']}"
    return f"exit code {attempt['exit_code']}" if attempt["exit_code"] is not None else attempt["why"] or "unknown"


def _show(way: jobs.Way, job: str) -> dict[str, Any]:
    """Its story; a manager that is away is waited for."""
    while True:
        try:
            rows: list[dict[str, Any]] = way.ask("job_show", job=job)["jobs"]
        except Fault as fault:
            if not isinstance(fault, Lost) and fault.code != Exit.UNREACHABLE:
                raise
            time.sleep(ASK_EVERY * LOOK_S)
        else:
            if rows[0]["job"] != job:
                raise Fault(f"{job} is an array: name one of its jobs ({rows[0]['job']}, say)", Exit.USAGE)
            return rows[0]


def _started(way: jobs.Way, job: str, after: int = 0) -> dict[str, Any]:
    """When it has begun a start beyond that number, or has ended without."""
    told_last = ""
    while True:
        told = _show(way, job)
        if told["state"] in FINAL or any(attempt["number"] > after for attempt in told["attempts"]):
            return told
        line = standing(told)
        if line != told_last:
            told_last = line
            say(f"{job}: {line}")
        time.sleep(ASK_EVERY * LOOK_S)


def _follow_one(way: jobs.Way, job: str, log: jobs.Log) -> dict[str, Any]:
    """Until that start has ended and all that it wrote is copied; the job's story then."""
    idle = 0
    while True:
        if _write_next(log):
            idle = 0
            continue
        idle += 1
        if idle % ASK_EVERY == 0 or not log.living:
            told = _show(way, job)
            attempt = next((attempt for attempt in told["attempts"] if attempt["number"] == log.attempt), None)
            if told["state"] in FINAL or attempt is None or attempt["ended"] is not None:
                while _write_next(log):  # what it wrote between our last look and its end
                    pass
                return told
        time.sleep(LOOK_S)
