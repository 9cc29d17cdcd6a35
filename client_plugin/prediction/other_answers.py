"""Further trials of a program whose way depends on values that only a GPU has.

The first one answers as a sound training has it: `isfinite` is true, `isnan` and `any` are false,
a loss is 1. Where it gave such an answer to a question of yes or no, the program is watched again
with the other answer, and the largest figure counts. Where it ended by itself before two steps, and
had asked for a number, it is watched again with a number that is far from a loss's end. Where it
asked for the memory of the GPU, it is watched on a smaller one, too: a figure that changes is none.

Pure. Knows: outcomes. Must not know: how a program is watched, frameworks.
"""

from __future__ import annotations

from typing import Any, Dict, List

from . import outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .watch import Watched

VARIABLE = "NODEMGR_PREDICT_UNKNOWN"
YES, NO, FAR, SMALL = "yes", "no", "far", "small"
MOST_YES = 1_000
"""At one place of a program: a loop that waits for a no ends."""
FAR_NUMBER = 100.0
"""Above the losses at which programs stop, below those at which they give up."""
MAX_ORIGINS = 3


class Asked:
    """The questions of one process to values that are not known, and the answers."""

    def __init__(self, unknown: str) -> None:
        self.unknown = unknown
        self.answers: List[bool] = []
        """Those given: at most one of each."""
        self.origins: List[str] = []
        self.has_number = self.has_memory = False
        self._yes: Dict[str, int] = {}

    def boolean(self, sound: bool, place: str) -> bool:
        """The answer, where a sound training has this one."""
        if place not in self.origins and len(self.origins) < MAX_ORIGINS:
            self.origins.append(place)
        answer = sound
        if self.unknown in (YES, NO):
            self._yes[place] = count = self._yes.get(place, 0) + 1
            answer = self.unknown == YES and count <= MOST_YES
        if answer not in self.answers:
            self.answers.append(answer)
        return answer

    def number(self, sound: Any) -> Any:
        self.has_number = True
        return FAR_NUMBER if self.unknown == FAR and isinstance(sound, float) else sound

    def memory(self, size: int) -> int:
        """Of the whole GPU."""
        self.has_memory = True
        return size // 2 if self.unknown == SMALL else size

    def row(self) -> Dict[str, Any]:
        return {
            "answers": self.answers, "origins": self.origins, "has_number": self.has_number,
            "has_memory": self.has_memory,
        }  # fmt: skip


def wanted(first: Watched) -> List[str]:
    """The trials that are to follow the first one."""
    rows = [one["asked"] for one in first.outcomes.values() if isinstance(one.get("asked"), dict)]
    answers = {answer for row in rows for answer in row.get("answers", ())}
    has_number, has_memory = (
        any(row.get(name) for row in rows) for name in ("has_number", "has_memory")
    )
    reasons = {
        FAR: has_number and first.exit_status == 0 and not _steps(first),
        SMALL: has_memory and _steps(first),
        YES: False in answers,
        NO: True in answers,
    }
    return [trial for trial, is_wanted in reasons.items() if is_wanted]


def _steps(watched: Watched) -> bool:
    """Whether it showed two steps."""
    best = outcome.best(watched.outcomes.values())
    return best is not None and "reason" not in best and best["steps"] != 1


def _is_cut(watched: Watched) -> bool:
    """Whether its time was over before it showed anything."""
    return watched.exit_status is None and not _steps(watched)


def chosen(trials: Dict[str, Watched]) -> Watched:
    """The one with the largest figure; of trials without one, the first.

    One whose figure depends on the memory of the GPU has none.
    """
    first, small = trials[""], trials.get(SMALL)
    if (
        small is not None
        and not _is_cut(small)
        and not 0.98 <= (1 + _early_peak(small)) / (1 + _early_peak(first)) <= 1.02
    ):
        why = outcome.abstention(
            "the program sizes its work by the memory of the GPU (mem_get_info, total_memory), so "
            "each GPU model has another figure: name the size yourself, or measure it",
            is_certain=True,
        )
        return first._replace(outcomes={"": why})
    return max(trials.values(), key=lambda one: (_steps(one), _peak(one)))


def _peak(watched: Watched) -> int:
    best = outcome.best(watched.outcomes.values())
    return -1 if best is None or "reason" in best else int(best["reserved_peak_bytes"])


def _early_peak(watched: Watched) -> int:
    """After two steps: how far a look goes on is the clock's."""
    best = outcome.best(watched.outcomes.values())
    early = -1 if best is None else int(best.get("early_peak_bytes", -1))
    return early if early >= 0 else _peak(watched)


def is_answered(trials: Dict[str, Watched], asked: List[str]) -> bool:
    """Whether the program was watched with yes and with no, as far as that was asked."""
    return not any(
        trial not in trials or _is_cut(trials[trial]) for trial in asked if trial in (YES, NO)
    )


def ends(trials: Dict[str, Watched]) -> bool:
    """Whether it ends by itself before two steps with the other answer, and not with the first."""
    others = [trials[trial] for trial in (YES, NO) if trial in trials]
    return _steps(trials[""]) and not all(_steps(one) or _is_cut(one) for one in others)


def depends(trials: Dict[str, Watched], asked: List[str]) -> List[str]:
    """The origins of the answers with which the figure changes, or may change."""
    if not is_answered(trials, asked):
        return origins(trials)
    peaks = {_early_peak(one) for trial, one in trials.items() if trial != SMALL and _steps(one)}
    return origins(trials) if len(peaks) > 1 or not _steps(trials[""]) else []


def origins(trials: Dict[str, Watched]) -> List[str]:
    """Where the program asked for a yes or no; those of the first trial come first."""
    found: Dict[str, None] = {}
    for watched in trials.values():
        for one in watched.outcomes.values():
            row = one.get("asked")
            named = row.get("origins", ()) if isinstance(row, dict) else ()
            found.update(dict.fromkeys(map(str, named)))
    return list(found)[:MAX_ORIGINS]
