"""`nodemgr completion SHELL`: the shell's completion script."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from nodemgr.cli.presentation.helps import HelpedCommand


@click.command(cls=HelpedCommand, short_help="Print the shell's completion script.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell. In ~/.bashrc: eval "$(nodemgr completion bash)"."""
    kind = get_completion_class(shell)
    assert kind is not None
    complete = kind(ctx.find_root().command, {}, "nodemgr", "_NODEMGR_COMPLETE")
    click.echo(complete.source_template % complete.source_vars())
