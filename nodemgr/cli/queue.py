"""`nodemgr queue`: what waits and what runs; `nodemgr queue move|hold|…` changes it; `nodemgr queue create|rm` makes queues."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from nodemgr import paths
from nodemgr.cli import asking, jobs, options, status, tables
from nodemgr.cli.faults import say
from nodemgr.cli.tables import Column, Row

MAX_RANK = 1_000_000

WAITING = (
    Column("PLACE", lambda r: r["position"], right=True),
    Column("ID", lambda r: r["id"]),
    Column("ENV", lambda r: r["env"]),
    Column("QUEUE", lambda r: r["priority"], spare=1),
    Column("GPUS", lambda r: r["gpus"], right=True),
    Column("WHO", status.who, spare=3),
    Column("WAITED", lambda r: tables.seconds(r["waited_seconds"]), right=True, spare=2),
    Column("STARTS ABOUT", lambda r: expected(r), spare=1),
    Column("NAME", lambda r: r["name"] or r["command"], spare=2),
    Column("WHY", tables.why, rest=True),
)
UNDER_WAY = (
    Column("ID", lambda r: r["id"]),
    Column("STATE", lambda r: r["state"]),
    Column("ENV", lambda r: r["env"]),
    Column("GPUS", lambda r: r["gpus"], right=True),
    Column("WHO", status.who, spare=2),
    Column("SINCE", lambda r: tables.wall_time(r["since"] * 10**9), spare=3),
    Column("LIMIT", lambda r: tables.seconds(r["time_limit_seconds"]), right=True, spare=1),
    Column("NAME", lambda r: r["name"]),
    Column("COMMAND", lambda r: r["command"], rest=True),
)
QUEUES = (
    Column("QUEUE", lambda q: q["name"]),
    Column("RANK", lambda q: q["rank"], right=True),
    Column("WAITING", lambda q: q["length"], right=True),
    Column("CAP", lambda q: q["cap"], right=True),
)
RUNS = frozenset({"starting", "running", "stopping"})


def expected(row: Row) -> str | None:
    """An estimate, and how far it may be wrong; None where nothing is known."""
    start = row.get("expected_start")
    if start is None:
        return None
    spread = row.get("expected_spread_seconds") or 0
    return f"~{tables.clock_time(start)}" + (f" ±{tables.seconds(spread)}" if spread else "")


@click.group(short_help="Show what waits and runs; change it.", invoke_without_command=True)
@click.option("--env", type=options.ENV, help="Only this environment's.")
@options.run_dir_option
@options.json_option
@click.pass_context
def command(ctx: click.Context, env: str | None, run_dir: Path | None, as_json: bool) -> None:
    """Show all that waits, in the order of service, and the jobs that run: an admin sees the node, a user his environments.

    A start that is shown is an estimate (~), by time limits or by how long the same command took before.
    """
    if ctx.invoked_subcommand is not None:
        if as_json:
            raise click.UsageError("--json stands behind the verb that it is for")
        ctx.obj = (env, run_dir)
        return
    rows: dict[str, Row] = {}
    queues: list[Row] = []
    store: Row | None = None
    launcher: Row | None = None
    if env is not None:
        asking.known_env_dir(run_dir or paths.find_run_dir(), env)
    for way in jobs.choose(run_dir, env):
        for page in jobs.pages(way, "queue"):
            queues, store, launcher = page["queues"], page["store"], page.get("launcher")
            rows |= {row["id"]: row for row in page["queue"]}  # one that moved meanwhile comes twice
    waiting = [row for row in rows.values() if row["state"] not in RUNS]
    running = [row for row in rows.values() if row["state"] in RUNS]
    if as_json:
        health = {"store": store, "launcher": launcher}
        options.print_json({"schema_version": 1, "queue": waiting, "running": running, "queues": queues, **health})
        return
    tables.show(WAITING, waiting, empty="Nothing waits.")
    if running:
        click.echo()
        tables.show(UNDER_WAY, running)
    if any(row["cap"] is not None for row in queues) or len(queues) > len(PRESETS):
        click.echo()
        tables.show(QUEUES, queues)
    status.say_if_failing(store, launcher, waiting)


PRESETS = ("high", "normal", "low")
"""Queues that are not worth a table of their own."""


def _order(verb: str, done: str, help: str, kind: jobs.Job = jobs.JOB) -> Callable[..., None]:
    """A subcommand that is told of one job, and no more."""

    @command.command(verb, help=help, short_help=help)
    @click.argument("job", type=kind)
    @options.run_dir_option
    @click.option("--env", type=options.ENV, help="As a user of this environment.")
    @click.pass_context
    def order(ctx: click.Context, job: str, run_dir: Path | None, env: str | None) -> None:
        _way_to(job, ctx, run_dir, env).ask(f"job_{verb}", job=job)
        say(f"{job} {done}")

    return order


def _way_to(job: str, ctx: click.Context, run_dir: Path | None, env: str | None) -> jobs.Way:
    """What stands before the subcommand counts, too."""
    env_before, run_dir_before = ctx.obj or (None, None)
    return jobs.way_to(job, run_dir or run_dir_before, env or env_before)


withdraw = _order(
    "withdraw", "is withdrawn", "Take JOB (or a waiting request, r17) out of its queue, or end it if it runs.", jobs.JOB_OR_REQUEST
)
hold = _order("hold", "is held", "Take JOB out of its queue until it is freed.")
free = _order("free", "is freed", "Put a held JOB at the end of its queue.")
requeue = _order(
    "requeue", "waits again", "Have JOB begin anew: one that runs is ended first, one that has ended runs again.", jobs.JOB_OR_ENDED
)


@command.command("move", short_help="Put JOB at the end of another queue, or at the front of its own.")
@click.argument("job", type=jobs.JOB)
@click.argument("queue", type=jobs.QUEUE, required=False)
@click.option("--first", is_flag=True, help="To the front of its queue (for admins).")
@options.run_dir_option
@click.option("--env", type=options.ENV, help="As a user of this environment.")
@click.pass_context
def move(ctx: click.Context, job: str, queue: str | None, first: bool, run_dir: Path | None, env: str | None) -> None:
    """Put JOB at the end of QUEUE, or (for admins) at the front of its own queue."""
    if (queue is None) is not first:
        raise click.UsageError("say either the queue to whose end it goes, or --first for the front of its own")
    _way_to(job, ctx, run_dir, env).ask("job_move", job=job, queue=queue, first=first)
    say(f"{job} is moved to the {'front of its queue' if first else f'end of queue {queue}'}")


@command.command("position", short_help="Say where JOB stands, and why it waits.")
@click.argument("job", type=jobs.JOB_OR_REQUEST)
@options.run_dir_option
@click.option("--env", type=options.ENV, help="As a user of this environment.")
@options.json_option
@click.pass_context
def position(ctx: click.Context, job: str, run_dir: Path | None, env: str | None, as_json: bool) -> None:
    """Say where JOB (an array's name: its elements; r17: a request) stands: its place, why it waits, how it ended."""
    told = _way_to(job, ctx, run_dir, env).ask("job_show", job=job)
    if as_json:
        options.print_json(told)
        return
    for row in told["jobs"]:
        click.echo(tables.printable(f"{row.get('job') or row['id']}: {standing(row)}"))


def standing(row: Row) -> str:
    """Where a job stands, in a line."""
    match row["state"]:
        case "queued" | "waiting" | "away":
            start = expected(row)
            about = f" (starts about {start}, an estimate)" if start else ""
            return f"place {row['position']} in queue {row['priority']}: {tables.why(row) or 'its turn comes next'}{about}"
        case "held" | "after":
            return str(row["reason"])
        case "running" | "starting" | "stopping" as state:
            since = tables.wall_time(row["started"] * 10**9 if row["started"] else None)
            return f"{state} since {since}" if since else str(state)
        case state:
            return f"{state} ({row['why']})" if row["why"] else str(state)


@command.command("create", short_help="Make a queue, or change its rank and cap (for admins).")
@click.argument("queue", type=jobs.QUEUE)
@click.option("--rank", type=options.Count(1, MAX_RANK), required=True, help="The higher, the sooner: high 300, normal 200, low 100.")
@click.option("--cap", type=options.Count(0, MAX_RANK), help="So many may wait in it at most; more are refused.")
@options.run_dir_option
@click.pass_context
def create(ctx: click.Context, queue: str, rank: int, cap: int | None, run_dir: Path | None) -> None:
    """Make QUEUE, or change it."""
    _as_admin(ctx, run_dir).ask("queue_create", queue=queue, rank=rank, cap=cap)
    say(f"queue {queue} has rank {rank}" + (f" and takes {cap} at most" if cap is not None else ""))


@command.command("rm", short_help="Remove a queue in which nothing waits (for admins).")
@click.argument("queue", type=jobs.QUEUE)
@options.run_dir_option
@click.pass_context
def remove(ctx: click.Context, queue: str, run_dir: Path | None) -> None:
    """Remove QUEUE, in which nothing waits and which no quota names."""
    _as_admin(ctx, run_dir).ask("queue_rm", queue=queue)
    say(f"queue {queue} is removed")


def _as_admin(ctx: click.Context, run_dir: Path | None) -> jobs.Way:
    return jobs.admins_way(run_dir or (ctx.obj or (None, None))[1])
