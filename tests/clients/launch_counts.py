"""The launches of a node's processes: as their gates count them, and as the simulator does.

Knows: the layout of a launch gate's turns (csrc/gate/gate.h). Must not know: the clients.
"""

from __future__ import annotations

import os
from pathlib import Path

from nodemgr._native import lib
from nodemgr.edge.host.rundir import SIMULATOR_DIR
from nodemgr.simulator import SimulatedNode
from tests.support.manager import Manager

ROWS_OFFSET, ROW_BYTES, LAUNCHES_OFFSET = 128, 128, 5 * 8


def through_gates(node: Manager) -> int:
    """The launches that have passed the gates of processes that live, or ended lately."""
    return sum(_of_file(path) for path in Path(f"/proc/{node.pid}/fd").iterdir() if _is_turns(path))


def on_device(node: Manager, pid: int, index: int = 0) -> int:
    """The launches that the device has got from the process."""
    with SimulatedNode.open(node.run_dir / SIMULATOR_DIR) as simulated:
        return simulated.times(index).launched.get(pid, 0)


def _is_turns(path: Path) -> bool:
    try:
        return path.readlink().name.startswith("memfd:nodemgr-turns")
    except FileNotFoundError:  # closed meanwhile
        return False


def _of_file(path: Path) -> int:
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # closed meanwhile
        return 0
    try:
        turns = os.pread(fd, ROWS_OFFSET + ROW_BYTES * lib.NM_LAUNCH_SLOTS, 0)
    finally:
        os.close(fd)
    places = range(ROWS_OFFSET + LAUNCHES_OFFSET, len(turns), ROW_BYTES)
    return sum(int.from_bytes(turns[place : place + 8], "little") for place in places)
