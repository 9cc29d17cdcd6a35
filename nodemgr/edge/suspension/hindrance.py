"""Whether processes of this node can be suspended at all, for an order and for the doctor.

Knows: the versions and modes of the driver that lack it. Must not know: tasks, a single process,
which may be refused by the driver all the same (shared or managed memory).
"""

from __future__ import annotations

from nodemgr.edge.suspension.driver_calls import FIRST_VERSION
from nodemgr.messages import suspension as messages


def hindrance(cuda_version: int | None, *, has_mps: bool) -> str | None:
    """Why no process can be suspended; None: the driver is asked for each.

    `cuda_version`: as NVML names it, 12080 for 12.8; None: unknown.
    """
    if cuda_version is not None and cuda_version < FIRST_VERSION:
        return messages.OLD_DRIVER()
    return (
        "the control daemon of MPS runs, and the driver cannot suspend processes that use it"
        if has_mps
        else None
    )
