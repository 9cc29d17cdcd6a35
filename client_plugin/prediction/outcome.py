"""The outcome of a watched program: one JSON file for each of its processes.

Knows: the form of an outcome, which of several counts. Must not know: frameworks.
"""

from __future__ import annotations

import glob
import json
import os
from typing import Any, Dict, Iterable, Optional, Tuple

VARIABLE = "NODEMGR_PREDICT"
"""The directory for outcomes; set: the process is watched and takes no lease."""
CONFINED = "NODEMGR_PREDICT_CONFINED"
"""1: the process has a private view of the disk, and can write files."""
GO_ON_S = "NODEMGR_PREDICT_GO_ON_S"
"""The seconds that it may go on after two steps; empty: none."""

WatchOutcome = Dict[str, Any]

MAX_BYTES = 4 << 20
RESULT = {"framework", "steps", "reserved_peak_bytes", "work", "stand_ins", "bounded"}
"""Fields by which a result is known from a file that the program itself wrote."""


def own_path(directory: str) -> str:
    """The file of this process."""
    return os.path.join(directory, f"{os.getpid()}.json")


def abstention(reason: str, is_certain: bool = False, is_crash: bool = False) -> WatchOutcome:
    """`is_certain`: the reason holds, however the command ends.

    `is_crash`: the reason names an exception that ended a process.
    """
    return {"reason": str(reason), "is_certain": is_certain, "is_crash": is_crash}


def write(path: str, outcome: WatchOutcome) -> None:
    """As a whole: a reader finds the last outcome or the one before."""
    fresh = f"{path}.new"
    with open(fresh, "w") as file:
        json.dump(outcome, file)
    os.replace(fresh, path)


def import_begins(directory: str) -> None:
    """A time limit may find this process in the import of a framework, which takes seconds."""
    path = own_path(directory)
    if not os.path.exists(path):
        write(path, {"phase": {"backwards": 0, "on_gpu": False, "is_import": True}})


def read_all(directory: str) -> Dict[str, WatchOutcome]:
    """The watched program can reach the files, too: one that has no outcome's form is left out."""
    found = {}
    for path in sorted(glob.glob(os.path.join(glob.escape(directory), "*.json"))):
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # a FIFO is empty
                outcome = json.loads(file.read(MAX_BYTES))
        except (OSError, ValueError, RecursionError):
            continue
        if _has_form(outcome):
            found[os.path.basename(path)] = outcome
    return found


def _has_form(outcome: Any) -> bool:
    if not isinstance(outcome, dict):
        return False
    if "reason" in outcome:
        return isinstance(outcome["reason"], str) and "is_certain" in outcome
    if "phase" in outcome:
        phase = outcome["phase"]
        return isinstance(phase, dict) and phase.keys() >= {"backwards", "on_gpu"}
    return outcome.keys() >= RESULT


def is_final(outcome: WatchOutcome) -> bool:
    """Whether the process has shown enough: later events change nothing."""
    if "reason" in outcome:
        return bool(outcome["is_certain"])
    return "phase" not in outcome and outcome["steps"] != 1 and not outcome.get("goes_on")


def best(outcomes: Iterable[WatchOutcome]) -> Optional[WatchOutcome]:
    """Of several processes the one that took most memory, else the reason that says most."""
    known = list(outcomes)
    trained = [one for one in known if "reserved_peak_bytes" in one]
    if trained:
        return max(trained, key=lambda one: int(one["reserved_peak_bytes"]))
    reasons = [one for one in known if "reason" in one]
    return max(reasons, key=_rank, default=None)


def _rank(reason: WatchOutcome) -> Tuple[bool, bool]:
    return bool(reason["is_certain"]), bool(reason.get("is_crash"))
