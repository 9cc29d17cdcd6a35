"""The learned policy of a running manager: its weights, and the scores that they give.

Knows: where the weights lie. Must not know: the queue, which GPUs qualify. Scores are None, and
the policy `reliable` decides until weights are read again, where no file of weights is usable or
once a score is no number; one line reports the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from nodemgr.edge.placement import scoring, weights
from nodemgr.edge.placement.scoring import PlacedJob, RatedGpu
from nodemgr.edge.placement.weights import Weights, WeightsError

WEIGHTS_NAME = "placement-weights.json"
"""In the state directory: the file that `nodemgr placement use` wrote."""
SHIPPED = Path(__file__).resolve().parents[2] / "placement" / "scorer.json"


class LearnedScores:
    """The scores of GPUs for a job, for State.learned."""

    def __init__(self, state_dir: Path, say: Callable[[str], None]) -> None:
        self._say, self._own = say, state_dir / WEIGHTS_NAME
        self.fault = ""
        """Why it gives no scores from now on, one line; empty: it gives them."""
        self._weights: Weights | None = None
        self.read()

    def read(self) -> Path:
        """Reads the weights again, and returns the path of the file that `use` writes."""
        self.fault, self._weights = "", None
        try:
            self._weights = weights.load_either(self._own if self._own.exists() else SHIPPED)
        except WeightsError as fault:
            self._report(fault)
        return self._own

    def _report(self, fault: WeightsError) -> None:
        self.fault = str(fault.line)
        self._say(fault.line)

    def __call__(self, candidates: Sequence[RatedGpu], job: PlacedJob) -> list[float] | None:
        if self._weights is None or self.fault:
            return None
        try:
            return scoring.score(self._weights, candidates, job)
        except WeightsError as fault:
            self._report(fault)
            return None
