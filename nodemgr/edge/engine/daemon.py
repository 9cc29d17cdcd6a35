"""The manager's parts, built in order: step engine, client hub, node monitor, ledgers, jobs.

Knows: which part needs which. Must not know: the work of any part.

Two circles are inherent: a part reports events to the step engine, which carries out effects by
that part; and the transports report messages to the client hub, which acts on what stands behind
the transports. Each is closed in one constructor, which builds the other half (`StepEngine`,
`ClientHub`). All other parts get complete ones.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass

from client_plugin.messages.form import MessageLine, relayed
from nodemgr.core.manager import State
from nodemgr.core.model import effects, events
from nodemgr.edge.clients.client_server import ClientServer
from nodemgr.edge.clients.client_sessions import Session
from nodemgr.edge.clients.udp import UdpServer
from nodemgr.edge.containers.env_directories import Envs
from nodemgr.edge.engine.client_hub import ClientHub, HubPorts
from nodemgr.edge.engine.compute_controller import ComputeController
from nodemgr.edge.engine.event_measures import EventMeasures
from nodemgr.edge.engine.informer import ClusterInformer
from nodemgr.edge.engine.job_controller import JobPorts, Jobs
from nodemgr.edge.engine.ledger_controller import LedgerController, LedgerPorts, OlderLimits
from nodemgr.edge.engine.node_monitor import KnownProcesses, NodeMonitor, NodePorts
from nodemgr.edge.engine.scheduler_loop import REASONS, EventLoop
from nodemgr.edge.engine.step_engine import StepEngine, StepPorts
from nodemgr.edge.engine.submission_batches import SubmissionBatches
from nodemgr.edge.engine.suspension_controller import Answered, SuspensionController
from nodemgr.edge.gate.device_gate import Gate
from nodemgr.edge.gate.node_gate import NO_NODE_GATE, NodeGate
from nodemgr.edge.gpu.context_estimate import ContextSizes
from nodemgr.edge.gpu.gpu_inventory import DriverReading, GpuWatcher
from nodemgr.edge.host.clock import Clock
from nodemgr.edge.kernel.process_locations import ProcessLocations
from nodemgr.edge.kernel.processes import ProcessTable, pid_of
from nodemgr.edge.ledger.peaks import Peaks
from nodemgr.edge.ledger.registry import Beats, Ledgers
from nodemgr.edge.rpc.operation import OperationError
from nodemgr.edge.rpc.wire import Fields
from nodemgr.edge.store.journal import Journal
from nodemgr.edge.suspension.hindrance import hindrance
from nodemgr.edge.suspension.suspender import Suspender
from nodemgr.messages.orders import NOT_STORED

"""The store's key of the boot that its processes belong to."""


NO_REASON = relayed("")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The parts of the edge that report to the hub, and that all others act on."""

    clients: ClientServer
    udp: UdpServer | None
    envs: Envs
    context_sizes: ContextSizes
    env_of_stranger: Callable[[int], str | None]
    """The env of a process that never spoke to the manager, as far as it can be proved."""
    has_mps: Callable[[], bool]
    """Whether the control daemon of MPS runs on this node."""


@dataclass(frozen=True, slots=True)
class ClientVerbs:
    """Receivers of the messages that the core does not see."""

    on_ask: Callable[[Session, Fields], None]
    """Receives the questions and orders of clients."""
    on_runner: Callable[[Session, str, Fields], None]
    """Receives the messages of runners, which start jobs in containers."""
    on_closed: tuple[Callable[[Session], None], ...]
    """Called with each session that has ended."""


@dataclass(frozen=True, slots=True)
class DaemonPorts:
    """How the parts around the daemon are built. Each is called once, in this order."""

    surroundings: Callable[[Daemon, ClientHub], Surroundings]
    watch_gpus: Callable[[Callable[[DriverReading], None]], GpuWatcher]
    jobs: JobPorts
    suspender: Callable[[Answered], Suspender]
    verbs: Callable[[Daemon], ClientVerbs]
    """The daemon has all its parts but the hub."""


class Daemon:
    """All parts of one manager, by name. The verbs read them and submit events."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        state: State,
        journal: Journal,
        ledgers: Ledgers,
        ports: DaemonPorts,
        gate: Gate | None = None,
        no_gate: MessageLine = NO_REASON,
        node_gate: NodeGate = NO_NODE_GATE,
    ) -> None:
        """`no_gate`: the reason if `gate` is None."""
        self.loop, self.clock, self.state = loop, clock, state
        self.journal, self.ledgers = journal, ledgers
        self.gate, self.no_gate, self.node_gate = gate, no_gate, node_gate
        self.known = KnownProcesses(state)
        self.processes = ProcessTable(loop)
        self.process_locations = ProcessLocations(loop)
        self.beats = Beats(state, ledgers)
        self.peaks = Peaks(state, ledgers)
        self.measures = EventMeasures()
        journal.observe_with(self.measures.take)
        self.engine = StepEngine(
            loop, clock, state, journal, lambda engine: self._step_ports(engine, ports)
        )
        self.submit = self.engine.submit
        loop.call_soon(ledgers.make_spare)

    def submit_or_refuse(self, event: events.Event) -> None:
        """Step the core for an order. Raises OperationError if the store does not take it."""
        if not self.submit(event):
            raise OperationError(NOT_STORED(fault=self.journal.refused))

    def _step_ports(self, engine: StepEngine, ports: DaemonPorts) -> StepPorts:
        """Builds all other parts."""
        self.event_loop = EventLoop(engine)
        self.hub = hub = ClientHub(
            self.clock,
            self.state,
            self.journal,
            engine,
            self.beats.packets,
            lambda hub: self._hub_ports(engine, hub, ports),
        )
        node, ledgers = self.node, self.ledger_controller
        return StepPorts(
            handlers={
                **hub.handlers(),
                **ledgers.handlers(),
                **self.compute.handlers(),
                **node.handlers(),
                **self.jobs.handlers(),
                **self.submissions.handlers(),
                **self.suspensions.handlers(),
                effects.EnvChanged: self._env_changed,
            },
            facts=ledgers.facts,
            refused=ledgers.refused,
            applied=(hub.slow_beats, node.follow_tasks, node.settle_due_limits),
            settled=(self.compute.settle, self.suspensions.settle, node.set_timers),
            unkept_bytes=node.unkept_bytes,
            claim=ledgers.claim,
            informer=self.informer,
            recovered=self._store_recovered,
            pass_took=self.clients.share,
        )

    def _hub_ports(self, engine: StepEngine, hub: ClientHub, ports: DaemonPorts) -> HubPorts:
        loop, clock, state, journal = self.loop, self.clock, self.state, self.journal
        around = ports.surroundings(self, hub)
        self.clients, self.udp, self.envs = around.clients, around.udp, around.envs
        older_limits = OlderLimits(state)
        self.node = node = NodeMonitor(
            loop,
            clock,
            state,
            journal,
            engine,
            NodePorts(
                self.ledgers,
                self.peaks,
                older_limits,
                self.known,
                self.processes,
                self.process_locations,
                self.beats,
                self.gate,
                self.node_gate,
                around.envs,
                around.context_sizes,
                hub.slow_beats_of,
                around.env_of_stranger,
                ports.watch_gpus,
            ),
        )
        self.gpus = node.gpus
        self.ledger_controller = LedgerController(
            loop,
            clock,
            state,
            journal,
            self.ledgers,
            older_limits,
            engine,
            LedgerPorts(hub.send_grant, around.envs.refresh, node.limits_changed),
        )
        self.compute = ComputeController(
            loop, clock, state, journal, engine, node.gpus, hub.send_grant, around.has_mps
        )
        self.informer = ClusterInformer(lambda: node.when_read(lambda: None))
        self.informer.subscribe(self.event_loop.news, REASONS)
        self.jobs = self._jobs(engine, around.clients, ports.jobs)
        self.submissions = SubmissionBatches(loop, clock, state, journal, engine)
        self.suspensions = self._suspensions(engine, ports.suspender, around.has_mps)
        verbs = ports.verbs(self)
        return HubPorts(
            around.envs,
            node.gpus,
            self.ledger_controller,
            self.peaks,
            self.compute.files_for,
            self.jobs.factory.job_of,
            node.open_for,
            verbs.on_ask,
            verbs.on_runner,
            verbs.on_closed,
        )

    def _jobs(self, engine: StepEngine, clients: ClientServer, ports: JobPorts) -> Jobs:
        return Jobs(
            self.loop,
            self.clock,
            self.state,
            self.journal,
            engine,
            self.node.when_read,
            self.peaks,
            clients.charge,
            ports,
        )

    def _suspensions(
        self,
        engine: StepEngine,
        suspender: Callable[[Answered], Suspender],
        has_mps: Callable[[], bool],
    ) -> SuspensionController:
        return SuspensionController(
            self.loop,
            self.clock,
            self.state,
            self.ledgers,
            engine,
            self.gpus,
            suspender,
            lambda: hindrance(self.gpus.last.cuda_version, has_mps=has_mps()),
        )

    def _env_changed(self, effect: effects.EnvChanged) -> None:
        self.envs.refresh(effect.env)
        self.jobs.env_changed(effect.env)

    def _store_recovered(self) -> None:
        self.event_loop.wake("store recovered")
        self.loop.call_soon(self.jobs.settle)

    def close(self) -> None:
        """Ends the transports and threads. Jobs go on, and clients keep their leases."""
        self.jobs.factory.close()
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
