"""Training of the permutation-equivariant scorer with torch.

Knows: policy gradients with a group's mean as the baseline. Must not know: files, progress.

Each round draws batches with fresh failures. A batch is placed several times by draws from the
scorer; its reward is that of the source. The advantage of a placement is its reward less the mean
of the others of its batch: all of them met the same failures.
"""

from __future__ import annotations

import statistics
from array import array
from collections.abc import Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from nodemgr.edge.placement.weights import FEATURES, SCORER, Weights
from nodemgr.placement import batch_model, rollouts
from nodemgr.placement.rollouts import Decision, Draw, Instance

if TYPE_CHECKING:
    import torch

LOWEST_RATE_SHARPNESS = 8.0
"""The scorer begins as a soft order by the estimated rate."""


class ScorerSettings(NamedTuple):
    hidden: int = 24
    batches: int = 6
    """In a round."""
    placements: int = 8
    """Of each batch."""
    randoms: int = 4
    """K: random placements of each batch, the best of which gives the reward's scale."""
    learning_rate: float = 1e-3
    entropy: float = 1e-3


DEFAULTS = ScorerSettings()


class Round(NamedTuple):
    """The figures of one round of training."""

    reward: float
    makespan_hours: float
    entropy: float
    loss: float


def network(hidden: int, seed: int) -> Any:
    """The scorer as a torch module, in the form of csrc/manager/networks.c."""
    import torch
    from torch import nn

    class Scorer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width = len(FEATURES)
            self.first = nn.Linear(width, hidden)
            self.second = nn.Linear(3 * hidden, hidden)
            self.last = nn.Linear(hidden + width, 1)

        def forward(self, rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            """Scores of (batch, GPUs); `mask` is true for candidates."""
            own = torch.relu(self.first(rows))
            counted = mask.unsqueeze(-1)
            mean = (own * counted).sum(1) / counted.sum(1)
            most = own.masked_fill(~counted, 0.0).amax(1)  # own is not below 0
            both = torch.cat((mean, most), -1).unsqueeze(1).expand(-1, rows.shape[1], -1)
            second = torch.relu(self.second(torch.cat((own, both), -1)))
            scores: torch.Tensor = self.last(torch.cat((second, rows), -1)).squeeze(-1)
            return scores

    torch.manual_seed(seed)
    made = Scorer()
    with torch.no_grad():
        made.last.weight.mul_(0.1)
        at = hidden + FEATURES.index("log_rate_above_mean")
        made.last.weight[0, at] = -LOWEST_RATE_SHARPNESS
    return made


def exported(module: Any, trained: dict[str, Any]) -> Weights:
    values = array("f")
    for layer in (module.first, module.second, module.last):
        for tensor in (layer.weight.detach().t(), layer.bias.detach()):
            values.extend(tensor.reshape(-1).tolist())
    return Weights(SCORER, (len(FEATURES), module.first.out_features), values, trained)


class ScorerTraining:
    """One training: its module, its optimiser, and rounds that depend on seed and number alone."""

    def __init__(self, draw: Draw, seed: int, settings: ScorerSettings = DEFAULTS) -> None:
        import torch

        torch.set_num_threads(1)
        self.draw, self.seed, self.settings = draw, seed, settings
        self.module = network(settings.hidden, seed)
        self.optimiser = torch.optim.Adam(self.module.parameters(), settings.learning_rate)

    def state(self) -> dict[str, Any]:
        return {"module": self.module.state_dict(), "optimiser": self.optimiser.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        self.module.load_state_dict(state["module"])
        self.optimiser.load_state_dict(state["optimiser"])

    def weights(self, trained: dict[str, Any]) -> Weights:
        return exported(self.module, trained)

    def round(self, number: int) -> Round:
        weights = exported(self.module, {})
        decisions: list[Decision] = []
        advantages: list[float] = []
        rewards, hours = [], []
        for batch in range(self.settings.batches):
            seed = f"train/{self.seed}/{number}/{batch}"
            instance = self.draw(Random(seed), seed)
            for reward, makespan_ms, own, advantage in self._placements(instance, weights):
                rewards.append(reward)
                hours.append(makespan_ms / 3_600_000)
                decisions += own
                advantages += [advantage] * len(own)
        loss, entropy = self._update(decisions, advantages)
        return Round(statistics.fmean(rewards), statistics.fmean(hours), entropy, loss)

    def _placements(
        self, instance: Instance, weights: Weights
    ) -> Iterator[tuple[float, int, list[Decision], float]]:
        """Reward, makespan, decisions and advantage of each placement of the batch."""
        random_ms = rollouts.best_random_ms(instance, self.settings.randoms)
        found = []
        for place in range(self.settings.placements):
            decisions: list[Decision] = []
            random = Random(f"{instance.seed}/{place}")
            policy = rollouts.by_score(weights, random, decisions)
            outcome = batch_model.run(instance.jobs, instance.failures, policy)
            reward = rollouts.reward(random_ms, outcome.makespan_ms)
            found.append((reward, outcome.makespan_ms, decisions))
        rewards = [reward for reward, _, _ in found]
        spread = statistics.pstdev(rewards) + 0.02
        for reward, makespan_ms, decisions in found:
            others = (sum(rewards) - reward) / max(1, len(rewards) - 1)
            yield reward, makespan_ms, decisions, (reward - others) / spread

    def _update(
        self, decisions: Sequence[Decision], advantages: Sequence[float]
    ) -> tuple[float, float]:
        """Returns the loss and the mean entropy of a first pick."""
        import torch

        if not decisions:
            return 0.0, 0.0
        rows, mask, picks = tensors(decisions)
        logs, entropy = log_probability(self.module(rows, mask), mask, picks)
        loss = -(logs * torch.tensor(advantages)).mean() - self.settings.entropy * entropy
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self.optimiser.step()
        return float(loss.detach()), float(entropy.detach())


def tensors(decisions: Sequence[Decision]) -> tuple[Any, Any, Any]:
    """Rows (D, GPUs, features), mask (D, GPUs), picks (D, most picks); a missing pick is -1."""
    import torch

    width, most = len(FEATURES), max(each.candidates for each in decisions)
    longest = max(len(each.picks) for each in decisions)
    values, mask, picks = array("f"), [], []
    for each in decisions:
        missing = most - each.candidates
        values.extend(each.rows)
        values.extend([0.0] * (missing * width))
        mask.append([True] * each.candidates + [False] * missing)
        picks.append([*each.picks, *([-1] * (longest - len(each.picks)))])
    rows = torch.frombuffer(values, dtype=torch.float32).reshape(len(decisions), most, width)
    return rows, torch.tensor(mask), torch.tensor(picks)


def log_probability(scores: Any, mask: Any, picks: Any) -> tuple[Any, Any]:
    """The log probability of each decision's picks, one by one without return, and an entropy."""
    import torch

    left = scores.masked_fill(~mask, -torch.inf)
    logs = torch.log_softmax(left, -1)
    chances = logs.exp()
    entropy = -(chances * logs.masked_fill(~mask, 0.0)).sum(-1).mean()
    total = torch.zeros(len(picks))
    for column in range(picks.shape[1]):
        there = picks[:, column] >= 0
        at = picks[:, column].clamp(min=0).unsqueeze(1)
        step = torch.log_softmax(left, -1).gather(1, at).squeeze(1)
        total = total + torch.where(there, step, torch.zeros_like(step))
        taken = torch.zeros_like(mask).scatter(1, at, there.unsqueeze(1))
        left = left.masked_fill(taken, -torch.inf)
        # a row whose picks have ended keeps its candidates, so that no softmax is empty
    return total, entropy
