"""Features of a training: the source's table of graph nodes, its execution, and richer figures.

Knows: the form in which a client sends features, their bounds, the vector that is made of them.
Must not know: how a client finds them, what is predicted from them. A client may send anything:
`parse` takes what is within the bounds, and raises FeaturesError for all else.

The source: paragraphs [74] (graph), [75] (execution), [78] (hardware), [97] (remaining iterations).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from client_plugin.messages.form import SpokenError
from nodemgr.core.model.values import replace, value

SCHEMA_VERSION = 1
GRAPH = (
    "addv2", "biasadd", "biasaddgrad", "mul", "matmul", "conv2d", "concat", "softmax", "relu",
    "maxpool", "avgpool",
)  # fmt: skip
"""The kinds of graph nodes, in the order of the vector.

The figure of a kind is the number of elements of its largest input; 0: the graph has none.
"""
EXECUTION = ("batchsize", "iteration", "input")
RICHER = ("parameters", "activation_bytes", "depth", "operations", "bytes", "kernels")
PRECISIONS = ("float64", "float32", "tf32", "float16", "bfloat16", "int8")
MAX_FIGURE = 1 << 62
MAX_WORK_ROWS = 128
MAX_FRAMEWORK_CHARACTERS = 64
FRAMEWORK = re.compile(
    rf"(?:[A-Za-z][A-Za-z0-9 ._+-]{{0,{MAX_FRAMEWORK_CHARACTERS - 1}}})?", re.ASCII
)
"""No text that a spreadsheet takes for a formula: it is a column of `report --samples`."""
INTENSITIES = (-8, 20)
"""The least and the greatest logarithm (base 2) of operations per byte of a row of work."""
FORM = {"schema_version", "framework", "graph", "execution", "richer", "work", "memory"}


class FeaturesError(SpokenError):
    """The features have not their form; the message has the place and the rule."""


@value
class WorkRow:
    """The kernels of one step with one precision and one intensity, summed."""

    precision: str
    intensity: int
    """The logarithm (base 2) of operations per byte."""
    operations: int
    moved_bytes: int
    kernels: int


@value
class Features:
    """Features of one training, as its client found them."""

    framework: str
    """Name and version; empty: unknown."""
    graph: tuple[int, ...]
    """A figure for each kind in GRAPH."""
    execution: tuple[int, ...]
    """A figure for each name in EXECUTION."""
    richer: tuple[int, ...]
    """A figure for each name in RICHER."""
    work: tuple[WorkRow, ...]
    peak_bytes: int
    """Reserved device memory at its peak, without the context; 0: unknown."""
    margin_bytes: int = 0
    """The least margin that its client asks for, until past tasks give one."""

    @property
    def iterations(self) -> int:
        """The optimizer steps of the run; 0: unknown."""
        return self.execution[1]

    def after(self, done: int) -> Features:
        """Features of the rest of the run, after so many iterations ([97])."""
        batch, iterations, size = self.execution
        return replace(self, execution=(batch, max(0, iterations - done), size))

    def is_same_step(self, other: Features) -> bool:
        """Whether one step of both is the same; the number of steps may differ."""
        return (
            self.graph == other.graph
            and self.richer == other.richer
            and self.work == other.work
            and self.execution[::2] == other.execution[::2]
        )


def vector(features: Features, hardware: Sequence[int]) -> tuple[int, ...]:
    """The source's sample P: graph, execution and hardware, in the order of the tables ([79])."""
    return (*features.graph, *features.execution, *hardware)


def table(features: Features) -> dict[str, int]:
    """The source's table: each kind and each figure of the execution by name."""
    return dict(zip((*GRAPH, *EXECUTION), features.graph + features.execution, strict=True))


def packed(features: Features) -> dict[str, Any]:
    """The JSON object that `parse` reads."""
    return {
        "schema_version": SCHEMA_VERSION,
        "framework": features.framework,
        "graph": {
            kind: figure for kind, figure in zip(GRAPH, features.graph, strict=True) if figure
        },
        "execution": dict(zip(EXECUTION, features.execution, strict=True)),
        "richer": dict(zip(RICHER, features.richer, strict=True)),
        "work": [
            [row.precision, row.intensity, row.operations, row.moved_bytes, row.kernels]
            for row in features.work
        ],
        "memory": {
            "peak_bytes": features.peak_bytes,
            **({"margin_bytes": features.margin_bytes} if features.margin_bytes else {}),
        },
    }


def as_text(features: Features) -> str:
    """The JSON text of `packed`, for the store."""
    return json.dumps(packed(features), separators=(",", ":"))


def from_text(text: str) -> Features | None:
    """The features that `as_text` was given; None: the text is none of it."""
    try:
        return parse(json.loads(text))
    except (ValueError, RecursionError, FeaturesError):
        return None


def parse(given: object) -> Features:
    """The features of a client's JSON object. Raises FeaturesError."""
    body = _object(given, "features", FORM)
    if type(body.get("schema_version")) is not int or body["schema_version"] != SCHEMA_VERSION:
        raise FeaturesError(
            f"the features are of another version: `schema_version` must be {SCHEMA_VERSION}"
        )
    framework = body.get("framework", "")
    if not isinstance(framework, str) or FRAMEWORK.fullmatch(framework) is None:
        raise FeaturesError(
            "`framework` of the features must be a name and a version, at most "
            f"{MAX_FRAMEWORK_CHARACTERS} letters, digits, spaces and . _ + -"
        )
    return Features(
        framework,
        _figures(body, "graph", GRAPH),
        _figures(body, "execution", EXECUTION),
        _figures(body, "richer", RICHER),
        _work(body.get("work", [])),
        *_figures(body, "memory", ("peak_bytes", "margin_bytes")),
    )


def _object(given: object, place: str, known: set[str]) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise FeaturesError(f"the features have no form: `{place}` must be a JSON object")
    if unknown := given.keys() - known:
        names = ", ".join(sorted(repr(str(name)[:20]) for name in unknown)[:5])
        raise FeaturesError(
            f"`{place}` of the features has unknown names: {names}",
            "use a client of the manager's version",
        )
    return given


def _figures(body: Mapping[str, Any], place: str, names: Sequence[str]) -> tuple[int, ...]:
    """A figure for each name; 0 where it is absent."""
    given = _object(body.get(place, {}), place, set(names))
    return tuple(_figure(given.get(name, 0), f"{place}.{name}") for name in names)


def _figure(given: object, place: str, low: int = 0, high: int = MAX_FIGURE) -> int:
    if type(given) is not int or not low <= given <= high:
        raise FeaturesError(
            f"`{place}` of the features must be a whole number from {low} to {high}"
        )
    return given


def _work(given: object) -> tuple[WorkRow, ...]:
    if not isinstance(given, list) or len(given) > MAX_WORK_ROWS:
        raise FeaturesError(
            f"`work` of the features must be a list of at most {MAX_WORK_ROWS} rows"
        )
    return tuple(_work_row(row, f"work[{number}]") for number, row in enumerate(given))


def _work_row(row: object, place: str) -> WorkRow:
    if not isinstance(row, list) or len(row) != 5 or row[0] not in PRECISIONS:
        raise FeaturesError(
            f"`{place}` of the features must be a precision of {', '.join(PRECISIONS)}, then "
            "intensity, operations, bytes and kernels"
        )
    return WorkRow(
        row[0],
        _figure(row[1], place, *INTENSITIES),
        _figure(row[2], place),
        _figure(row[3], place),
        _figure(row[4], place),
    )
