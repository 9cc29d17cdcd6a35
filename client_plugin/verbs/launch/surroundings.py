"""The surroundings of a command in an environment: its variables, and lasting refusals.

Knows: the clients' variables (csrc/client/client.h), an environment's client.conf, the kind of a
program. Must not know: when the command is executed, now (run) or at its turn (submit).
"""

from __future__ import annotations

import errno
import os

from client_plugin import fields, units
from client_plugin.messages import verbs as messages
from client_plugin.messages.form import Notice, stated
from client_plugin.verbs.launch.programs import Preload, preload
from client_plugin.ways import choice, locations
from client_plugin.ways.faults import Exit, Fault, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Mapping, Optional

    from client_plugin.fields import Wish

NOTES = {
    Preload.STATIC: Notice(
        "{program} is statically linked: nothing can be preloaded into it, so it gets no GPU by "
        "itself; programs that it starts do"
    ),
    Preload.MUSL: Notice(
        "{program} runs on musl, into which nothing is preloaded: only the Python hook is active, "
        "and no memory quota is enforced in it"
    ),
    Preload.FOREIGN: Notice(
        "{program} is built for another kind of machine: nothing is preloaded into it, so it gets "
        "no GPU by itself"
    ),
    Preload.PRIVILEGED: Notice(
        "{program} is setuid or setgid: nothing is preloaded into it, so it gets no GPU by itself"
    ),
}
"""A warning about a program before it starts."""


TASK, VISIBLE, CUDA = "NODEMGR_TASK", "NODEMGR_VISIBLE", "CUDA_VISIBLE_DEVICES"
AS_NEEDED = {
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}
"""TensorFlow and JAX take all memory at their start otherwise, and a range would never shrink."""


def refuse_half_elastic(wish: Wish) -> None:
    """Raises Fault for an option of elastic tasks without the others that it needs."""
    if "elastic" in wish and "gpus_max" not in wish:
        raise Fault(
            "--elastic needs a range of GPUs",
            "name the least and the most, e.g. --gpus 1-4",
            code=Exit.USAGE,
        )
    if "checkpoint" in wish and "elastic" not in wish:
        raise Fault(
            "--checkpoint is of elastic tasks",
            "add --elastic and a range, e.g. --gpus 1-4",
            code=Exit.USAGE,
        )


def settings_of(directory: str, env: str) -> Dict[str, str]:
    try:
        return locations.read_conf(directory)
    except OSError as error:
        if error.errno == errno.EACCES:
            line = stated(
                f"you may not look into {directory}",
                f"ask an admin to name you in the quota of {env}",
            )
            raise Fault(line, code=Exit.QUOTA_REFUSES) from None
        choice.refuse_env(os.path.dirname(os.path.dirname(directory)), env)


def refusal(status: Mapping[str, Any], settings: Mapping[str, str], wish: Wish) -> Optional[str]:
    """Why the present quota can never grant this wish, in the order of the manager's checks."""
    env = settings.get("env", "")
    quota = next((row["quota"] for row in status["envs"] if row["name"] == env), None)
    if quota is None:
        return None
    if gpus := wish.get("gpus"):
        reason = _too_many_gpus(
            env,
            wish.get("gpus_max") or gpus,
            quota["gpus"],
            quota["borrow"] if "elastic" in wish else 0,
            int(settings.get("node_gpus", gpus)),
        )
        if reason is not None:
            return reason
    largest_bytes = max((gpu["memory_total_bytes"] for gpu in status["gpus"]), default=0)
    return _too_much_memory(env, wish, quota, largest_bytes) or _too_much_compute(env, wish, quota)


def _too_many_gpus(
    env: str, gpus: int, quota_gpus: int, borrow: int, node_gpus: int
) -> Optional[str]:
    if gpus > quota_gpus + borrow:
        if borrow:
            return stated(
                f"--gpus {gpus} is more than the quota of {env}, {quota_gpus}, and the {borrow} "
                "that it may borrow",
                "ask for fewer, or an admin for more",
            )
        return stated(
            f"--gpus {gpus} is more than the quota of {env}, {quota_gpus}",
            "ask for fewer, or an admin for more",
        )
    if gpus > node_gpus:
        return stated(f"--gpus {gpus} is more than this node has, {node_gpus}", "ask for fewer")
    return None


def _too_much_memory(
    env: str, wish: Wish, quota: Mapping[str, Any], largest_bytes: int
) -> Optional[str]:
    """A request without a number of GPUs needs its memory, too, unless it would get no GPU."""
    default = quota["gpus"] if quota["default_gpus"] is None else quota["default_gpus"]
    gpus, memory_bytes = wish.get("gpus", default), wish.get("memory_bytes")
    beyond = _range_too_long(env, wish, quota["memory_bytes"], largest_bytes) if gpus else None
    if beyond is not None:
        return beyond
    limit_bytes = quota["memory_per_gpu_bytes"]
    if limit_bytes is None or 0 < largest_bytes < limit_bytes:
        limit_bytes = largest_bytes
    if not gpus or not memory_bytes or not limit_bytes or memory_bytes <= limit_bytes:
        return None
    wished, allowed = units.format_size(memory_bytes), units.format_size(limit_bytes)
    return stated(
        f"--memory {wished} is more than {env} may use on one GPU, {allowed}",
        "ask for less, or an admin for more",
    )


def _range_too_long(
    env: str, wish: Wish, quota_bytes: Optional[int], largest_bytes: int
) -> Optional[str]:
    """A range of memory that ends above what the environment or a GPU can ever give."""
    most_bytes = wish.get("memory_max_bytes")
    if most_bytes is None:
        return None
    wished = units.format_size(most_bytes)
    if quota_bytes is not None and most_bytes > quota_bytes:
        allowed = units.format_size(quota_bytes)
        return stated(
            f"--memory ends at {wished}; the memory quota of {env} is {allowed}",
            "ask for a smaller range, or an admin for more",
        )
    if 0 < largest_bytes < most_bytes:
        allowed = units.format_size(largest_bytes)
        return stated(
            f"--memory ends at {wished}; the largest GPU of the node has {allowed}",
            "ask for a smaller range",
        )
    return None


def _too_much_compute(env: str, wish: Wish, quota: Mapping[str, Any]) -> Optional[str]:
    """The class before the share: a class is what the order of service rests on."""
    order, highest = units.TASK_CLASSES.index, quota["task_class"]
    task_class = wish.get("task_class", highest)
    if order(task_class) < order(highest):
        return stated(
            f"--class {task_class} is above the highest class of {env}, {highest}",
            f"ask for that one, or an admin for more (nodemgr quota set {env} --class)",
        )
    wished, limit = wish.get("compute_percent"), quota["compute_percent"]
    if wished is not None and limit is not None and wished > limit:
        return stated(
            f"--compute {wished}% is more than {env} may have of one GPU, {limit}%",
            f"ask for less, or an admin for more (nodemgr quota set {env} --compute)",
        )
    return None


def own_environ() -> Dict[str, str]:
    """The caller's environment.

    An interpreter in a C locale changes LC_CTYPE for itself, and the shim PYTHONPATH.
    """
    variables = dict(os.environ)
    try:
        with open("/proc/self/environ", "rb") as file:
            entries = (entry.partition(b"=") for entry in file.read().split(b"\0"))
            given = {name: value for name, _, value in entries}
    except OSError:
        return variables
    for name in ("LC_CTYPE", "PYTHONPATH"):
        variables.pop(name, None)
        if name.encode() in given:
            variables[name] = os.fsdecode(given[name.encode()])
    return variables


def environment(
    base: Mapping[str, str], directory: str, settings: Mapping[str, str], wish: Wish, program: str
) -> Dict[str, str]:
    """The command's environment variables, and a note if the shim cannot be preloaded.

    Names: CONTRACT of the clients in csrc/client/client.h.
    """
    variables = dict(base)
    if variables.get("NODEMGR_ENV_DIR") != directory:
        leave_task(variables)
    variables["NODEMGR_ENV_DIR"] = directory
    variables.update(as_needed(wish, variables), **fields.variables(wish))
    if library_path := settings.get("library_path"):
        locations.lead(variables, "LD_LIBRARY_PATH", library_path)
    _bring_client(variables, program, settings.get("client", ""))
    return variables


class Mask:
    """A CUDA_VISIBLE_DEVICES in the caller's variables: GPUs that a shell, not a grant, has named.

    Its indices number the node's GPUs, and mean nothing in a task that gets its own.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._value = variables.get(CUDA)
        first = (self._value or "").split(",")[0].strip(" \t")
        self._is_uuid = first.startswith(("GPU-", "MIG-"))
        self._hides = self._value is not None and not (self._is_uuid or first.isdigit())
        self._is_choice = TASK in variables and VISIBLE in variables
        self._is_reported = False

    def gpus(self, named: Optional[int]) -> Optional[int]:
        """The GPUs to ask for, where `named` are asked for by options. Raises Fault."""
        if not self._hides or named == 0:
            return named
        if named is not None:
            raise Fault(
                f"CUDA_VISIBLE_DEVICES={self._value} hides all GPUs, and --gpus asks for {named}",
                "unset the variable, or ask for --gpus 0",
                code=Exit.USAGE,
            )
        self._report(
            stated(f"CUDA_VISIBLE_DEVICES={self._value} means --gpus 0", "unset it for GPUs")
        )
        return 0

    def drop(self, variables: Dict[str, str], new_task: bool) -> None:
        """Remove it from the variables of a task; `new_task`: no part of the caller's.

        UUIDs stay, as a wish, and so does the choice of a task's program among its GPUs.
        """
        if self._value is None or self._hides or self._is_uuid:
            return
        if not self._is_choice:
            self._report(
                stated(
                    f"CUDA_VISIBLE_DEVICES={self._value} of this shell is dropped: it numbers the"
                    " node's GPUs",
                    "--gpus has the number of GPUs",
                )
            )
        elif not new_task:
            return
        variables.pop(CUDA, None)

    def _report(self, line: str) -> None:
        if not self._is_reported:
            say(line)
        self._is_reported = True


def as_needed(wish: Wish, variables: Mapping[str, str]) -> Dict[str, str]:
    """Settings of frameworks for a range of memory, unless they are among the variables."""
    if "memory_max_bytes" not in wish:
        return {}
    return {name: value for name, value in AS_NEEDED.items() if name not in variables}


def leave_task(variables: Dict[str, str]) -> None:
    """Drop the variables of another environment's task: they mean nothing in this one."""
    variables.pop(TASK, None)
    visible = variables.pop(VISIBLE, None)
    if visible is not None and variables.get(CUDA) == visible:
        del variables[CUDA]


def _bring_client(variables: Dict[str, str], program: str, copy: str) -> None:
    """The shim, and the hook: a program below may put its own library in the shim's place.

    `copy`: the manager's copy of the client, which outlives an upgrade.
    """
    payload = copy if copy and os.path.isdir(copy) else locations.payload_dir()
    library = locations.client_library(payload)
    if not os.path.isfile(library):
        say(messages.LIBRARY_MISSING(library=library))
    elif any(letter in library for letter in locations.NOT_LISTABLE):
        say(
            f"{library} has a blank or colon in its path, so it cannot be preloaded: only the "
            "Python hook is active"
        )
    else:
        meeting = preload(program, library)
        if meeting in NOTES:
            say(NOTES[meeting](program=program))
        locations.preload(variables, payload)  # its children may take it
    locations.show_hook(variables, payload)
