"""The metrics for Prometheus: one table of names, kinds, units, helps and labels.

Knows: names. Must not know: values, their source in the manager (edge/web/metric_values.py), the
text format (metrics.py). docs/metrics.md is made from it (edge/web/metrics_reference.py), and
deploy/ is checked against it.

The names follow Prometheus' conventions. Where dcgm-exporter has a name for the same thing, it is
used, with its unit. No label is a user, a command, a task or a job. `env` is a label only for a
scraper with a token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from nodemgr.edge.host.measures import HOLD_S, STEP_S, WAIT_S

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"
OF_GPU = ("gpu", "uuid")
OF_DCGM = ("gpu", "UUID")
OF_ENV = ("env",)


class Metric(NamedTuple):
    """One row. A histogram's values are in seconds."""

    name: str
    kind: str
    unit: str
    """For the docs: a base unit, or that of dcgm-exporter; empty: a number."""
    help: str
    labels: tuple[str, ...] = ()
    bounds_s: tuple[float, ...] = ()
    is_of_page: bool = False
    """The page process counts it, and has it also while the manager is away."""


def _page(name: str, kind: str, unit: str, text: str, *labels: str) -> Metric:
    return Metric(name, kind, unit, text, labels, is_of_page=True)


OF_PAGE = (
    _page("nodemgr_up", GAUGE, "", "1 if the manager answers the page process, else 0."),
    _page("nodemgr_page_viewers", GAUGE, "", "Open pages."),
    _page("nodemgr_page_viewers_limit", GAUGE, "", "The most pages that may be open."),
    _page(
        "nodemgr_page_viewers_dropped_total",
        COUNTER,
        "",
        "Pages that were closed because their browser did not read.",
    ),
    _page(
        "nodemgr_page_requests_total",
        COUNTER,
        "",
        "Answered HTTP requests, by status. A stream of events counts at its end.",
        "code",
    ),
    _page(
        "nodemgr_page_cpu_seconds_total",
        COUNTER,
        "seconds",
        "Processor time of the page process.",
    ),
)
OF_NODE = (
    Metric("nodemgr_gpus", GAUGE, "", "GPUs, by state.", ("state",)),
    Metric("nodemgr_gpus_held", GAUGE, "", "GPUs on which some task has a grant."),
    Metric("nodemgr_envs", GAUGE, "", "Environments."),
    Metric("nodemgr_tasks", GAUGE, "", "Tasks that hold GPUs, by state.", ("state",)),
    Metric(
        "nodemgr_jobs",
        GAUGE,
        "",
        "Batch jobs that have not ended, by stage: in a queue, held or dependent, under way.",
        ("stage",),
    ),
    Metric(
        "nodemgr_queue_length",
        GAUGE,
        "",
        "Waiting requests, by queue and reason.",
        ("queue", "reason"),
    ),
    Metric(
        "nodemgr_queue_first_wait_seconds",
        GAUGE,
        "seconds",
        "How long the first request of the queue has waited; 0 where none waits.",
        ("queue",),
    ),
)
OF_GPUS = (
    Metric("nodemgr_gpu_info", GAUGE, "", "1 for each GPU, with its name.", (*OF_GPU, "name")),
    Metric("nodemgr_gpu_healthy", GAUGE, "", "1 if the GPU is healthy, 0 if it is lost.", OF_GPU),
    Metric("nodemgr_gpu_drained", GAUGE, "", "1 if the GPU gets no new task, else 0.", OF_GPU),
    Metric(
        "nodemgr_gpu_recorded_failures",
        GAUGE,
        "",
        "Failures of the GPU that count: since its first sight or its last repair, at most 64.",
        OF_GPU,
    ),
    Metric(
        "nodemgr_gpu_failure_rate_per_second",
        GAUGE,
        "",
        "The estimated failures of the GPU in a second; absent without any recorded failure.",
        OF_GPU,
    ),
    Metric("nodemgr_gpu_tasks", GAUGE, "", "Tasks on the GPU.", OF_GPU),
    Metric("nodemgr_gpu_memory_capacity_bytes", GAUGE, "bytes", "Memory of the GPU.", OF_GPU),
    Metric(
        "nodemgr_gpu_memory_granted_bytes",
        GAUGE,
        "bytes",
        "Memory of the GPU that is granted to environments.",
        OF_GPU,
    ),
    Metric(
        "nodemgr_gpu_memory_charged_bytes",
        GAUGE,
        "bytes",
        "Memory of the GPU that the ledgers count as allocated.",
        OF_GPU,
    ),
    Metric(
        "nodemgr_gpu_memory_used_bytes",
        GAUGE,
        "bytes",
        "Memory of the GPU that is in use according to the driver.",
        OF_GPU,
    ),
    Metric(
        "nodemgr_gpu_memory_unreclaimed_bytes",
        GAUGE,
        "bytes",
        "Memory that is charged for processes that lost their lease, until the driver frees it.",
        OF_GPU,
    ),
    Metric(
        "nodemgr_gpu_memory_unbooked_bytes",
        GAUGE,
        "bytes",
        "Memory that the driver shows and no lease explains, beyond the audit's tolerance.",
        OF_GPU,
    ),
    Metric(
        "nodemgr_gpu_compute_granted_ratio",
        GAUGE,
        "ratio",
        "Compute of the GPU that is granted to tasks; a task without a share counts as 1.",
        OF_GPU,
    ),
    Metric(
        "nodemgr_gpu_compute_used_ratio",
        GAUGE,
        "ratio",
        "Compute of the GPU that gated processes have used in the last second.",
        OF_GPU,
    ),
    Metric(
        "nodemgr_gpu_audit_difference_bytes",
        GAUGE,
        "bytes",
        "Memory of the leases' processes by the driver, less their charges in the ledgers, at the"
        " last audit.",
        OF_GPU,
    ),
    Metric("DCGM_FI_DEV_GPU_UTIL", GAUGE, "percent", "GPU utilization (in %).", OF_DCGM),
    Metric("DCGM_FI_DEV_GPU_TEMP", GAUGE, "degrees Celsius", "GPU temperature (in C).", OF_DCGM),
    Metric("DCGM_FI_DEV_POWER_USAGE", GAUGE, "watts", "Power draw (in W).", OF_DCGM),
    Metric("DCGM_FI_DEV_FB_USED", GAUGE, "MiB", "Framebuffer memory used (in MiB).", OF_DCGM),
    Metric("DCGM_FI_DEV_FB_FREE", GAUGE, "MiB", "Framebuffer memory free (in MiB).", OF_DCGM),
)
OF_LEASES = (
    Metric(
        "nodemgr_lease_wait_seconds",
        HISTOGRAM,
        "seconds",
        "Time from a request to its grant, of granted requests.",
        ("kind",),
        WAIT_S,
    ),
    Metric(
        "nodemgr_lease_hold_seconds",
        HISTOGRAM,
        "seconds",
        "Time from a grant to the end of the lease.",
        (),
        HOLD_S,
    ),
    Metric("nodemgr_leases_ended_total", COUNTER, "", "Leases that ended, by cause.", ("cause",)),
    Metric(
        "nodemgr_violations",
        GAUGE,
        "",
        "Processes that use more than they may, confirmed by the audit.",
    ),
)
OF_MANAGER = (
    Metric("nodemgr_build_info", GAUGE, "", "1, with the manager's version.", ("version",)),
    Metric(
        "nodemgr_start_time_seconds",
        GAUGE,
        "seconds",
        "When the manager started, since 1970. Counters and histograms begin anew at a start.",
    ),
    Metric(
        "nodemgr_manager_cpu_seconds_total", COUNTER, "seconds", "Processor time of the manager."
    ),
    Metric(
        "nodemgr_manager_resident_memory_bytes", GAUGE, "bytes", "Resident memory of the manager."
    ),
    Metric("nodemgr_manager_open_fds", GAUGE, "", "Open file descriptors of the manager."),
    Metric(
        "nodemgr_step_duration_seconds",
        HISTOGRAM,
        "seconds",
        "Time of a step: the decision, the commit, the effects, the events.",
        (),
        STEP_S,
    ),
    Metric(
        "nodemgr_store_commit_duration_seconds",
        HISTOGRAM,
        "seconds",
        "Time of a commit of the store.",
        (),
        STEP_S,
    ),
    Metric("nodemgr_store_failing", GAUGE, "", "1 while the store cannot be written, else 0."),
    Metric("nodemgr_store_commit_failures_total", COUNTER, "", "Commits that failed."),
    Metric("nodemgr_scheduling_passes_total", COUNTER, "", "Scheduling passes."),
    Metric("nodemgr_job_starts_total", COUNTER, "", "Starts of jobs that were ordered."),
    Metric("nodemgr_events_total", COUNTER, "", "Published events, by name.", ("event",)),
    Metric(
        "nodemgr_client_faults_total",
        COUNTER,
        "",
        "Packets and connections of clients that were refused, by kind.",
        ("kind",),
    ),
    Metric("nodemgr_driver_failing", GAUGE, "", "1 if the last reading of NVML failed, else 0."),
    Metric(
        "nodemgr_driver_reading_age_seconds",
        GAUGE,
        "seconds",
        "Time since the last reading of NVML.",
    ),
)
OF_ENVS = (
    Metric("nodemgr_env_quota_gpus", GAUGE, "", "GPUs of the environment's quota.", OF_ENV),
    Metric(
        "nodemgr_env_quota_memory_bytes",
        GAUGE,
        "bytes",
        "Memory of the environment's quota; absent without one.",
        OF_ENV,
    ),
    Metric("nodemgr_env_gpus", GAUGE, "", "GPUs that the environment uses.", OF_ENV),
    Metric(
        "nodemgr_env_memory_granted_bytes",
        GAUGE,
        "bytes",
        "Memory that is granted to the environment.",
        OF_ENV,
    ),
    Metric(
        "nodemgr_env_memory_charged_bytes",
        GAUGE,
        "bytes",
        "Memory that the environment's ledger counts as allocated.",
        OF_ENV,
    ),
    Metric("nodemgr_env_tasks", GAUGE, "", "Tasks of the environment.", OF_ENV),
    Metric("nodemgr_env_waiting", GAUGE, "", "Waiting requests of the environment.", OF_ENV),
    Metric("nodemgr_env_jobs", GAUGE, "", "Jobs of the environment that have not ended.", OF_ENV),
    *(
        Metric(f"nodemgr_env_jobs_{name}", GAUGE, unit, f"{what} its jobs that run.", OF_ENV)
        for name, unit, what in (
            ("cpu_seconds", "seconds", "Processor time until now of"),
            ("host_memory_bytes", "bytes", "Host memory, with the page cache, of"),
            ("read_bytes", "bytes", "Bytes read by"),
            ("written_bytes", "bytes", "Bytes written by"),
        )
    ),
)
METRICS: tuple[Metric, ...] = (*OF_PAGE, *OF_NODE, *OF_GPUS, *OF_LEASES, *OF_MANAGER, *OF_ENVS)
BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}
