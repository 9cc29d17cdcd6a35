"""Records of the GPUs: failures with their evidence, drains, repairs, and the estimated rates.

Knows: which evidence is one failure, when a GPU is drained, the tasks and jobs that are told. Must
not know: NVML, which XID is one of the hardware (core/placement/xids.py), the order of GPUs.

- Evidence within a minute of the last one is the same failure: one fault has several events.
- A GPU with `drain_failures` failures within an hour is drained, unless it is the last usable one.
- Times are of the service clock (State.service_now). It goes on while a manager runs.
- No event of a program is evidence, so a user cannot change a rate.
"""

from __future__ import annotations

from collections.abc import Sequence

from client_plugin.messages.form import stated
from nodemgr.core.leases import answers
from nodemgr.core.lifecycle import jobs
from nodemgr.core.lifecycle.failure_rows import by_gpu, of_gpu
from nodemgr.core.model.entities import (
    BY_MANAGER,
    FAILURE_GAP_NS,
    FLAPPING_NS,
    MAX_EVIDENCE,
    MAX_EVIDENCE_CHARACTERS,
    MAX_FAILURES,
    Evidence,
    Failure,
    FailureKind,
    Gpu,
    GpuRecord,
    Outlook,
    Uuid,
)
from nodemgr.core.model.events import (
    DrainGpu,
    GpuFault,
    RepairGpu,
    ReportFailure,
    ResumeGpu,
    ServiceTime,
)
from nodemgr.core.model.schema import FAILURES, SERVICE
from nodemgr.core.model.values import replace
from nodemgr.core.placement import rates
from nodemgr.core.scheduler import reasons
from nodemgr.core.state.draft import Draft

HOUR_NS = 3_600_000_000_000
MAX_AWAY = 64
"""The records of so many GPUs that the node no longer has are kept."""


# The records.


def begin(draft: Draft, uuids: Sequence[Uuid]) -> None:
    """These GPUs are seen for the first time, or come back after a restart without them."""
    service_ns = _stamp(draft)
    for uuid in uuids:
        known = draft.gpu_records.get(uuid)
        if known is None:
            draft.gpu_records.put(uuid, GpuRecord(uuid, service_ns, draft.wall_ns))
        elif known.drained_by:
            draft.put_gpu(replace(draft.gpus[uuid], drained=True))
    _bound(draft)
    estimate(draft)


def _bound(draft: Draft) -> None:
    """Forgets the GPUs that have been away the longest."""
    away = [row for row in draft.gpu_records.values() if row.uuid not in draft.gpus]
    away.sort(key=lambda row: row.since_service_ns)
    forget(draft, [record.uuid for record in away[: max(0, len(away) - MAX_AWAY)]])


def forget(draft: Draft, uuids: Sequence[Uuid]) -> None:
    """Other GPUs have their indices, or they have been away for long."""
    gone = frozenset(uuids)
    for row in [row for row in draft.failures.values() if row.uuid in gone]:
        draft.failures.drop(row.failure_id)
    for uuid in uuids:
        draft.gpu_records.drop(uuid)


def _stamp(draft: Draft) -> int:
    """The service clock's time, which is stored with the step."""
    service_ns = draft.service_now(draft.now_ns)
    draft.counters.put(SERVICE, max(service_ns, draft.counters.get(SERVICE) or 0))
    return service_ns


def service_time(draft: Draft, _event: ServiceTime) -> None:
    _stamp(draft)
    estimate(draft)


def estimate(draft: Draft) -> None:
    """Writes the outlook of all GPUs; none where no failure is recorded."""
    for uuid in list(draft.outlook):
        draft.outlook.drop(uuid)
    tracks = tracks_of(draft)
    last: dict[Uuid, int] = {}
    for row in draft.failures.values():
        if row.uuid not in tracks:
            continue  # the node no longer has the GPU
        last[row.uuid] = max(row.last_service_ns, last.get(row.uuid, row.last_service_ns))
    if not last:
        return
    for uuid, rate in rates.learned(tracks).items():
        since_ns = draft.gpu_records[uuid].since_service_ns
        known = Outlook(rate.per_hour, *rate.interval(), since_ns, last.get(uuid))
        draft.outlook.put(uuid, known)


def tracks_of(draft: Draft) -> dict[Uuid, rates.Track]:
    """The record of each GPU, as rates are learned from it."""
    service_ns = draft.service_now(draft.now_ns)
    ages: dict[Uuid, list[float]] = {}
    for row in draft.failures.values():
        ages.setdefault(row.uuid, []).append((service_ns - row.service_ns) / HOUR_NS)
    return {
        record.uuid: rates.Track(
            draft.gpus[record.uuid].name,
            max(0, service_ns - record.since_service_ns) / HOUR_NS,
            tuple(ages.get(record.uuid, ())),
        )
        for record in draft.gpu_records.values()
        if record.uuid in draft.gpus
    }


# Failures.


def fault(draft: Draft, event: GpuFault) -> None:
    """An event of the driver about the hardware."""
    gpu = draft.gpus.get(event.uuid)
    if gpu is None:
        return
    known = of_gpu(draft, gpu.uuid)
    if _record(draft, gpu, known, event.kind, event.detail):
        _notify(draft, gpu, event.detail)
    estimate(draft)
    jobs.blame(draft, gpu.uuid)


def vanished(draft: Draft, gpus: Sequence[Gpu]) -> None:
    """The driver shows others, and no longer these. Their tasks are told of the loss."""
    if not gpus:
        return
    known = by_gpu(draft)
    for gpu in gpus:
        rows = known.get(gpu.uuid, [])
        _record(draft, gpu, rows, FailureKind.VANISHED, "the driver no longer shows it")
    estimate(draft)


def report(draft: Draft, event: ReportFailure) -> None:
    """A failure by the word of an administrator: a failure of its own."""
    gpu = draft.gpus.get(event.uuid)
    if gpu is None:
        return
    line = f"reported by {event.by}: {event.note}" if event.note else f"reported by {event.by}"
    known = of_gpu(draft, gpu.uuid)
    _record(draft, gpu, known, FailureKind.REPORTED, line, by=event.by)
    _notify(draft, gpu, line)
    estimate(draft)
    jobs.blame(draft, gpu.uuid)


def _record(
    draft: Draft, gpu: Gpu, known: list[Failure], kind: FailureKind, detail: str, *, by: str = ""
) -> bool:
    """Records the evidence beside the GPU's `known` failures. Returns whether it is a new one.

    The caller writes the outlook (estimate).
    """
    service_ns, line = _stamp(draft), detail[:MAX_EVIDENCE_CHARACTERS]
    one = Evidence(line)
    last = known[-1] if known else None
    if last is not None and not by and service_ns - last.last_service_ns < FAILURE_GAP_NS:
        evidence = last.evidence
        if one not in evidence and len(evidence) < MAX_EVIDENCE:
            evidence = (*evidence, one)
        grown = replace(last, evidence=evidence, last_service_ns=service_ns)
        draft.failures.put(last.failure_id, grown)
        if kind is not FailureKind.VANISHED:
            _notify(draft, gpu, line, since_service_ns=last.last_service_ns)
        return False
    for row in known[: max(0, len(known) + 1 - MAX_FAILURES)]:
        draft.failures.drop(row.failure_id)
    failure_id = f"f{draft.count(FAILURES)}"
    new = Failure(failure_id, gpu.uuid, kind, draft.wall_ns, service_ns, (one,), service_ns, by)
    draft.failures.put(failure_id, new)
    more = {"kind": kind.value, "evidence": line, "by": by}
    draft.publish("gpu.failed", {**_facts(draft, gpu), "failure": failure_id, **more})
    _check_flapping(draft, gpu, [*known[-MAX_FAILURES + 1 :], new], service_ns)
    return True


def _facts(draft: Draft, gpu: Gpu) -> dict[str, object]:
    return {**answers.named_gpus(draft, [gpu.uuid]), "gpu_name": gpu.name}


def _notify(draft: Draft, gpu: Gpu, evidence: str, *, since_service_ns: int = -1) -> None:
    """Tells the tasks there that began after a time; a job that fails from now on fails by the GPU.

    An event that belongs to a known failure is news for the tasks that came since its last event.
    """
    line = stated(
        f"GPU {gpu.index} ({gpu.name}) failed: {evidence}: the task may fail or compute wrong "
        "results",
        "end the task and run it again: a new request avoids the GPU for an hour",
    )
    for task_id in list(draft.gpu_tasks.members(gpu.uuid)):
        task = draft.tasks[task_id]
        if draft.service_now(task.since_ns) <= since_service_ns:
            continue
        answers.send_note(draft, task, line)
        if task.job_id is not None:
            jobs.gpu_lost(draft, draft.jobs[task.job_id], gpu.uuid)


def _check_flapping(draft: Draft, gpu: Gpu, known: list[Failure], service_ns: int) -> None:
    limit = draft.config.drain_failures
    late = [row for row in known if service_ns - row.service_ns < FLAPPING_NS]
    if not limit or len(late) < limit or draft.gpus[gpu.uuid].drained:
        return
    why = f"{len(late)} failures within an hour"
    others = any(other.usable for other in draft.gpus.values() if other.uuid != gpu.uuid)
    if others:
        _drain(draft, draft.gpus[gpu.uuid], BY_MANAGER, why)
        return
    record = draft.gpu_records[gpu.uuid]
    if not record.flapped:
        record = replace(record, flapped=True)
        draft.gpu_records.put(gpu.uuid, record)
        warning = reasons.gpu_warning(draft.gpus[gpu.uuid], record)
        draft.publish("gpu.flapping", {**_facts(draft, gpu), "reason": why, "warning": warning})


# Orders.


def _drain(draft: Draft, gpu: Gpu, by: str, why: str) -> None:
    record = draft.gpu_records[gpu.uuid]
    drained, record = replace(gpu, drained=True), replace(record, drained_by=by, why=why)
    draft.put_gpu(drained)
    draft.gpu_records.put(gpu.uuid, record)
    warning = reasons.gpu_warning(drained, record)
    more = {"by": by, "reason": why, "warning": warning}
    draft.publish("gpu.drained", {**_facts(draft, gpu), **more})
    draft.wake_scheduler()


def drain(draft: Draft, event: DrainGpu) -> None:
    gpu = draft.gpus.get(event.uuid)
    if gpu is not None and (not gpu.drained or event.note):
        _stamp(draft)
        _drain(draft, gpu, event.by, event.note[:MAX_EVIDENCE_CHARACTERS])


def resume(draft: Draft, event: ResumeGpu) -> None:
    gpu = draft.gpus.get(event.uuid)
    if gpu is None or not gpu.drained:
        return
    _stamp(draft)
    record = draft.gpu_records[gpu.uuid]
    draft.put_gpu(replace(gpu, drained=False))
    draft.gpu_records.put(gpu.uuid, replace(record, drained_by="", why="", flapped=False))
    draft.publish("gpu.resumed", {**_facts(draft, gpu), "by": event.by})
    draft.wake_scheduler()


def repair(draft: Draft, event: RepairGpu) -> None:
    """A new record begins: the GPU is another one, as far as failures go."""
    gpu = draft.gpus.get(event.uuid)
    if gpu is None:
        return
    failures = of_gpu(draft, gpu.uuid)
    for row in failures:
        draft.failures.drop(row.failure_id)
    service_ns, note = _stamp(draft), event.note[:MAX_EVIDENCE_CHARACTERS]
    draft.gpu_records.put(gpu.uuid, GpuRecord(gpu.uuid, service_ns, event.wall_ns, why=note))
    if gpu.drained:
        draft.put_gpu(replace(gpu, drained=False))
        draft.wake_scheduler()
    estimate(draft)
    more = {"by": event.by, "note": note, "failures": len(failures)}
    draft.publish("gpu.repaired", {**_facts(draft, gpu), **more})
