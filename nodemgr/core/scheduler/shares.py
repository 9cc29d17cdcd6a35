"""Shares of a GPU's compute: the class and the share that a request asks for.

Knows: the quota's defaults. Must not know: the state, which GPUs a request gets (allocator.py).
"""

from __future__ import annotations

from nodemgr.core.model.entities import WHOLE_PERCENT, Quota, TaskClass


def asked(
    quota: Quota, task_class: TaskClass | None, compute_percent: int | None
) -> tuple[TaskClass, int | None]:
    """The class and the share of a request that names these; a share of None: a plain task."""
    task_class = quota.task_class if task_class is None else task_class
    percent = quota.compute_percent if compute_percent is None else compute_percent
    if percent is None and task_class is not TaskClass.NORMAL:
        percent = WHOLE_PERCENT
    return task_class, percent
