"""`nodemgr web token|tokens|revoke`: who may see and do what on the web page."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import click

from client_plugin import units
from client_plugin.verbs.arguments.parser import ValueKind
from client_plugin.verbs.presentation import tables
from client_plugin.verbs.presentation.tables import Column
from client_plugin.ways import choice, installed, locations
from client_plugin.ways.choice import Way, Whom
from client_plugin.ways.control import may_control
from client_plugin.ways.faults import Fault
from nodemgr.cli.presentation import options
from nodemgr.cli.presentation.group import VerbGroup
from nodemgr.messages import admins as messages

COLUMNS = (
    Column("TOKEN", lambda t: t["id"]),
    Column("OF", lambda t: "administrators" if t["admin"] else t["env"]),
    Column("MADE BY", lambda t: t["made_by"]),
    Column("MADE", lambda t: tables.wall_time(t["made"] * 1_000_000_000)),
    Column("EXPIRES", lambda t: tables.wall_time(t["expires"] * 1_000_000_000)),
)


VALIDITY = options.Parsed(ValueKind("duration", lambda text: units.parse_duration_ms(text, 2**53)))
"""The manager has the limit."""


@click.group(
    "web", cls=VerbGroup, short_help="Make, list and revoke tokens of the manager's web page."
)
def command() -> None:
    """Tokens of the web page (nodemgr serve --web HOST:PORT).

    Without a token the page shows totals. An environment's token shows that environment, and
    allows release and withdraw there. An administrator's token shows and allows that of all
    environments, and quotas.
    """


@command.command("token")
@click.option("--env", type=options.ENV, help="A token of this environment.")
@click.option("--admin", is_flag=True, help="A token of an administrator.")
@click.option("--for", "for_ms", type=VALIDITY, default="8h", help="How long it is valid.")
@options.run_dir_option
@options.json_option
def token(env: str | None, admin: bool, for_ms: int, run_dir: str | None, as_json: bool) -> None:
    """Make a token and print it; it is not shown again.

    Enter it on the page. Keep it out of addresses and of files that others may read.
    """
    way = choice.admins_way(Whom(run_dir)) if admin else _way(run_dir, env)
    arguments: dict[str, Any] = {"for_ms": for_ms}
    if isinstance(way, choice.AdminWay):
        arguments |= {"admin": admin} | ({} if env is None else {"env": env})
    made = way.ask("web_token", **arguments)
    if as_json:
        tables.print_json(made)
    else:
        click.echo(made["token"])


@command.command("tokens")
@click.option("--env", type=options.ENV, help="Only those of this environment.")
@options.run_dir_option
@options.json_option
def tokens(env: str | None, run_dir: str | None, as_json: bool) -> None:
    """List the tokens that are valid now, without their secrets."""
    way = _way(run_dir, env)
    scope: dict[str, Any] = (
        {} if env is None or not isinstance(way, choice.AdminWay) else {"env": env}
    )
    found = way.ask("web_tokens", **scope)
    if as_json:
        tables.print_json(found)
    else:
        tables.show(COLUMNS, found["tokens"], empty="No token (nodemgr web token makes one).")


@command.command("revoke")
@click.argument("token_id", metavar="TOKEN")
@click.option("--env", type=options.ENV, help="As a user of this environment.")
@options.run_dir_option
def revoke(token_id: str, env: str | None, run_dir: str | None) -> None:
    """Revoke TOKEN (as in `w3`): a page that is open with it shows totals only."""
    _way(run_dir, env).ask("web_revoke", token=token_id)


@command.command("page", hidden=True)
@options.run_dir_option
def page(run_dir: str | None) -> None:
    """Serve the page for the manager at this run directory; the unit nodemgr-web does so.

    The next manager goes on with this page where its settings of the page are the same; else it
    ends this page, and begins its own.
    """
    from importlib.util import find_spec

    if find_spec("tornado") is None:
        raise Fault(messages.PAGE_EXTRA(install=installed.command("faces")))
    from nodemgr.edge.page.address import ByHand
    from nodemgr.edge.page.process import serve_for
    from nodemgr.edge.web import page_host

    directory = run_dir or locations.find_run_dir()

    def note(by_hand: ByHand) -> None:
        with contextlib.suppress(OSError):  # the unit's user may not, and systemd ends its process
            page_host.note(Path(directory), os.getpid(), by_hand)

    sys.exit(serve_for(directory, note))


def _way(run_dir: str | None, env: str | None) -> Way:
    """An administrator's where this user is one, else as a user of the environment."""
    directory = run_dir or locations.find_run_dir()
    if may_control(directory) and (env is not None or locations.own_env_dir() is None):
        return choice.AdminWay(directory, env)
    return choice.node_or_env(Whom(run_dir, env))
