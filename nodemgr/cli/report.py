"""`nodemgr report`: GPU hours, waits and jobs of each environment."""

from __future__ import annotations

import time
from pathlib import Path

import click

from nodemgr.cli import jobs, options, tables
from nodemgr.cli.tables import Column, Row

DEFAULT_S = 7 * 86_400

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
)


def hours(row: Row) -> str:
    return f"{row['gpu_seconds'] / 3_600:.{1 if row['gpu_seconds'] >= 36_000 else 2}f}"


def percent(row: Row) -> str:
    return f"{row['utilisation_ratio'] * 100:.1f} %"


@click.command(short_help="Show GPU hours, waits and jobs of each environment.")
@click.option("--env", type=options.ENV, help="Only this environment.")
@click.option("--since", type=options.MOMENT, help="From then on: 2h, 7d (the default), 2026-01-01.")
@options.run_dir_option
@options.json_option
def command(env: str | None, since: int | None, run_dir: Path | None, as_json: bool) -> None:
    """Show GPU hours, waits and jobs of each environment: an admin sees the node, a user his environments.

    A GPU counts for an environment while it holds it, once, however many of its tasks share it.
    """
    since_wall_ns = time.time_ns() - DEFAULT_S * 10**9 if since is None else since
    answers = [way.ask("report", since_wall_ns=since_wall_ns) for way in jobs.choose(run_dir, env)]
    told = answers[0] | {
        "since": min(answer["since"] for answer in answers),
        "until": max(answer["until"] for answer in answers),
        "envs": [row for answer in answers for row in answer["envs"]],
    }
    if as_json:
        options.print_json(told)
        return
    nothing = "No environment has a quota yet (nodemgr quota set ENV --gpus N)." if env is None else f"Nothing is known of {env}."
    tables.show(COLUMNS, told["envs"], empty=nothing)
    span = f"{tables.wall_time(told['since'] * 10**9)} to {tables.wall_time(told['until'] * 10**9)}"
    node = told.get("node")
    held = "" if node is None else f"; {node['gpus']} GPUs, {hours(node)} GPU hours held, {percent(node)}"
    click.echo(f"\n{span}{held}")
