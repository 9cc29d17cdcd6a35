"""The simulated node of `nodemgr serve --simulate`.

It is made at the first start, and found again while clients live on it.

Knows: where a run directory keeps it. Must not know: how it works (nodemgr/simulator.py).
"""

from __future__ import annotations

from pathlib import Path

from nodemgr.edge.gpu.gpu_inventory import NvmlUnavailable
from nodemgr.simulator import STATE_FILE, SimulatorError, open_or_create


def prepare_node(directory: Path, count: int, memory_bytes: int) -> Path:
    """The directory of its libraries, for the manager's NVML as for clients.

    Raises NvmlUnavailable.
    """
    try:
        open_or_create(directory, count, memory_bytes).close()
        directory.chmod(0o755)
    except SimulatorError as error:
        raise NvmlUnavailable(str(error)) from None
    return directory


def state_file(directory: Path) -> Path:
    """The file that is touched when a device is lost or restored."""
    return directory / STATE_FILE
