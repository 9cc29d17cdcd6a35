"""A command as `predict` watches it: its surroundings, and the findings.

Knows: the variables of a command without GPU, lease and network. Must not know: what is done with
the findings.
"""

from __future__ import annotations

import os
import time

from client_plugin.messages.form import Message, notice
from client_plugin.messages.verbs import NO_WORKING_DIRECTORY
from client_plugin.prediction import findings, other_answers
from client_plugin.prediction.watch import WatchOrder, watch
from client_plugin.verbs.launch import programs
from client_plugin.verbs.launch.surroundings import own_environ
from client_plugin.ways import locations
from client_plugin.ways.faults import Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional

    from client_plugin.prediction.findings import Findings

DEFAULT_LIMIT_MS = 60_000
QUIET = {
    "NODEMGR_OFF": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONDONTWRITEBYTECODE": "1",
    "HF_HUB_OFFLINE": "1",
    "WANDB_MODE": "disabled",
}
LEFT_OUT = ("NODEMGR_TASK", "NODEMGR_VISIBLE", "NODEMGR_GPUS")


def watched_findings(
    command: List[str],
    limit_ms: Optional[int] = None,
    is_confined: bool = True,
    iterations: int = 0,
) -> Findings:
    """Run the command until it has shown enough. Raises Fault."""
    limit_s = (DEFAULT_LIMIT_MS if limit_ms is None else limit_ms) / 1_000
    try:
        os.getcwd()
    except OSError:
        raise Fault(NO_WORKING_DIRECTORY()) from None
    program = programs.program_of(command[0])
    until_s = time.monotonic() + limit_s
    watched = watch(WatchOrder(command, program, _variables(), limit_s, is_confined))
    if watched.fault:
        message = (
            Message(
                "the command cannot be confined here ({error})",
                "--unconfined runs it without a private view of the disk and the network",
            )
            if is_confined
            else Message(
                "the command could not be watched to its end ({error})", "run it by itself first"
            )
        )
        raise Fault(message(error=watched.fault))
    trials, wanted = {"": watched}, other_answers.wanted(watched)
    for unknown in wanted:
        left_s = until_s - time.monotonic()
        if left_s > 0:
            variables = {**_variables(), other_answers.VARIABLE: unknown}
            again = WatchOrder(command, program, variables, left_s, is_confined)
            trials[unknown] = watch(again)
    found = findings.find(
        other_answers.chosen(trials), limit_s, iterations, other_answers.depends(trials, wanted),
        is_answered=other_answers.is_answered(trials, wanted),
    )  # fmt: skip
    if found.features is not None and other_answers.ends(trials):
        origins = ", ".join(other_answers.origins(trials))
        found.notes.append(
            notice(
                f"the program asks for values of the GPU ({origins}), and ends before two steps "
                "with the other answer: the figure is of the answer that a sound training gets"
            )
        )
    return found


def _variables() -> Dict[str, str]:
    variables = {**own_environ(), **QUIET}
    for name in LEFT_OUT:
        variables.pop(name, None)
    hook = os.path.join(locations.payload_dir(), "sitecustomize")
    present = variables.get("PYTHONPATH")
    variables["PYTHONPATH"] = f"{hook}:{present}" if present else hook
    return variables
