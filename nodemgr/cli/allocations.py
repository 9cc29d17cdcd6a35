"""`nodemgr allocations`: the record of each allocation, newest last."""

from __future__ import annotations

from pathlib import Path

import click

from nodemgr.cli import asking, options, tables
from nodemgr.cli.tables import Column, Row

COLUMNS = (
    Column("TASK", lambda a: a["task_id"]),
    Column("ENV", lambda a: a["env"]),
    Column("NEW GPUS", lambda a: tables.gpu_list(_shown(a, "gpus_new"))),
    Column("REUSED", lambda a: tables.gpu_list(_shown(a, "gpus_reused"))),
    Column("GRANT", lambda a: "+".join(str(tables.size(size)) for size in a["grant_bytes"]) or None, right=True),
    Column("GPUS LEFT", lambda a: a["remaining_gpus"], right=True),
    Column("MEMORY LEFT", lambda a: tables.size(a["remaining_memory_bytes"]), right=True),
    Column("GRANTED", lambda a: tables.wall_time(a["granted_wall_ns"])),
    Column("WAITED", lambda a: tables.seconds((a["granted_wall_ns"] - a["asked_wall_ns"]) / 1e9), right=True),
    Column("ENDED", lambda a: tables.wall_time(a["ended_wall_ns"])),
    Column("WHY", lambda a: a["why"]),
    Column("COMMAND", lambda a: a["command"], rest=True),
)


def _shown(record: Row, key: str) -> list[object]:
    """By index where the manager tells it, as people know GPUs."""
    return list(record.get(f"{key}_index") or record[key])


@click.command(short_help="Show who was given which GPUs, when and why it ended.")
@click.argument("env", type=options.ENV, required=False)
@click.option("--since", type=options.MOMENT, help="Only those granted since then: 2h, 7d, 2026-01-31T12:00.")
@options.run_dir_option
@options.json_option
def command(env: str | None, since: int | None, run_dir: Path | None, as_json: bool) -> None:
    """Show who was given which GPUs, when and why it ended (for admins)."""
    said = {"env": env, "since_wall_ns": since}
    result = asking.control(run_dir).call("allocations", **{key: value for key, value in said.items() if value is not None})
    if as_json:
        options.print_json(result)
    else:
        tables.show(COLUMNS, result["allocations"], empty="Nothing was allocated yet.")
