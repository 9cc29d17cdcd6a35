"""The training of the series of kills, in numbers: its data, its plan, its plain loop.

Its losses stay far from 0, since the targets are noise. Must not know: workers, frameworks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from client_plugin.training.plan import SamplePlan

SAMPLES, BATCH, MOST, SEED, FEATURES = 96, 12, 3, 5, 6
STEPS = 8_000_000
EPOCHS = STEPS // (SAMPLES // BATCH)
RATE, MOMENTUM = 0.02, 0.9
CHECKPOINT_S = 0.5
PLAN = SamplePlan(SAMPLES, BATCH, MOST, EPOCHS, SEED)


def data() -> tuple[Any, Any]:
    numbers = np.random.default_rng(3)
    return numbers.standard_normal((SAMPLES, FEATURES)), numbers.standard_normal(SAMPLES)


def loss_and_gradient(weights: Any, inputs: Any, targets: Any) -> tuple[float, Any]:
    """Of the mean squared error."""
    errors = inputs @ weights - targets
    return float(np.mean(errors**2)), 2 * inputs.T @ errors / len(errors)


def losses(steps: int) -> list[float]:
    """Each step's loss on one device, without the library and without kills."""
    inputs, targets = data()
    weights, speed = np.zeros(FEATURES), np.zeros(FEATURES)
    found = []
    for step in range(steps):
        samples = PLAN.samples_of(step)
        loss, gradient = loss_and_gradient(weights, inputs[samples], targets[samples])
        speed = MOMENTUM * speed + gradient
        weights = weights - RATE * speed
        found.append(loss)
    return found
