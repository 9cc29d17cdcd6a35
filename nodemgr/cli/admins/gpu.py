"""`nodemgr gpu drain|resume|failed|repaired`: the word of an administrator about a GPU."""

from __future__ import annotations

from collections.abc import Callable

import click

from client_plugin.messages.form import Notice
from client_plugin.verbs.presentation import tables
from nodemgr.cli.admins import asking
from nodemgr.cli.presentation import options
from nodemgr.cli.presentation.group import VerbGroup


@click.group(
    "gpu", cls=VerbGroup, short_help="Drain GPUs, resume them, and report failures and repairs."
)
def command() -> None:
    """Drain GPUs, resume them, and report failures and repairs.

    INDEX is the number of the GPU in `nodemgr status`, which also has its failures.
    """


def _order(name: str, verb: str, line: Callable[..., str], help_text: str) -> None:
    @command.command(name, help=help_text, short_help=help_text.partition("\n")[0])
    @click.argument("index", type=click.IntRange(0))
    @click.option("--note", help="The reason, one line.")
    @options.run_dir_option
    @options.json_option
    def carry_out(index: int, note: str | None, run_dir: str | None, as_json: bool) -> None:
        said = {} if note is None else {"note": note}
        told = asking.control(run_dir).call(verb, index=index, **said)
        if as_json:
            tables.print_json(told)
        else:
            click.echo(line(index=told["index"], failures=told["failures"]))


_order(
    "drain",
    "gpu_drain",
    Notice("GPU {index} gets no new task (nodemgr gpu resume {index} ends that)"),
    "Give the GPU to no new task; its tasks go on.",
)
_order(
    "resume",
    "gpu_resume",
    Notice("GPU {index} gets tasks again; {failures} recorded failures count"),
    "Give a drained GPU to tasks again; its failures still count.",
)
_order(
    "failed",
    "gpu_failed",
    Notice("failure {failures} of GPU {index} is recorded"),
    "Record a failure of the GPU that the driver has not reported.",
)
_order(
    "repaired",
    "gpu_repaired",
    Notice("GPU {index} is repaired: {failures} recorded failures count"),
    "Forget the failures of the GPU, and give it to tasks again.",
)
