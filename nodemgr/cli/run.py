"""`nodemgr run --env ENV -- COMMAND`: become COMMAND, inside an environment.

Sets the environment variables that bring the shim, the hook and the environment's directory into the command, and
executes it in this process: its pid, signals, terminal and exit code are its own. What would be refused for certain
is refused before. Must start fast: nothing of pyzmq, psutil or NVML is imported here.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import click

from nodemgr import paths
from nodemgr.cli import asking, options
from nodemgr.cli.faults import Exit, Fault, say
from nodemgr.cli.surroundings import Wish, environment, own_environ, program_of, refusal, settings_of

MAX_GPUS = 1_024


@click.command(
    short_help="Run a command in an environment of this node.", context_settings={"allow_interspersed_args": False}
)
@click.option("--env", type=options.ENV, required=True, help="The environment to enter.")
@click.option("--gpus", type=options.Count(0, MAX_GPUS), help="GPUs for the task; 0: none.")
@click.option("--memory", type=options.SIZE, help="Device memory that it needs on each GPU, e.g. 8GiB.")
@click.option("--wait", type=options.DURATION, help="How long to wait for GPUs at most, e.g. 10min; 0: not at all.")
@options.run_dir_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    env: str, gpus: int | None, memory: int | None, wait: int | None, run_dir: Path | None, command: tuple[str, ...]
) -> NoReturn:
    """Run COMMAND in environment ENV. It asks for GPUs when it starts to use CUDA; its exit code is its own."""
    directory = paths.env_dir((run_dir or paths.find_run_dir()).absolute(), env)
    settings = settings_of(directory, env)
    wish = Wish(gpus, memory, wait)
    program = program_of(command[0])
    _refuse_early(directory, settings, wish)
    _become(program, command, environment(own_environ(), directory, settings, wish, program))


def _refuse_early(directory: Path, settings: Mapping[str, str], wish: Wish) -> None:
    """Refuses what the manager would refuse whenever it was asked. An absent manager refuses nothing: its clients
    follow the environment's policy for that when they need it."""
    if not settings.get("address", "unix:").startswith("unix:"):
        return
    try:
        status = asking.ask(directory, "status")
    except Fault as fault:
        if fault.code != Exit.UNREACHABLE:
            raise
        say(f"{fault.message}; {ABSENT.get(settings.get('no_manager', 'wait'), ABSENT['wait'])}")
        return
    if (reason := refusal(status, settings, wish)) is not None:
        raise Fault(reason, Exit.QUOTA_REFUSES)


ABSENT = {
    "wait": "the first use of CUDA will wait for it",
    "cpu": "until it is back there is only the CPU",
    "error": "until it is back each use of CUDA fails",
}
"""The environment's policy `no_manager`, as said before a command starts."""


def _become(program: Path, command: tuple[str, ...], variables: Mapping[str, str]) -> NoReturn:
    # Python ignores these two for itself; an ignored signal would stay ignored in the command.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execve(program, command, variables)
    except OSError as error:
        if error.errno == errno.ENOEXEC:  # a script without #!: what execvp and every shell do
            os.execve("/bin/sh", ["/bin/sh", str(program), *command[1:]], variables)
        if error.errno == errno.ENOENT:
            raise Fault(f"{program}: its interpreter is not found", Exit.NOT_FOUND) from None
        raise Fault(f"{program}: cannot be executed ({error.strerror})", Exit.NOT_EXECUTABLE) from None
