"""The file of weights of a learned placement: JSON with shapes and a checksum.

Knows: the form of the file, its limits. Must not know: training, GPUs. A file that is cut, of
another version, of other shapes or with a number that is not finite raises WeightsError with one
line; the caller goes on with the policy `reliable`.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from client_plugin.messages.form import SpokenError
from nodemgr.messages import placement as messages

SCHEMA_VERSION = 1
FEATURES = (
    "log_rate", "log_rate_above_mean", "failure_probability", "rank", "log_age", "log_hours",
    "gpus_part", "log_gpus",
)  # fmt: skip
"""The inputs of the scorer for each GPU (scoring.features)."""
SCORER, SOURCE = "scorer", "source"
MAX_FILE_BYTES = {SCORER: 1_000_000, SOURCE: 8_000_000}
"""The scorer alone is shipped; the source's network fits one number of GPUs."""
MAX_HIDDEN, MAX_WIDTH, MAX_LAYERS = 256, 4_096, 8
MAX_WEIGHT = 1e6


class WeightsError(SpokenError):
    """The weights are not usable. The message has the file and the reason."""


@dataclass(frozen=True)
class Weights:
    """One network: the scorer (widths: features, hidden), or dense layers (the source's)."""

    kind: str
    widths: tuple[int, ...]
    values: array[float]
    """In the order of csrc/manager/networks.h, as 32-bit floats."""
    trained: Mapping[str, Any] = field(default_factory=dict)
    """How it was trained: seed, rounds, figures. For people."""


def count_of(kind: str, widths: Sequence[int]) -> int:
    """The weights that a network of these widths has."""
    if kind == SCORER:
        features, hidden = widths
        return (
            (features + 1) * hidden + (3 * hidden + 1) * hidden + hidden + features + 1
        )  # csrc/manager/networks.c, nm_network_score
    return sum((before + 1) * after for before, after in pairwise(widths))


def checksum(kind: str, widths: Sequence[int], values: array[float]) -> str:
    head = f"{SCHEMA_VERSION}/{kind}/{','.join(map(str, widths))}/".encode()
    return hashlib.sha256(head + values.tobytes()).hexdigest()


def dump(weights: Weights) -> str:
    """The text of the file. Seven digits give each 32-bit float back to within its rounding."""
    rounded = array("f", (float(f"{value:.7g}") for value in weights.values))
    body = {
        "schema_version": SCHEMA_VERSION,
        "kind": weights.kind,
        "widths": list(weights.widths),
        "features": list(FEATURES) if weights.kind == SCORER else [],
        "trained": dict(weights.trained),
        "checksum": checksum(weights.kind, weights.widths, rounded),
        "weights": [float(f"{value:.9g}") for value in rounded],
    }
    return json.dumps(body, separators=(",", ":"), allow_nan=False)


def save(path: Path, weights: Weights) -> None:
    """The file has its old text or the new one, whenever the process ends."""
    draft = path.with_name(f"{path.name}.new")
    with draft.open("w") as file:
        file.write(dump(weights))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def load(path: Path, kind: str = SCORER) -> Weights:
    """Raises WeightsError."""
    try:
        with open(path, "rb", opener=_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise WeightsError(
                    f"{path}, weights of a learned placement, is no regular file",
                    "name a file of weights; without one the policy is reliable",
                )
            text = file.read(MAX_FILE_BYTES[kind] + 1)
    except OSError as error:
        raise WeightsError(
            f"{path}, weights of a learned placement, cannot be read: {error.strerror}",
            "name a file of weights; without one the policy is reliable",
        ) from None
    if len(text) > MAX_FILE_BYTES[kind]:
        raise _unfit(path, f"it is larger than {MAX_FILE_BYTES[kind]} bytes")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        raise _unfit(path, "it is no JSON; it may be cut") from None
    fault = _fault(body, kind)
    if fault:
        raise _unfit(path, fault)
    values = array("f", body["weights"])
    widths = tuple(body["widths"])
    if checksum(kind, widths, values) != body.get("checksum"):
        raise _unfit(path, "its checksum is wrong")
    return Weights(kind, widths, values, body["trained"])


def load_either(path: Path) -> Weights:
    """Of either kind. Raises WeightsError."""
    try:
        return load(path)
    except WeightsError as fault:
        try:
            found = load(path, SOURCE)
        except WeightsError:
            raise fault from None
    if found.widths[0] != found.widths[-1] + 2:  # n, t and a number for each GPU
        raise _unfit(path, messages.WEIGHTS_SHAPE())
    return found


def _at_once(path: str, flags: int) -> int:
    """Opens a FIFO without a wait for its writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _unfit(path: Path, fault: str) -> WeightsError:
    return WeightsError(
        f"{path}, weights of a learned placement, is not used: {fault}",
        "train again, or export it again; until then the policy is reliable",
    )


def _fault(body: object, kind: str) -> str:
    """Why the file does not hold a network of this kind; empty: it does."""
    if not isinstance(body, dict) or body.get("schema_version") != SCHEMA_VERSION:
        found = body.get("schema_version") if isinstance(body, dict) else None
        return f"its schema version is {repr(found)[:40]}, not {SCHEMA_VERSION}"
    if body.get("kind") != kind:
        return f"its network is {repr(body.get('kind'))[:40]}, not {kind}"
    widths: Any = body.get("widths")
    values = body.get("weights")
    if not _is_shape(widths, kind) or not isinstance(values, list):
        return messages.WEIGHTS_SHAPE()
    if kind == SCORER and body.get("features") != list(FEATURES):
        return messages.WEIGHTS_SHAPE()
    if len(values) != count_of(kind, widths) or not isinstance(body.get("trained"), dict):
        return messages.WEIGHTS_SHAPE()
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return messages.WEIGHTS_NUMBER()
        if not abs(value) <= MAX_WEIGHT:  # NaN, too; a whole number may be beyond a float
            return messages.WEIGHTS_NUMBER()
    try:
        json.dumps(body["trained"], allow_nan=False)  # `use` writes it again
    except (ValueError, RecursionError):
        return "its account of the training is no JSON"
    return ""


def _is_shape(widths: Any, kind: str) -> bool:
    if not isinstance(widths, list) or not all(type(width) is int for width in widths):
        return False
    if kind == SCORER:
        return len(widths) == 2 and widths[0] == len(FEATURES) and 1 <= widths[1] <= MAX_HIDDEN
    return 2 <= len(widths) <= MAX_LAYERS + 1 and all(1 <= each <= MAX_WIDTH for each in widths)
