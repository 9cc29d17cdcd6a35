"""The command line: it parses, asks the manager, prints. It decides nothing.

Each verb is a module that is imported only when the verb is called, so that `nodemgr run` and `--help` start fast.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Sequence

import click

from nodemgr import paths
from nodemgr.cli.faults import Exit, Fault, say

VERBS = {
    "run": "Run a command in an environment of this node.",
    "submit": "Have a command run in an environment when its turn comes.",
    "queue": "Show what waits and runs; change it.",
    "logs": "Show what a job wrote, and with --follow what it writes.",
    "wait": "Wait until jobs have ended; its exit code is theirs.",
    "history": "Show the jobs that have ended; of one job the whole story.",
    "report": "Show GPU hours, waits and jobs of each environment.",
    "status": "Show GPUs, environments, tasks and the queue.",
    "release": "Take a task's GPUs back, or a waiting request out of the queue.",
    "allocations": "Show who was given which GPUs, when and why it ended.",
    "events": "Show what happened on the node, and with --follow what happens.",
    "doctor": "Check this installation, the manager and the environment.",
    "env": "Create, list, show and remove environments, and give them to containers.",
    "quota": "Set, show and remove what each environment may use.",
    "serve": "Run the manager in the foreground, until SIGTERM or Ctrl-C.",
    "setup": "Make this machine a node: group, settings, service.",
    "demo": "Show the whole story on this machine in half a minute.",
    "completion": "Print the shell's completion script.",
}
"""Verb (and module in this package, whose `command` it is) -> its line in the help."""

NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What the kernel says of an output that takes no more; a file that we opened would be named beside it."""


class _Ended(Exception):
    """A verb was ended from outside: nothing is left to say."""

    def __init__(self, code: Exit) -> None:
        super().__init__(code)
        self.code = code


class LazyGroup(click.Group):
    """Imports a verb's module when the verb is needed, and not for the list of all verbs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command = importlib.import_module(f"nodemgr.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Ends by a reader that left or by Ctrl-C are told to `main` by names that click does not turn into its own."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _Ended(Exit.BROKEN_PIPE) from None
        except KeyboardInterrupt:
            raise _Ended(Exit.INTERRUPTED) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


def _print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"nodemgr {paths.installed_version()}")
        ctx.exit()


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version.")
def nodemgr() -> None:
    """GPUs on demand: a program gets its GPUs when it starts to use CUDA, within its environment's quota, and gives
    them back when it ends."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one verb; returns the exit code. What a user can do wrong ends in one line, never in a traceback."""
    try:
        if sys.stdout is None:  # closed by who started us
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (for good)
        outcome = nodemgr.main(arguments, prog_name="nodemgr", standalone_mode=False)
        sys.stdout.flush()
        return outcome if isinstance(outcome, int) else 0
    except click.exceptions.NoArgsIsHelpError as wanted:
        wanted.show()
        return Exit.USAGE
    except click.UsageError as mistake:
        path = mistake.ctx.command_path if mistake.ctx else "nodemgr"
        say(f"{mistake.format_message().rstrip('.')} (see: {path} --help)")
        return Exit.USAGE
    except click.ClickException as mistake:
        say(mistake.format_message())
        return mistake.exit_code
    except Fault as fault:
        say(fault.message)
        return fault.code
    except (KeyboardInterrupt, click.Abort):
        return Exit.INTERRUPTED
    except (BrokenPipeError, _Ended) as ended:
        _give_up_stdout()
        return ended.code if isinstance(ended, _Ended) else Exit.BROKEN_PIPE
    except OSError as fault:
        if fault.errno not in NOT_WRITTEN or fault.filename is not None:
            raise
        say(f"the output cannot be written: {fault.strerror}")
        _give_up_stdout()
        return Exit.FAILED


def _give_up_stdout() -> None:
    """Python would complain once more at exit about what it could not write."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
