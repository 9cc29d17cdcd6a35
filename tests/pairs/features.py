"""The features that meet in tests/pairs/rows.py, and the product's own names that each covers.

The names are those of the core: orders by people (the events with `by`), the fields of a quota, of
a job's run and of its submission. test_pairs.py fails for a name that no feature covers, and for a
feature without a row.
"""

from __future__ import annotations

FEATURES: dict[str, tuple[str, ...]] = {
    "array": ("array",),
    "assigned job": ("assigned",),
    "class": ("task_class",),
    "dependency": ("after", "ended"),
    "drain": ("DrainGpu", "ResumeGpu", "ReportFailure", "RepairGpu"),
    "held job": ("HoldJob", "UnholdJob", "hold"),
    "host limits": ("cpus", "host_memory_bytes"),
    "idle policy": ("KeepTask", "idle_ms", "when_idle", "max_keep_ms"),
    "job": (
        "Submission", "WithdrawJob", "RequeueJob", "command", "place", "expected_ms", "predicted",
        "forecast", "is_memory_filled",
        "deadline_ms", "env", "spec", "payload", "name", "run", "key", "is_default", "ref", "by",
        "max_restarts",
    ),
    "queue": ("SetQueue", "RemoveQueue", "MoveJob", "priority", "max_priority"),
    "quota": (
        "SetQuota", "RemoveQuota", "gpus", "default_gpus", "acquire", "no_gpu", "no_manager",
        "users", "groups", "enforce", "placement",
    ),
    "memory": ("memory_bytes", "memory_most_bytes"),
    "range of GPUs": ("gpu_range", "borrow"),
    "release": ("ReleaseTask",),
    "restart": (),
    "share": ("compute_percent",),
    "suspension": ("SuspendTask", "ResumeTask"),
    "time limit": ("time_limit_ms", "signal"),
}  # fmt: skip
