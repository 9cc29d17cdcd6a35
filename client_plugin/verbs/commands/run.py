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

from client_plugin import fields
from client_plugin.messages import verbs as messages
from client_plugin.messages.form import Part, relayed, stated
from client_plugin.messages.ways import MEANWHILE
from client_plugin.verbs import VERBS
from client_plugin.verbs.arguments import kinds
from client_plugin.verbs.arguments.parser import RUN_DIR, Said, Verb, VerbOption
from client_plugin.verbs.launch import programs
from client_plugin.verbs.launch.acquiring import acquired
from client_plugin.verbs.launch.surroundings import (
    Mask,
    environment,
    leave_task,
    own_environ,
    refusal,
    refuse_half_elastic,
    settings_of,
)
from client_plugin.ways import choice, ctrl_c, locations
from client_plugin.ways.choice import UserWay
from client_plugin.ways.faults import Exit, Fault, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, NoReturn, Optional

    from client_plugin.fields import Wish

LIMITS = ("cpus", "host_memory_bytes")
ABSENT = {
    "wait": messages.ABSENT_WAIT,
    "cpu": Part("until it is back there is only the CPU"),
    "error": Part("until it is back each use of CUDA fails"),
}
"""The consequence of the policy `no_manager`, printed before a command starts."""


def run(said: Said) -> int:
    directory = _env_dir(said)
    settings = settings_of(directory, said.env or "")
    env = said.env or settings.get("env", "")
    wish = fields.wished(vars(said))
    refuse_half_elastic(wish)
    if (at_start := said.acquire == "start") and said.elastic:
        raise Fault(
            "an elastic task asks at its start in any case",
            "leave out --acquire",
            code=Exit.USAGE,
        )
    base = own_environ()
    if base.get("NODEMGR_ENV_DIR") != directory:
        leave_task(base)
    mask = Mask(base)
    gpus = mask.gpus(wish.get("gpus"))
    if gpus is not None:
        mask.drop(base, new_task=False)
        wish["gpus"] = gpus
    program, command = programs.program_of(said.command[0]), said.command
    _warn(command, env)
    status = _refuse_early(directory, settings, wish, no_wait=said.no_wait)
    _take_limits(directory, env, status, wish)
    variables = environment(base, directory, settings, wish, program)
    if at_start:
        variables = acquired(variables, settings, command)
    if said.elastic:
        from client_plugin.elastic.command import leader_command

        command = leader_command(
            command, minimum=wish["gpus"], maximum=wish["gpus_max"], checkpoint=said.checkpoint
        )
        program = command[0]
        ctrl_c.wait()  # until the leader can end without a traceback
    _become(program, command, variables)


def _env_dir(said: Said) -> str:
    """Of the named environment, which needs no manager; else as `submit` finds it."""
    if said.env is not None:
        return locations.env_dir(os.path.abspath(said.whom().found_run_dir()), said.env)
    return choice.users_way(said.whom()).directory


def _warn(command: List[str], env: str) -> None:
    """A line where the command's programs will be outside of the environment."""
    if programs.joins_server(command):
        say(
            f"{command[0]} hands its windows to a server that was started outside of"
            f" {env}, and their programs get no GPUs",
            f"start a server inside: {command[0]} -L gpu"
            if command[0].endswith("tmux")
            else f"start a session inside: {command[0]} -S gpu",
        )
    if programs.brings_own_root(command):
        name = os.path.basename(command[0])
        say(
            f"{name} starts an image that does not have nodemgr's client: its programs get no"
            " GPUs from nodemgr, and no quota holds them",
            f"bind the client into it (docs/containers.md, {name.capitalize()})",
        )


def _refuse_early(
    directory: str, settings: Mapping[str, str], wish: Wish, *, no_wait: bool
) -> Optional[Mapping[str, Any]]:
    """Refuses what the manager would refuse whenever it was asked; returns its status.

    An absent manager refuses nothing, except with --no-wait: its clients follow the environment's
    policy for that when they need it.
    """
    if not settings.get("address", "unix:").startswith("unix:"):
        return None
    try:
        status: Mapping[str, Any] = UserWay(directory).status()
    except Fault as fault:
        if no_wait or fault.code != Exit.UNREACHABLE:
            raise
        then = ABSENT.get(settings.get("no_manager", "wait"), messages.ABSENT_WAIT)
        say(MEANWHILE(line=fault.message, then=then()))
        return None
    if (reason := refusal(status, settings, wish)) is not None:
        raise Fault(reason, code=Exit.QUOTA_REFUSES)
    return status


def _take_limits(directory: str, env: str, status: Optional[Mapping[str, Any]], wish: Wish) -> None:
    """Has this process held to limits of CPUs and host memory, where it or its env has any.

    With the device gate of the node it gets a cgroup of its own in any case: the rest of its login
    can then open none of its GPUs.
    """
    named = {name: wish[name] for name in LIMITS if name in wish}
    told: Mapping[str, Any] = status or {"envs": ()}
    quotas = (row["quota"] for row in told["envs"] if row["name"] == env)
    quota: Mapping[str, Any] = next(quotas, {})
    is_limited = any(quota.get(name) is not None for name in LIMITS)
    if status is None and named:
        say("--cpus and --host-memory do not limit this command: no manager of its node answers")
    elif named or is_limited or told.get("gate_node"):
        note = UserWay(directory).ask("run_begin", **named).get("note")
        if note:
            say(relayed(note))


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
            raise Fault(
                f"{program}: its interpreter is not found",
                "install it, or correct the #! line",
                code=Exit.NOT_FOUND,
            ) from None
        line = stated(
            f"{program}: cannot be executed ({error.strerror})", "name a program of this machine"
        )
        raise Fault(line, code=Exit.NOT_EXECUTABLE) from None


VERB = Verb(
    "run", VERBS["run"], run,
    (
        VerbOption("--env", kind=kinds.ENV, help="The environment to enter."),
        *kinds.options_of(fields.OF_RUN),
        VerbOption("--acquire", kind=kinds.ACQUIRE,
                   help="start: ask for the GPUs before COMMAND starts, which holds them to its "
                   "end."),
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
