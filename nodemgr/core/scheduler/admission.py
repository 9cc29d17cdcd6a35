"""Admission by quota: a new request or job beyond the quota is refused at once.

A request that waits already continues to wait.

Knows: a quota, the node's size, and the default of a request that names no number. Must not know:
the asker, the form of the answer.

A lowered quota fails no waiting request (promise 2). A waiting request that needs more than its
env's quota is inadmissible until the quota is raised: it keeps its place, and every scheduling pass
skips it. The same holds for one that needs more GPUs than are in service, until one is back.
"""

from __future__ import annotations

from client_plugin.messages.form import stated
from nodemgr.core.model.entities import CLASS_ORDER, DenyCode, Quota, Request, RunSpec, TaskClass
from nodemgr.core.scheduler import allocator, ranges, reasons
from nodemgr.core.state import accounting
from nodemgr.core.state.node_state import State

Refusal = tuple[DenyCode, str]


def default_gpus(book: State, quota: Quota) -> int:
    """The n of docs/allocation.md for a request without a number.

    It is the env's `default_gpus`, else its quota; at most the node's healthy GPUs.
    """
    healthy = sum([gpu.usable for gpu in book.gpus.values()]) or len(book.gpus)
    return min(quota.gpus if quota.default_gpus is None else quota.default_gpus, healthy)


def refused(
    book: State,
    env: str,
    quota: Quota,
    gpus: int,
    run: RunSpec,
    *,
    explicit: bool,
) -> Refusal | None:
    """The refusal of so many GPUs for `run`, in place of its own number."""
    node_gpus, memory_bytes, range_ = len(book.gpus), run.memory_bytes, run.gpu_range
    code = allocator.refusal(gpus, quota.gpus, node_gpus, explicit=explicit)
    if code is not None:
        return code, reasons.refusal(code, env, quota.gpus, gpus, node_gpus)
    if range_ is not None and (above := ranges.refused(env, quota, range_, node_gpus)):
        return above
    if memory_bytes is not None and memory_bytes > (limit_bytes := most_memory(book, quota)):
        return DenyCode.MEMORY_ABOVE_LIMIT, reasons.memory_above_limit(
            env, memory_bytes, limit_bytes
        )
    if run.memory_most_bytes is not None:
        return _range_refused(book, env, quota, run.memory_most_bytes)
    return None


def _range_refused(book: State, env: str, quota: Quota, most_bytes: int) -> Refusal | None:
    """The refusal of a range of memory that ends above what the env or a GPU can ever give."""
    total_bytes = max((gpu.memory_total_bytes for gpu in book.gpus.values()), default=0)
    if quota.memory_bytes is not None and most_bytes > quota.memory_bytes:
        return DenyCode.MEMORY_ABOVE_LIMIT, stated(
            f"the range of memory ends at {reasons.gib(most_bytes)}; the memory quota of {env} is "
            f"{reasons.gib(quota.memory_bytes)}",
            "ask for a smaller range",
        )
    if most_bytes > total_bytes:
        return DenyCode.MEMORY_ABOVE_LIMIT, stated(
            f"the range of memory ends at {reasons.gib(most_bytes)}; the largest GPU of the node "
            f"has {reasons.gib(total_bytes)}",
            "ask for a smaller range",
        )
    return None


def refused_share(
    env: str, quota: Quota, task_class: TaskClass | None, compute_percent: int | None
) -> Refusal | None:
    """The refusal of a class or a share above the quota's. None: the request names none."""
    highest, limit_percent = quota.task_class, quota.compute_percent
    if task_class is not None and CLASS_ORDER[task_class] < CLASS_ORDER[highest]:
        return DenyCode.CLASS_ABOVE_LIMIT, stated(
            f"class {task_class.value} asked, but the highest class of {env} is {highest.value}",
            f"ask for that one, or an admin for more (nodemgr quota set {env} --class)",
            "quota",
        )
    if (
        compute_percent is not None
        and limit_percent is not None
        and compute_percent > limit_percent
    ):
        return DenyCode.COMPUTE_ABOVE_LIMIT, stated(
            f"{compute_percent}% of each GPU asked, but {env} may have at most {limit_percent}%",
            f"ask for less with --compute, or an admin for more (nodemgr quota set {env} "
            "--compute)",
            "quota",
        )
    return None


def most_memory(book: State, quota: Quota) -> int:
    """The largest grant that the quota gives on any GPU of the node."""
    return max((accounting.full_grant(quota, gpu) for gpu in book.gpus.values()), default=0)


def share_above_quota(quota: Quota, request: Request) -> Refusal | None:
    """The refusal of the class or share of a request that waits, by the quota as it is now."""
    return refused_share(request.env, quota, request.run.task_class, request.run.compute_percent)


def fits_quota(book: State, request: Request) -> bool:
    """Does the env's quota, as it is now, admit a request that waits?"""
    if request.run.gpus == 0:
        return True
    quota = book.envs[request.env].quota
    if request.run.gpus > quota.gpus:
        return False
    if request.run.compute_percent is not None and share_above_quota(quota, request) is not None:
        return False
    return request.run.memory_bytes is None or request.run.memory_bytes <= most_memory(book, quota)


def fits_node(book: State, request: Request) -> bool:
    """Could the node as it is now serve the request, once all its tasks have ended?

    Drained and lost GPUs serve none, and so do those that are smaller than its named memory.
    """
    quota, named_bytes = book.envs[request.env].quota, request.run.memory_bytes or 0
    fitting = sum(
        [
            gpu.usable and named_bytes <= accounting.full_grant(quota, gpu)
            for gpu in book.gpus.values()
        ]
    )
    return request.run.gpus <= fitting
