"""`nodemgr node list|show|drain|resume|lost|remove|join|leave`: the nodes of a cluster."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import click

from client_plugin.messages.form import relayed
from client_plugin.verbs.commands.status import node_columns
from client_plugin.verbs.presentation import tables
from client_plugin.verbs.presentation.tables import Column
from client_plugin.ways.faults import Exit, Fault
from nodemgr.cli.admins import asking
from nodemgr.cli.presentation import options
from nodemgr.cli.presentation.group import VerbGroup

JOBS = (
    Column("JOB", lambda r: r["job"]),
    Column("STATE", lambda r: r["state"]),
    Column("ENV", lambda r: r["env"]),
    Column("GPUS", lambda r: r["gpus"], right=True),
    Column("USER", lambda r: r["user"]),
    Column("NAME", lambda r: r["name"]),
    Column("WHY", lambda r: r["reason"] or None, rest=True, below=True),
)


@click.group("node", cls=VerbGroup, short_help="The nodes of a cluster: list, drain, give up.")
def command() -> None:
    """The nodes of a cluster, as its head knows them.

    On the head's machine these verbs ask the head, elsewhere the node, which passes them on.
    """


@command.command("list")
@options.run_dir_option
@options.json_option
def list_nodes(run_dir: str | None, as_json: bool) -> None:
    """List the nodes: GPUs in service, those that jobs of the cluster hold, and those of others."""
    told = asking.cluster(run_dir).call("node_list")
    if as_json:
        tables.print_json(told)
    else:
        tables.show(node_columns(), told["nodes"], empty="No node has joined.")


def _show(told: dict[str, Any], as_json: bool) -> None:
    if as_json:
        tables.print_json({"schema_version": 1, **told})
        return
    tables.show(node_columns(), [told])
    if told.get("rows"):
        print()
        tables.show(JOBS, told["rows"])
    for name, keys in (("given up", told["given_up"]), ("unknown to the head", told["unknown"])):
        for key in keys:
            click.echo(f"{key} runs there, and is {name}")


def _order(name: str, verb: str, help_text: str) -> None:
    @command.command(name, help=help_text, short_help=help_text.partition("\n")[0])
    @click.argument("node")
    @options.run_dir_option
    @options.json_option
    def carry_out(node: str, run_dir: str | None, as_json: bool) -> None:
        _show(asking.cluster(run_dir).call(verb, node=node), as_json)


@command.command("drain")
@click.argument("node")
@click.option("--note", help="The reason, one line.")
@options.run_dir_option
@options.json_option
def drain(node: str, note: str | None, run_dir: str | None, as_json: bool) -> None:
    """Give NODE no job. Jobs that it has not begun come back; the others go on."""
    said = {} if note is None else {"note": note}
    told = asking.cluster(run_dir).call("node_drain", node=node, **said)
    _show(told, as_json)


_order("show", "node_show", "Show NODE and its jobs of the cluster.")
_order("resume", "node_resume", "Give jobs to a drained NODE again.")
_order(
    "lost",
    "node_lost",
    "Give NODE up: nothing runs there any more, and its jobs may begin elsewhere.\n\n"
    "Say so only if it is true: a job that still runs there would run twice.",
)


@command.command("remove")
@click.argument("node")
@options.run_dir_option
def remove(node: str, run_dir: str | None) -> None:
    """Forget NODE, which has no job of the cluster."""
    asking.cluster(run_dir).call("node_remove", node=node)
    click.echo(f"{node} is no node of the cluster any more.")


@command.command("join")
@click.argument("head")
@click.argument("word")
@click.option("--name", help="The node's name in the cluster.")
@click.option(
    "--take-over", is_flag=True, help="Environments that the head has too are the head's from now."
)
@click.option(
    "--drain", is_flag=True, help="Also with jobs: they stay this node's own; new ones wait."
)
@options.run_dir_option
def join(
    head: str, word: str, name: str | None, take_over: bool, drain: bool, run_dir: str | None
) -> None:
    """Join this node to the cluster of HEAD (HOST:PORT), by a WORD of `nodemgr head word`.

    No job may wait or run on the node, but with --drain.
    """
    told = asking.control(run_dir).call(
        "node_join", address=head, word=word, node=name or socket.gethostname().partition(".")[0],
        take_over=take_over, drain=drain,
    )  # fmt: skip
    click.echo(f"This node is {told['node']} of {told['head']}.")


@command.command("pilot")
@click.argument("number", type=click.IntRange(1))
@click.argument("head")
@click.option("--seconds", type=click.IntRange(1), required=True, help="The time of the pilot.")
@click.option("--grace", type=click.IntRange(1), required=True, help="After Slurm's signal.")
@click.option("--dir", "directory", default="", help="A manager is started there.")
@click.option("--simulate", default="", help="Its simulated GPUs.")
@options.run_dir_option
def pilot(
    number: int, head: str, seconds: int, grace: int, directory: str, simulate: str,
    run_dir: str | None,
) -> None:  # fmt: skip
    """Hold this node for the head, as a job of Slurm. The head lets Slurm run it."""
    from nodemgr.edge.host.rundir import RunDirError
    from nodemgr.head.pilot_process import PilotProcess
    from nodemgr.paths import default_run_dir

    word = os.environ.get("NODEMGR_PILOT_WORD", "")
    own = PilotProcess(number, head, word, Path(run_dir or default_run_dir()), seconds, grace)
    try:
        if directory:
            own.brings_manager(Path(directory), simulate)
        why = own.run()
    except RunDirError as error:
        raise Fault(error.line) from None
    finally:
        own.close()
    if why:
        raise Fault(relayed(why), "see the node's manager")


@command.command("emptied")
@click.option("--within", type=click.IntRange(1, 3_600), default=60, help="Seconds at most.")
@options.run_dir_option
def emptied(within: int, run_dir: str | None) -> None:
    """Wait until the cluster has left this node: a line of Slurm's Epilog."""
    end = time.monotonic() + within
    while True:
        try:
            told = asking.control(run_dir).call("pool_state")
            if not told["lent"] or (told["empty"] and not told["pilot"]):
                return
            fault = Fault("programs of the cluster are still on this node", "see nodemgr status")
        except Fault as error:
            if error.code != Exit.UNREACHABLE:
                raise
            fault = error  # what runs outlives a manager: the next one knows
        if time.monotonic() > end:
            raise fault
        time.sleep(0.2)


@command.command("leave")
@click.option("--force", is_flag=True, help="Also with jobs of the cluster, and without the head.")
@options.run_dir_option
def leave(force: bool, run_dir: str | None) -> None:
    """Leave the cluster. Environments of the cluster stay on the node, as its own."""
    told = asking.control(run_dir).call("node_leave", force=force)
    click.echo(f"This node has left {told['head']}.")
