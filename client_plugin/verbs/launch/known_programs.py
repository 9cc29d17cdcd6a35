"""Earlier runs of a user's programs: whether they hold, and those that were no jobs.

A process beside a program of `run` recognises it, and tells the manager; `run --acquire start` does
it by itself, before it asks. Knows: the order that
prediction/run_report.py writes, the manager's words for programs. Must not know: the program's
process, which may have ended; where figures are kept.
"""

from __future__ import annotations

import json
import os

from client_plugin.prediction import closure
from client_plugin.verbs.launch import programs
from client_plugin.verbs.launch.recognition import recognised
from client_plugin.ways import locations
from client_plugin.ways.faults import Away, Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List

    from client_plugin.ways.conversation import Conversation

MOST_KEYS = 32
"""Of programs in one order (nodemgr/edge/api/forecast_operations.py)."""
TIMEOUT_S = 5.0
GOOD = b"\0"
"""The exit status that follows the order of a run, where it has ended well."""


def compare(ask: Callable[..., Any], known: List[Dict[str, Any]]) -> bool:
    """Whether the modules of earlier runs are what they were: `holds` of each program.

    A manager that does not answer now takes the job all the same. False: it does not know of
    programs, since an earlier version goes on until it is started again.
    """
    keys = list({one["key"]: None for one in known})
    found: Dict[str, bool] = {}
    for first in range(0, len(keys), MOST_KEYS):
        try:
            answer = ask("programs", keys=keys[first : first + MOST_KEYS])
        except Away:
            break
        except Fault:
            return False
        holds = [closure.holds(json.loads(text)) for text in answer["closures"]]
        found.update(dict.fromkeys(keys[first : first + MOST_KEYS], True))
        for key, place in answer["of"].items():
            found[key] = place is not None and holds[place]
    for one in known:
        one["holds"] = found.get(one["key"], False)
    return True


def report(descriptor: int) -> None:
    """Reads one order; one of an end counts if the status after it says so.

    The descriptor stays open: the program that waits sees the end of this process.
    """
    with open(descriptor, "rb", closefd=False) as pipe:
        text, _, status = pipe.read().partition(b"\n")
    order: Dict[str, Any] = json.loads(text)
    if "run_ms" not in order:
        begun(order["command"], order["token"])
    elif status == GOOD:
        os.chdir(order["directory"])
        told = {name: order[name] for name in ("gpus", "run_ms", "files")}
        _notify(order["command"], lambda talk, known: talk.order(
            "program_ran", {"recognised": known, **told}
        ))  # fmt: skip


def begun(command: List[str], token: str) -> None:
    """The manager knows the program before a task with this token asks for GPUs."""

    def notify(talk: Conversation, known: Dict[str, Any]) -> None:
        if compare(lambda verb, **given: talk.order(verb, given)[0], [known]):
            talk.order("program_begun", {"recognised": known, "token": token})

    _notify(command, notify)


def _notify(command: List[str], notify: Callable[[Conversation, Dict[str, Any]], object]) -> None:
    """A fault is silent: the run has no expected time then."""
    from client_plugin.ways.conversation import Conversation

    directory = locations.own_env_dir()
    try:
        known = recognised(command, programs.program_of(command[0]))
        if known is None or directory is None:
            return
        with Conversation(os.path.join(directory, "socket"), TIMEOUT_S) as talk:
            notify(talk, {**known, "holds": True})
    except (Fault, OSError):
        return
