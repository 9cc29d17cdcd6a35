"""`nodemgr release TASK`: take a lease back, or a waiting request out of the queue."""

from __future__ import annotations

import re
from pathlib import Path

import click

from nodemgr.cli import asking, options
from nodemgr.cli.faults import say


@click.command(short_help="Take a task's GPUs back, or a waiting request out of the queue.")
@click.argument("task")
@click.option("--env", type=options.ENV, help="As a user of this environment.")
@options.run_dir_option
def command(task: str, env: str | None, run_dir: Path | None) -> None:
    """Take the GPUs of TASK (t17) back, or the waiting request (r17) out of the queue.

    The task's processes live on; their next allocation fails with CUDA_ERROR_OUT_OF_MEMORY, and they may ask anew.
    An admin may release any task, a user those of his environment.
    """
    if task.startswith("j"):
        raise click.BadParameter(f"{task!r} is a job, perhaps: nodemgr queue withdraw {task} ends it; nodemgr status shows tasks")
    if not re.fullmatch("[tr][0-9]{1,18}", task, re.ASCII):
        raise click.BadParameter(f"{task!r} is no task: write its id as `nodemgr status` shows it (t17, or r17 in the queue)")
    asking.own_or_all("release", run_dir=run_dir, env=env, argument=task, task=task, by=asking.who())
    say(f"{task} is released")
