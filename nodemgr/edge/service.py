"""Builds the manager in the right order, runs it until a signal, and closes it.

Knows: all edges and the order of their creation. Must not know: how an edge works.

It answers clients after the store, the GPUs and the ledgers of running tasks are read again. At the
end the leases stay for the next manager.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import os
import resource
import signal
import socket
from collections.abc import Callable
from typing import Any

import zmq

from nodemgr.core.lifecycle.restart import restore
from nodemgr.core.manager import State
from nodemgr.core.model.entities import Gpu
from nodemgr.edge.admin.control_server import ControlServer
from nodemgr.edge.api.admin_operations import AdminOperations
from nodemgr.edge.api.client_verbs import Questions
from nodemgr.edge.api.job_operations import JobOperations
from nodemgr.edge.api.job_views import JobViews
from nodemgr.edge.api.session_hosts import LaunchHosts
from nodemgr.edge.api.views import Views
from nodemgr.edge.clients.client_server import ClientServer
from nodemgr.edge.clients.connection_report import Crowd
from nodemgr.edge.clients.udp import UdpAddressError, UdpServer
from nodemgr.edge.containers.cdi_files import Containers
from nodemgr.edge.containers.env_directories import Envs
from nodemgr.edge.engine.client_hub import ClientHub
from nodemgr.edge.engine.daemon import ClientVerbs, Daemon, DaemonPorts, Surroundings
from nodemgr.edge.engine.job_controller import JobPorts, into_journal
from nodemgr.edge.engine.ledger_controller import LEDGER_META
from nodemgr.edge.executor.interface import ExecutorListener, ResourceFactory
from nodemgr.edge.executor.launcher import LauncherEndpoint
from nodemgr.edge.executor.local import NodeFactory
from nodemgr.edge.executor.log_retention import LogRetention
from nodemgr.edge.executor.runner_registry import refuse_runner
from nodemgr.edge.gate.device_gate import Gate, GateUnavailable
from nodemgr.edge.gpu.context_estimate import ContextSizes
from nodemgr.edge.gpu.gpu_inventory import (
    DriverReading,
    GpuSource,
    GpuWatcher,
    Nvml,
    NvmlUnavailable,
)
from nodemgr.edge.host import huge_pages, privileges, rundir, stderr_log
from nodemgr.edge.host.clock import Clock, RealClock
from nodemgr.edge.host.file_events import TOUCHED, FileEvents
from nodemgr.edge.host.journald import Journald
from nodemgr.edge.host.loop import new_loop
from nodemgr.edge.host.systemd import ServiceManager
from nodemgr.edge.kernel.ownership import Belonging
from nodemgr.edge.ledger.registry import Ledgers
from nodemgr.edge.setup.settings import Settings
from nodemgr.edge.store.database import CommitHook, Store, StoreFailed, StoreUnusable
from nodemgr.edge.store.history_rows import Bounds
from nodemgr.edge.store.journal import Journal
from nodemgr.edge.store.reader import HistoryReader

CRASH_VARIABLE = "NODEMGR_SIM_CRASH"
"""With `before:N` or `after:N` the manager kills itself around its Nth commit.

Only under --simulate.
"""
JOBS_DIR = "jobs"
"""The directory of the jobs' files and logs, in the state directory."""
GATE_OFF_BY_SETTING = "off, as the settings say (device_gate)"
GATE_OFF_FOR_SIMULATION = "off, simulated GPUs have no device nodes"
ENDINGS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Before the manager is ready they have their default action; after that they end it cleanly."""


class ServiceFault(Exception):
    """The manager cannot start or has failed. The message is one line, with the remedy."""


class _Crash(CommitHook):
    """Sends SIGKILL to the manager, for tests of recovery."""

    def __init__(self, when: str, commit: int) -> None:
        self._when = when
        self._commit = commit

    def before(self, commit: int) -> None:
        self._die("before", commit)

    def after(self, commit: int) -> None:
        self._die("after", commit)

    def _die(self, when: str, commit: int) -> None:
        if when == self._when and commit == self._commit:
            os.kill(os.getpid(), signal.SIGKILL)


def _crash_hook() -> CommitHook | None:
    when, _, commit = os.environ.get(CRASH_VARIABLE, "").partition(":")
    return _Crash(when, int(commit)) if when in ("before", "after") and commit.isdigit() else None


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
        harden: Callable[[bool, Gate | None], None] = lambda _driver_limits, _gate: None,
        factory: (
            Callable[[asyncio.AbstractEventLoop, ExecutorListener], ResourceFactory] | None
        ) = None,
    ) -> None:
        """Tests replace `clock`, `gpus`, `commit_hook` and `factory` (None: this node).

        `gpus` is called with the GPUs that must keep their index. `harden` is called after all work
        that needs more rights than a running manager, with whether the driver can set limits and
        with the device gate.
        """
        self.settings = settings
        self.clock = clock or RealClock()
        self._make_gpus = gpus or self._nvml
        self._commit_hook = commit_hook or (_crash_hook() if settings.simulate else None)
        self._harden = harden
        self._make_factory = factory
        self._supervisor = ServiceManager(os.environ)
        self.loop, self._selector = new_loop()
        self._closing = contextlib.ExitStack()
        self._ending = False
        self._lock: os.stat_result
        self.daemon: Daemon
        self.views: Views
        self.job_orders: JobOperations

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
                StoreFailed,
                NvmlUnavailable,
                UdpAddressError,
            ) as error:
                raise ServiceFault(str(error)) from None
            except (OSError, zmq.ZMQError) as error:
                raise ServiceFault(f"cannot start: {error}") from None
            finally:
                gc.enable()
            self._closing = stack.pop_all()

    def _open(self, stack: contextlib.ExitStack) -> None:
        settings = self.settings
        stack.callback(self.loop.close)
        self.loop.set_exception_handler(_log_exception)
        rundir.prepare(settings.run_dir, settings.state_dir)
        for descriptor in (rundir.lock(settings.run_dir), rundir.lock_state(settings.state_dir)):
            stack.callback(os.close, descriptor)
        self._lock = os.stat(settings.run_dir / rundir.LOCK_FILE)
        launcher = (
            None
            if self._make_factory is not None
            else LauncherEndpoint.fitting(settings.run_dir, settings.state_dir / JOBS_DIR)
        )
        if launcher is not None:
            stack.callback(launcher.close)
        _raise_descriptor_limit()  # only the manager's; jobs keep the inherited limit
        bounds = Bounds(settings.max_env_history_bytes, settings.max_history_bytes)
        store = Store(settings.state_dir, self._commit_hook, bounds, settings.disk_reserve_bytes)
        stack.callback(store.close)
        journal = Journal(store, self.clock)
        stack.callback(journal.close)
        rows = _read_rows(journal)
        source = self._make_gpus(_held_gpus(rows))
        stack.callback(source.close)
        gate = self._start_gate(journal.note)
        self._harden(source.can_limit, gate[0])
        control = ControlServer(self.loop, settings.run_dir, settings.group, self._when_fresh)
        stack.callback(control.close)
        journal.publish_to(control.publish)
        reading = source.read(self.clock.monotonic_ns())
        if reading.fault is not None or not reading.gpus:
            raise ServiceFault(
                reading.fault
                or "NVML knows no GPU: see nvidia-smi, or simulate a node with --simulate 4x80GiB"
            )
        present = {gpu.uuid for gpu in reading.gpus}
        rows = [row for row in rows if row[0] != "gpu" or row[1] in present]
        state = restore(settings.core, rows, self.clock.monotonic_ns(), self.clock.wall_ns())
        self._build(stack, state, journal, store, source, reading, launcher, gate)
        self.daemon.resume(reading)
        self._reside(stack)
        self._watch_devices(stack)
        admin = AdminOperations(self.daemon, self.views)
        control.start({**admin.orders(), **self.job_orders.for_admins()})
        _settle_memory()

    def _build(
        self,
        stack: contextlib.ExitStack,
        state: State,
        journal: Journal,
        store: Store,
        source: GpuSource,
        reading: DriverReading,
        launcher: LauncherEndpoint | None,
        gate: tuple[Gate | None, str],
    ) -> None:
        """Builds the daemon, complete with the parts around it."""
        settings = self.settings
        ledgers = self._ledgers(journal)
        stack.callback(ledgers.forget_all)
        hosts, past = LaunchHosts(), HistoryReader(self.loop, store.path)
        stack.callback(past.close)
        udp_socket = None
        if settings.udp is not None:
            udp_socket = UdpServer.bind(*settings.udp)
            stack.callback(udp_socket.close)

        def verbs(daemon: Daemon) -> ClientVerbs:
            self.views = Views(daemon, settings, store)
            orders = self.job_orders = JobOperations(
                daemon, JobViews(daemon, past), hosts, settings.group
            )
            questions = Questions(daemon, self.views, orders.of_user)
            closed = (orders.closed, questions.closed)
            factory = daemon.jobs.factory
            if not isinstance(factory, NodeFactory):
                return ClientVerbs(questions.received, refuse_runner, closed)
            runners = factory.runners
            daemon.jobs.on_final.append(lambda _job_id: runners.dismiss_idle())
            return ClientVerbs(questions.received, runners.received, (*closed, runners.closed))

        ports = DaemonPorts(
            lambda daemon, hub: self._surroundings(daemon, hub, reading, udp_socket),
            lambda on_reading: GpuWatcher(source, self.clock, self.loop, reading, on_reading),
            self._job_ports(stack, state, journal, launcher, hosts),
            verbs,
        )
        self.daemon = Daemon(self.loop, self.clock, state, journal, ledgers, ports, *gate)
        stack.callback(self.daemon.close)

    def _nvml(self, known: list[Gpu]) -> GpuSource:
        if self.settings.simulate is None:
            return Nvml(known=known)
        from nodemgr.edge.setup.simulated_node import prepare_node

        directory = prepare_node(
            self.settings.run_dir / rundir.SIMULATOR_DIR, *self.settings.simulate
        )
        return Nvml(directory, known)

    def _ledgers(self, journal: Journal) -> Ledgers:
        ledgers = Ledgers(
            lambda env, files: journal.remember(LEDGER_META + env, files.to_json()),
            self._supervisor,
        )
        ledgers.hand_over(self._supervisor.take_over())
        return ledgers

    def _surroundings(
        self,
        daemon: Daemon,
        hub: ClientHub,
        reading: DriverReading,
        udp_socket: socket.socket | None,
    ) -> Surroundings:
        settings, loop, clock = self.settings, self.loop, self.clock
        journal, known = daemon.journal, daemon.known
        clients = ClientServer(
            loop,
            self._selector,
            hub,
            daemon.processes,
            clock,
            settings.max_connections_per_env,
            journal.is_late,
            lambda env: _report_crowd(journal, Crowd.of(env, clients.crowd(env))),
        )
        udp = (
            None if udp_socket is None else UdpServer(loop, self._selector, hub, clock, udp_socket)
        )
        sizes = ContextSizes(journal.remember, journal.meta())
        sizes.settle(reading.gpus, daemon.state.envs)
        envs = self._envs(daemon, clients, udp, sizes)
        belonging = Belonging(settings.run_dir, known.env_of_pid, known.with_envs, envs.is_entitled)
        return Surroundings(clients, udp, envs, sizes, belonging.env_of)

    def _envs(
        self, daemon: Daemon, clients: ClientServer, udp: UdpServer | None, sizes: ContextSizes
    ) -> Envs:
        settings, gate, state = self.settings, daemon.gate, daemon.state
        if gate is not None:
            gate.keep_only(state.envs)
        dirs = rundir.EnvDirs(settings.run_dir, settings.state_dir)
        dirs.remove_others(state.envs)
        containers = Containers(
            settings.cdi_dir,
            settings.cdi_kind,
            settings.run_dir,
            settings.state_dir,
            settings.simulate[0] if settings.simulate is not None else 0,
            (lambda env: None) if gate is None else gate.cdi_hook,
        )
        return Envs(
            state,
            dirs,
            clients,
            udp,
            self._udp_address,
            settings.run_dir / rundir.SIMULATOR_DIR if settings.simulate else None,
            sizes.told_bytes,
            containers,
            gate,
        )

    def _job_ports(
        self,
        stack: contextlib.ExitStack,
        state: State,
        journal: Journal,
        launcher: LauncherEndpoint | None,
        hosts: LaunchHosts,
    ) -> JobPorts:
        settings, make = self.settings, self._make_factory

        def executor(listener: ExecutorListener) -> ResourceFactory:
            if make is not None:
                return make(self.loop, listener)
            assert launcher is not None
            return NodeFactory(
                self.loop,
                listener,
                settings.state_dir / JOBS_DIR,
                launcher,
                log_bytes=settings.job_log_bytes,
                host_of=hosts.of,
                is_needed=lambda host: any(job.run.place == host for job in state.jobs.values()),
            )

        def retention(factory: ResourceFactory) -> LogRetention:
            return LogRetention(
                factory,
                journal,
                settings.job_logs_bytes,
                settings.job_logs_days,
                lambda job_id: job_id in state.jobs,
            )

        if settings.job_log_sink != "journald":
            return JobPorts(executor, retention)
        journald = Journald()
        stack.callback(journald.close)
        return JobPorts(executor, retention, into_journal(journald))

    def _watch_devices(self, stack: contextlib.ExitStack) -> None:
        """Watches the file that a simulated node touches when a device is lost or returns.

        (A real driver is read while a GPU is held or awaited, otherwise at the next reading. Its
        event sets report only faults, and keep a thread in the driver that cannot be ended.)
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

    def _start_gate(self, note: Callable[..., None]) -> tuple[Gate | None, str]:
        """The gate, or None and the reason.

        Raises ServiceFault if it is set to on and unavailable.
        """
        settings = self.settings
        if settings.device_gate == "off" or (settings.device_gate == "auto" and settings.simulate):
            Gate.lift(settings.run_dir)
            return (
                None,
                GATE_OFF_BY_SETTING if settings.device_gate == "off" else GATE_OFF_FOR_SIMULATION,
            )
        try:
            return Gate.start(settings.run_dir, note), ""
        except GateUnavailable as error:
            if settings.device_gate == "on":
                raise ServiceFault(
                    f"device_gate is on, but devices cannot be gated here: {error}"
                ) from None
            stderr_log.say(f"no device gate: {error}")
            return None, f"off: {error}"

    def _udp_address(self) -> str:
        """The UDP address for clients: the administrator's setting, else the socket's address."""
        if self.settings.client_address is not None:
            return self.settings.client_address
        assert self.daemon.udp is not None
        host, port = self.daemon.udp.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _when_fresh(self, then: Any) -> None:
        self.daemon.node.when_fresh(then)

    # -- run and end --

    def run(self) -> None:
        """Runs until one of ENDINGS. Leases stay."""
        for number in ENDINGS:
            self.loop.add_signal_handler(number, self._told_to_end, number)
        # asyncio has the interpreter warn if signals overflow its pipe, under a lock that a signal
        # may interrupt
        signal.set_wakeup_fd(signal.set_wakeup_fd(-1), warn_on_full_buffer=False)
        stderr_log.say(self._ready_line())
        self._supervisor.notify("READY=1")
        self._pat_watchdog()
        try:
            self.loop.run_forever()
        finally:
            # a second signal adds nothing, and soon has no handler
            signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
            self.close()

    def _told_to_end(self, number: signal.Signals) -> None:
        if not self._ending:
            self._ending = True
            stderr_log.say(
                f"ends ({number.name}); {_count(len(self.daemon.state.tasks), 'running task')} and"
                " their memory stay as they are"
            )
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
            said.append(_count(len(state.tasks), "running task") + " found again")
        if self.daemon.udp is not None:
            said.append(f"clients also on UDP {self._udp_address()}")
        return f"ready on {settings.run_dir}: {', '.join(said)}"

    def _pat_watchdog(self) -> None:
        """Notifies the watchdog, which restarts a manager that hangs or that no client can find.

        An idle manager wakes only for this, every half WatchdogSec=.
        """
        period_s = self._supervisor.watchdog_period_s
        if period_s is None:
            return
        if not self._can_be_found():
            stderr_log.say(
                f"{self.settings.run_dir} was removed or replaced: no client finds this manager,"
                " the service manager restarts it"
            )
            return
        self._supervisor.notify("WATCHDOG=1")
        self.loop.call_later(period_s, self._pat_watchdog)

    def _can_be_found(self) -> bool:
        """Whether the run directory is still the one that this manager locked."""
        try:
            now = os.stat(self.settings.run_dir / rundir.LOCK_FILE)
        except OSError:
            return False
        return os.path.samestat(now, self._lock)


def serve(settings: Settings) -> None:
    """Runs a manager until a signal ends it.

    Raises ServiceFault; reports any other exception first.
    """
    os.umask(privileges.UMASK)
    with contextlib.suppress(RuntimeError, ValueError, OSError):  # there may be no stderr
        faulthandler.enable()
    try:
        service = Service(settings, harden=_harden)
        service.open()
        service.run()
    except ServiceFault:
        raise
    except Exception as error:
        stderr_log.fault("that ends the manager", error)
        raise ServiceFault(
            "ended by an internal fault, told above; running tasks go on, start it again"
        ) from None


def _harden(driver_limits: bool, gate: Gate | None) -> None:
    """Drops privileges. Only for a process that runs nothing but the manager."""
    here = privileges.surroundings(driver_limits=driver_limits, device_gate=gate is not None)
    try:
        privileges.give_up_the_rest(here)
    except privileges.PrivilegesNotDropped as error:
        stderr_log.say(f"the manager goes on with more rights than it needs: {error}")


def _report_crowd(journal: Journal, crowd: Crowd) -> None:
    stderr_log.say(crowd.line())
    journal.note("connections.full", **crowd.fields())


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _read_rows(journal: Journal) -> list[tuple[str, str, Any]]:
    try:
        return journal.rows()
    except (ValueError, TypeError, KeyError) as error:
        raise ServiceFault(
            f"the store has a row that this version cannot read ({error}): install the version that"
            " wrote it, or name another --state-dir"
        ) from None


def _held_gpus(rows: list[tuple[str, str, Any]]) -> list[Gpu]:
    """GPUs that keep their index and are reported ill if missing.

    A missing GPU without a grant or residue counts as removed.
    """
    held = {value.uuid for kind, _, value in rows if kind in ("grant", "residue")}
    return [value for kind, _, value in rows if kind == "gpu" and value.uuid in held]


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _settle_memory() -> None:
    """Freeze the permanent objects for the garbage collector; gather the heap in huge pages."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    huge_pages.gather_heap()


def _log_exception(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Reports a failed callback. Its caller gets no answer; all others are served."""
    stderr_log.fault(
        str(context.get("message")),
        context.get("exception") or RuntimeError("without an exception"),
    )
