"""The foundation of each part of a manager: its settings, loop, state, store and driver.

Knows: the kinds of these. Must not know: a part, when a manager starts or ends (service.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass

from nodemgr.core.manager import Draft
from nodemgr.edge.executor.interface import ExecutorListener, ResourceFactory
from nodemgr.edge.executor.launcher import LauncherEndpoint
from nodemgr.edge.gate.device_gate import Gate
from nodemgr.edge.gate.node_gate import NodeGate
from nodemgr.edge.gpu.gpu_inventory import DriverReading, GpuSource
from nodemgr.edge.host.clock import Clock
from nodemgr.edge.host.loop import SwallowingSelector
from nodemgr.edge.host.systemd import ServiceManager
from nodemgr.edge.setup.settings import Settings
from nodemgr.edge.store.database import Store
from nodemgr.edge.store.journal import Journal

MakeFactory = Callable[[asyncio.AbstractEventLoop, ExecutorListener], ResourceFactory]


@dataclass(frozen=True, slots=True)
class Foundation:
    """Opened and read by service.py before the first part is made."""

    settings: Settings
    loop: asyncio.AbstractEventLoop
    selector: SwallowingSelector
    clock: Clock
    state: Draft
    store: Store
    journal: Journal
    gpus: GpuSource
    reading: DriverReading
    """The first one."""
    service_manager: ServiceManager
    gate: Gate | None
    no_gate: str
    """The reason if `gate` is None."""
    node_gate: NodeGate
    launcher: LauncherEndpoint | MakeFactory
    """The launcher of this node's jobs; or the maker of another executor."""
    udp_socket: socket.socket | None
    closing: contextlib.ExitStack
    """Gets the end of each part that has one."""
