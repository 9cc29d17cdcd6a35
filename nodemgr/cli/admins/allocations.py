"""`nodemgr allocations`: the record of each allocation, newest last."""

from __future__ import annotations

from typing import Any

import click

from client_plugin.verbs.arguments import kinds
from client_plugin.verbs.presentation import cells, tables
from client_plugin.verbs.presentation.tables import Column, SizeColumn, TableRow
from client_plugin.ways import choice, locations
from client_plugin.ways.choice import Whom
from client_plugin.ways.control import ControlConnection, may_control
from nodemgr.cli.presentation import options
from nodemgr.cli.presentation.helps import HelpedCommand

COLUMNS = (
    Column("TASK", lambda a: a["task_id"]),
    Column("ENV", lambda a: a["env"]),
    Column("NEW GPUS", lambda a: tables.gpu_list(_shown(a, "gpus_new"))),
    Column("REUSED", lambda a: tables.gpu_list(_shown(a, "gpus_reused"))),
    Column(
        "GRANT",
        lambda a: "+".join(str(tables.size(size)) for size in a["grant_bytes"]) or None,
        right=True,
        spare=3,
    ),
    Column("GPUS LEFT", lambda a: a["remaining_gpus"], right=True, spare=6),
    SizeColumn("MEMORY LEFT", lambda a: a["remaining_memory_bytes"], spare=5),
    Column("GRANTED", lambda a: tables.wall_time(a["granted_wall_ns"])),
    Column(
        "WAITED",
        lambda a: cells.duration(a, "waited"),
        right=True,
        spare=4,
    ),
    Column("ENDED", lambda a: tables.wall_time(a["ended_wall_ns"]), spare=2),
    Column("WHY", lambda a: a["why"], spare=1),
    Column("CHOSEN", lambda a: a.get("chosen"), spare=7),
    Column("COMMAND", lambda a: a["command"], rest=True),
)


def _shown(record: TableRow, key: str) -> list[object]:
    """GPUs by index, as people know them, if the manager sends it."""
    return list(record.get(f"{key}_index") or record[key])


@click.command(
    cls=HelpedCommand,
    short_help="Show each grant: its GPUs, its begin, and its end with the reason.",
)
@click.argument("env", type=options.ENV, required=False)
@click.option(
    "--since",
    type=options.Parsed(kinds.MOMENT),
    help="Only those granted since then: 2h, 7d, 2026-01-31T12:00.",
)
@options.run_dir_option
@options.json_option
def command(env: str | None, since: int | None, run_dir: str | None, as_json: bool) -> None:
    """Show each grant of ENV, or of all environments that this user may see.

    A line has the GPUs, the begin, and the end with its reason.
    """
    whose, result = _ask(run_dir, env, {} if since is None else {"since_wall_ns": since})
    result["allocations"] = [
        record for record in result["allocations"] if record["granted_wall_ns"] >= (since or 0)
    ]
    if as_json:
        tables.print_json(result)
    else:
        then = "" if since is None else " since then"
        where = f"in {whose}, which is all that you may ask about" if whose else "on this node"
        empty = f"Nothing was allocated{then} {where}."
        tables.show(COLUMNS, result["allocations"], empty=empty)


def _ask(run_dir: str | None, env: str | None, said: dict[str, Any]) -> tuple[str, Any]:
    """Ask the manager: an admin about any environment, a user as a user of that environment.

    Returns a user's environment, empty for an admin, and the answer.
    """
    directory = run_dir or locations.find_run_dir()
    if env is not None and may_control(directory):
        return "", ControlConnection(directory).call("allocations", env=env, **said)
    way = choice.node_or_env(Whom(run_dir, env))
    if isinstance(way, choice.UserWay):
        return locations.read_conf(way.directory)["env"], way.question("allocations")
    return "", ControlConnection(directory).call("allocations", **said)
