"""The orders of administrators about GPUs: drain, resume, failed, repaired; weights to read.

Knows: the arguments, the events that carry an order out. Must not know: their effect
(core/lifecycle/gpu_records.py), the form of weights, frames, sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nodemgr.core.model import events
from nodemgr.core.model.entities import BY_LENDER, Gpu, Uuid
from nodemgr.core.model.events import DrainGpu, RepairGpu, ReportFailure, ResumeGpu
from nodemgr.core.views import gpu_health
from nodemgr.edge.api.verb_table import ADMIN, Speaker, verb
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.rpc.operation import (
    Argument,
    OperationError,
    integer,
    text,
)

MAX_INDEX = 1_023
GPU = {"index": Argument(integer(0, MAX_INDEX), required=True), "note": Argument(text)}


class GpuOperations:
    """The verbs, on a daemon."""

    def __init__(self, daemon: Daemon, read_weights: Callable[[], Path]) -> None:
        """`read_weights`: those of the policy `learned`, again; returns the path of its file."""
        self._daemon, self._read_weights = daemon, read_weights

    @verb("placement_read", ADMIN)
    def _placement_read(self, _who: Speaker, _given: dict[str, Any]) -> dict[str, Any]:
        return {"path": str(self._read_weights())}

    @verb("gpu_drain", ADMIN, GPU, changes=True)
    def _drain(self, who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        return self._step(given, lambda uuid, ns: DrainGpu(uuid, who.user, _note(given), ns))

    @verb("gpu_resume", ADMIN, GPU, changes=True)
    def _resume(self, who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        record = self._daemon.state.gpu_records.get(self._gpu(given["index"]).uuid)
        if record is not None and record.drained_by == BY_LENDER:
            remedy = "the head of the cluster asks for it: nodemgr node list"
            raise OperationError(record.why, remedy, "refused")
        return self._step(given, lambda uuid, ns: ResumeGpu(uuid, who.user, ns))

    @verb("gpu_failed", ADMIN, GPU, changes=True)
    def _failed(self, who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        return self._step(given, lambda uuid, ns: ReportFailure(uuid, who.user, _note(given), ns))

    @verb("gpu_repaired", ADMIN, GPU, changes=True)
    def _repaired(self, who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        return self._step(given, lambda uuid, ns: RepairGpu(uuid, who.user, _note(given), ns))

    def _step(
        self, given: dict[str, Any], event: Callable[[Uuid, int], events.Event]
    ) -> dict[str, Any]:
        """`event`: from the GPU and the wall time."""
        gpu, state = self._gpu(given["index"]), self._daemon.state
        self._daemon.submit_or_refuse(event(gpu.uuid, self._daemon.clock.wall_ns()))
        return {"index": gpu.index, "uuid": gpu.uuid, **gpu_health.row(state, state.gpus[gpu.uuid])}

    def _gpu(self, index: int) -> Gpu:
        gpus = {gpu.index: gpu for gpu in self._daemon.state.gpus.values()}
        if index not in gpus:
            raise OperationError(
                f"there is no GPU {index}",
                f"the GPUs are {', '.join(map(str, sorted(gpus)))}",
                "not_found",
            )
        return gpus[index]


def _note(given: dict[str, Any]) -> str:
    return str(given.get("note", ""))
