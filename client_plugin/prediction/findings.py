"""The answer of a look at a command: features, or one reason why there are none.

Pure: the outcomes of a watched command in, features and lines out.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from ..messages import prediction as messages
from ..messages.form import Notice
from . import features, outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .watch import Watched

MAX_FILES_NAMED = 5
LINE_CHARACTERS = 240
UNWRITTEN = ("__pycache__", "__autograph_generated_file")
"""Beginnings of the names of files and folders that no user wrote."""


class Findings(NamedTuple):
    """`features` or `reason` is None."""

    features: Optional[Dict[str, Any]]
    reason: Optional[str]
    notes: List[str]
    dropped: List[str]
    """Files that the command would have written."""
    phases: Optional[Dict[str, Any]] = None
    """The phases of the training that were seen: steps, shapes of batches, the others."""


def find(
    watched: Watched,
    limit_s: float,
    iterations: int = 0,
    origins: Sequence[str] = (),
    is_answered: bool = True,
) -> Findings:
    """`iterations`: the optimizer steps of the whole run, as the user named them; 0: unknown.

    `origins`: where the program asked for a yes or no that only a GPU knows. `is_answered`: it was
    watched with both.
    """
    best = outcome.best(watched.outcomes.values())
    dropped = _dropped(watched, best)
    notes: List[str] = (
        [(f"the command would have written {_shortened(dropped)}; all of it is dropped")]
        if dropped
        else []
    )
    if best is None or "reason" in best:
        return Findings(None, _reason(watched, best, limit_s), notes, dropped)
    notes += _notes(best, origins, is_answered)
    named = iterations or int(best.get("iterations", 0))
    return Findings(features.packed(best, named), None, notes, dropped, _phases(best))


def _notes(best: Dict[str, Any], origins: Sequence[str], is_answered: bool) -> List[str]:
    """The lines beside the figure: its doubts, and the program's shortcuts."""
    notes: List[str] = []
    count = best["stand_ins"]
    if count:
        notes.append(
            f"the program asked for {count} value{'' if count == 1 else 's'} that only a GPU "
            "computes; it got stand-ins"
        )
    if origins:
        message = (
            Notice(
                "the memory depends on values of the GPU ({origins}): the program was watched with "
                "yes and with no, and the larger figure counts"
            )
            if is_answered
            else Notice(
                "the memory depends on values of the GPU ({origins}), and no time was left to "
                "watch the program with the other answer: allow more with --limit"
            )
        )
        notes.append(message(origins=", ".join(origins)))
    if best.get("fall_back"):
        notes.append(
            f"this version of PyTorch makes no fake tensors on `cuda` ({best['fall_back']}): "
            "tensors were on `meta`, and mixed precision was taken as float32"
        )
    if best["bounded"]:
        notes.append(
            "sizes that depend on values were taken at their upper bound "
            f"({', '.join(best['bounded'])})"
        )
    if best.get("compiled"):
        notes.append(
            "XLA compiles the step; the memory is that of its operators one by one, and XLA "
            "usually needs less"
        )
    if features.is_experimental(best["framework"]):
        notes.append(messages.EXPERIMENTAL())
    if best["steps"] == 1:
        notes.append("the program made one training step; the memory of later steps may be larger")
    return notes


def _phases(best: Dict[str, Any]) -> Dict[str, Any]:
    seen = best.get("phases")
    seen = seen if isinstance(seen, dict) else {}
    return {
        "steps": seen.get("steps", best["steps"]),
        "validation": bool(seen.get("validation")),
        "checkpoint": bool(seen.get("checkpoint")),
        "batch_shapes": list(seen.get("batch_shapes") or []),
        "is_margin_wider": bool(best.get("is_short")),
    }


def exception_line(error: BaseException) -> str:
    """As the last line of a traceback names an exception."""
    return shortened(f"{type(error).__name__}: {' '.join(str(error).split())}")


def shortened(line: str) -> str:
    """At most so many characters: whole sentences, else whole words and a sign of what is left."""
    if len(line) <= LINE_CHARACTERS:
        return line
    cut = line[: LINE_CHARACTERS + 1]
    end = max(cut.rfind(f"{sign} ") for sign in ".!?")
    if end > LINE_CHARACTERS // 3:
        return cut[: end + 1]
    return (cut[: LINE_CHARACTERS - 3].rpartition(" ")[0] or cut[: LINE_CHARACTERS - 4]) + " ..."


def without_framework(framework: str, error: ImportError) -> Dict[str, Any]:
    """The answer of `nodemgr_client.predict` where the model's framework is not installed."""
    why = f"{framework} cannot be imported in this process ({error}): install it here"
    return told(Findings(None, messages.NO_PREDICTION(why=why), [], []))


def told(found: Findings) -> Dict[str, Any]:
    """The answer of `nodemgr_client.predict`."""
    known = found.features
    return {
        "schema_version": features.SCHEMA_VERSION,
        "memory_bytes": None if known is None else known["memory"]["peak_bytes"],
        "features": known,
        "is_experimental": known is not None and features.is_experimental(known["framework"]),
        "reason": None if found.reason is None else str(found.reason),
        "notes": [str(note) for note in found.notes],
    }


def _dropped(watched: Watched, best: Optional[Dict[str, Any]]) -> List[str]:
    saved = [] if best is None else best.get("not_saved", [])
    found = {*watched.written, *map(os.path.abspath, saved)}
    return sorted(_printable(path) for path in found if not _is_unwritten(path))


def _printable(path: str) -> str:
    """Bytes of a name that are no UTF-8 are written as \\xNN."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _is_unwritten(path: str) -> bool:
    return any(part.startswith(UNWRITTEN) for part in path.split(os.sep))


def _shortened(paths: List[str]) -> str:
    text = ", ".join(paths[:MAX_FILES_NAMED])
    more = len(paths) - MAX_FILES_NAMED
    return f"{text} and {more} more" if more > 0 else text


def _reason(watched: Watched, best: Optional[Dict[str, Any]], limit_s: float) -> str:
    status = watched.exit_status
    phases = [one["phase"] for one in watched.outcomes.values() if "phase" in one]
    if best is not None and (best["is_certain"] or not status):
        why = best["reason"]
    elif status:
        last = shortened(watched.last_line) or "no output"
        why = (
            f"the command ended with {_ending(status)} before a training step ({last}): run it by "
            "itself first"
        )
    elif status is None:
        why = (
            f"{limit_s:g} s passed before two training steps ({_phase(phases)}): allow more with "
            "--limit"
        )
    elif not all("is_import" in phase for phase in phases):
        why = messages.NO_TRAINING_STEP()  # the process ended itself: no handler of exit ran
    else:
        why = (
            "no import of PyTorch or TensorFlow was seen: name a Python program that trains with "
            "one, and keep the entry of nodemgr in its PYTHONPATH"
        )
    return messages.NO_PREDICTION(why=why)


def _phase(phases: List[Dict[str, Any]]) -> str:
    if not phases:
        return "no import of PyTorch or TensorFlow was seen"
    if any(phase["backwards"] for phase in phases):
        return "one backward pass was seen"
    if any(phase["on_gpu"] for phase in phases):
        return "tensors were on the GPU"
    if all("is_import" in phase for phase in phases):
        return "the import of PyTorch or TensorFlow had not ended"
    return "the framework was imported"


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    return f"exit code {os.WEXITSTATUS(status)}"
