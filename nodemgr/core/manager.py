"""The manager's decisions: `step(state, event, now_ns)` returns an event's consequences.

It changes the state in place, until the transition is applied or discarded; nothing else.

Knows: which function answers which event, and which answers are facts that hold though they could
not be stored. Must not know: clocks, sockets, files, threads, random numbers; no module of this
package does.

A reading order of the rooms: model (values, events, effects); state (how a step reads and changes
the tables); scheduler (which request is served, on which GPUs); lifecycle (the changes that each
event makes to leases and jobs); sharing (tasks that give GPUs up for others); elastic (tasks whose
GPUs change while they run); requests (from the
question to the lease); views.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple

from nodemgr.core.elastic import words
from nodemgr.core.lifecycle import (
    administration,
    assignments,
    audit,
    gpu_records,
    job_actions,
    jobs,
    lowering,
    process_events,
    queue_settings,
    submissions,
    timers,
)
from nodemgr.core.model import effects
from nodemgr.core.model.effects import Effect, Publish, Save
from nodemgr.core.model.entities import ProcessKey
from nodemgr.core.model.events import (
    AcknowledgeEnds,
    Acquire,
    Audited,
    Beat,
    Cancel,
    ComputeAudited,
    Disconnected,
    DrainGpu,
    ElasticWord,
    Event,
    GateMissed,
    GpuFault,
    GpusChanged,
    Heard,
    HoldJob,
    IdleSeen,
    JobEnded,
    JobRequeuedBeforeStart,
    JobStarted,
    KeepTask,
    LaunchHostChanged,
    LimitLowered,
    Match,
    MoveJob,
    NamesTaken,
    OrderAll,
    ProcessGone,
    Progressed,
    Rejoin,
    Release,
    ReleaseTask,
    RemoveQueue,
    RemoveQuota,
    RepairGpu,
    ReportFailure,
    RequeueJob,
    Resumed,
    ResumeFailed,
    ResumeGpu,
    ResumeTask,
    ServiceTime,
    SetQueue,
    SetQuota,
    SubmitJobs,
    Suspended,
    SuspendFailed,
    SuspendTask,
    SuspensionMeasured,
    Tick,
    UnholdJob,
    UnreclaimedChanged,
    WithdrawJob,
)
from nodemgr.core.model.values import value
from nodemgr.core.requests import acquiring, matching
from nodemgr.core.scheduler import launch_hosts, set_aside
from nodemgr.core.scheduler.set_aside import EntryFailed
from nodemgr.core.sharing import compute_audit, idle_policy, progress, suspension
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.node_state import State

__all__ = ["Draft", "State", "Transition", "step"]


@value
class Transition:
    """The changes and effects of one event.

    The state has the changes already: the edge stores rows and events in one transaction, applies
    the transition, then carries out the effects in their order. Effects that read no state may be
    carried out before the transition is applied, once all is stored. A transition that cannot be
    stored is discarded: then it has happened nowhere.
    """

    saved: list[Save]
    published: list[Publish]
    effects: list[Effect]
    durable: bool
    """The commit survives a power failure."""
    reserve: bool
    """The commit may use the disk reserve."""
    must_apply: bool
    """A fact (a death, a release, a fence) is applied even when the store cannot commit.

    Any other outcome is then discarded.
    """
    then: Match | None
    """Waiting requests may be served now: the edge steps this next, as a transition of its own."""
    draft: Draft
    number: int
    """Its step."""
    inadmissible: Set[str]
    """Envs that a scheduling pass of this step found inadmissible."""
    failed: Sequence[EntryFailed]
    """The entries that this step set aside."""

    def apply(self) -> None:
        """Keeps it. Raises ValueError if it was applied or discarded before."""
        self._ends()
        self.draft.settle(self.inadmissible)

    def discard(self) -> None:
        """Undoes it. Raises ValueError if it was applied or discarded before."""
        self._ends()
        self.draft.undo()

    def _ends(self) -> None:
        if not self.draft.is_open or self.draft.step != self.number:
            raise ValueError("a transition is applied or discarded, once")


def _match(draft: Draft, event: Match) -> Set[str]:
    figures, are_complete = dict(event.unkept_bytes or {}), event.unkept_bytes is not None
    return matching.match(
        draft, figures, are_complete=are_complete, most_starts=matching.MOST_STARTS
    )


def _order_all(draft: Draft, event: OrderAll) -> None:
    for order in event.orders:
        RULES[type(order)].handler(draft, order)


class _Rule(NamedTuple):
    handler: Callable[[Draft, Any], Set[str] | None]
    """Returns the envs that are inadmissible after it; None: as before."""
    must_apply: bool
    """The event reports a fact, or takes something away."""
    durable: bool = False
    """Its write survives a power failure.

    The start of a job, after any event, does too (effects.HANDLING). Its end need not: the
    supervisor writes it to disk before it reports it, and the manager reads it there again until
    the store has it.
    """
    reserve: bool = True
    """Its write may use the disk reserve: a tenant's event may not, unless it is one of leases."""


RULES: dict[type, _Rule] = {
    Acquire: _Rule(acquiring.acquire, False),
    Match: _Rule(_match, False),
    SetQuota: _Rule(administration.set_quota, False, durable=True),
    RemoveQuota: _Rule(administration.remove_quota, False, durable=True),
    ElasticWord: _Rule(words.said, True),
    LimitLowered: _Rule(lowering.lowered, True),
    Cancel: _Rule(process_events.cancel, True),
    Rejoin: _Rule(process_events.rejoin, True),
    Beat: _Rule(process_events.beat, True),
    Heard: _Rule(process_events.heard, True),
    Release: _Rule(process_events.release, True),
    Disconnected: _Rule(process_events.disconnected, True),
    ProcessGone: _Rule(process_events.gone, True),
    UnreclaimedChanged: _Rule(process_events.unreclaimed_changed, True),
    Tick: _Rule(timers.tick, True),
    GpusChanged: _Rule(administration.gpus_changed, True),
    ReleaseTask: _Rule(administration.release_task, True),
    SuspendTask: _Rule(suspension.suspend, False),
    ResumeTask: _Rule(acquiring.resume, False),
    KeepTask: _Rule(idle_policy.keep, False),
    IdleSeen: _Rule(idle_policy.seen, True),
    SuspensionMeasured: _Rule(suspension.measured, True),
    Suspended: _Rule(suspension.suspended, True),
    SuspendFailed: _Rule(suspension.suspend_failed, True),
    Resumed: _Rule(suspension.resumed, True),
    ResumeFailed: _Rule(suspension.resume_failed, True),
    Audited: _Rule(audit.audited, True),
    ComputeAudited: _Rule(compute_audit.audited, True),
    Progressed: _Rule(progress.progressed, False),
    GateMissed: _Rule(process_events.gate_missed, True),
    AcknowledgeEnds: _Rule(assignments.acknowledge, False),
    SubmitJobs: _Rule(submissions.submit, False, durable=True, reserve=False),
    JobStarted: _Rule(jobs.started, True),
    JobEnded: _Rule(jobs.ended, True),
    JobRequeuedBeforeStart: _Rule(jobs.requeued_before_start, True),
    LaunchHostChanged: _Rule(launch_hosts.changed, True),
    NamesTaken: _Rule(submissions.names_taken, True),
    WithdrawJob: _Rule(job_actions.withdraw, True, durable=True),
    HoldJob: _Rule(job_actions.hold, False, durable=True, reserve=False),
    UnholdJob: _Rule(job_actions.unhold, False, durable=True, reserve=False),
    RequeueJob: _Rule(job_actions.requeue, False, durable=True, reserve=False),
    MoveJob: _Rule(job_actions.move, False, durable=True, reserve=False),
    OrderAll: _Rule(_order_all, False),
    SetQueue: _Rule(queue_settings.set_queue, False, durable=True),
    RemoveQueue: _Rule(queue_settings.remove_queue, False, durable=True),
    GpuFault: _Rule(gpu_records.fault, True),
    ReportFailure: _Rule(gpu_records.report, False, durable=True),
    RepairGpu: _Rule(gpu_records.repair, False, durable=True),
    DrainGpu: _Rule(gpu_records.drain, False, durable=True),
    ResumeGpu: _Rule(gpu_records.resume, False, durable=True),
    ServiceTime: _Rule(gpu_records.service_time, True),
}


def _rule_of_all(event: OrderAll) -> _Rule:
    """The rule of several orders in one step.

    As durable as the most durable one, and with no more rights than each of them.
    """
    rules = [RULES[type(order)] for order in event.orders]
    return RULES[OrderAll]._replace(
        must_apply=all(rule.must_apply for rule in rules),
        durable=any(rule.durable for rule in rules) and not event.goes_on,
        reserve=all(rule.reserve for rule in rules),
    )


def step(state: Draft, event: Event, now_ns: int) -> Transition:
    """The transition that `event` makes of `state` at `now_ns` (monotonic).

    Its caller applies or discards it before the next one. A step that raises has changed nothing.
    """
    rule = RULES[type(event)]
    state.begin(now_ns, event.wall_ns)
    try:
        inadmissible, failed = _decided(state, event)
        then = None
        if state.wakes_scheduler and not isinstance(event, Disconnected):
            then = Match(event.wall_ns, event.unkept_bytes if isinstance(event, Tick) else None)
        if isinstance(event, OrderAll):
            rule = _rule_of_all(event)
        return finish(
            state,
            must_apply=rule.must_apply,
            durable=rule.durable,
            reserve=rule.reserve,
            then=then,
            inadmissible=inadmissible or frozenset(),
            failed=failed,
        )
    except BaseException:
        state.undo()
        raise


def _decided(state: Draft, event: Event) -> tuple[Set[str] | None, list[EntryFailed]]:
    """Changes the state by the event: all of it anew without each entry whose decision raises."""
    failed: list[EntryFailed] = []
    while True:
        for each in failed:
            set_aside.put(state, each)
        try:
            inadmissible = RULES[type(event)].handler(state, event)
        except EntryFailed as error:
            if error.entry in [each.entry for each in failed]:
                raise error.cause from error
            failed.append(error)
            state.undo()
            state.begin(state.now_ns, state.wall_ns)
            continue
        for each in failed:
            set_aside.settle(state, each)
        return inadmissible, failed


def finish(
    draft: Draft,
    *,
    must_apply: bool,
    durable: bool = False,
    reserve: bool = True,
    then: Match | None = None,
    inadmissible: Set[str] = frozenset(),
    failed: Sequence[EntryFailed] = (),
) -> Transition:
    """The transition: rows and events to store, and effects in the edge's order.

    The effects are the ledgers' changes, the handlers' own effects in their order (the answers are
    among them), the processes to watch from now on, and the ends. A cap ends after its slots.
    """
    members = draft.members.changes()
    opened = [env for env, before, after in members if before is None and after is not None]
    every: list[Effect] = [effects.OpenLedger(env) for env in opened]
    every += _grants(draft, opened)
    every += _caps(draft, opened)
    every += _shares(draft)
    every += draft.effects
    every += _watching(draft)
    every += _ended_caps(draft)
    every += [
        effects.CloseLedger(env)
        for env, before, after in members
        if before is not None and after is None
    ]
    durable = durable or not effects.DURABLE.isdisjoint(map(type, every))
    saves, events = _saves(draft), draft.published
    return Transition(
        saves,
        events,
        every,
        durable,
        reserve,
        must_apply,
        then,
        draft,
        draft.step,
        inadmissible,
        failed,
    )


def _saves(draft: Draft) -> list[Save]:
    saves = []
    for table in draft.changed:
        if table.stored is not None:
            kind, key_text = table.stored
            for key, before, after in table.changes():
                if after is not before and (before is None or after != before):
                    saves.append(Save(kind, key_text(key), after))
    saves += [Save("history", job_id, ended) for job_id, ended in draft.history.items()]
    saves += [Save("payload", spec_id, payload) for spec_id, payload in draft.payloads.items()]
    return saves


def _grants(draft: Draft, opened: list[str]) -> list[Effect]:
    """The GPUs that are held now, and the ledgers' limits.

    Grants that end with their last process are left out. A ledger may be `opened` later than its
    grants, with limits of its own: a job's first process comes at any time.
    """
    held: dict[str, Effect] = {}
    changed = dict(draft.grants.old)
    for (env, uuid), before in changed.items():
        if (before is None) is not ((env, uuid) not in draft.grants):
            held[env] = effects.GpusHeld(env)
    if opened:
        # a new ledger has no limit yet: it gets that of each grant, changed or not
        changed = {key: before for key, before in changed.items() if key[0] not in opened}
        every = [(env, uuid) for env in opened for uuid in draft.gpus]
        changed |= dict.fromkeys(filter(draft.grants.__contains__, every))
    limits: list[Effect] = []
    for (env, uuid), before in changed.items():
        grant, gpu = draft.grants.get((env, uuid)), draft.gpus[uuid]
        limit_bytes = 0 if grant is None else grant.limit_bytes
        is_same = grant is None if before is None else before.limit_bytes == limit_bytes
        if env in draft.members and not is_same:
            limits.append(
                effects.SetLimit(env, uuid, gpu.index, limit_bytes, gpu.memory_total_bytes)
            )
    return [*held.values(), *limits]


def _caps(draft: Draft, opened: list[str]) -> list[Effect]:
    """The memory that ledgers keep for tasks which named it."""
    ids = dict.fromkeys(draft.tasks.old)
    for env in opened:
        ids |= dict.fromkeys(draft.env_tasks.members(env))
    caps: list[Effect] = []
    for task_id in ids:
        task = draft.tasks.get(task_id)
        if task is None or not task.kept_bytes or task.env not in draft.members:
            continue
        before = draft.tasks.before(task_id)
        if before is None or before.gpus != task.gpus or task.env in opened:
            rows = tuple([draft.gpus[uuid].index for uuid in task.gpus])
            caps.append(effects.SetCap(task.env, task_id, rows, task.kept_bytes, task.cap_bytes))
    return caps


def _ended_caps(draft: Draft) -> list[Effect]:
    ended = [before for _, before, task in draft.tasks.changes() if task is None]
    return [
        effects.DropCap(task.env, task.task_id)
        for task in ended
        if task is not None
        and task.kept_bytes
        and draft.members.before(task.env) is not None
        and task.env in draft.members
    ]


def _shares(draft: Draft) -> list[Effect]:
    """The shares of compute that tasks have now."""
    changed: list[Effect] = []
    for task_id, before, task in draft.tasks.changes():
        if (
            task is not None
            and task.granted_percent is not None
            and (before is None or before.granted_percent != task.granted_percent)
        ):
            changed.append(
                effects.SharesChanged(task_id, task.env, task.gpus, task.granted_percent)
            )
    return changed


def _watching(draft: Draft) -> list[Effect]:
    """The processes that begin or cease to hold or wait."""
    came: list[Effect] = []
    went: list[Effect] = []
    members, waiters = draft.processes, draft.request_of
    for process in {**members.old, **waiters.old}:
        before = members.before(process) is not None or waiters.before(process) is not None
        after = process in members or process in waiters
        if after and not before:
            came.append(effects.Watch(process, _pid(draft, process)))
        elif before and not after:
            went.append(effects.Unwatch(process))
    return came + went


def _pid(draft: Draft, process: ProcessKey) -> int | None:
    member = draft.processes.get(process)
    if member is not None:
        return member.pid
    askers = draft.requests[draft.request_of[process]].askers
    return next(asker.pid for asker in askers if asker.process == process)
