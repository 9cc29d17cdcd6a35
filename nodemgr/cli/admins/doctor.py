"""`nodemgr doctor`: one line a check, with its cure; exit 1 if one fails.

The checks are rows of one table. Each looks at one thing and reports it. The manager makes the
checks of its own parts (store, NVML, its descriptors). A check that cannot be made is skipped, and
does not fail.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from client_plugin.messages import doctor as messages
from client_plugin.messages.form import relayed
from client_plugin.verbs.commands.doctor import row_of, show
from client_plugin.verbs.presentation import tables
from client_plugin.ways import locations
from client_plugin.ways.faults import Exit, Fault
from nodemgr import paths
from nodemgr.cli.admins.checks import CHECKS, CheckResult, InstallationCheck, Subject
from nodemgr.cli.admins.node_checks import NODE_CHECKS
from nodemgr.cli.presentation import options
from nodemgr.cli.presentation.helps import HelpedCommand


@click.command(
    cls=HelpedCommand, short_help="Check this installation, the manager and the environment."
)
@click.option("--env", type=options.ENV, help="Also look at this environment as one of its users.")
@click.option(
    "--state-dir",
    type=options.DIRECTORY,
    envvar="NODEMGR_STATE_DIR",
    help="The manager's state directory",
)
@options.run_dir_option
@options.json_option
def command(env: str | None, state_dir: str | None, run_dir: str | None, as_json: bool) -> None:
    """Check this installation, the manager, and inside an environment what is active in it."""
    subject = _subject(env, run_dir, state_dir)
    results = [
        result
        for check in (*CHECKS, *NODE_CHECKS)
        if check.place in subject.inside_of
        for result in _run(check, subject)
    ]
    failed = any(result["ok"] is False for result in results)
    if as_json:
        tables.print_json({"schema_version": 1, "checks": results})
    else:
        show(results)
    sys.exit(Exit.FAILED if failed else 0)


def _subject(env: str | None, run_dir: str | None, state_dir: str | None) -> Subject:
    directory = Path(run_dir) if run_dir else paths.find_run_dir()
    state_directory = Path(state_dir) if state_dir else None
    around = locations.own_env_dir()
    own = None if around is None else Path(around)
    if env is not None:
        return Subject(
            directory, state_directory, paths.env_dir(directory, env), inside=own is not None
        )
    inside = own is not None and run_dir is None
    return Subject(directory, state_directory, own if inside else None, inside=inside)


def _run(check: InstallationCheck, subject: Subject) -> list[dict[str, Any]]:
    """A check's result; a check that stands for several (the manager's own) gives several."""
    try:
        found = check.examine(subject)
    except Fault as fault:
        found = CheckResult(False, relayed(fault.message))
    except (OSError, subprocess.SubprocessError) as error:
        found = CheckResult(False, messages.CHECK_FAILED(error=error))
    if isinstance(found, list):
        return found
    row = row_of(check.name, check.cure, found.ok, found.detail)
    if row["cure"] and not check.may_cure(subject):
        row["cure"] = f"for an administrator: {row['cure']}"
    return [row]
