"""The manager: all its parts, and the verbs, the page and the long views on them.

Knows: all rooms of the edge, and which part needs which. Must not know: how a part works, when the
manager runs or ends (service.py).
"""

from __future__ import annotations

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
from nodemgr.edge.api.verb_table import Verbs
from nodemgr.edge.api.views import Views
from nodemgr.edge.clients.client_sessions import ADMINS, PAGES
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.engine.failure_watch import FailureWatch
from nodemgr.edge.engine.foundation import Foundation
from nodemgr.edge.engine.ledger_controller import LEDGER_META
from nodemgr.edge.executor.interface import ExecutorListener, ResourceFactory
from nodemgr.edge.executor.launcher import LauncherEndpoint
from nodemgr.edge.executor.local import NodeFactory
from nodemgr.edge.executor.runner_registry import refuse_runner
from nodemgr.edge.forecast.knowledge import WEIGHTS_NAME, Knowledge
from nodemgr.edge.forecast.run_keeper import RunKeeper
from nodemgr.edge.forecast.sample_recorder import SampleRecorder
from nodemgr.edge.host import rundir, stderr_log
from nodemgr.edge.ledger.registry import Ledgers
from nodemgr.edge.member.membership import ClusterMembership
from nodemgr.edge.placement.learned import LearnedScores
from nodemgr.edge.store.reader import HistoryReader
from nodemgr.edge.web.metric_values import MetricValues
from nodemgr.edge.web.page_host import PageHost
from nodemgr.edge.web.scope_views import ScopeViews
from nodemgr.edge.web.tokens import WebTokens
from nodemgr.edge.web.verbs import WebVerbs

JOBS_DIR = "jobs"
"""The directory of the jobs' files and logs, in the state directory."""


class Manager(Daemon):
    """The daemon with its verbs."""

    def __init__(self, base: Foundation, page: PageHost) -> None:
        closing, settings = base.closing, base.settings
        ledgers = Ledgers(
            lambda env, files: base.journal.remember(LEDGER_META + env, files.to_json()),
            base.service_manager,
        )
        ledgers.hand_over(base.service_manager.take_over())
        closing.callback(ledgers.forget_all)
        self._scores = LearnedScores(settings.state_dir, stderr_log.say)
        base.state.learn(self._scores)
        self.hosts = LaunchHosts()
        super().__init__(base, ledgers)
        closing.callback(self.close)
        self._tokens = WebTokens(base.journal, base.clock, base.state)
        self.knowledge = Knowledge(base.loop, base.journal, settings.state_dir / WEIGHTS_NAME)
        closing.callback(self.knowledge.close)
        self._past = HistoryReader(base.loop, base.store.path)
        closing.callback(self._past.close)
        self.views = Views(self, settings, base.store)
        views, metrics = ScopeViews(self, self.views), MetricValues(self, self.views)
        self._page, self._page_verbs = page, WebVerbs(views, metrics, self._tokens, page.told)
        self.verbs = self._make_verbs()
        self._serve()
        self.membership.go_on()
        closing.callback(FailureWatch(self, base.gpus.events).close)
        idle = IdleWatch(self, self.views.when_figures, self.views.readings)
        self.informer.subscribe(idle.news, NEWS)
        idle.settle()
        closing.callback(idle.close)
        self.recorder = SampleRecorder(
            self, self.views.when_figures, self.views.readings, self.knowledge.add
        )
        closing.callback(self.recorder.close)

    def _make_verbs(self) -> Verbs:
        forecasts = self.forecasts = ForecastOperations(
            self,
            lambda: self.knowledge.known,
            lambda row: self.recorder.announced(row),
            RunKeeper(self),
        )
        self.job_orders = JobOperations(
            self, JobViews(self, self._past, self.views), self.hosts, self.settings.group, forecasts
        )
        self.base.closing.callback(self.job_orders.close)
        assignments = AssignmentOperations(self, self.hosts)
        self.membership = ClusterMembership(
            self, assignments, lambda: self.verbs, self.hosts, self.settings
        )
        self.base.closing.callback(self.membership.close)
        self.admin_operations = AdminOperations(self, self.views, self._tokens.forget_env)
        homes = (
            self.admin_operations,
            GpuOperations(self, self._scores.read),
            TaskOperations(self),
            self.job_orders,
            forecasts,
            assignments,
            self.membership,
            self.membership.gate,
            PastUse(self, self._past),
            self._page_verbs,
        )
        return Verbs(self, self.views, homes, self.membership.elsewhere)

    def _serve(self) -> None:
        """The hub hands on what the core does not see."""
        questions = Questions(self, self.verbs, self._page_verbs.viewer)
        factory = self.jobs.factory
        closed = (self.job_orders.closed, questions.closed)
        if isinstance(factory, NodeFactory):
            runners = factory.runners
            self.jobs.on_final.append(lambda _job_id: runners.dismiss_idle())
            self.hub.serve(
                questions.received,
                runners.received,
                (*closed, runners.closed),
                self.forecasts.expected_ms,
            )
        else:
            self.hub.serve(questions.received, refuse_runner, closed, self.forecasts.expected_ms)

    def open_orders(self) -> None:
        """Administrators and the web page's process are answered from now on."""
        self.clients.open(
            ADMINS,
            self.settings.run_dir / rundir.CONTROL_SOCKET,
            for_all=True,
            let_in=lambda path: rundir.give_to_group(path, self.settings.group),
        )
        if self._page.url is not None:
            path = self.settings.run_dir / rundir.VIEWS_SOCKET
            self.clients.open(PAGES, path, for_all=True, let_in=self._page.let_in)
            self._page.go_on(self.loop)

    def executor(self, listener: ExecutorListener) -> ResourceFactory:
        base, jobs = self.base, self.state.jobs
        if not isinstance(base.launcher, LauncherEndpoint):
            return base.launcher(base.loop, listener)
        return NodeFactory(
            base.loop,
            listener,
            self.settings.state_dir / JOBS_DIR,
            base.launcher,
            log_bytes=self.settings.job_log_bytes,
            host_of=self.hosts.of,
            is_needed=lambda host: any(job.run.place == host for job in jobs.values()),
            gate=self.node_gate,
        )
