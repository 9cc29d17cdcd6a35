"""The manager's values of the metrics (edge/page/metric_table.py), for the page process.

Knows: where each value comes from, the bounds of labels, how long values are cached. Must not
know: the text format, tokens' form, sockets. A set of values is made once for all scrapers, and at
most twice a second.
"""

from __future__ import annotations

import json
import os
import resource
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from nodemgr.core.lifecycle import queue_settings
from nodemgr.core.model.causes import WaitCause
from nodemgr.core.model.entities import Gpu, Suspension, Uuid
from nodemgr.core.model.event_names import EVENT_NAMES
from nodemgr.core.requests import notify
from nodemgr.core.state import accounting, compute
from nodemgr.edge.api.verb_table import PAGE, Speaker
from nodemgr.edge.api.views import COUNTERS, Views
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.host import stderr_log
from nodemgr.edge.host.measures import Histogram
from nodemgr.edge.rpc.operation import JsonText, OperationError, Reply
from nodemgr.edge.rpc.turns import Work, in_turns
from nodemgr.messages.orders import INTERNAL_FAULT
from nodemgr.paths import installed_version

VALID_NS = 500_000_000
SECOND_NS = 1_000_000_000
HOUR_S = 3_600
MIB = 1 << 20
MAX_ENVS = 200
MAX_QUEUES = 30
"""The most names of each as a label; further ones are summed under OTHERS."""
OTHERS = "(others)"
"""No environment and no queue has this name."""
TURN_ENVS = 250
"""Environments per turn of the loop: they take some milliseconds."""
JUDGED = 200
"""The reasons of so many first waiting requests are known; the others count as NOT_JUDGED."""
NOT_JUDGED = "not_judged"
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SampleRows = list[tuple[list[str], Any]]
_to_text = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class MetricValues:
    """The values, as JSON texts."""

    def __init__(self, daemon: Daemon, views: Views) -> None:
        self._daemon = daemon
        self._views = views
        self._started_s = daemon.clock.wall_ns() / SECOND_NS
        self._valid_ns = 0
        """Until then the values and the texts are current (monotonic clock)."""
        self._public: dict[str, SampleRows] = {}
        self._texts: Mapping[str | None, JsonText] = {}
        """By env, None for all envs, and "" for none."""
        self._asked: list[tuple[str | None, Reply]] = []
        """Callers of values that are being made."""

    def get(self, viewer: Speaker, reply: Reply) -> None:
        """Calls `reply` with the values for this viewer."""
        whose = "" if viewer.right is PAGE else viewer.env
        if self._is_valid() and whose in self._texts:
            reply(self._texts[whose])
            return
        self._asked.append((whose, reply))
        if len(self._asked) == 1:
            self._views.when_figures(
                lambda: in_turns(self._daemon.loop, self._make(), self._answer, self._failed)
            )

    def _is_valid(self) -> bool:
        return self._daemon.clock.monotonic_ns() < self._valid_ns

    def _make(self) -> Work[Mapping[str | None, JsonText]]:
        """The texts of all callers, and of those that come during the work."""
        if not self._is_valid():
            self._public = public_values(self._daemon, self._views, self._started_s)
            self._texts = {}
            self._valid_ns = self._daemon.clock.monotonic_ns() + VALID_NS
        texts = dict(self._texts)
        while missing := {whose for whose, _ in self._asked} - texts.keys():
            whose = missing.pop()
            envs = sorted(self._daemon.state.envs) if whose is None else [whose]
            values = yield from env_values(self._daemon, self._views.readings().jobs, envs)
            texts[whose] = JsonText(_to_text({**self._public, **values}))
        return texts

    def _answer(self, texts: Mapping[str | None, JsonText]) -> None:
        asked, self._asked, self._texts = self._asked, [], texts
        for whose, reply in asked:
            reply(texts[whose])

    def _failed(self, error: Exception) -> None:
        """The callers need an answer in any case."""
        asked, self._asked = self._asked, []
        stderr_log.fault("in the metrics", error)
        for _, reply in asked:
            reply(OperationError(INTERNAL_FAULT(error=repr(error))))


def public_values(daemon: Daemon, views: Views, started_s: float) -> dict[str, SampleRows]:
    """All but those of single environments."""
    return {
        **_node(daemon),
        **_queues(daemon),
        **_gpus(daemon, views),
        **_leases(daemon),
        **_manager(daemon, started_s),
    }


def _one(value: float) -> SampleRows:
    return [([], value)]


def _node(daemon: Daemon) -> dict[str, SampleRows]:
    state = daemon.state
    healthy = sum(gpu.healthy for gpu in state.gpus.values())
    suspended = sum(task.suspension is Suspension.SUSPENDED for task in state.tasks.values())
    stalled = len(state.stalled) + len(state.silent_jobs)
    not_queued, under_way = state.held_or_dependent.size, state.under_way.size
    return {
        "nodemgr_gpus": [(["healthy"], healthy), (["lost"], len(state.gpus) - healthy)],
        "nodemgr_gpus_held": _one(len({uuid for _, uuid in state.grants})),
        "nodemgr_envs": _one(len(state.envs)),
        "nodemgr_tasks": [
            (["running"], len(state.tasks) - stalled - suspended),
            (["stalled"], stalled),
            (["suspended"], suspended),
        ],
        "nodemgr_jobs": [
            (["queued"], state.living.size - not_queued - under_way),
            (["held_or_dependent"], not_queued),
            (["under_way"], under_way),
        ],
        "nodemgr_violations": _one(sum(row.told for row in state.violations.values())),
    }


def _queues(daemon: Daemon) -> dict[str, SampleRows]:
    """Each queue with each reason, also at zero: a series that comes and goes has no rate."""
    state, now_ns = daemon.state, daemon.clock.monotonic_ns()
    found, judged = notify.counts(state, now_ns, JUDGED)
    names = list(queue_settings.rows(state))
    lengths: Counter[tuple[str, str]] = Counter()
    first_s: dict[str, float] = {}
    for name in names:
        label = name if len(first_s) < MAX_QUEUES else OTHERS
        for cause in WaitCause:
            lengths[label, cause.value] += found[name, cause]
        lengths[label, NOT_JUDGED] += max(0, state.queued.get(name, 0) - judged[name])
        first = next(iter(state.queue.entries(name)), None)
        since_ns = now_ns if first is None else state.requests[first].since_ns
        wait_s = max(0, now_ns - since_ns) / SECOND_NS
        first_s[label] = max(wait_s, first_s.get(label, 0.0))
    return {
        "nodemgr_queue_length": [([*labels], count) for labels, count in lengths.items()],
        "nodemgr_queue_first_wait_seconds": [([name], wait_s) for name, wait_s in first_s.items()],
    }


def _gpus(daemon: Daemon, views: Views) -> dict[str, SampleRows]:
    state, driver, readings = daemon.state, daemon.gpus.last, views.readings()
    granted: Counter[Uuid] = Counter()
    for grant in state.grants.values():
        granted[grant.uuid] += accounting.on_gpu(grant)
    unreclaimed: Counter[Uuid] = Counter()
    for row in state.unreclaimed.values():
        unreclaimed[row.uuid] += row.memory_bytes
    difference: Counter[Uuid] = Counter()
    for figure in daemon.node.audited():
        difference[figure.uuid] += figure.driver_bytes - figure.word_bytes
    used_percent: Counter[Uuid] = Counter()
    for (_, uuid), use in daemon.compute.gates.uses().items():
        used_percent[uuid] += use.used_percent
    failures = Counter(row.uuid for row in state.failures.values())
    ledgers = daemon.ledgers
    values: dict[str, SampleRows] = {}

    def put(name: str, labels: list[str], value: object) -> None:
        values.setdefault(name, []).append((labels, value))

    for gpu in sorted(state.gpus.values(), key=lambda gpu: gpu.index):
        uuid, labels = gpu.uuid, [str(gpu.index), gpu.uuid]
        put("nodemgr_gpu_info", [*labels, gpu.name], 1)
        put("nodemgr_gpu_healthy", labels, int(gpu.healthy))
        put("nodemgr_gpu_drained", labels, int(gpu.drained))
        put("nodemgr_gpu_recorded_failures", labels, failures[uuid])
        if uuid in state.outlook:
            rate = state.outlook[uuid].rate_per_hour / HOUR_S
            put("nodemgr_gpu_failure_rate_per_second", labels, rate)
        put("nodemgr_gpu_tasks", labels, len(state.gpu_tasks.get(uuid, ())))
        put("nodemgr_gpu_memory_capacity_bytes", labels, gpu.memory_total_bytes)
        put("nodemgr_gpu_memory_granted_bytes", labels, granted[uuid])
        charged = sum(ledgers.used(env, gpu.index) for env in ledgers.envs())
        put("nodemgr_gpu_memory_charged_bytes", labels, charged)
        put("nodemgr_gpu_memory_used_bytes", labels, driver.used_bytes.get(uuid))
        put("nodemgr_gpu_memory_unreclaimed_bytes", labels, unreclaimed[uuid])
        put("nodemgr_gpu_memory_unbooked_bytes", labels, state.unbooked.get(uuid, 0))
        put("nodemgr_gpu_compute_granted_ratio", labels, compute.granted_percent(state, uuid) / 100)
        put("nodemgr_gpu_compute_used_ratio", labels, min(100, used_percent[uuid]) / 100)
        put("nodemgr_gpu_audit_difference_bytes", labels, difference[uuid])
        sensors = readings.sensors.get(uuid) if gpu.healthy else None
        if sensors is not None:
            put("DCGM_FI_DEV_GPU_UTIL", labels, sensors.utilization_percent)
            put("DCGM_FI_DEV_GPU_TEMP", labels, sensors.temperature_c)
            put("DCGM_FI_DEV_POWER_USAGE", labels, sensors.power_w)
        for name, value in _framebuffer(gpu, driver.used_bytes.get(uuid)):
            put(name, labels, value)
    return values


def _framebuffer(gpu: Gpu, used_bytes: int | None) -> Iterable[tuple[str, float]]:
    if used_bytes is not None and gpu.healthy:
        yield "DCGM_FI_DEV_FB_USED", used_bytes // MIB
        yield "DCGM_FI_DEV_FB_FREE", max(0, gpu.memory_total_bytes - used_bytes) // MIB


def _histogram(histogram: Histogram) -> list[object]:
    return [list(histogram.counts), histogram.total_ns]


def _leases(daemon: Daemon) -> dict[str, SampleRows]:
    measures = daemon.measures
    return {
        "nodemgr_lease_wait_seconds": [
            ([kind], _histogram(waits)) for kind, waits in measures.waits.items()
        ],
        "nodemgr_lease_hold_seconds": [([], _histogram(measures.holds))],
        "nodemgr_leases_ended_total": [
            ([end.value], count) for end, count in measures.ends.items()
        ],
    }


def _manager(daemon: Daemon, started_s: float) -> dict[str, SampleRows]:
    journal, events, driver = daemon.journal, daemon.measures.events, daemon.gpus.last
    used = resource.getrusage(resource.RUSAGE_SELF)
    age_s = (daemon.clock.monotonic_ns() - driver.at_ns) / SECOND_NS
    return {
        "nodemgr_build_info": [([installed_version()], 1)],
        "nodemgr_start_time_seconds": _one(started_s),
        "nodemgr_manager_cpu_seconds_total": _one(used.ru_utime + used.ru_stime),
        "nodemgr_manager_resident_memory_bytes": _one(_resident_bytes()),
        "nodemgr_manager_open_fds": _one(len(os.listdir("/proc/self/fd"))),
        "nodemgr_step_duration_seconds": [([], _histogram(daemon.engine.step_time))],
        "nodemgr_store_commit_duration_seconds": [([], _histogram(journal.commit_time))],
        "nodemgr_store_failing": _one(int(journal.fault is not None)),
        "nodemgr_store_commit_failures_total": _one(journal.failed_commits),
        "nodemgr_scheduling_passes_total": _one(daemon.event_loop.passes),
        "nodemgr_job_starts_total": _one(daemon.jobs.orders_given),
        "nodemgr_events_total": [([name], events[name]) for name in EVENT_NAMES],
        "nodemgr_client_faults_total": [([name], daemon.hub.counters[name]) for name in COUNTERS],
        "nodemgr_driver_failing": _one(int(driver.fault is not None)),
        "nodemgr_driver_reading_age_seconds": _one(max(0.0, age_s)),
    }


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * PAGE_BYTES


def _of_jobs(daemon: Daemon, jobs: Mapping[str, NamedTuple]) -> dict[str, Counter[str]]:
    """By env, the sums over its jobs that run in cgroups."""
    sums: dict[str, Counter[str]] = {}
    for job_id, use in jobs.items():
        job = daemon.state.jobs.get(job_id)
        if job is not None:
            sums.setdefault(job.env, Counter()).update(use._asdict())
    return sums


def env_values(
    daemon: Daemon, running: Mapping[str, NamedTuple], envs: list[str]
) -> Work[dict[str, SampleRows]]:
    """Of these environments by name, as far as MAX_ENVS allows and there are such."""
    sums: dict[str, dict[str, float]] = {}
    waiting = Counter(request.env for request in daemon.state.requests.values())
    of_jobs = _of_jobs(daemon, running)
    for number, env in enumerate(envs):
        if number and number % TURN_ENVS == 0:
            yield
        if env not in daemon.state.envs:
            continue
        label = env if number < MAX_ENVS else OTHERS
        jobs = of_jobs.get(env, Counter())
        values: dict[str, float | None] = {
            **_env(daemon, env, waiting.get(env, 0)),
            "nodemgr_env_jobs_cpu_seconds": jobs["cpu_ms"] / 1_000,
            "nodemgr_env_jobs_host_memory_bytes": jobs["memory_bytes"],
            "nodemgr_env_jobs_read_bytes": jobs["read_bytes"],
            "nodemgr_env_jobs_written_bytes": jobs["written_bytes"],
        }
        for name, value in values.items():
            if value is not None:
                row = sums.setdefault(name, {})
                row[label] = row.get(label, 0) + value
    return {name: [([env], value) for env, value in row.items()] for name, row in sums.items()}


def _env(daemon: Daemon, env: str, waiting: int) -> dict[str, int | None]:
    state, ledgers = daemon.state, daemon.ledgers
    gpus = list(state.gpus.values()) if env in state.env_tasks else []
    grants = [grant for gpu in gpus if (grant := state.grants.get((env, gpu.uuid))) is not None]
    quota = state.envs[env].quota
    charged = (
        (ledgers.used(env, gpu.index) for gpu in state.gpus.values()) if env in ledgers else ()
    )
    return {
        "nodemgr_env_quota_gpus": quota.gpus,
        "nodemgr_env_quota_memory_bytes": quota.memory_bytes,
        "nodemgr_env_gpus": len(accounting.used_gpus(state, env)) if gpus else 0,
        "nodemgr_env_memory_granted_bytes": sum(grant.memory_bytes for grant in grants),
        "nodemgr_env_memory_charged_bytes": sum(charged),
        "nodemgr_env_tasks": len(state.env_tasks.get(env, ())),
        "nodemgr_env_waiting": waiting,
        "nodemgr_env_jobs": state.env_jobs.get(env, 0),
    }
