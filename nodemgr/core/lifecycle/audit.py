"""Audits GPU processes: compares each reading of the driver with the books and applies the policy.

Knows: which env may use which GPU, and how much of a reading the books explain. Must not know:
NVML, /proc, how a process is ended. The edge names a process's env where it can prove it.

The rules for one reading of one GPU:
- No lease: the process is no member of any task, or its env has no grant on this GPU. Memory that
  an env's processes left there when they lost a lease is no offence: it is charged as unreclaimed
  memory until it is gone.
- Over quota: the env's members together use more than its grant plus `audit_tolerance_bytes`
  (modules and local memory, which no estimate knows beforehand), once for the env, plus what their
  contexts are known to take beyond their charges, at most the grant again. The members that the
  driver shows with the most beyond their charges offend, until the rest would be within.
- A process of an unknown env is only counted. It is named where the memory outside the books
  exceeds the tolerance. On a GPU with UDP leases such memory is theirs up to their caps: their PIDs
  are unknown.
- Memory of no process is counted in the same way, except the exported memory of ended processes
  that is charged to their envs (exported.py).
- Two readings a beat apart must agree before a violation is reported or acted upon, and again
  before it counts as over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nodemgr.core.leases import answers, ends
from nodemgr.core.lifecycle import exported, jobs
from nodemgr.core.model import effects
from nodemgr.core.model.causes import LeaseEnd
from nodemgr.core.model.entities import (
    FINAL,
    MS,
    OF_COMPUTE,
    Env,
    JobState,
    Offence,
    Uuid,
    Violation,
)
from nodemgr.core.model.events import Audited, Seen
from nodemgr.core.model.values import replace, value
from nodemgr.core.scheduler import reasons
from nodemgr.core.state import accounting
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.node_state import State


@value
class Finding:
    """One process that breaks a rule in one reading."""

    offence: Offence
    seen: Seen
    task_id: str | None
    allowed_bytes: int
    """The bytes that its env may use of this GPU."""


def audited(draft: Draft, event: Audited) -> None:
    """Handles one reading of the driver."""
    exported.settle(draft, event)
    findings, unbooked = examine(draft, event)
    _count(draft, event, unbooked)
    for finding in findings:
        _note(draft, finding)
    found = {(finding.seen.process, finding.seen.uuid) for finding in findings}
    for key, violation in [(key, draft.violations[key]) for key in draft.violations]:
        if violation.offence in OF_COMPUTE:
            continue
        if key in found:
            act(draft, violation)
        elif violation.uuid in event.read or violation.uuid not in draft.gpus:
            fade(draft, violation)


def is_news(book: State, event: Audited) -> bool:
    """Do the books fail to explain something, in this reading or until now?"""
    if exported.changes(book, event):
        return True
    if any(True for _ in book.violations.values()) or any(True for _ in book.unbooked.values()):
        return True
    findings, unbooked = examine(book, event)
    return bool(findings or unbooked)


def is_acting(book: State) -> bool:
    """Did a process get SIGTERM that may still need SIGKILL?"""
    return any(
        violation.term_ns is not None and not violation.killed
        for violation in book.violations.values()
    )


def examine(book: State, event: Audited) -> tuple[list[Finding], dict[Uuid, int]]:
    """The findings; and the unbooked bytes of each GPU where they exceed the tolerance."""
    by_gpu: dict[Uuid, list[Seen]] = {}
    for seen in event.seen:
        if (
            seen.memory_bytes > 0
            and book.gpus.get(seen.uuid) is not None
            and not _is_left_by_the_dead(book, seen)
        ):
            by_gpu.setdefault(seen.uuid, []).append(seen)
    findings: list[Finding] = []
    unbooked: dict[Uuid, int] = {}
    tolerance_bytes = book.config.audit_tolerance_bytes
    for uuid, there in by_gpu.items():
        beyond_bytes = _beyond_the_books(book, uuid, there)
        if beyond_bytes > tolerance_bytes:
            unbooked[uuid] = beyond_bytes
        findings += _without_lease(book, uuid, there, nameless=uuid in unbooked)
        findings += _beyond_quota(book, uuid, there)
    for uuid, ownerless_bytes in event.ownerless_bytes.items():
        if book.gpus.get(uuid) is not None:
            ownerless_bytes -= sum(exported.claims(book, uuid).values())
            beyond_bytes = _beyond_the_books(book, uuid, by_gpu.get(uuid, []), ownerless_bytes)
            if beyond_bytes > tolerance_bytes:
                unbooked[uuid] = beyond_bytes
    return findings, unbooked


def _is_left_by_the_dead(book: State, seen: Seen) -> bool:
    unreclaimed = book.unreclaimed.get((seen.process, seen.uuid))
    return unreclaimed is not None and not unreclaimed.alive


def _allowed(book: State, env: str, uuid: Uuid) -> int:
    """The bytes that the ledger may give the env's processes there: all but the UDP caps."""
    grant = book.grants[env, uuid]
    granted_bytes = accounting.on_gpu(grant) - grant.caps_bytes
    return max(0, granted_bytes, book.unreclaimed_alive.get((env, uuid)) or 0)


def _booked(book: State, env: str, uuid: Uuid) -> int:
    """The bytes that the GPU is charged for the env's living processes."""
    grant = book.grants.get((env, uuid))
    return max(accounting.on_gpu(grant), book.unreclaimed_alive.get((env, uuid)) or 0)


def _caps(book: State, uuid: Uuid) -> int:
    """The bytes given to processes over UDP; their PIDs are unknown."""
    return sum(grant.caps_bytes for grant in book.grants.values() if grant.uuid == uuid)


def _beyond_the_books(book: State, uuid: Uuid, there: list[Seen], ownerless_bytes: int = 0) -> int:
    held: Counter[str | None] = Counter({None: ownerless_bytes})
    for seen in there:
        held[seen.env] += seen.memory_bytes
    nameless_bytes = max(0, held.pop(None, 0) - _caps(book, uuid))
    return nameless_bytes + sum(
        max(0, held_bytes - _booked(book, env, uuid))
        for env, held_bytes in held.items()
        if env is not None
    )


def _without_lease(
    book: State, uuid: Uuid, there: list[Seen], *, nameless: bool
) -> Iterator[Finding]:
    strangers = [seen for seen in there if book.processes.get(seen.process) is None]
    caps_bytes = _caps(book, uuid)
    if (
        caps_bytes
        and sum(seen.memory_bytes for seen in strangers)
        <= caps_bytes + book.config.audit_tolerance_bytes
    ):
        strangers = []
    for seen in strangers:
        if seen.env is not None or nameless:
            yield Finding(Offence.NO_LEASE, seen, None, 0)
    for seen in there:
        member = book.processes.get(seen.process)
        if member is not None and not member.fenced and book.grants.get((member.env, uuid)) is None:
            yield Finding(Offence.NO_LEASE, seen, member.task_id, 0)


def _beyond_quota(book: State, uuid: Uuid, there: list[Seen]) -> Iterator[Finding]:
    members: dict[str, list[Seen]] = {}
    for seen in there:
        member = book.processes.get(seen.process)
        if (
            member is not None
            and not member.fenced
            and book.grants.get((member.env, uuid)) is not None
        ):
            members.setdefault(member.env, []).append(seen)
    for env, group in members.items():
        allowed_bytes = _allowed(book, env, uuid)
        contexts_bytes = min(sum(seen.context_bytes for seen in group), allowed_bytes)
        beyond_bytes = sum(seen.memory_bytes for seen in group) - allowed_bytes - contexts_bytes
        for seen in sorted(group, key=_excess, reverse=True):
            if beyond_bytes <= book.config.audit_tolerance_bytes or _excess(seen) <= 0:
                break
            beyond_bytes -= _excess(seen)
            task_id = book.processes[seen.process].task_id
            yield Finding(Offence.OVER_QUOTA, seen, task_id, allowed_bytes)


def _excess(seen: Seen) -> int:
    return seen.memory_bytes - seen.charged_bytes - seen.context_bytes


def _count(draft: Draft, event: Audited, unbooked: dict[Uuid, int]) -> None:
    """Records unbooked bytes: they are promised to no env (promise 5)."""
    for uuid in {*unbooked, *draft.unbooked}:
        before_bytes, now_bytes = draft.unbooked.get(uuid) or 0, unbooked.get(uuid, 0)
        if uuid not in draft.gpus:
            draft.unbooked.drop(uuid)
        elif uuid in event.read and now_bytes != before_bytes:
            if now_bytes:
                draft.unbooked.put(uuid, now_bytes)
            else:
                draft.unbooked.drop(uuid)
            if now_bytes < before_bytes:
                draft.wake_scheduler()


def _note(draft: Draft, finding: Finding) -> None:
    seen = finding.seen
    before = draft.violations.get((seen.process, seen.uuid))
    if before is None or before.offence is not finding.offence:
        before = Violation(
            finding.offence, seen.uuid, seen.process, seen.pid, seen.command, draft.now_ns
        )
    noted = replace(
        before,
        env=seen.env,
        task_id=finding.task_id,
        memory_bytes=seen.memory_bytes,
        allowed_bytes=finding.allowed_bytes,
        last_ns=draft.now_ns,
    )
    draft.violations.put((seen.process, seen.uuid), noted)


def fade(draft: Draft, violation: Violation) -> None:
    """Drops a violation that this reading lacks; a reported one only if a second one agrees."""
    if violation.told and draft.now_ns - violation.last_ns < draft.config.beat_ms * MS:
        return
    draft.violations.drop((violation.process, violation.uuid))
    if violation.told and violation.uuid in draft.gpus:
        draft.publish("audit.ended", _fields(draft, violation))


def policy(book: State, env: str | None) -> str:
    """The policy for an env's violations: warn, fence or kill. Without a known env: "warn"."""
    row: Env | None = None if env is None else book.envs.get(env)
    return "warn" if row is None else row.quota.enforce or book.config.enforce


def act(draft: Draft, violation: Violation) -> None:
    """Reports it and applies the policy, once it is certain."""
    is_proven = violation.offence is Offence.GARBLED_GATE
    if not is_proven and draft.now_ns - violation.since_ns < draft.config.beat_ms * MS:
        return  # a race between driver and ledger looks the same
    enforce = policy(draft, violation.env)
    if violation.done != enforce:
        # A new policy starts with its first step, even after SIGKILL under the last one. A process
        # of an env that is no longer known falls under "warn". When its env is known again, it gets
        # SIGTERM and the grace time again.
        acted = replace(
            violation,
            told=True,
            done=enforce,
            term_ns=draft.now_ns if enforce == "kill" else None,
            killed=False,
        )
        draft.violations.put((violation.process, violation.uuid), acted)
        action = _action(draft, violation, enforce)
        draft.publish(
            "audit.violation", {**_fields(draft, violation), "enforce": enforce, "action": action}
        )
        _ACTIONS[action](draft, violation)
    elif (
        enforce == "kill"
        and not violation.killed
        and draft.now_ns - (violation.term_ns or draft.now_ns) >= draft.config.enforce_grace_ms * MS
    ):
        draft.violations.put((violation.process, violation.uuid), replace(violation, killed=True))
        draft.emit(effects.Kill(violation.process, violation.pid))
        draft.publish("audit.killed", _fields(draft, violation))


def _action(draft: Draft, violation: Violation, enforce: str) -> str:
    """The possible action under the policy: a name in _ACTIONS."""
    if enforce == "kill":
        return "SIGTERM"
    if enforce == "fence" and violation.task_id is not None and violation.task_id in draft.tasks:
        return "fenced"
    return "warned" if enforce == "warn" and violation.process in draft.connections else "none"


def _nothing(_draft: Draft, _violation: Violation) -> None:
    """Does nothing: there is no channel to the process, or no task to fence."""


def _warn(draft: Draft, violation: Violation) -> None:
    """Sends one line to the process's stderr, through its lease."""
    connection = draft.connections.get(violation.process)
    if connection is not None:
        draft.emit(effects.SendNote(connection, reasons.audit_note(draft, violation)))


def _fence(draft: Draft, violation: Violation) -> None:
    """Fences the whole lease of its task; stops the job if the task is a job's."""
    task = draft.tasks[violation.task_id or ""]
    if task.job_id is not None:
        job = draft.jobs[task.job_id]
        if job.then not in FINAL:
            jobs.stop(draft, job, JobState.FAILED, reasons.audit_note(draft, violation))
        return
    why = reasons.audit_note(draft, violation)
    ends.fence(draft, task, LeaseEnd.AUDIT, why, by="the audit")


def _ask_to_end(draft: Draft, violation: Violation) -> None:
    _warn(draft, violation)
    draft.emit(effects.Kill(violation.process, violation.pid, gently=True))


_ACTIONS = {"none": _nothing, "warned": _warn, "fenced": _fence, "SIGTERM": _ask_to_end}


def _fields(draft: Draft, violation: Violation) -> dict[str, object]:
    return {
        "env": violation.env,
        "task": violation.task_id,
        **answers.named_gpus(draft, [violation.uuid]),
        "pid": violation.pid,
        "offence": violation.offence.value,
        "memory_bytes": violation.memory_bytes,
        "allowed_bytes": violation.allowed_bytes,
        "used_percent": violation.used_percent,
        "allowed_percent": violation.allowed_percent,
        "command": violation.command,
    }
