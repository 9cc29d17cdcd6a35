"""The main of a manager: opens its files, drops privileges, runs it until a signal, closes it.

Knows: the order of a start and of an end. Must not know: how a part works, which part needs which
(assembly).

It answers clients after the store, the GPUs and the ledgers of running tasks are read again. At the
end the leases stay for the next manager.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq

from client_plugin.messages.form import SpokenError, notice, stated
from nodemgr.core.lifecycle.restart import restore
from nodemgr.core.model.entities import Config, Gpu
from nodemgr.core.model.values import replace
from nodemgr.edge.assembly.manager import JOBS_DIR, Manager
from nodemgr.edge.clients.udp import UdpAddressError, UdpServer
from nodemgr.edge.containers.cdi_files import CDI_DIRS
from nodemgr.edge.containers.simulator_mount import mount_alone
from nodemgr.edge.engine.foundation import Foundation, MakeFactory
from nodemgr.edge.executor.launcher import LauncherEndpoint
from nodemgr.edge.gate.device_gate import GateUnavailable, gate_by_setting
from nodemgr.edge.gate.node_gate import NodeGate
from nodemgr.edge.gpu.gpu_inventory import (
    GpuSource,
    Nvml,
    NvmlUnavailable,
)
from nodemgr.edge.host import descriptors, huge_pages, privileges, rundir, stderr_log
from nodemgr.edge.host.clock import Clock, RealClock
from nodemgr.edge.host.event_publisher import EventPublisher
from nodemgr.edge.host.file_events import TOUCHED, FileEvents
from nodemgr.edge.host.loop import new_loop
from nodemgr.edge.host.systemd import ServiceManager, Watchdog
from nodemgr.edge.kernel import process_locations
from nodemgr.edge.setup.settings import Settings
from nodemgr.edge.store import node_time
from nodemgr.edge.store.database import CommitHook, Store, StoreFailed
from nodemgr.edge.store.history_rows import Bounds
from nodemgr.edge.store.journal import Journal
from nodemgr.edge.store.migrations import StoreUnusable
from nodemgr.edge.web.page_host import PageHost, PageHostFault
from nodemgr.paths import container_dir, env_dir

ENDINGS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Before the manager is ready they have their default action; after that they end it cleanly."""


RUN_DIR_CHECK_S = 2.0
"""Between two checks of the run directory: a cleaner of /tmp, or logind, may remove it."""
YOUNG_OBJECTS, NEVER = 1_000, 1 << 30
"""Objects that make the garbage collector look at them; what comes as often as never."""
COLLECT_NS, COLLECT_ANYWAY_NS = 3_600 * 1_000_000_000, 24 * 3_600 * 1_000_000_000
"""The pause between two collections of old garbage; the longest wait for a quiet second."""


def _with_node(config: Config) -> Config:
    """With the size of this node, where the settings name no part of it for jobs."""
    return replace(
        config,
        node_cpus=config.node_cpus or os.cpu_count() or 0,
        node_memory_bytes=config.node_memory_bytes
        or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    )


class ServiceFault(SpokenError):
    """The manager cannot start or has failed. The message is one line, with the remedy."""


class Service:
    """One manager.

    `open` may raise ServiceFault and then leaves nothing behind; `run` returns at ENDINGS.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock | None = None,
        gpus: Callable[[list[Gpu]], GpuSource] | None = None,
        commit_hook: CommitHook | None = None,
        harden: Callable[[bool, bool], None] = lambda _driver_limits, _gate: None,
        factory: MakeFactory | None = None,
        store_copy: bool = True,
    ) -> None:
        """Tests replace `clock`, `gpus`, `commit_hook` and `factory` (None: this node).

        `store_copy`: Store copies an earlier version's store before it is upgraded.
        `gpus` is called with the GPUs that must keep their index. `harden` is called after all work
        that needs more rights than a running manager, with whether the driver can set limits and
        with the device gate.
        """
        self.settings = settings
        self.clock = clock or RealClock()
        self._make_gpus = gpus or self._nvml
        self._commit_hook = commit_hook
        self._harden = harden
        self._make_factory = factory
        self._store_copy = store_copy
        self._supervisor = ServiceManager(os.environ)
        self.loop, self._selector = new_loop()
        self._closing = contextlib.ExitStack()
        self._ending = False
        self._lost: str | None = None
        """A part of the run directory was gone at the last check."""
        self._collected_ns = self.clock.monotonic_ns()
        """When old garbage was last collected."""
        self._lock: os.stat_result
        self.daemon: Manager
        self._page: PageHost

    # -- start --

    def open(self) -> None:
        """Prepares everything that is needed to answer clients. Raises ServiceFault."""
        with contextlib.ExitStack() as stack:
            self._closing = stack
            # rows read from the store stay; a search for garbage in them is a quarter of a start
            # with many jobs
            gc.disable()
            try:
                self._open(stack)
            except (
                rundir.RunDirError,
                StoreUnusable,
                NvmlUnavailable,
                UdpAddressError,
                GateUnavailable,
                PageHostFault,
            ) as error:
                raise ServiceFault(error.line) from None
            except (OSError, StoreFailed, zmq.ZMQError) as error:
                raise ServiceFault(
                    f"cannot start: {error}",
                    "mend that (`nodemgr doctor` helps), and start it again",
                ) from None
            finally:
                gc.enable()
            self._closing = stack.pop_all()

    def _open(self, stack: contextlib.ExitStack) -> None:
        settings = self.settings
        stack.callback(self.loop.close)
        self.loop.set_exception_handler(_log_exception)
        unused = rundir.prepare(settings.run_dir, settings.state_dir)
        for descriptor in (rundir.lock(settings.run_dir), rundir.lock_state(settings.state_dir)):
            stack.callback(os.close, descriptor)
        # only now: without its locks they may be another manager's
        stack.push(lambda kind, _fault, _at: unused.restore() if kind is ServiceFault else None)
        self._lock = os.stat(settings.run_dir / rundir.LOCK_FILE)
        rundir.check_formats(settings.state_dir)
        launcher = self._make_factory or LauncherEndpoint.fitting(
            settings.run_dir, settings.state_dir / JOBS_DIR
        )
        if isinstance(launcher, LauncherEndpoint):
            stack.callback(launcher.close)
        address = settings.web, settings.web_hosts, settings.web_base
        self._page = PageHost.begin(settings.run_dir, *address)
        stack.callback(self._page.close)
        descriptors.raise_limit()  # only the manager's; jobs keep the inherited limit
        bounds = Bounds(settings.max_env_history_bytes, settings.max_history_bytes)
        store = Store(
            settings.state_dir, self._hook(), bounds, settings.disk_reserve_bytes, self._store_copy
        )
        stack.callback(store.close)
        journal = Journal(store, self.clock)
        stack.callback(journal.close)
        same_boot, rows = node_time.go_on(self.clock, journal), _read_rows(journal)
        source = self._make_gpus(_held_gpus(rows))
        stack.callback(source.close)
        gate, no_gate = gate_by_setting(
            settings.device_gate, settings.run_dir, settings.simulate is not None, journal.note
        )
        node_gate = NodeGate.by_setting(settings.gate_node, settings.run_dir, journal.note)
        self._harden(source.can_limit, gate is not None or settings.gate_node)
        publisher = EventPublisher(settings.run_dir, settings.group)
        stack.callback(publisher.close)
        journal.publish_to(publisher.publish)
        reading = source.read(self.clock.monotonic_ns())
        if reading.fault is not None or not reading.gpus:
            what = f"the driver cannot read its GPUs ({reading.fault})"
            raise ServiceFault(
                "NVML knows no GPU" if reading.fault is None else what,
                "see nvidia-smi, or simulate a node with --simulate 4x80GiB",
            )
        present = {gpu.uuid for gpu in reading.gpus}
        rows = [row for row in rows if row[0] != "gpu" or row[1] in present]
        state = restore(_with_node(settings.core), rows, self.clock.monotonic_ns())
        udp_socket = stack.enter_context(UdpServer.bind(*settings.udp)) if settings.udp else None
        base = Foundation(
            settings, self.loop, self._selector, self.clock, state, store, journal, source,
            reading, self._supervisor, gate, no_gate, node_gate, launcher, udp_socket, stack,
        )  # fmt: skip
        self.daemon = Manager(base, self._page)
        self.daemon.resume(reading, same_boot=same_boot)
        self._reside(stack)
        self._watch_devices(stack)
        self.daemon.open_orders()
        stack.callback(gc.set_threshold, *gc.get_threshold())
        _settle_memory()

    def _hook(self) -> CommitHook | None:
        if self._commit_hook is not None or self.settings.simulate is None:
            return self._commit_hook
        from nodemgr.edge.setup.simulated_node import crash_hook

        return crash_hook()

    def _nvml(self, known: list[Gpu]) -> GpuSource:
        if self.settings.simulate is None:
            return Nvml(known=known)
        from nodemgr.edge.setup.simulated_node import prepare_node, state_file

        if self.settings.cdi_dir in CDI_DIRS and os.geteuid() == 0:
            mount_alone(state_file(self.settings.run_dir / rundir.SIMULATOR_DIR))
        directory = prepare_node(
            self.settings.run_dir / rundir.SIMULATOR_DIR, self.settings.simulate
        )
        return Nvml(directory, known)

    def _watch_devices(self, stack: contextlib.ExitStack) -> None:
        """Watches the file that a simulated node touches when a device is lost or returns.

        (A real driver is read while a GPU is held or awaited, otherwise at the next reading or
        event of the driver about failing hardware.)
        """
        if self.settings.simulate is not None and self._make_gpus == self._nvml:
            from nodemgr.edge.setup.simulated_node import state_file

            touched = state_file(self.settings.run_dir / rundir.SIMULATOR_DIR)
            stack.callback(
                FileEvents(self.loop, touched, TOUCHED, self.daemon.informer.stirred).close
            )

    def _reside(self, stack: contextlib.ExitStack) -> None:
        """Starts the tasks that live as long as the loop."""
        residents = [
            self.loop.create_task(resident)
            for resident in (self.daemon.event_loop.run(), self.daemon.informer.run())
        ]

        def end() -> None:
            for resident in residents:
                resident.cancel()
            self.loop.run_until_complete(asyncio.gather(*residents, return_exceptions=True))

        stack.callback(end)

    # -- run and end --

    def run(self) -> str | None:
        """Runs until one of ENDINGS, or until a part of the run directory is gone.

        Returns then a line, and another Service makes it again. Leases stay. Raises ServiceFault
        where another process must do so: as root, who has given up the rights to start helpers, and
        below a service manager, which keeps descriptors for the next one.
        """
        for number in ENDINGS:
            self.loop.add_signal_handler(number, self._told_to_end, number)
        # asyncio has the interpreter warn if signals overflow its pipe, under a lock that a signal
        # may interrupt
        signal.set_wakeup_fd(signal.set_wakeup_fd(-1), warn_on_full_buffer=False)
        stderr_log.say(self._ready_line())
        self._supervisor.notify("READY=1")
        Watchdog(self.loop, self._supervisor).pat()
        self._check_run_dir()
        try:
            self.loop.run_forever()
        finally:
            # a second signal adds nothing, and soon has no handler
            signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
            self.close()
        if self._ending or self._lost is None:
            return None
        if not self._can_begin_anew():
            raise ServiceFault(self._lost)
        # the next one hears them too, and no job begins with blocked signals
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)
        return self._lost

    def _can_begin_anew(self) -> bool:
        return os.geteuid() != 0 and not self._supervisor.is_there

    def _check_run_dir(self) -> None:
        lost = self._find_lost()
        if lost is None:
            rundir.show_life(self.settings.run_dir)
            self._collect()
            self.loop.call_later(RUN_DIR_CHECK_S, self._check_run_dir)
        else:
            self._lost = self._report(lost)
            self.loop.stop()

    def _collect(self) -> None:
        """Collect old garbage once in a while: 10 ms for 1 000 jobs that came since the last time.

        It waits for a quiet second, so that no client waits for it.
        """
        passed_ns = self.clock.monotonic_ns() - self._collected_ns
        if passed_ns > COLLECT_NS and (
            passed_ns > COLLECT_ANYWAY_NS or self.daemon.clients.is_quiet()
        ):
            gc.collect()
            gc.freeze()
            self._collected_ns = self.clock.monotonic_ns()

    def _find_lost(self) -> Path | None:
        """A part of the run directory that is gone, or that another manager has replaced."""
        run_dir = self.settings.run_dir
        parts = {run_dir / rundir.CONTROL_SOCKET, run_dir / rundir.EVENTS_SOCKET}
        for env in self.daemon.state.envs.keys() - self.daemon.envs.faults.keys():
            for directory in (env_dir(run_dir, env), container_dir(run_dir, env)):
                parts |= {directory / rundir.CLIENT_CONF, directory / rundir.SOCKET_NAME}
        lost = sorted(part for part in parts if not part.exists())
        lock = run_dir / rundir.LOCK_FILE
        return next(iter(lost), None) if rundir.is_there(lock, self._lock) else lock

    def _report(self, lost: Path) -> str:
        containers = process_locations.containers_without(self.settings.run_dir)
        self.daemon.journal.note("rundir.lost", missing=str(lost), containers=containers)
        what, then = "begins anew to make it again", "keep cleaners of old files away from it"
        if not self._can_begin_anew():
            what, then = "ends", "start it again, if no service manager does: tasks and jobs go on"
        if containers:
            then += (
                f"; start these containers again, which have the old one: {', '.join(containers)}"
            )
        return stated(f"{lost} is gone, and the manager {what}", then)

    def _told_to_end(self, number: signal.Signals) -> None:
        if not self._ending:
            self._ending = True
            tasks = _count(len(self.daemon.state.tasks), "running task")
            stderr_log.say(f"ends ({number.name}); GPUs and memory stay with {tasks}")
            if number is not signal.SIGTERM:  # the signal of a service's stop, and of its restart
                rundir.expect_no_restart(self.settings.run_dir)
            self.loop.stop()

    def close(self) -> None:
        """Closes at once and cleanly; running jobs go on."""
        self._supervisor.notify("STOPPING=1")
        with contextlib.suppress(AttributeError):  # open() did not get so far
            self.daemon.journal.note(
                "manager.stopping", pid=os.getpid(), tasks=len(self.daemon.state.tasks)
            )
        self._closing.close()

    def _ready_line(self) -> str:
        state, settings = self.daemon.state, self.settings
        said = [
            _count(len(state.gpus), "simulated GPU" if settings.simulate else "GPU"),
            _count(len(state.envs), "environment"),
        ]
        if state.tasks:
            said.append(f"{_count(len(state.tasks), 'running task')} found again")
        if self.daemon.udp is not None:
            said.append(f"clients also on UDP {self.daemon.udp_address()}")
        if self._page.url is not None:
            said.append(f"web page at {self._page.url}")
        return notice(f"ready on {settings.run_dir}: {', '.join(said)}")


def serve(settings: Settings, store_copy: bool = True) -> None:
    """Runs a manager until a signal ends it. One whose run directory is gone begins anew.

    `store_copy`: see Store. Raises ServiceFault; reports any other exception first.
    """
    os.umask(privileges.UMASK)
    with contextlib.suppress(RuntimeError, ValueError, OSError):  # there may be no stderr
        faulthandler.enable()
    try:
        while (lost := _run(settings, store_copy)) is not None:
            stderr_log.say(lost)
    except ServiceFault:
        raise
    except Exception as error:
        stderr_log.fault("that ends the manager", error)
        raise ServiceFault(
            "ended by an internal fault, reported above; running tasks go on",
            "start it again, and please report the fault",
        ) from None


def _run(settings: Settings, store_copy: bool) -> str | None:
    service = Service(settings, harden=_harden, store_copy=store_copy)
    service.open()
    return service.run()


def _harden(driver_limits: bool, has_gate: bool) -> None:
    """Drops privileges. Only for a process that runs nothing but the manager."""
    here = privileges.surroundings(driver_limits=driver_limits, device_gate=has_gate)
    try:
        privileges.give_up_the_rest(here)
    except privileges.PrivilegesNotDropped as error:
        stderr_log.say(
            f"the manager goes on with more rights than it needs: {error}",
            "start it by its service (`nodemgr setup`)",
        )


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _read_rows(journal: Journal) -> list[tuple[str, str, Any]]:
    try:
        return journal.rows()
    except (ValueError, TypeError, KeyError) as error:
        raise ServiceFault(
            f"the store has a row that this version cannot read ({error})",
            "install the version that wrote it, or name another --state-dir",
        ) from None


def _held_gpus(rows: list[tuple[str, str, Any]]) -> list[Gpu]:
    """GPUs that keep their index and are reported ill if missing.

    A missing GPU without a grant or residue counts as removed.
    """
    held = {value.uuid for kind, _, value in rows if kind in ("grant", "residue")}
    return [value for kind, _, value in rows if kind == "gpu" and value.uuid in held]


def _settle_memory() -> None:
    """Freeze the permanent objects for the garbage collector; gather the heap in huge pages.

    Young objects are collected as they come, in half a millisecond. `_collect` takes older ones.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, NEVER, NEVER)
    huge_pages.gather_heap()


def _log_exception(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Reports a failed callback. Its caller gets no answer; all others are served."""
    stderr_log.fault(
        str(context.get("message")),
        context.get("exception") or RuntimeError("without an exception"),
    )
