"""Long seeded walks over the rules of a state machine, weighted as a busy node's days are.

Hypothesis finds short stories; these find what takes a crowd. A failing seed is enough to see one
again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

STEPS = 60

M = TypeVar("M")
Rule = tuple[int, Callable[[M, random.Random], object], Callable[[M], object]]
"""How often, what, and whether it can happen now."""


def walk(machine: M, rules: Sequence[Rule[M]], check: Callable[[M], object], seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(STEPS):
        possible = [(weight, step) for weight, step, can in rules if can(machine)]
        (step,) = dice.choices([step for _, step in possible], [weight for weight, _ in possible])
        step(machine, dice)
        check(machine)
