"""`nodemgr serve`: the manager in the foreground."""

from __future__ import annotations

from pathlib import Path

import click

from client_plugin.ways import installed
from client_plugin.ways.faults import Exit, Fault
from nodemgr.cli.presentation.helps import HelpedCommand
from nodemgr.messages import admins as messages


@click.command(cls=HelpedCommand)
@click.option(
    "--simulate",
    metavar="NODE",
    help="A node without hardware, e.g. 4x80GiB or 2xA100-80GiB,2xT4-16GiB: simulated GPUs, "
    "everything else real.",
)
@click.option(
    "--run-dir",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The sockets, and the files for clients (NODEMGR_RUN_DIR).",
)
@click.option(
    "--state-dir",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The store, and all else that survives a restart (NODEMGR_STATE_DIR).",
)
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Settings (the node's own: /etc/nodemgr/config.toml).",
)
@click.option(
    "--udp",
    metavar="HOST:PORT",
    help="Also listen for clients over UDP, each with its environment's key.",
)
@click.option(
    "--web",
    metavar="HOST:PORT",
    help="Serve the web page there, e.g. 127.0.0.1:8088. Needs the extra `faces`.",
)
@click.option(
    "--web-host",
    "web_hosts",
    metavar="NAME",
    multiple=True,
    help="A name under which browsers reach the web page, beside localhost.",
)
@click.option(
    "--web-base",
    metavar="PATH",
    help="The path of the web page on its site, e.g. /gpus.",
)
@click.option(
    "--no-store-copy",
    is_flag=True,
    help="Upgrade an earlier version's store without the copy of it beside it.",
)
def command(
    simulate: str | None,
    run_dir: Path | None,
    state_dir: Path | None,
    config: Path | None,
    udp: str | None,
    web: str | None,
    web_hosts: tuple[str, ...],
    web_base: str | None,
    no_store_copy: bool,
) -> None:
    """Run the manager in the foreground, until SIGTERM or Ctrl-C.

    Running tasks go on without a manager, and the next manager finds them.

    A flag overrides the NODEMGR_* variable, which overrides the settings file.
    """
    from importlib.util import find_spec

    from nodemgr.edge.host import huge_pages

    huge_pages.begin()  # before all else is imported
    from nodemgr.edge.setup.settings import SettingsError, load

    flags = {
        "simulate": simulate,
        "run_dir": run_dir,
        "state_dir": state_dir,
        "udp": udp,
        "web": web,
        "web_hosts": web_hosts or None,
        "web_base": web_base,
    }
    try:
        settings = load(flags, config)
    except SettingsError as error:
        raise Fault(error.line, code=Exit.USAGE) from None
    if settings.web is not None and find_spec("tornado") is None:
        raise Fault(messages.PAGE_EXTRA(install=installed.command("faces")), code=Exit.USAGE)
    from nodemgr.edge.service import ServiceFault, serve

    try:
        serve(settings, store_copy=not no_store_copy)
    except ServiceFault as error:
        raise Fault(error.line) from None
