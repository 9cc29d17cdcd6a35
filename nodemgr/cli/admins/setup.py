"""`nodemgr setup`: make this machine a node, or undo that: show each change, ask, do it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from client_plugin.messages.form import Message, notice
from client_plugin.verbs.presentation.cells import RUNS
from client_plugin.ways import choice
from client_plugin.ways.faults import Exit, Fault, say
from nodemgr.cli.presentation.helps import HelpedCommand
from nodemgr.messages import admins as messages

if TYPE_CHECKING:
    from nodemgr.edge.setup.installation import Machine

SHOWN_JOBS = 5
StepChange = tuple[str, str, Callable[["Machine"], None]]
"""The verb, its line, and the function that does it."""


@click.command(cls=HelpedCommand, short_help="Make this machine a node: group, settings, service.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option(
    "--uninstall", is_flag=True, help="Take back what a setup has made; quotas and history stay."
)
@click.option(
    "--root", "directory", type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path("/"),
    help="Do it to the system in this directory (an image), not to this one.",
)  # fmt: skip
def command(yes: bool, dry_run: bool, uninstall: bool, directory: Path) -> None:
    """Show what makes this machine a node, ask, and do it.

    Steps that are done already are left out, and files that an administrator has edited are kept.
    So it can be run again at any time, after an upgrade too.
    """
    from nodemgr.edge.setup import installation
    from nodemgr.paths import SYSTEM_RUN_DIR

    machine = installation.Machine(directory.resolve())
    if machine.root == Path("/") and os.geteuid() != 0 and not dry_run:
        raise Fault(
            "this changes the system",
            "run it as root (sudo nodemgr setup), or look first with --dry-run",
            code=Exit.USAGE,
        )
    if uninstall and not machine.record:
        raise Fault(
            f"no setup was made here ({machine.at(installation.RECORD_FILE)} is missing)",
            "there is nothing to take back",
        )
    try:
        planned = _plan(machine, uninstall)
    except OSError as error:
        raise Fault(
            f"cannot look at what is there ({error})", "run it as root, or mend that"
        ) from None
    changes = [change for change in planned if change[0] not in installation.IDLE]
    _show(planned)
    if uninstall:
        _name_jobs(machine.at(SYSTEM_RUN_DIR))
    else:
        for doubt in installation.doubts(machine.program):
            say(messages.WARNING(line=doubt))
    if not changes:
        click.echo(notice("nothing to do"))
        return
    if dry_run:
        return
    if not yes:
        _ask()
    _carry_out(changes, machine, uninstall)
    click.echo(
        notice("done")
        if uninstall
        else notice(
            f"done; next: nodemgr env create ENV --gpus N, and usermod -aG {installation.GROUP} "
            "ADMIN"
        )
    )


def _plan(machine: Machine, uninstall: bool) -> list[StepChange]:
    from nodemgr.edge.setup.installation import STEPS

    if uninstall:
        return [(*step.unplan(machine), step.undo) for step in STEPS[::-1]]
    return [(*step.plan(machine), step.do) for step in STEPS]


def _show(planned: list[StepChange]) -> None:
    width = max(len(verb) for verb, _, _ in planned)
    for verb, line, _ in planned:
        click.echo(f"{verb.ljust(width)}  {line}")


def _name_jobs(run_dir: Path) -> None:
    """Jobs outlive a manager; without one no verb reaches them."""
    try:
        pages = choice.pages(choice.AdminWay(str(run_dir), None), "queue")
        running = [row["id"] for page in pages for row in page["queue"] if row["state"] in RUNS]
    except Fault:
        return
    if running:
        more = f" and {len(running) - SHOWN_JOBS} more" if len(running) > SHOWN_JOBS else ""
        say(
            f"warning: {', '.join(running[:SHOWN_JOBS]) + more} run, and go on to their end "
            "without a manager; nodemgr queue withdraw --name '*' ends them before"
        )


def _ask() -> None:
    if not sys.stdin.isatty():
        raise Fault("no terminal to ask on", "give --yes, or --dry-run to look", code=Exit.USAGE)
    click.confirm("Do this?", abort=True)


def _carry_out(changes: list[StepChange], machine: Machine, uninstall: bool) -> None:
    from nodemgr.edge.setup.installation import StepFailed

    done: list[str] = []
    for verb, line, act in changes:
        step = f"{verb} {line.partition(':')[0]}"
        try:
            act(machine)
        except (StepFailed, OSError) as error:
            before = f"done before: {'; '.join(done)}" if done else "no step was done before"
            row = (
                Message(
                    "could not {step}: {error} ({before}) at the removal",
                    "mend that and run it again",
                )
                if uninstall
                else Message(
                    "could not {step}: {error} ({before})",
                    "mend that and run it again, or `nodemgr setup --uninstall` takes it back",
                )
            )
            raise Fault(row(step=step, error=error, before=before)) from None
        done.append(step)
