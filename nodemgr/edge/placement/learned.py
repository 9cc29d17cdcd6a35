"""The learned policy of a running manager: weights that were read at its start, and its scores.

Knows: where the weights lie. Must not know: the queue, which GPUs qualify. Scores are None, and
the policy `reliable` decides until the manager's next start, where no file of weights is usable or
once a score is no number; one line reports the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from client_plugin.messages.form import MessageLine
from nodemgr.edge.placement import scoring, weights
from nodemgr.edge.placement.scoring import PlacedJob, RatedGpu
from nodemgr.edge.placement.weights import Weights, WeightsError

WEIGHTS_NAME = "placement-weights.json"
"""In the state directory: the file that `nodemgr placement use` wrote."""
SHIPPED = Path(__file__).resolve().parents[2] / "placement" / "scorer.json"


class LearnedScores:
    """The scores of GPUs for a job, for State.learned."""

    def __init__(self, state_dir: Path, say: Callable[[MessageLine], None]) -> None:
        self._say = say
        self.fault = ""
        """Why it gives no scores from now on, one line; empty: it gives them."""
        own = state_dir / WEIGHTS_NAME
        self._weights = self._read(own if own.exists() else SHIPPED)

    def _read(self, path: Path) -> Weights | None:
        try:
            return weights.load(path)
        except WeightsError as fault:
            self._report(fault)
            return None

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
