"""The manager's parts, made in the order in which a message meets them.

A transport hands a message to the hub, the hub steps the core by the engine, the engine commits
the step and has the parts carry out its effects: ledgers, launch gates, jobs, suspensions. The node
monitor reports what the kernel and the driver show.

Knows: which part needs which. Must not know: the work of any part, the verbs (assembly).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from nodemgr.core.model import effects, events
from nodemgr.edge.clients.client_server import ClientServer
from nodemgr.edge.clients.client_sessions import Session
from nodemgr.edge.clients.connection_report import Crowd
from nodemgr.edge.clients.udp import UdpServer
from nodemgr.edge.compute import mps
from nodemgr.edge.containers import payload
from nodemgr.edge.containers.cdi_files import Containers
from nodemgr.edge.containers.env_directories import Envs
from nodemgr.edge.engine.client_hub import ClientHub
from nodemgr.edge.engine.compute_controller import ComputeController
from nodemgr.edge.engine.event_measures import EventMeasures
from nodemgr.edge.engine.foundation import Foundation
from nodemgr.edge.engine.informer import ClusterInformer
from nodemgr.edge.engine.job_controller import Jobs, Sink, into_journal, no_sink
from nodemgr.edge.engine.ledger_controller import LedgerController, OlderLimits
from nodemgr.edge.engine.node_monitor import KnownProcesses, NodeMonitor
from nodemgr.edge.engine.scheduler_loop import REASONS, EventLoop
from nodemgr.edge.engine.step_engine import StepEngine
from nodemgr.edge.engine.submission_batches import SubmissionBatches
from nodemgr.edge.engine.suspension_controller import Answered, SuspensionController
from nodemgr.edge.executor.interface import ExecutorListener, ResourceFactory
from nodemgr.edge.gpu.context_estimate import ContextSizes
from nodemgr.edge.gpu.gpu_inventory import DriverReading, GpuWatcher
from nodemgr.edge.gpu.use_sampler import UseSampler
from nodemgr.edge.host import rundir, stderr_log
from nodemgr.edge.host.journald import Journald
from nodemgr.edge.kernel.ownership import Belonging
from nodemgr.edge.kernel.process_locations import ProcessLocations
from nodemgr.edge.kernel.processes import ProcessTable, pid_of
from nodemgr.edge.ledger.peaks import Peaks
from nodemgr.edge.ledger.registry import Beats, Ledgers
from nodemgr.edge.rpc.operation import OperationError
from nodemgr.edge.suspension.hindrance import hindrance
from nodemgr.edge.suspension.suspender import Suspender
from nodemgr.messages.orders import NOT_STORED


class Daemon:
    """All parts of one manager, by name. The verbs read them and submit events."""

    def __init__(self, base: Foundation, ledgers: Ledgers) -> None:
        loop, clock, state, journal = base.loop, base.clock, base.state, base.journal
        self.base, self.settings = base, base.settings
        self.loop, self.clock, self.state = loop, clock, state
        self.journal, self.ledgers = journal, ledgers
        self.gate, self.no_gate, self.node_gate = base.gate, base.no_gate, base.node_gate
        self.known = KnownProcesses(state)
        self.processes = ProcessTable(loop)
        self.process_locations = ProcessLocations(loop)
        self.beats = Beats(state, ledgers)
        self.peaks = Peaks(state, ledgers)
        self.measures = EventMeasures()
        journal.observe_with(self.measures.take)
        self.engine = engine = StepEngine(base)
        self.submit = engine.submit
        self.event_loop = EventLoop(engine)
        self.hub = hub = ClientHub(base, engine, self.beats.packets)
        self.make_transports()
        older_limits = OlderLimits(state)
        self.node = node = NodeMonitor(
            base, engine, ledgers, self.peaks, older_limits, self.known, self.processes,
            self.process_locations, self.beats, self.envs, self.context_sizes, hub.slow_beats_of,
            self.env_of_stranger, self.watch_gpus,
        )  # fmt: skip
        self.gpus = node.gpus
        self.ledger_controller = LedgerController(
            base, engine, ledgers, older_limits, hub.send_grant, self.envs.refresh,
            node.limits_changed,
        )  # fmt: skip
        self.compute = ComputeController(base, engine, node.gpus, hub.send_grant, self.has_mps)
        self.informer = ClusterInformer(lambda: node.when_read(lambda: None))
        self.informer.subscribe(self.event_loop.news, REASONS)
        self.jobs = Jobs(
            base, engine, node.when_read, self.peaks, self.clients.charge, self.executor,
            self.client, self._sink(),
        )  # fmt: skip
        self.submissions = SubmissionBatches(base, engine)
        self.suspensions = SuspensionController(
            base, engine, ledgers, self.gpus, self.jobs.host_limits, self.suspender,
            lambda: hindrance(self.gpus.last.cuda_version, has_mps=self.has_mps()),
        )  # fmt: skip
        self._begin()
        loop.call_soon(ledgers.make_spare)

    def _begin(self) -> None:
        """Closes the two circles: parts report to engine and hub, which act on the parts."""
        hub, node, compute = self.hub, self.node, self.compute
        hub.begin(
            self.envs, self.gpus, self.ledger_controller, self.peaks, compute.files_for,
            self.jobs.factory.job_of, node.open_for,
        )  # fmt: skip
        parts = (
            hub, self.ledger_controller, compute, node, self.jobs, self.submissions,
            self.suspensions,
        )  # fmt: skip
        handlers = {kind: one for part in parts for kind, one in part.handlers().items()}
        self.engine.begin(
            {**handlers, effects.EnvChanged: self._env_changed},
            self.ledger_controller,
            self.informer,
            applied=(hub.slow_beats, node.follow_tasks, node.settle_due_limits),
            settled=(compute.settle, self.suspensions.settle, node.set_timers),
            unkept_bytes=node.unkept_bytes,
            recovered=self._store_recovered,
            pass_took=self.clients.share,
        )

    # -- the parts around the engine --

    def make_transports(self) -> None:
        """The sockets, which report to the hub, and the environments that have them."""
        base, settings, journal = self.base, self.settings, self.journal
        self.clients = ClientServer(
            base.loop, base.selector, self.hub, self.processes, base.clock,
            settings.max_connections_per_env, journal.is_late, self._report_crowd,
        )  # fmt: skip
        self.udp = (
            None
            if base.udp_socket is None
            else UdpServer(base.loop, base.selector, self.hub, base.clock, base.udp_socket)
        )
        self.context_sizes = ContextSizes(journal.remember, journal.meta())
        self.context_sizes.settle(base.reading.gpus, self.state.envs)
        self.envs = self._make_envs()
        self.env_of_stranger = Belonging(
            settings.run_dir, self.known.env_of_pid, self.known.with_envs, self.envs.is_entitled
        ).env_of

    def _make_envs(self) -> Envs:
        settings, gate, state = self.settings, self.gate, self.state
        containers = Containers(
            settings.cdi_dir, settings.cdi_kind, settings.run_dir, settings.state_dir,
            len(settings.simulate or ()), (lambda env: None) if gate is None else gate.cdi_hook,
        )  # fmt: skip
        self.base.closing.callback(containers.close)
        if gate is not None:
            gate.keep_only(state.envs)
        dirs = rundir.EnvDirs(settings.run_dir, settings.state_dir)
        dirs.remove_others(state.envs)
        return Envs(
            state, dirs, self.clients, self.udp, self.udp_address, self._simulator, self.client,
            self.context_sizes.told_bytes, containers, gate,
        )  # fmt: skip

    @property
    def _simulator(self) -> Path | None:
        return self.settings.run_dir / rundir.SIMULATOR_DIR if self.settings.simulate else None

    def udp_address(self) -> str:
        """The UDP address for clients: the administrator's setting, else the socket's address."""
        if self.udp is None:
            return ""
        if self.settings.client_address is not None:
            return self.settings.client_address
        host, port = self.udp.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def watch_gpus(self, on_reading: Callable[[DriverReading], None]) -> GpuWatcher:
        base = self.base
        self.sampler = UseSampler(
            base.loop, base.clock, lambda: self.gpus, base.journal.save_gpu_minutes
        )
        base.closing.callback(self.sampler.close)

        def read(reading: DriverReading) -> None:
            on_reading(reading)
            self.sampler.gpus_read(reading)

        return GpuWatcher(base.gpus, base.clock, base.loop, base.reading, read)

    def has_mps(self) -> bool:
        """Whether the control daemon of MPS runs on this node."""
        return mps.is_running(mps.pipe_directory(os.environ), frozenset((0, os.geteuid())))

    def executor(self, listener: ExecutorListener) -> ResourceFactory:
        """Makes the executor of jobs; `listener` gets its reports."""
        raise NotImplementedError

    @cached_property
    def client(self) -> Path | None:
        """The present copy of the client: programs and jobs of this node load it."""
        return payload.for_programs(self.settings.state_dir)

    def _sink(self) -> Sink:
        if self.settings.job_log_sink != "journald":
            return no_sink
        journald = Journald()
        self.base.closing.callback(journald.close)
        return into_journal(journald)

    def suspender(self, answered: Answered) -> Suspender:
        return Suspender(self.loop, self.settings.run_dir, self._simulator, answered)

    def _report_crowd(self, env: str) -> None:
        crowd = Crowd.of(env, self.clients.crowd(env))
        stderr_log.say(crowd.line())
        self.journal.note("connections.full", **crowd.fields())

    # -- for the verbs --

    def knows(self, session: Session) -> bool:
        """Whether the session is open."""
        return self.hub.knows(session)

    def container_of(self, session: Session) -> str:
        """The name or the id of its process's container; empty: it is in none."""
        place = self.process_locations.of(session.key)
        return place.container_name or place.container or ""

    def submit_or_refuse(self, event: events.Event) -> None:
        """Step the core for an order. Raises OperationError if the store does not take it."""
        if not self.submit(event):
            raise OperationError(NOT_STORED(fault=self.journal.refused))

    def _env_changed(self, effect: effects.EnvChanged) -> None:
        self.envs.refresh(effect.env)
        self.jobs.env_changed(effect.env)

    def _store_recovered(self) -> None:
        self.event_loop.wake("store recovered")
        self.loop.call_soon(self.jobs.settle)

    def close(self) -> None:
        """Ends the transports and threads. Jobs go on, and clients keep their leases."""
        self.jobs.close()
        self.suspensions.close()
        if self.udp is not None:
            self.udp.close_all()
        self.clients.close_all()
        self.compute.close()
        self.gpus.stop()
        self.processes.close()

    def resume(self, reading: DriverReading, *, same_boot: bool) -> None:
        """Resumes the earlier manager's tasks and reports the processes that have died."""
        journal, node = self.journal, self.node
        gone = [
            key
            for key, pid in self.state.watched()
            if not node.resume_watching(key, pid, same_boot)
        ]
        self.ledger_controller.recover(set(gone))
        wall_ns = self.clock.wall_ns()
        self.submit(events.GpusChanged(reading.gpus, wall_ns))
        for key in gone:
            unreclaimed = reading.of_process(pid_of(key) or 0) if same_boot else {}
            peak_bytes = self.peaks.at_leaving(key)
            self.submit(events.ProcessGone(key, wall_ns, unreclaimed, peak_bytes))
        self.envs.refresh_all()
        node.settle_gates()
        self.node_gate.keep_only()
        node.audit(reading)
        self.jobs.resume()
        self.suspensions.resume()
        self.event_loop.wake("manager started")
        node.tick()
        node.settle_driver_limits()
        journal.note(
            "manager.started",
            pid=os.getpid(),
            tasks=len(self.state.tasks),
            waiting=len(self.state.requests),
        )
