"""Features, samples and weights for the tests of forecasts."""

from __future__ import annotations

import json
import re
from string import Formatter
from typing import Any

from client_plugin.messages.form import Message
from nodemgr.core.forecast.features import Features, WorkRow
from nodemgr.core.forecast.network import INPUTS, SCHEMA_VERSION
from nodemgr.core.forecast.samples import NOTHING_PREDICTED, Predicted, Sample, SampleOwner

A100 = "NVIDIA A100-SXM4-80GB"
GIB = 1 << 30


def features(iteration: int = 1_000, **changes: Any) -> Features:
    """A training of some 20 ms a step on an A100."""
    values: dict[str, Any] = {
        "framework": "torch 2.5.1",
        "graph": (2_000, 0, 0, 0, 4_200, 4_800, 0, 100, 0, 3_200, 0),
        "execution": (32, iteration, 1_000),
        "richer": (25_000_000, 2 * GIB, 50, 10**12, 10**10, 500),
        "work": (WorkRow("float32", 6, 200 * 10**9, 16 * 10**9, 500),),
        "peak_bytes": 4 * GIB,
    }
    return Features(**(values | changes))


def owner(user: str = "ann") -> SampleOwner:
    """A user with an environment of the user's own."""
    return SampleOwner(f"env-{user}", user)


def sample(
    user: str = "ann", step_ns: int | None = 30_000_000, predicted: Predicted = NOTHING_PREDICTED,
    of: Features | None = None, peak_bytes: int | None = 5 * GIB, run_ms: int = 30_000,
    utilization_percent: int | None = 80, driver: str = "",
) -> Sample:  # fmt: skip
    return Sample(
        wall_ns=1, env=f"env-{user}", user=user, gpu_model=A100, driver=driver,
        features=of or features(), run_ms=run_ms, peak_bytes=peak_bytes,
        utilization_percent=utilization_percent, step_ns=step_ns,
        steps=1_000, predicted=predicted,
    )  # fmt: skip


def weights(
    output: float = 0.0, reach: float = 1e6, error: float = 0.1, kind: str = "time",
    width: float = 1e6,
) -> dict[str, Any]:  # fmt: skip
    """A file of weights with one network whose output is always the same."""
    wide = len(INPUTS)
    network = {
        "means": [0.0] * wide,
        "scales": [1.0] * wide,
        "layers": [
            {"weights": [[0.0] * wide, [0.0] * wide], "biases": [0.0, 0.0]},
            {"weights": [[1.0, 1.0]], "biases": [output]},
        ],
        "lows": [-width] * wide,
        "highs": [width] * wide,
        "anchors": [[0.0] * wide],
        "labels": [0.0],
        "way": "network",
        "reach": reach,
        "card": {
            "samples": 100, "newest": 10, "error": error, "prior_error": 0.5,
            "residuals": [error * part / 5 for part in range(-5, 6)],
            "prior_residuals": [0.5] * 11,
        },
    }  # fmt: skip
    return {
        "schema_version": SCHEMA_VERSION, "inputs": list(INPUTS), "factors": {},
        "networks": {kind: network},
    }  # fmt: skip


def text(body: object) -> str:
    return json.dumps(body)


def is_of(row: Message, line: str) -> bool:
    """Whether the line is the row's template with some values in its fields."""
    parts = Formatter().parse(row.template)
    return (
        re.fullmatch(
            "".join(re.escape(text) + (".*" if name else "") for text, name, *_ in parts), line
        )
        is not None
    )
