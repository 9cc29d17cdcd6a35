"""`nodemgr head setup|serve|word|…`: the head of a cluster, on its machine."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from client_plugin.verbs.commands.doctor import show
from client_plugin.verbs.presentation import tables
from client_plugin.ways.faults import Exit, Fault, say
from nodemgr.cli.admins import asking
from nodemgr.cli.presentation import options
from nodemgr.cli.presentation.group import VerbGroup
from nodemgr.paths import head_dir

CONNECT_S = 5.0

directory_option = click.option(
    "--dir",
    "directory",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The head's directory: store, keys, settings.",
)
run_dir_option = click.option(
    "--run-dir", metavar="DIR", type=options.DIRECTORY, help="The directory of the head's socket."
)


POOL_OPTIONS = (
    click.option("--engine", type=click.Choice(("own", "slurm")), default="own",
                 help="slurm: nodes of Slurm come and go with the queue."),
    click.option("--partition", default="", help="Slurm's partition for the pool."),
    click.option("--min-nodes", type=click.IntRange(0, 1_000), default=0,
                 help="The nodes that the pool keeps."),
    click.option("--max-nodes", type=click.IntRange(1, 1_000), default=8,
                 help="The most nodes of the pool."),
    click.option("--time", "time_limit", type=options.DURATION, default="24h",
                 help="The time for which one node is asked of Slurm."),
    click.option("--grace", type=options.DURATION, default="30s",
                 help="Between Slurm's signal and its kill; at most the site's KillWait."),
    click.option("--idle-return", type=options.DURATION, default="10m",
                 help="A node goes back when it has had nothing to do for so long."),
    click.option("--change-every", type=options.DURATION, default="30s",
                 help="At least the time between two changes of the pool."),
    click.option("--always", default="", metavar="NODES",
                 help="Nodes that the pool always keeps, e.g. gn1,gn2."),
    click.option("--sbatch-option", "sbatch_options", multiple=True,
                 help="A further option of sbatch, e.g. --account=ml."),
    click.option("--pilot-user", default="", help="The user whose jobs the pilots are."),
    click.option("--pilot-dir", default=None, metavar="DIR",
                 help="Pilots start a manager in DIR/NODE; empty: each node has its own manager."),
    click.option("--simulate", default="", metavar="NODE",
                 help="For a trial: the managers of pilots simulate GPUs, e.g. 8x80GiB."),
)  # fmt: skip


def pool_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(POOL_OPTIONS):
        command = option(command)
    return command


@click.group("head", cls=VerbGroup, short_help="Make, run and restore the head of a cluster.")
def command() -> None:
    """The head of a cluster: one queue and one set of quotas for several nodes.

    It runs on one machine, which may be a node too. Nodes join it by a word.
    """


@command.command("setup")
@click.option("--name", default="hq", show_default=False, help="The head's name in its jobs' keys.")
@click.option(
    "--address",
    default="",
    metavar="HOST:PORT",
    help="The address on which nodes reach it; until one is named, it listens on none.",
)
@directory_option
@pool_options
def setup(name: str, address: str, directory: Path | None, **pool: Any) -> None:
    """Make the head's directory, its keys (mode 0600) and, as root, its service.

    Run again, it changes the address or the pool, and keeps all else. `--engine slurm` lets nodes
    of Slurm come and go with the queue.
    """
    from client_plugin.ways.locations import is_env_name
    from nodemgr.edge.host.rundir import RunDirError
    from nodemgr.head.service import HeadFault, make

    if not is_env_name(name) or (address and not _is_address(address)):
        raise Fault(
            "a head's name or address is none",
            "name it as an environment, and an address such as 10.0.0.5:7470",
            Exit.USAGE,
        )
    where = directory or head_dir()
    try:
        settings = make(where, name, address, _pool(name, address, pool))
    except (HeadFault, RunDirError) as error:
        raise Fault(error.line) from None
    click.echo(f"{where}: head {settings.name}, {settings.address or 'no address'}")
    if directory is None and os.geteuid() == 0:
        _install_service()
    if not settings.address:
        say(
            f"head {settings.name} has no address, so no node can reach it",
            "name one with nodemgr head setup --address HOST:PORT",
        )


def _pool(name: str, address: str, said: dict[str, Any]) -> Any:
    """None: there is no pool. Raises Fault."""
    if said["engine"] != "slurm":
        return None
    from nodemgr.edge.setup.settings import SettingsError, parse_simulated
    from nodemgr.head.pool_setup import pool_of

    try:
        simulated = len(parse_simulated(said["simulate"])) if said["simulate"] else 0
    except SettingsError as error:
        raise Fault(error.line, code=Exit.USAGE) from None
    return pool_of(name, address, said, simulated, click.echo)


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdecimal() and 0 < int(port) < 65_536


def _install_service() -> None:
    from nodemgr.edge.setup import installation

    machine = installation.Machine()
    for step in (installation.HEAD_UNIT, installation.HEAD_SERVICE):
        verb, line = step.plan(machine)
        click.echo(f"{verb}  {line}")
        if verb not in installation.IDLE:
            try:
                step.do(machine)
            except (installation.StepFailed, OSError) as error:
                raise Fault(
                    f"the service of the head does not start ({error})",
                    "see journalctl -u nodemgr-head, then run nodemgr head setup again",
                ) from None


@command.command("serve")
@directory_option
@run_dir_option
def serve(directory: Path | None, run_dir: str | None) -> None:
    """Run the head in the foreground, until SIGTERM or Ctrl-C.

    Nodes go on without a head; the next one asks each for what it has.
    """
    from nodemgr.head.service import HeadFault
    from nodemgr.head.service import serve as run

    try:
        run(directory or head_dir(), Path(run_dir or asking.head_run_dir()))
    except HeadFault as error:
        raise Fault(error.line) from None


@command.command("word")
@click.argument("node")
@click.option("--user", metavar="NAME", help="Who runs the node's manager, if root does not.")
@run_dir_option
@options.json_option
def word(node: str, user: str | None, run_dir: str | None, as_json: bool) -> None:
    """Print a word by which NODE joins, once, within an hour.

    For a node of the cluster it gives that node another key, in place of a lost one. The node of an
    ordinary user asks for that user alone, and gets no job of others.
    """
    told = asking.head(run_dir).call("node_word", node=node, user=user)
    if as_json:
        tables.print_json({"schema_version": 1, **told})
    else:
        click.echo(told["word"])


@command.command("doctor")
@directory_option
@run_dir_option
@options.json_option
def examine(directory: Path | None, run_dir: str | None, as_json: bool) -> None:
    """Check the head, its port, Slurm's site, each node as it sees it; exit 1 if one fails."""
    found = [*_of_head(run_dir), *_of_slurm(directory or head_dir())]
    if as_json:
        tables.print_json({"schema_version": 1, "checks": found})
    else:
        show(found)
    if any(row["ok"] is False for row in found):
        raise SystemExit(Exit.FAILED)


def _of_head(run_dir: str | None) -> list[dict[str, Any]]:
    """The head's own rows, and whether something answers at its port."""
    try:
        told = asking.head(run_dir).call("head_checks")
    except Fault as fault:
        return [{"name": "head", "ok": False, "detail": fault.what, "cure": fault.next}]
    found: list[dict[str, Any]] = told["checks"]
    host, _, port = told["address"].rpartition(":")
    for row in found:
        if row["name"] == "port" and row["ok"]:
            try:
                socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
            except OSError as error:
                row |= {
                    "ok": False, "detail": f"nothing answers at {host}:{port} ({error})",
                    "cure": "let the firewall of this machine pass the nodes to the port",
                }  # fmt: skip
    return found


def _of_slurm(directory: Path) -> list[dict[str, Any]]:
    """The same look at the site as at setup."""
    from nodemgr.head.service import HeadFault, read_settings
    from nodemgr.head.slurm import Slurm

    try:
        settings = read_settings(directory)
    except HeadFault:
        return []
    if settings.pool is None:
        return []
    checks = Slurm(settings.name, settings.pool, settings.address).checks()
    return [
        {"name": f"slurm {row.name}", "ok": row.ok, "detail": row.detail,
         "cure": "" if row.ok else row.cure}
        for row in checks
    ]  # fmt: skip


@command.command("metrics")
@run_dir_option
def metrics(run_dir: str | None) -> None:
    """Print the head's metrics in the text form of Prometheus, for a collector of text files."""
    click.echo(asking.head(run_dir).call("head_metrics")["text"], nl=False)


@command.command("copy")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@directory_option
def copy(file: Path, directory: Path | None) -> None:
    """Copy the head's store to FILE, while the head runs."""
    source = (directory or head_dir()) / "state.db"
    try:
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with (
            contextlib.closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True)) as store,
            contextlib.closing(sqlite3.connect(file)) as made,
        ):
            store.backup(made)
            made.execute("PRAGMA journal_mode = DELETE")
    except (OSError, sqlite3.Error) as error:
        raise Fault(
            f"{file} cannot be made ({error})", "name a new file, as the head's user"
        ) from None


@command.command("restore")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@directory_option
def restore(file: Path | None, directory: Path | None) -> None:
    """Let the copy in FILE go on as the head's store. (Without FILE: the store is a copy already.)

    The head must not run. It goes on under a later generation, and gives no job until it has heard
    each node. Jobs that were submitted after the copy and are on no node are lost.
    """
    from nodemgr.edge.host.rundir import RunDirError
    from nodemgr.head.service import HeadFault
    from nodemgr.head.service import restore as go_on

    try:
        for line in go_on(directory or head_dir(), file):
            click.echo(line)
    except (HeadFault, RunDirError) as error:
        raise Fault(error.line) from None
    except OSError as error:
        raise Fault(f"the copy cannot be put in place ({error})", "free the disk") from None
