"""The RunSpec of an order's arguments: one reading for submissions and for assignments.

Knows: the arguments of fields.ORDERED that belong to a run. Must not know: who gives the order.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from client_plugin import fields
from nodemgr.core.model import events
from nodemgr.core.model.entities import GpuRange, RunSpec
from nodemgr.edge.api import job_arguments as kinds
from nodemgr.edge.rpc.operation import OperationError, of_field
from nodemgr.messages.orders import MEMORY_RANGE_ABSURD

_own, _of_run = (
    {field.name for field in dataclasses.fields(kind)} for kind in (events.Submission, RunSpec)
)
OF_RUN = [row.name for row in fields.ORDERED if row.name in _of_run - _own and not row.most]
"""Arguments that are fields of the RunSpec alone, by the same names."""
LIMITS = {
    row.name: of_field(row, kinds.OF_KIND)
    for row in fields.OF_RUN
    if row.name in ("cpus", "host_memory_bytes")
}
"""The limits of a command that a user runs."""


def take(
    given: dict[str, Any], command: tuple[str, ...], place: str, *, is_elastic: bool
) -> RunSpec:
    """Takes the run's arguments out of `given`. Raises OperationError."""
    gpus = given.pop("gpus", None)
    memory_bytes, most_bytes = _memory_range(given)
    return RunSpec(
        kinds.command_line(command),
        gpus or 0,
        memory_bytes,
        place=place,
        **{name: given.pop(name, None) for name in OF_RUN},
        gpu_range=_gpu_range(gpus, given.pop("gpus_max", None), is_elastic=is_elastic),
        memory_most_bytes=most_bytes,
    )


def _memory_range(given: dict[str, Any]) -> tuple[int | None, int | None]:
    """The least and the most memory; of one size, the size and None. Raises OperationError."""
    least_bytes, most_bytes = given.pop("memory_bytes", None), given.pop("memory_max_bytes", None)
    if most_bytes is not None and (least_bytes is None or most_bytes < least_bytes):
        raise OperationError(MEMORY_RANGE_ABSURD(least=least_bytes or 0, most=most_bytes))
    return least_bytes, most_bytes


def _gpu_range(gpus: int | None, most: int | None, *, is_elastic: bool) -> GpuRange | None:
    """The numbers beyond the least one; the core refuses a range without sense."""
    if most is None and not is_elastic:
        return None
    return GpuRange(most or gpus or 0, is_elastic)
