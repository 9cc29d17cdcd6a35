"""The source's method (CN113535365A): state <n, t, s>, two networks, a replay stack, rounds.

Knows: the paragraphs named here. Must not know: files, progress. The source gives no formula for
the reward and no rule for the gradient: here the reward is (t_random - t_rl) / t_random, and the
rule is advantage actor-critic with an entropy bonus. Actions are drawn in training, and are the
largest probability in use.
"""

from __future__ import annotations

import statistics
from array import array
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

from nodemgr.edge.placement import scoring
from nodemgr.edge.placement.weights import SOURCE, Weights
from nodemgr.placement import batch_model, rollouts
from nodemgr.placement.rollouts import Draw, PickSample
from nodemgr.placement.scorer import Round

HIDDEN = (256, 196, 196, 128)
"""The dense layers of both networks before the last one ([67, 68])."""
MASKED = -1e9
"""The logit of a GPU with s = 1: its probability is 0 ([70])."""


class SourceSettings(NamedTuple):
    replay: int = 4_096
    """The samples that the stack holds."""
    randoms: int = 4
    """K: random placements of each batch ([72])."""
    learning_rate: float = 3e-4
    entropy: float = 1e-2
    value_part: float = 0.5
    minibatch: int = 256


DEFAULTS = SourceSettings()


class Rewarded(NamedTuple):
    """(s, a, r, s'): an entry of the replay stack ([32-36])."""

    sample: PickSample
    reward: float


class ReplayStack:
    """Samples are pushed on top; when it is full, the oldest one falls out ([76-80])."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._entries: list[Rewarded] = []
        self._oldest = 0

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, entry: Rewarded) -> None:
        if len(self._entries) < self.size:
            self._entries.append(entry)
        else:
            self._entries[self._oldest] = entry
            self._oldest = (self._oldest + 1) % self.size

    def entries(self) -> list[Rewarded]:
        """The oldest first."""
        return self._entries[self._oldest :] + self._entries[: self._oldest]

    def drawn(self, random: Random, count: int) -> list[Rewarded]:
        """So many at random ([80]); all if it holds fewer."""
        return random.sample(self._entries, min(count, len(self._entries)))


def network(gpus: int, outputs: int) -> Any:
    """Dense layers from <n, t, s> to these outputs; the softmax is the reader's."""
    from torch import nn

    widths = (gpus + 2, *HIDDEN, outputs)
    layers: list[Any] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def exported(policy: Any, trained: dict[str, Any]) -> Weights:
    values, widths = array("f"), list[int]()
    for layer in list(policy)[::2]:
        widths.append(layer.in_features)
        for tensor in (layer.weight.detach().t(), layer.bias.detach()):
            values.extend(tensor.reshape(-1).tolist())
    widths.append(list(policy)[-1].out_features)
    return Weights(SOURCE, tuple(widths), values, trained)


class SourceTraining:
    """One training on a cluster of a fixed number of GPUs."""

    def __init__(
        self, draw: Draw, seed: int, gpus: int, settings: SourceSettings = DEFAULTS
    ) -> None:
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.draw, self.seed, self.gpus, self.settings = draw, seed, gpus, settings
        self.policy, self.value = network(gpus, gpus), network(gpus, 1)
        self.optimiser = torch.optim.Adam(
            [*self.policy.parameters(), *self.value.parameters()], settings.learning_rate
        )
        self.replay = ReplayStack(settings.replay)

    def state(self) -> dict[str, Any]:
        return {
            "policy": self.policy.state_dict(),
            "value": self.value.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "replay": [(*entry.sample, entry.reward) for entry in self.replay.entries()],
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.policy.load_state_dict(state["policy"])
        self.value.load_state_dict(state["value"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.replay = ReplayStack(self.settings.replay)
        for before, action, after, reward in state["replay"]:
            self.replay.push(Rewarded(PickSample(before, action, after), reward))

    def weights(self, trained: dict[str, Any]) -> Weights:
        return exported(self.policy, trained)

    def round(self, number: int) -> Round:
        """One scheduling period: a batch is placed, then as many samples are learned from."""
        seed = f"train/{self.seed}/{number}"
        instance = self.draw(Random(seed), seed)
        weights, samples = exported(self.policy, {}), list[PickSample]()
        policy = rollouts.by_network(
            lambda state: scoring.dense(weights, state), self.gpus, Random(f"{seed}/picks"), samples
        )
        outcome = batch_model.run(instance.jobs, instance.failures, policy)
        random_ms = rollouts.best_random_ms(instance, self.settings.randoms)
        reward = rollouts.reward(random_ms, outcome.makespan_ms)
        for sample in samples:
            self.replay.push(Rewarded(sample, reward))
        random = Random(f"{seed}/replay")
        drawn = self.replay.drawn(random, len(samples))
        size = self.settings.minibatch
        found = [self._update(drawn[at : at + size]) for at in range(0, len(drawn), size)]
        loss = statistics.fmean([loss for loss, _ in found]) if found else 0.0
        entropy = statistics.fmean([entropy for _, entropy in found]) if found else 0.0
        return Round(reward, outcome.makespan_ms / 3_600_000, entropy, loss)

    def _update(self, drawn: Sequence[Rewarded]) -> tuple[float, float]:
        import torch

        states = torch.tensor([entry.sample.state for entry in drawn])
        actions = torch.tensor([[entry.sample.action] for entry in drawn])
        rewards = torch.tensor([entry.reward for entry in drawn])
        logits = self.policy(states).masked_fill(states[:, 2:] > 0, MASKED)
        logs = torch.log_softmax(logits, -1)
        values = self.value(states).squeeze(-1)
        advantages = rewards - values.detach()
        entropy = -(logs.exp() * logs).sum(-1).mean()
        actor = -(logs.gather(1, actions).squeeze(1) * advantages).mean()
        critic = (rewards - values).square().mean()
        settings = self.settings
        loss = actor + settings.value_part * critic - settings.entropy * entropy
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self.optimiser.step()
        return float(loss.detach()), float(entropy.detach())
