"""The answer of a look at a command: features, or one reason why there are none.

Pure: the outcomes of a watched command in, features and lines out.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from ..messages import prediction as messages
from . import features, outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..messages.form import MessageLine
    from .watch import Watched

MAX_FILES_NAMED = 5
LINE_CHARACTERS = 240
UNWRITTEN = ("__pycache__", "__autograph_generated_file")
"""Beginnings of the names of files and folders that no user wrote."""


class Findings(NamedTuple):
    """`features` or `reason` is None."""

    features: Optional[Dict[str, Any]]
    reason: Optional[MessageLine]
    notes: List[MessageLine]
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
    notes = [messages.FILES_DROPPED(files=_shortened(dropped))] if dropped else []
    if best is None or "reason" in best:
        return Findings(None, _reason(watched, best, limit_s), notes, dropped)
    count = best["stand_ins"]
    if count:
        notes.append(messages.STAND_INS(count=count, plural="" if count == 1 else "s"))
    if origins:
        message = messages.DEPENDS_ON_VALUES if is_answered else messages.OTHER_ANSWER_UNSEEN
        notes.append(message(origins=", ".join(origins)))
    if best.get("fall_back"):
        notes.append(messages.ON_META(error=best["fall_back"]))
    if best["bounded"]:
        notes.append(messages.UPPER_BOUNDS(operators=", ".join(best["bounded"])))
    if best.get("compiled"):
        notes.append(messages.COMPILED_BY_XLA())
    if best["steps"] == 1:
        notes.append(messages.ONE_STEP())
    named = iterations or int(best.get("iterations", 0))
    return Findings(features.packed(best, named), None, notes, dropped, _phases(best))


def _phases(best: Dict[str, Any]) -> Dict[str, Any]:
    seen = best.get("phases")
    seen = seen if isinstance(seen, dict) else {}
    return {
        "steps": best["steps"],
        "validation": bool(seen.get("validation")),
        "checkpoint": bool(seen.get("checkpoint")),
        "batch_shapes": list(seen.get("batch_shapes") or []),
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
    why = messages.FRAMEWORK_MISSING(framework=framework, error=error)
    return told(Findings(None, messages.NO_PREDICTION(why=why), [], []))


def told(found: Findings) -> Dict[str, Any]:
    """The answer of `nodemgr_client.predict`."""
    known = found.features
    return {
        "schema_version": features.SCHEMA_VERSION,
        "memory_bytes": None if known is None else known["memory"]["peak_bytes"],
        "features": known,
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


def _reason(watched: Watched, best: Optional[Dict[str, Any]], limit_s: float) -> MessageLine:
    status = watched.exit_status
    phases = [one["phase"] for one in watched.outcomes.values() if "phase" in one]
    if best is not None and (best["is_certain"] or not status):
        why = best["reason"]
    elif status:
        last = shortened(watched.last_line) or "no output"
        why = messages.ENDED_EARLY(how=_ending(status), last=last)
    elif status is None:
        why = messages.TOO_SLOW(seconds=f"{limit_s:g}", phase=_phase(phases))
    elif not all("is_import" in phase for phase in phases):
        why = messages.NO_TRAINING_STEP()  # the process ended itself: no handler of exit ran
    else:
        why = messages.NO_FRAMEWORK()
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
