"""Builds a manager's daemon, transports, executor and verbs from its settings.

Knows: all rooms of the edge, and which part needs which. Must not know: how a part works, when the
manager runs or ends (service.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from client_plugin.messages.form import MessageLine
from nodemgr.core.manager import State
from nodemgr.edge.api.admin_operations import AdminOperations
from nodemgr.edge.api.assignment_operations import AssignmentOperations
from nodemgr.edge.api.client_verbs import Questions
from nodemgr.edge.api.forecast_operations import ForecastOperations
from nodemgr.edge.api.gpu_operations import GpuOperations
from nodemgr.edge.api.gpu_use import PastUse
from nodemgr.edge.api.idle_watch import NEWS, IdleWatch
from nodemgr.edge.api.job_operations import JobOperations
from nodemgr.edge.api.job_views import JobViews
from nodemgr.edge.api.session_hosts import LaunchHosts
from nodemgr.edge.api.task_operations import TaskOperations
from nodemgr.edge.api.verb_table import Speaker, Verbs
from nodemgr.edge.api.views import Views
from nodemgr.edge.clients.client_server import ClientServer
from nodemgr.edge.clients.connection_report import Crowd
from nodemgr.edge.clients.udp import UdpServer
from nodemgr.edge.compute import mps
from nodemgr.edge.containers import payload
from nodemgr.edge.containers.cdi_files import Containers
from nodemgr.edge.containers.env_directories import Envs
from nodemgr.edge.engine.client_hub import ClientHub
from nodemgr.edge.engine.daemon import ClientVerbs, Daemon, DaemonPorts, Surroundings
from nodemgr.edge.engine.failure_watch import FailureWatch
from nodemgr.edge.engine.job_controller import JobPorts, Sink, into_journal, no_sink
from nodemgr.edge.engine.ledger_controller import LEDGER_META
from nodemgr.edge.engine.suspension_controller import Answered
from nodemgr.edge.executor.interface import ExecutorListener, ResourceFactory
from nodemgr.edge.executor.launcher import LauncherEndpoint
from nodemgr.edge.executor.local import NodeFactory
from nodemgr.edge.executor.log_retention import LogRetention
from nodemgr.edge.executor.runner_registry import refuse_runner
from nodemgr.edge.forecast.knowledge import WEIGHTS_NAME, Knowledge
from nodemgr.edge.forecast.run_keeper import RunKeeper
from nodemgr.edge.forecast.sample_recorder import SampleRecorder
from nodemgr.edge.gate.device_gate import Gate
from nodemgr.edge.gate.node_gate import NodeGate
from nodemgr.edge.gpu.context_estimate import ContextSizes
from nodemgr.edge.gpu.gpu_inventory import DriverReading, GpuSource, GpuWatcher
from nodemgr.edge.gpu.use_sampler import UseSampler
from nodemgr.edge.host import rundir, stderr_log
from nodemgr.edge.host.clock import Clock
from nodemgr.edge.host.journald import Journald
from nodemgr.edge.host.loop import SwallowingSelector
from nodemgr.edge.host.systemd import ServiceManager
from nodemgr.edge.kernel.ownership import Belonging
from nodemgr.edge.ledger.registry import Ledgers
from nodemgr.edge.member.membership import ClusterMembership
from nodemgr.edge.placement.learned import LearnedScores
from nodemgr.edge.rpc.operation import Reply
from nodemgr.edge.setup.settings import Settings
from nodemgr.edge.store.database import Store
from nodemgr.edge.store.journal import Journal
from nodemgr.edge.store.reader import HistoryReader
from nodemgr.edge.suspension.suspender import Suspender
from nodemgr.edge.web.web_page import WebPage

JOBS_DIR = "jobs"
"""The directory of the jobs' files and logs, in the state directory."""
MakeFactory = Callable[[asyncio.AbstractEventLoop, ExecutorListener], ResourceFactory]


@dataclass(frozen=True, slots=True)
class Foundation:
    """The base of a manager: what service.py has opened before it reads the state back."""

    settings: Settings
    loop: asyncio.AbstractEventLoop
    selector: SwallowingSelector
    clock: Clock
    store: Store
    journal: Journal
    gpus: GpuSource
    reading: DriverReading
    """The first one."""
    service_manager: ServiceManager
    gate: Gate | None
    no_gate: MessageLine
    node_gate: NodeGate
    launcher: LauncherEndpoint | MakeFactory
    """The launcher of this node's jobs; or the maker of another executor."""
    page: WebPage


class ManagerParts:
    """The daemon and the verbs on it."""

    def __init__(self, base: Foundation, state: State, stack: contextlib.ExitStack) -> None:
        """`stack` gets the end of each part that has one."""
        self._base, self._state = base, state
        settings = base.settings
        ledgers = Ledgers(
            lambda env, files: base.journal.remember(LEDGER_META + env, files.to_json()),
            base.service_manager,
        )
        ledgers.hand_over(base.service_manager.take_over())
        stack.callback(ledgers.forget_all)
        self._tokens = base.page.read_tokens(base.journal, base.clock, state)
        self._scores = LearnedScores(settings.state_dir, stderr_log.say)
        state.learn(self._scores)
        self._hosts = LaunchHosts()
        weights = settings.state_dir / WEIGHTS_NAME
        self._knowledge = Knowledge(base.loop, base.journal, weights)
        stack.callback(self._knowledge.close)
        self._past = HistoryReader(base.loop, base.store.path)
        stack.callback(self._past.close)
        self._sampler = UseSampler(
            base.loop, base.clock, lambda: self.daemon.gpus, base.journal.save_gpu_minutes
        )
        stack.callback(self._sampler.close)
        gate = base.gate
        self._containers = Containers(
            settings.cdi_dir, settings.cdi_kind, settings.run_dir, settings.state_dir,
            len(settings.simulate or ()), (lambda env: None) if gate is None else gate.cdi_hook,
        )  # fmt: skip
        stack.callback(self._containers.close)
        udp_socket = None
        if settings.udp is not None:
            udp_socket = UdpServer.bind(*settings.udp)
            stack.callback(udp_socket.close)
        ports = DaemonPorts(
            lambda daemon, hub: self._surroundings(daemon, hub, udp_socket),
            self._watch_gpus,
            self._job_ports(stack),
            self._suspender,
            self._client_verbs,
        )
        self.daemon = Daemon(
            base.loop, base.clock, state, base.journal, ledgers, ports, base.gate, base.no_gate,
            base.node_gate,
        )  # fmt: skip
        stack.callback(self.daemon.close)
        stack.callback(self.job_orders.close)
        stack.callback(self.membership.close)
        self.membership.go_on()
        stack.callback(FailureWatch(self.daemon, base.gpus.events).close)
        idle = IdleWatch(self.daemon, self.views.when_figures, self.views.readings)
        self.daemon.informer.subscribe(idle.news, NEWS)
        idle.settle()
        stack.callback(idle.close)
        self._recorder = SampleRecorder(
            self.daemon, self.views.when_figures, self.views.readings, self._knowledge.add
        )
        stack.callback(self._recorder.close)

    def _watch_gpus(self, on_reading: Callable[[DriverReading], None]) -> GpuWatcher:
        base = self._base

        def read(reading: DriverReading) -> None:
            on_reading(reading)
            self._sampler.gpus_read(reading)

        return GpuWatcher(base.gpus, base.clock, base.loop, base.reading, read)

    def _suspender(self, answered: Answered) -> Suspender:
        settings = self._base.settings
        simulator = settings.run_dir / rundir.SIMULATOR_DIR if settings.simulate else None
        return Suspender(self._base.loop, settings.run_dir, simulator, answered)

    def order(self, who: str, verb: str, given: dict[str, Any], reply: Reply) -> None:
        """An administrator's order."""
        self.verbs.begin(Speaker.admin(who), verb, given, reply)

    def open_page(self) -> None:
        """The web page's process is answered from now on."""
        self._base.page.open(self._base.loop, self._base.clock, self._page_verbs, self.verbs)

    def _client_verbs(self, daemon: Daemon) -> ClientVerbs:
        settings = self._base.settings
        self.views = Views(daemon, settings, self._base.store)
        forecasts = ForecastOperations(
            daemon,
            lambda: self._knowledge.known,
            lambda row: self._recorder.announced(row),
            RunKeeper(daemon),
        )
        self.job_orders = orders = JobOperations(
            daemon,
            JobViews(daemon, self._past, self.views),
            self._hosts,
            settings.group,
            forecasts,
        )
        assignments = AssignmentOperations(daemon, self._hosts)
        self.membership = ClusterMembership(
            daemon, assignments, lambda: self.verbs, self._hosts, settings
        )
        self._page_verbs = self._base.page.verbs(daemon, self.views, self._tokens.tokens)
        self.verbs = Verbs(
            daemon,
            self.views,
            (
                AdminOperations(daemon, self.views, self._tokens.tokens.forget_env),
                GpuOperations(daemon, self._scores.read),
                TaskOperations(daemon),
                orders,
                forecasts,
                assignments,
                self.membership,
                PastUse(daemon, self._past),
                self._tokens,
                self._page_verbs,
            ),
            self.membership.elsewhere,
        )
        questions = Questions(daemon, self.verbs)
        closed = (orders.closed, questions.closed)
        factory = daemon.jobs.factory
        if not isinstance(factory, NodeFactory):
            return ClientVerbs(questions.received, refuse_runner, closed)
        runners = factory.runners
        daemon.jobs.on_final.append(lambda _job_id: runners.dismiss_idle())
        return ClientVerbs(questions.received, runners.received, (*closed, runners.closed))

    def _surroundings(
        self, daemon: Daemon, hub: ClientHub, udp_socket: socket.socket | None
    ) -> Surroundings:
        base, journal, known = self._base, daemon.journal, daemon.known
        clients = ClientServer(
            base.loop,
            base.selector,
            hub,
            daemon.processes,
            base.clock,
            base.settings.max_connections_per_env,
            journal.is_late,
            lambda env: _report_crowd(journal, Crowd.of(env, clients.crowd(env))),
        )
        udp = (
            None
            if udp_socket is None
            else UdpServer(base.loop, base.selector, hub, base.clock, udp_socket)
        )
        sizes = ContextSizes(journal.remember, journal.meta())
        sizes.settle(base.reading.gpus, daemon.state.envs)
        envs = self._envs(clients, udp, sizes)
        belonging = Belonging(
            base.settings.run_dir, known.env_of_pid, known.with_envs, envs.is_entitled
        )
        pipe = mps.pipe_directory(os.environ)
        trusted = frozenset((0, os.geteuid()))
        return Surroundings(
            clients, udp, envs, sizes, belonging.env_of, lambda: mps.is_running(pipe, trusted)
        )

    def _envs(self, clients: ClientServer, udp: UdpServer | None, sizes: ContextSizes) -> Envs:
        settings, gate, state = self._base.settings, self._base.gate, self._state
        if gate is not None:
            gate.keep_only(state.envs)
        dirs = rundir.EnvDirs(settings.run_dir, settings.state_dir)
        dirs.remove_others(state.envs)
        return Envs(
            state,
            dirs,
            clients,
            udp,
            lambda: "" if udp is None else udp_address(settings, udp),
            settings.run_dir / rundir.SIMULATOR_DIR if settings.simulate else None,
            self._client,
            sizes.told_bytes,
            self._containers,
            gate,
        )

    def _job_ports(self, stack: contextlib.ExitStack) -> JobPorts:
        settings, state = self._base.settings, self._state
        sink: Sink = no_sink
        if settings.job_log_sink == "journald":
            journald = Journald()
            stack.callback(journald.close)
            sink = into_journal(journald)
        return JobPorts(
            self._executor,
            lambda factory: LogRetention(
                factory,
                self._base.journal,
                settings.job_logs_bytes,
                settings.job_logs_days,
                lambda job_id: job_id in state.jobs,
            ),
            self._client,
            sink,
            self._base.gate is not None,
            self._base.node_gate.closes_jobs,
        )

    @cached_property
    def _client(self) -> Path | None:
        return payload.for_programs(self._base.settings.state_dir)

    def _executor(self, listener: ExecutorListener) -> ResourceFactory:
        base, jobs = self._base, self._state.jobs
        if not isinstance(base.launcher, LauncherEndpoint):
            return base.launcher(base.loop, listener)
        return NodeFactory(
            base.loop,
            listener,
            base.settings.state_dir / JOBS_DIR,
            base.launcher,
            log_bytes=base.settings.job_log_bytes,
            host_of=self._hosts.of,
            is_needed=lambda host: any(job.run.place == host for job in jobs.values()),
            gate=base.node_gate,
        )


def udp_address(settings: Settings, udp: UdpServer) -> str:
    """The UDP address for clients: the administrator's setting, else the socket's address."""
    if settings.client_address is not None:
        return settings.client_address
    host, port = udp.address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _report_crowd(journal: Journal, crowd: Crowd) -> None:
    stderr_log.say(crowd.line())
    journal.note("connections.full", **crowd.fields())
