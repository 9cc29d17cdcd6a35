"""A manager in a thread of the test's process, for tests that control clock, GPUs or store."""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from client_plugin.ways.control import ControlConnection
from client_plugin.ways.event_stream import EventStream
from nodemgr.core.model.entities import Gpu
from nodemgr.core.views.gpu_minutes import GpuReading
from nodemgr.edge.executor.interface import ExecutorListener, ResourceFactory
from nodemgr.edge.gpu import figure_reader, gpu_inventory
from nodemgr.edge.gpu.driver_events import DriverEvent, EventSet
from nodemgr.edge.gpu.gpu_inventory import DriverReading
from nodemgr.edge.gpu.sensors import Sensed
from nodemgr.edge.host.clock import Clock
from nodemgr.edge.kernel import processes
from nodemgr.edge.ledger import registry
from nodemgr.edge.service import Service
from nodemgr.edge.setup.settings import load
from nodemgr.edge.store.database import CommitHook
from nodemgr.paths import env_dir
from tests.session import TMP, remove, share_client
from tests.support.limits import WAIT_LIMIT_S
from tests.support.no_factory import NoFactory

GIB = 2**30
LONG_MS = 600_000
"""A client that is silent for less than this is no silent client."""

# The GPUs and processes of a test answer at once, and hang where it says so: what reads them in a
# thread, or asks the manager's, only waits for the processor of a busy machine.
gpu_inventory.READING_TIMEOUT_S = figure_reader.READING_TIMEOUT_S = WAIT_LIMIT_S
processes.LONG_TIMEOUT_S = registry.LONG_TIMEOUT_S = WAIT_LIMIT_S
processes._learn_user_name(os.getuid())
EventStream.__init__.__defaults__ = (None, WAIT_LIMIT_S)  # type: ignore[attr-defined]


class QueuedEvents:
    """An event set that a test fills."""

    def __init__(self, events: queue.SimpleQueue[DriverEvent]) -> None:
        self._events = events

    def wait(self, timeout_ms: int) -> DriverEvent | None:
        try:
            return self._events.get(timeout=timeout_ms / 1_000)
        except queue.Empty:
            return None

    def close(self) -> None:
        pass


class FakeGpus:
    """GPUs as the test says."""

    def __init__(self, count: int = 4, memory_bytes: int = 80 * GIB) -> None:
        self.gpus = [
            Gpu(f"GPU-{index:08x}", index, "Test GPU", memory_bytes) for index in range(count)
        ]
        self.processes: dict[str, dict[int, int]] = {gpu.uuid: {} for gpu in self.gpus}
        self.fault: str | None = None
        self.reads = 0
        self.can_limit = False
        self.sensed: dict[str, Sensed] = {}
        """The sensors and samples that are there."""
        self.recent: dict[str, GpuReading] = {}
        """The use since the last reading."""
        self.senses = 0
        self.limits: dict[tuple[str, str], int] = {}
        self.refusal: str | None = None
        """Why no limit can be set."""
        self.events_queue: queue.SimpleQueue[DriverEvent] = queue.SimpleQueue()
        """Events of the driver that are to come."""
        self.gate = threading.Event()
        """Cleared: NVML hangs."""
        self.gate.set()

    def events(self) -> EventSet:
        return QueuedEvents(self.events_queue)

    def read(self, now_ns: int) -> DriverReading:
        self.reads += 1
        self.gate.wait()
        processes = {uuid: dict(by_pid) for uuid, by_pid in self.processes.items()}
        used = {uuid: sum(by_pid.values()) for uuid, by_pid in processes.items()}
        return DriverReading(
            tuple(self.gpus),
            used,
            processes,
            now_ns,
            self.fault,
            {gpu.uuid: gpu.index for gpu in self.gpus},
        )

    def sense(self, uuids: Iterable[str], since_us: int) -> dict[str, Sensed]:
        self.senses += 1
        self.gate.wait()
        return {uuid: self.sensed[uuid] for uuid in uuids if uuid in self.sensed}

    def recent_use(self, uuids: Iterable[str], since_us: int) -> dict[str, GpuReading]:
        self.gate.wait()
        return {uuid: self.recent[uuid] for uuid in uuids if uuid in self.recent}

    def limit(self, uuid: str, cgroup: str, limit_bytes: int | None) -> str | None:
        if self.refusal is None:
            self.limits.pop((uuid, cgroup), None)
            self.limits |= {} if limit_bytes is None else {(uuid, cgroup): limit_bytes}
        return self.refusal

    def set_healthy(self, index: int, healthy: bool) -> None:
        self.gpus[index] = replace(self.gpus[index], healthy=healthy)

    def close(self) -> None:
        self.gate.set()


class FailingStore(CommitHook):
    """Commits fail while `fault` says why."""

    def __init__(self) -> None:
        self.fault: str | None = None
        self.commits = 0

    def before(self, commit: int) -> None:
        self.commits = commit
        if self.fault is not None:
            raise sqlite3.OperationalError(self.fault)


class Died(KeyboardInterrupt):
    """The exception of a DyingStore: asyncio lets no other kind through its callbacks."""


class DyingStore(FailingStore):
    """The manager dies at one of its commits, as by kill -9.

    Nothing is written, sent or tidied up after that.
    """

    def __init__(self) -> None:
        super().__init__()
        self.deaths = 0
        self._left: int | None = None
        self._when = ""

    def die(self, when: str, commits: int) -> None:
        """`before` or `after` the so-many-th commit from now."""
        self._when, self._left = when, commits

    def live(self) -> None:
        """No death is to come any more."""
        self._left = None

    def before(self, commit: int) -> None:
        super().before(commit)
        if self._left is not None:
            self._left -= 1
        self._perhaps("before")

    def after(self, commit: int) -> None:
        self._perhaps("after")

    def _perhaps(self, when: str) -> None:
        if self._left == 0 and when == self._when:
            self._left = None
            self.deaths += 1
            raise Died


class LocalManager:
    """Starts at once; use as a context."""

    def __init__(
        self,
        *,
        gpus: FakeGpus | None = None,
        clock: Clock | None = None,
        directory: Path | None = None,
        factory: (
            Callable[[asyncio.AbstractEventLoop, ExecutorListener], ResourceFactory] | None
        ) = NoFactory,
        store: FailingStore | None = None,
        **settings: Any,
    ) -> None:
        self.directory = directory or Path(tempfile.mkdtemp(prefix="nm", dir=TMP))
        self.directory.chmod(0o755)  # other users' clients come in too
        self._owns_directory = directory is None
        self.run_dir = self.directory / "run"
        if not (state_dir := self.directory / "state").exists():
            share_client(state_dir)
        self.gpus = gpus or FakeGpus()
        self.store = store or FailingStore()
        defaults = {
            "run_dir": self.run_dir,
            "state_dir": state_dir,
            "device_gate": "off",
            "timeout_ms": LONG_MS,
            "disk_reserve_bytes": 2**20,
        }
        flags = {**defaults, **settings}
        self.service = Service(
            load(flags, environment={}), clock, lambda known: self.gpus, self.store, factory=factory
        )
        self._ready = threading.Event()
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._ready.wait()
        if self._fault is not None:
            self._thread.join()
            if not isinstance(self._fault, Died):
                self.close()
            raise self._fault

    def _run(self) -> None:
        try:
            self.service.open()
        except BaseException as fault:
            self._fault = fault
            return
        finally:
            self._ready.set()
        try:
            self.service.loop.run_forever()
        except Died:
            # the kernel closes a dead process's files; nothing is tidied up
            self.service._closing.close()
        else:
            self.service.close()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> None:
        """Returns when the manager has died."""
        self._thread.join(WAIT_LIMIT_S)
        assert not self.is_alive, "it does not die"

    def do(self, action: Callable[[], Any]) -> Any:
        """Runs something in the manager's loop and returns what it returned."""
        done, result = threading.Event(), []

        def run() -> None:
            try:
                result.append((action(), None))
            except BaseException as fault:
                result.append((None, fault))
            done.set()

        self.service.loop.call_soon_threadsafe(run)
        assert done.wait(WAIT_LIMIT_S), "the manager's loop hangs"
        value, fault = result[0]
        if fault is not None:
            raise fault
        return value

    @property
    def daemon(self) -> Any:
        return self.service.daemon

    def call(self, verb: str, **arguments: object) -> dict[str, Any]:
        with ControlConnection(self.run_dir, timeout_s=WAIT_LIMIT_S) as client:  # a busy machine
            return client.call(verb, **arguments)

    def env_dir(self, env: str) -> Path:
        return env_dir(self.run_dir, env)

    def events(self, name: str) -> list[dict[str, Any]]:
        """All that are stored of this name."""
        return [event for event in self.call("events", since=0)["events"] if event["name"] == name]

    def close(self) -> None:
        self.gpus.gate.set()  # a reading that hangs would keep its thread
        if self._thread.is_alive():
            self.service.loop.call_soon_threadsafe(self.service.loop.stop)
            self._thread.join()
        if self._owns_directory:
            remove(self.directory)

    def __enter__(self) -> LocalManager:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
