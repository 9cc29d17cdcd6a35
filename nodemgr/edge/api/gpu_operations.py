"""The orders of administrators about GPUs: drain, resume, failed, repaired; weights to read.

Knows: the arguments, the events that carry an order out. Must not know: their effect
(core/lifecycle/gpu_records.py), the form of weights, frames, sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from nodemgr.core.model import events
from nodemgr.core.model.entities import Gpu
from nodemgr.core.views import gpu_health
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.rpc.operation import (
    Argument,
    Operation,
    OperationError,
    Operations,
    integer,
    text,
)
from nodemgr.messages import orders as messages

MAX_INDEX = 1_023
GpuOrder = Callable[[Gpu, str, str, int], events.Event]
"""From the GPU, the administrator, the note and the wall time."""


class GpuOperations:
    """The verbs, on a daemon."""

    def __init__(self, daemon: Daemon, read_weights: Callable[[], Path]) -> None:
        """`read_weights`: those of the policy `learned`, again; returns the path of its file."""
        self._daemon, self._read_weights = daemon, read_weights

    def orders(self) -> Operations:
        read = Operation({}, lambda _given: {"path": str(self._read_weights())})
        index = Argument(integer(0, MAX_INDEX), required=True)
        arguments = {"index": index, "note": Argument(text), "by": Argument(text)}
        return {
            "placement_read": read,
            **{
                verb: Operation(arguments, partial(self._carry_out, made=made))
                for verb, made in ORDERS.items()
            },
        }

    def _carry_out(self, given: dict[str, Any], made: GpuOrder) -> dict[str, Any]:
        gpu, note = self._gpu(given["index"]), given.get("note", "")
        by = given.get("by") or "an administrator"
        self._daemon.submit_or_refuse(made(gpu, by, note, self._daemon.clock.wall_ns()))
        state = self._daemon.state
        return {"index": gpu.index, "uuid": gpu.uuid, **gpu_health.row(state, state.gpus[gpu.uuid])}

    def _gpu(self, index: int) -> Gpu:
        gpus = {gpu.index: gpu for gpu in self._daemon.state.gpus.values()}
        if index not in gpus:
            raise OperationError(
                messages.NO_SUCH_GPU(index=index, known=", ".join(map(str, sorted(gpus))))
            )
        return gpus[index]


ORDERS: dict[str, GpuOrder] = {
    "gpu_drain": lambda gpu, by, note, wall_ns: events.DrainGpu(gpu.uuid, by, note, wall_ns),
    "gpu_resume": lambda gpu, by, _note, wall_ns: events.ResumeGpu(gpu.uuid, by, wall_ns),
    "gpu_failed": lambda gpu, by, note, wall_ns: events.ReportFailure(gpu.uuid, by, note, wall_ns),
    "gpu_repaired": lambda gpu, by, note, wall_ns: events.RepairGpu(gpu.uuid, by, note, wall_ns),
}
