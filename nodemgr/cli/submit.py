"""`nodemgr submit --env ENV -- COMMAND`: have COMMAND run in an environment when its turn comes.

What it will find around it is taken from here and now: the working directory, the variables (as `nodemgr run` composes them), the
umask, the user.
What would be refused for certain is refused at once. Prints the job's id and nothing else on stdout.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from nodemgr.cli import jobs, options
from nodemgr.cli.faults import Exit, Fault, Lost, say
from nodemgr.cli.run import MAX_GPUS
from nodemgr.cli.surroundings import Wish, environment, own_environ, program_of, refusal, settings_of

KEY_BYTES = 16
AGAIN_S = 30.0
"""So long a submission whose answer was lost is sent again; under its key it is the same job."""
PAUSE_S = 0.5
MAX_ARRAY = 10_000
ARRAY_FORM = "write indices and ranges: 0-9 or 0-9,12"


class Array(options.ParamType):
    """`0-9,12` as numbers."""

    name = "indices"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        found: set[int] = set()
        for part in str(value).split(","):
            match = re.fullmatch("([0-9]{1,9})(?:-([0-9]{1,9}))?", part.strip(), re.ASCII)
            if match is None:
                self.fail(f"{value!r} is no array: {ARRAY_FORM}", param, ctx)
            first, last = int(match[1]), int(match[2] or match[1])
            if last < first:
                self.fail(f"{part!r} runs backwards: {ARRAY_FORM}", param, ctx)
            if last - first >= MAX_ARRAY or len(found) + last - first >= MAX_ARRAY:
                self.fail(f"{value!r} has more than {MAX_ARRAY} elements: submit several arrays", param, ctx)
            found.update(range(first, last + 1))
        return tuple(sorted(found))


class Jobs(options.ParamType):
    """`j3,j4` as ids."""

    name = "jobs"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        return tuple(jobs.JOB.convert(part.strip(), param, ctx) for part in str(value).split(","))

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(before + comma + item.value) for item in jobs.JOB_OR_ENDED.shell_complete(ctx, param, last)]


@click.command(
    short_help="Have a command run in an environment when its turn comes.", context_settings={"allow_interspersed_args": False}
)
@click.option("--env", type=options.ENV, help="The environment to run in (where there is one around you: that one).")
@click.option("--gpus", type=options.Count(0, MAX_GPUS), help="GPUs for the job; 0: none. Not said: what a program there would get.")
@click.option("--memory", type=options.SIZE, help="Device memory that it needs on each GPU, e.g. 8GiB.")
@click.option("--priority", type=jobs.QUEUE, help="The queue to wait in (nodemgr queue lists them); not said: the quota's.")
@click.option("--after", type=Jobs(), multiple=True, metavar="JOB", help="Only when these jobs have ended well: j3,j4 (repeatable).")
@click.option("--array", type=Array(), metavar="0-9,12", help="One job for each index, which it finds in NODEMGR_ARRAY_INDEX.")
@click.option("--time", "time_limit", type=options.DURATION, help="It is ended when it has run so long, e.g. 2h.")
@click.option("--max-restarts", type=options.Count(0, 1_000), help="How often it is tried again after a failure (3; 0: not at all).")
@click.option("--name", help="What it is called in lists (the command's name).")
@click.option("--hold", is_flag=True, help="It waits until it is freed: nodemgr queue free JOB.")
@options.run_dir_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    env: str | None, gpus: int | None, memory: int | None, after: tuple[tuple[str, ...], ...], time_limit: int | None,
    run_dir: Path | None, command: tuple[str, ...], **said: Any,
) -> None:  # fmt: skip
    """Have COMMAND run in environment ENV when its turn comes, as you, in this directory, with these variables and this umask. It finds
    nothing to read on stdin.

    Prints the job's id. nodemgr queue shows where it waits and why, nodemgr logs what it wrote, nodemgr wait ends with its exit code.
    """
    if time_limit == 0:
        raise click.BadParameter("a time limit of nothing ends the job before it begins: leave it out for none", param_hint="'--time'")
    way = jobs.submitters_way(run_dir, env)
    settings = settings_of(way.directory, way.env or "")
    wish = Wish(gpus, memory)
    program = program_of(command[0])
    if gpus and (reason := refusal(way.status(), settings, wish)) is not None:
        raise Fault(reason, Exit.QUOTA_REFUSES)
    variables = environment(own_environ(), way.directory, settings, wish, program)
    wishes = {
        "gpus": gpus,
        "memory_bytes": memory,
        "after": [job for jobs in after for job in jobs],
        "time_limit_ms": time_limit,
        **{name: value for name, value in said.items() if value is not None},
    }
    arguments = {
        "argv": list(command),
        "cwd": _here(),
        "environ": [f"{name}={value}" for name, value in variables.items()],
        "umask": _umask(),
        "key": secrets.token_hex(KEY_BYTES),
        **{name: value for name, value in wishes.items() if value is not None},
    }
    job = _submit(way, arguments)["job"]
    try:
        click.echo(job)
    except OSError:  # a full disk, a reader that left: the job runs all the same
        say(f"{job} is submitted")
        raise


def _umask() -> int:
    """There is no way to read it but to set it."""
    os.umask(mask := os.umask(0o077))
    return mask


def _here() -> str:
    """The working directory as the shell calls it, where that is the same one."""
    named = os.environ.get("PWD", "")
    try:
        real = os.getcwd()
    except OSError:
        raise Fault("the working directory is gone: change to another one") from None
    try:
        return named if named.startswith("/") and os.path.samefile(named, real) else real
    except OSError:
        return real


def _submit(way: jobs.Way, arguments: dict[str, Any]) -> Any:
    """The answer. One that was lost is asked for again: the key makes it the same submission."""
    end = time.monotonic() + AGAIN_S
    was_lost = False
    while True:
        try:
            return way.ask("job_submit", **arguments)
        except Fault as fault:
            if not (isinstance(fault, Lost) or (was_lost and fault.code == Exit.UNREACHABLE)):
                raise
            if time.monotonic() > end:
                raise Fault(f"{fault.message}; whether the job was taken is not known: look with nodemgr queue", fault.code) from None
            if not was_lost:
                say(f"{fault.message}; asking again")
            was_lost = True
            time.sleep(PAUSE_S)
