"""The node's verbs by click: administrators' own, and for help and completion the users', too.

Each verb is a module that is imported only when the verb is called, so that `--help` starts fast.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import click

from client_plugin import verbs
from client_plugin.verbs import give_up_stdout, guarded
from client_plugin.verbs.arguments.parser import NO_WAIT
from client_plugin.ways import ctrl_c
from client_plugin.ways.faults import Exit, say
from client_plugin.ways.nearest import did_you_mean
from client_plugin.ways.retry_timeout import through_restart
from nodemgr.cli.presentation.helps import HelpedCommand

VERBS = {
    **verbs.VERBS,
    "allocations": "Show each grant: its GPUs, its begin, and its end with the reason.",
    "events": "Show the node's past events, and with --follow new ones.",
    "doctor": "Check this installation, the manager and the environment.",
    "env": "Create, list, show and remove environments, and give them to containers.",
    "quota": "Set, show and remove what each environment may use.",
    "gpu": "Drain GPUs, resume them, and report failures and repairs.",
    "head": "Make, run and restore the head of a cluster.",
    "node": "The nodes of a cluster: list, drain, give up.",
    "web": "Make, list and revoke tokens of the manager's web page.",
    "serve": "Run the manager in the foreground, until SIGTERM or Ctrl-C.",
    "setup": "Make this machine a node: group, settings, service.",
    "demo": "Show on this machine how programs get GPUs, in a few seconds.",
    "placement": "Train and evaluate a learned placement of jobs on GPUs that fail.",
    "completion": "Print the shell's completion script.",
}
"""Verb -> its line in the help.

The first verbs are modules of client_plugin/verbs, the others of the room admins (`command`).
"""

HEADINGS = {
    "Run": ("run", "submit", "predict", "wait", "kernel"),
    "Look": ("status", "top", "queue", "logs", "history", "report", "allocations", "events"),
    "Change": ("release", "suspend", "resume", "keep"),
    "Administer": ("env", "quota", "gpu", "node", "head", "web", "placement"),
    "Set up": ("setup", "serve", "doctor", "demo", "completion"),
}
"""The verbs in the groups in which the help lists them."""


class _Ended(Exception):
    """A verb was ended from outside: nothing is left to say."""

    def __init__(self, code: Exit) -> None:
        super().__init__(code)
        self.code = code


class VerbGroup(HelpedCommand, click.Group):
    """A group of verbs, or of a verb's orders; it proposes the likely one for a mistyped one."""

    command_class = HelpedCommand

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*click.Command.collect_usage_pieces(self, ctx), "VERB ..."]

    def under(self, ctx: click.Context) -> dict[str, str]:
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        return {
            name: command.get_short_help_str(limit=1_000)
            for name, command in found.items()
            if command is not None and not command.hidden
        }

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if (
            args
            and args[0] not in known
            and not args[0].startswith("-")
            and not ctx.resilient_parsing
        ):
            from client_plugin.messages import arguments as messages  # for this alone

            meant = did_you_mean(args[0], known)
            if not meant and ctx.parent is not None:  # the list of all verbs is too long for a line
                meant = messages.KNOWN_COMMANDS(known=", ".join(self.under(ctx)))
            ctx.fail(messages.NO_SUCH_COMMAND(word=args[0], meant=meant))
        found = super().resolve_command(ctx, args)
        ctrl_c.interrupt()  # the verb's module is imported
        return found


class LazyGroup(VerbGroup):
    """Imports a verb's module when the verb is needed, and not for the list of all verbs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        if cmd_name in verbs.VERBS:
            from nodemgr.cli.users.bridge import command_of

            return command_of(verbs.find(cmd_name))
        command = importlib.import_module(f"nodemgr.cli.admins.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run a verb; report a reader that left, and Ctrl-C, to `main` by names of its own.

        Click would turn the standard exceptions into its own.
        """
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _Ended(Exit.BROKEN_PIPE) from None
        except KeyboardInterrupt:
            raise _Ended(Exit.INTERRUPTED) from None

    def under(self, _ctx: click.Context) -> dict[str, str]:
        return VERBS

    def under_headings(self, _ctx: click.Context) -> dict[str, dict[str, str]]:
        return {
            heading: {verb: VERBS[verb] for verb in listed} for heading, listed in HEADINGS.items()
        }


def _print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from nodemgr import paths  # it imports pathlib, which other verbs do without

        click.echo(f"nodemgr {paths.installed_version()}")
        ctx.exit()


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version.",
)
def nodemgr() -> None:
    """GPUs on demand, within the quota of an environment.

    A program gets its GPUs when it starts to use CUDA, and gives them back when it ends.
    """


def main(arguments: Sequence[str]) -> int:
    """Runs one verb; returns the exit code."""
    return guarded(lambda: _run(arguments))


def _run(arguments: Sequence[str]) -> int:
    """Raises Fault and OSError; what click reports is handled here."""
    try:
        outcome = through_restart(
            lambda: nodemgr.main(list(arguments), prog_name="nodemgr", standalone_mode=False),
            NO_WAIT in arguments,
        )
        return outcome if isinstance(outcome, int) else 0
    except click.exceptions.NoArgsIsHelpError as wanted:
        wanted.show()
        return Exit.USAGE
    except click.UsageError as mistake:
        from client_plugin.messages.arguments import SEE_HELP

        path = mistake.ctx.command_path if mistake.ctx else "nodemgr"
        say(SEE_HELP(line=mistake.format_message().rstrip("."), path=path))
        return Exit.USAGE
    except click.ClickException as mistake:
        from client_plugin.messages.form import relayed

        say(relayed(mistake.format_message()))
        return mistake.exit_code
    except click.Abort:
        return Exit.INTERRUPTED
    except _Ended as ended:
        give_up_stdout()
        return ended.code
