"""The numbers that the driver gives to GPUs, for programs that take no UUIDs.

Knows: PCI order, and that a process behind a device gate sees the opened GPUs alone. Must not know:
which processes are behind one, who asks.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodemgr.core.model.entities import Uuid
from nodemgr.core.state.node_state import State


def driver_numbers(state: State, env: str, gpus: Iterable[Uuid], is_gated: bool) -> tuple[str, ...]:
    """Of GPUs that the env holds, as CUDA counts them with CUDA_DEVICE_ORDER=PCI_BUS_ID."""
    seen = sorted(
        gpu.index for uuid, gpu in state.gpus.items() if not is_gated or (env, uuid) in state.grants
    )
    return tuple(
        str(seen.index(number) if is_gated else number)
        for number in (state.gpus[uuid].index for uuid in gpus)
    )
