"""`nodemgr head setup|serve|word|copy|restore`: the head of a cluster, on its machine."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

import click

from client_plugin.messages.form import stated
from client_plugin.verbs.presentation import tables
from client_plugin.ways import choice
from client_plugin.ways.faults import Exit, Fault, say
from nodemgr.cli.admins import asking
from nodemgr.cli.presentation import options
from nodemgr.cli.presentation.group import VerbGroup
from nodemgr.messages import head as messages
from nodemgr.paths import head_dir

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
def setup(name: str, address: str, directory: Path | None) -> None:
    """Make the head's directory, its keys (mode 0600) and, as root, its service.

    Run again, it changes the address, and keeps all else.
    """
    from client_plugin.ways.locations import is_env_name
    from nodemgr.edge.host.rundir import RunDirError
    from nodemgr.head.service import HeadFault, make

    if not is_env_name(name) or (address and not _is_address(address)):
        raise Fault(messages.NAME_OR_ADDRESS(), Exit.USAGE)
    where = directory or head_dir()
    try:
        settings = make(where, name, address)
    except (HeadFault, RunDirError) as error:
        raise Fault(error.line) from None
    click.echo(f"{where}: head {settings.name}, {settings.address or 'no address'}")
    if directory is None and os.geteuid() == 0:
        _install_service()
    if not settings.address:
        say(messages.HEAD_LISTENS_NOWHERE(head=settings.name))


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
                raise Fault(messages.SERVICE_FAILED(error=error)) from None


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
@run_dir_option
@options.json_option
def word(node: str, run_dir: str | None, as_json: bool) -> None:
    """Print a word by which NODE joins, once, within an hour.

    For a node of the cluster it gives that node another key, in place of a lost one.
    """
    told = asking.head(run_dir).call("node_word", node=node, by=choice.user())
    if as_json:
        tables.print_json({"schema_version": 1, **told})
    else:
        click.echo(told["word"])


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
        raise Fault(messages.NO_COPY(file=file, error=error)) from None


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
        raise Fault(stated(f"the copy cannot be put in place ({error})", "free the disk")) from None
