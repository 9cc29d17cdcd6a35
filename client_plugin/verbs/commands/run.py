"""`nodemgr run --env ENV -- COMMAND`: become COMMAND, inside an environment.

Sets the environment variables that bring the shim, the hook and the environment's directory into
the command, and executes it in this process: its pid, signals, terminal and exit code are its own.
A request that the quota can never grant is refused before the command starts. With --elastic this
process becomes the leader of an elastic task, which runs the command once on each GPU.
"""

from __future__ import annotations

import errno
import os
import signal
import sys

from client_plugin.messages import verbs as messages
from client_plugin.messages.form import stated
from client_plugin.messages.ways import MEANWHILE
from client_plugin.verbs import VERBS
from client_plugin.verbs.arguments import kinds
from client_plugin.verbs.arguments.parser import RUN_DIR, Said, Verb, VerbOption
from client_plugin.verbs.launch import programs
from client_plugin.verbs.launch.acquiring import acquired
from client_plugin.verbs.launch.surroundings import (
    Mask,
    Wish,
    environment,
    leave_task,
    own_environ,
    refusal,
    settings_of,
)
from client_plugin.ways import ctrl_c, locations
from client_plugin.ways.choice import UserWay
from client_plugin.ways.faults import Exit, Fault, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Mapping, NoReturn

ABSENT = {
    "wait": messages.ABSENT_WAIT,
    "cpu": messages.ABSENT_CPU,
    "error": messages.ABSENT_ERROR,
}
"""The consequence of the policy `no_manager`, printed before a command starts."""


def run(said: Said) -> int:
    directory = locations.env_dir(os.path.abspath(said.whom().found_run_dir()), said.env or "")
    settings = settings_of(directory, said.env or "")
    least, most = said.gpus or (None, None)
    memory, memory_most = said.memory or (None, None)
    if said.elastic and most is None:
        raise Fault(messages.ELASTIC_WITHOUT_RANGE(), Exit.USAGE)
    if said.checkpoint is not None and not said.elastic:
        raise Fault(messages.CHECKPOINT_WITHOUT_ELASTIC(), Exit.USAGE)
    if (at_start := said.acquire == "start") and said.elastic:
        raise Fault(
            stated("an elastic task asks at its start in any case", "leave out --acquire"),
            Exit.USAGE,
        )
    base = own_environ()
    if base.get("NODEMGR_ENV_DIR") != directory:
        leave_task(base)
    mask = Mask(base)
    least = mask.gpus(least)
    if least is not None:
        mask.drop(base, new_task=False)
    wish = Wish(
        least,
        memory,
        said.wait,
        said.task_class,
        said.compute_percent,
        said.deadline_ms,
        most,
        said.elastic,
        memory_most,
        said.visible,
    )
    program, command = programs.program_of(said.command[0]), said.command
    _warn(command, said.env or "")
    _refuse_early(directory, settings, wish, no_wait=said.no_wait)
    variables = environment(base, directory, settings, wish, program)
    if at_start:
        variables = acquired(variables, settings, command)
    if said.elastic:
        from client_plugin.elastic.command import leader_command

        command = leader_command(
            command, minimum=said.gpus[0], maximum=said.gpus[1], checkpoint=said.checkpoint
        )
        program = command[0]
        ctrl_c.wait()  # until the leader can end without a traceback
    _become(program, command, variables)


def _warn(command: List[str], env: str) -> None:
    """A line where the command's programs will be outside of the environment."""
    if programs.joins_server(command):
        say(
            stated(
                f"{command[0]} hands its windows to a server that was started outside of"
                f" {env}, and their programs get no GPUs",
                f"start a server inside: {command[0]} -L gpu"
                if command[0].endswith("tmux")
                else f"start a session inside: {command[0]} -S gpu",
            )
        )
    if programs.brings_own_root(command):
        name = os.path.basename(command[0])
        say(
            stated(
                f"{name} starts an image that does not have nodemgr's client: its programs get no"
                " GPUs from nodemgr, and no quota holds them",
                f"bind the client into it (docs/containers.md, {name.capitalize()})",
            )
        )


def _refuse_early(
    directory: str, settings: Mapping[str, str], wish: Wish, *, no_wait: bool
) -> None:
    """Refuses what the manager would refuse whenever it was asked.

    An absent manager refuses nothing, except with --no-wait: its clients follow the environment's
    policy for that when they need it.
    """
    if not settings.get("address", "unix:").startswith("unix:"):
        return
    try:
        status = UserWay(directory).status()
    except Fault as fault:
        if no_wait or fault.code != Exit.UNREACHABLE:
            raise
        then = ABSENT.get(settings.get("no_manager", "wait"), messages.ABSENT_WAIT)
        say(MEANWHILE(line=fault.message, then=then()))
        return
    if (reason := refusal(status, settings, wish)) is not None:
        raise Fault(reason, Exit.QUOTA_REFUSES)


def _become(program: str, command: List[str], variables: Dict[str, str]) -> NoReturn:
    # Python ignores these two for itself. The command gets them as this process did, which only
    # the front has seen (csrc/front/front.c).
    ignored = str(sys._xoptions.get("nodemgr_ignored", "")).split(",")
    for number, name in ((signal.SIGPIPE, "PIPE"), (signal.SIGXFSZ, "XFSZ")):
        signal.signal(number, signal.SIG_IGN if name in ignored else signal.SIG_DFL)
    try:
        os.execve(program, command, variables)
    except OSError as error:
        if error.errno == errno.ENOEXEC:  # a script without #!: execvp and every shell do the same
            os.execve("/bin/sh", ["/bin/sh", program, *command[1:]], variables)
        if error.errno == errno.ENOENT:
            raise Fault(messages.NO_INTERPRETER(program=program), Exit.NOT_FOUND) from None
        line = messages.PROGRAM_NOT_EXECUTED(program=program, error=error.strerror)
        raise Fault(line, Exit.NOT_EXECUTABLE) from None


VERB = Verb(
    "run", VERBS["run"], run,
    (
        VerbOption("--env", kind=kinds.ENV, required=True, help="The environment to enter."),
        VerbOption("--gpus", kind=kinds.GPU_RANGE,
                   help="GPUs for the task, or a range such as 2-4; 0: none."),
        VerbOption("--elastic",
                   help="The task gets idle GPUs and gives them back while it runs, within the "
                   "range of --gpus; one process of the command on each."),
        VerbOption("--checkpoint", kind=kinds.FILE,
                   help="The checkpoint of an elastic script that does not use "
                   "nodemgr_client.elastic: it starts again from there at each change."),
        VerbOption("--memory", kind=kinds.SIZE_RANGE,
                   help="Device memory that it has on each GPU for sure, and its limit, e.g. 8GiB; "
                   "of a range such as 8GiB-24GiB it has the least for sure, and more while there "
                   "is more."),
        VerbOption("--wait", kind=kinds.DURATION,
                   help="How long to wait for GPUs at most, e.g. 10min; 0: not at all."),
        VerbOption("--acquire", kind=kinds.ACQUIRE,
                   help="start: ask for the GPUs before COMMAND starts, which holds them to its "
                   "end."),
        VerbOption("--visible", kind=kinds.VISIBLE_AS,
                   help="CUDA_VISIBLE_DEVICES names GPUs by uuid, or by index."),
        VerbOption("--class", kind=kinds.TASK_CLASS, key="task_class",
                   help="latency-sensitive, normal or best-effort (gets what the others leave)."),
        VerbOption("--compute", kind=kinds.PERCENT, key="compute_percent",
                   help="The share of each GPU's compute that it needs, e.g. 30%."),
        VerbOption("--deadline", kind=kinds.DEADLINE, key="deadline_ms",
                   help="It should end within this time from its start, e.g. 2h."),
        VerbOption("--no-wait",
                   help="Fail at once if the manager is away (without it: COMMAND starts, and its "
                   "first use of CUDA does as the quota's --no-manager says)."),
        RUN_DIR,
        VerbOption("command", rest=True, required=True),
    ),
    text=(
        "Runs COMMAND in environment ENV. It asks for GPUs when it starts to use CUDA; its "
        "exit code is its own."
        ),
)  # fmt: skip
