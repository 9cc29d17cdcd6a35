"""The features of a training: plain numbers that the manager makes a forecast of.

Two tables: the kinds of graph nodes with the largest input of each (the published one), and the
richer one of sizes, operations and bytes. Pure: no framework.
"""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

SCHEMA_VERSION = 1
KINDS = (
    "addv2", "biasadd", "biasaddgrad", "mul", "matmul", "conv2d", "concat", "softmax", "relu",
    "maxpool", "avgpool",
)  # fmt: skip
"""The kinds of graph nodes, in the order of the table."""
INTENSITIES = (-8, 20)
"""The least and the greatest logarithm (base 2) of operations per byte of a row of work."""
MAX_WORK_ROWS = 128
MAX_FRAMEWORK_CHARACTERS = 64

PackedWork = Tuple[str, int, int, int, int]


GRAPH_PER_MILLE = 600
"""Of the memory of a graph, whose operators run in an order of their own.

Of 55 trainings of Keras none took more (bench/forecast/keras_memory.py).
"""
CUT_SHORT_PER_MILLE = 300
"""Where the time was over before a validation, or the batches had several shapes."""


def intensity(operations: int, moved_bytes: int) -> int:
    """The whole part of the logarithm of operations per byte, within INTENSITIES."""
    low, high = INTENSITIES
    if operations <= 0:
        return low
    if operations >= moved_bytes:
        return min(high, (operations // max(1, moved_bytes)).bit_length() - 1)
    return max(low, -(-(-moved_bytes // operations) - 1).bit_length())


class StepWork:
    """The kernels of a step, summed by precision and intensity.

    Kernels within a factor of two are one row: a roofline of the rows differs from one of the
    kernels only in the row where a GPU's own balance lies.
    """

    def __init__(self) -> None:
        self._rows: Dict[Tuple[str, int], List[int]] = {}

    def add(self, precision: str, operations: int, moved_bytes: int) -> None:
        key = (precision, intensity(operations, moved_bytes))
        row = self._rows.setdefault(key, [0, 0, 0])
        row[0] += operations
        row[1] += moved_bytes
        row[2] += 1

    def rows(self) -> List[PackedWork]:
        """(precision, intensity, operations, bytes, kernels)."""
        return [(*key, *row) for key, row in sorted(self._rows.items())]  # type: ignore[misc]

    @property
    def kernels(self) -> int:
        return sum(row[2] for row in self._rows.values())

    @property
    def operations(self) -> int:
        return sum(row[0] for row in self._rows.values())

    @property
    def moved_bytes(self) -> int:
        return sum(row[1] for row in self._rows.values())


class KindTable:
    """The elements of the largest input of each kind; 0 where the step has no such node."""

    def __init__(self) -> None:
        self._largest = dict.fromkeys(KINDS, 0)

    def add(self, kind: str, elements: int) -> None:
        self._largest[kind] = max(self._largest[kind], elements)

    def elements(self) -> Dict[str, int]:
        return dict(self._largest)


def is_experimental(framework: object) -> bool:
    """Whether forecasts of this framework's memory miss the aims of docs/forecast.md."""
    return str(framework).startswith("tensorflow")


def packed(outcome: Dict[str, Any], iterations: int = 0) -> Dict[str, Any]:
    """The JSON object for the manager, of the outcome of a watched training.

    `iterations`: the optimizer steps of the whole run; 0: not known.
    """
    batch_size = int(outcome["batch_size"] or 0)
    return {
        "schema_version": SCHEMA_VERSION,
        "framework": str(outcome["framework"])[:MAX_FRAMEWORK_CHARACTERS],
        "graph": {kind: size for kind, size in outcome["kinds"].items() if size},
        "execution": {
            "batchsize": batch_size,
            "iteration": iterations,
            "input": int(outcome["input_elements"] or 0) // max(1, batch_size),
        },
        "richer": {
            name: int(outcome[name])
            for name in ("parameters", "activation_bytes", "depth", "operations", "bytes",
                         "kernels")
        },
        "work": [list(row) for row in outcome["work"][:MAX_WORK_ROWS]],
        "memory": _memory(outcome),
    }  # fmt: skip


def _memory(outcome: Dict[str, Any]) -> Dict[str, int]:
    """The peak, and the margin that the watch itself asks for."""
    peak_bytes, found = int(outcome["reserved_peak_bytes"]), {}
    per_mille = max(
        GRAPH_PER_MILLE if is_experimental(outcome["framework"]) else 0,
        CUT_SHORT_PER_MILLE if outcome.get("is_short") else 0,
    )
    if per_mille:
        found["margin_bytes"] = peak_bytes * per_mille // 1_000
    return {"peak_bytes": peak_bytes, **found}
