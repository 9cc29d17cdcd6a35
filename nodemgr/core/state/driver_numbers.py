"""The numbers that the driver gives to GPUs, for programs that take no UUIDs.

Knows: PCI order, and that a process behind a device gate sees the opened GPUs alone. Must not know:
which processes are behind one, who asks.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from nodemgr.core.model.entities import Uuid
from nodemgr.core.state.node_state import State


def driver_numbers(
    state: State, gpus: Iterable[Uuid], seen: Container[Uuid] | None
) -> tuple[str, ...]:
    """Of these GPUs, as CUDA counts them with CUDA_DEVICE_ORDER=PCI_BUS_ID.

    `seen`: the GPUs that a device gate opens, with all of `gpus`; None: every GPU is open.
    """
    if seen is None:
        return tuple([str(state.gpus[uuid].index) for uuid in gpus])
    opened = sorted(gpu.index for uuid, gpu in state.gpus.items() if uuid in seen)
    return tuple([str(opened.index(state.gpus[uuid].index)) for uuid in gpus])
