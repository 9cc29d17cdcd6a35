"""The manager's decisions: `step(state, event, now_ns)` returns an event's consequences.

It changes nothing itself.

Knows: which function answers which event, and which answers are facts that hold though they could
not be stored. Must not know: clocks, sockets, files, threads, random numbers; no module of this
package does.

A reading order of the rooms: model (values, events, effects); state (how a step reads and changes
the tables); scheduler (which request is served, on which GPUs); lifecycle (the changes that each
event makes to requests, leases and jobs); views; invariants (conditions that hold after every
step).
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any, NamedTuple

from nodemgr.core.lifecycle import (
    acquiring,
    administration,
    audit,
    job_actions,
    jobs,
    matching,
    process_events,
    queue_settings,
    submissions,
    timers,
)
from nodemgr.core.model.events import (
    Acquire,
    Audited,
    Beat,
    Cancel,
    Disconnected,
    Event,
    GpusChanged,
    Heard,
    HoldJob,
    JobEnded,
    JobRequeuedBeforeStart,
    JobStarted,
    LaunchHostChanged,
    Match,
    MoveJob,
    NamesTaken,
    OrderAll,
    ProcessGone,
    Rejoin,
    Release,
    ReleaseTask,
    RemoveQueue,
    RemoveQuota,
    RequeueJob,
    SetQueue,
    SetQuota,
    SubmitJobs,
    Tick,
    UnholdJob,
    UnreclaimedChanged,
    WithdrawJob,
)
from nodemgr.core.scheduler import launch_hosts
from nodemgr.core.state.draft import Draft
from nodemgr.core.state.node_state import State
from nodemgr.core.state.outcome import Transition, finish

__all__ = ["Draft", "State", "Transition", "step"]


def _match(draft: Draft, event: Match, now_ns: int) -> Set[str]:
    figures, are_complete = dict(event.used_bytes or {}), event.used_bytes is not None
    return matching.match(draft, figures, now_ns, event.wall_ns, are_complete=are_complete)


def _order_all(draft: Draft, event: OrderAll, now_ns: int) -> None:
    for order in event.orders:
        RULES[type(order)].handler(draft, order, now_ns)


class _Rule(NamedTuple):
    handler: Callable[[Draft, Any, int], Set[str] | None]
    """Returns the envs that are inadmissible after it; None: as before."""
    must_apply: bool
    """It tells a fact, or takes something away."""
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
    Audited: _Rule(audit.audited, True),
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
}


def _rule_of_all(event: OrderAll) -> _Rule:
    """The rule of several orders in one step: as durable as the most durable one, and with no more
    rights than each of them.
    """
    rules = [RULES[type(order)] for order in event.orders]
    return RULES[OrderAll]._replace(
        must_apply=all(rule.must_apply for rule in rules),
        durable=any(rule.durable for rule in rules),
        reserve=all(rule.reserve for rule in rules),
    )


def step(state: State, event: Event, now_ns: int, draft: Draft | None = None) -> Transition:
    """The transition that `event` makes of `state` at `now_ns` (monotonic).

    The state stays unchanged until `transition.apply()`. `draft`: an unused one of the present
    state, made while no client waited for an answer.
    """
    rule = RULES[type(event)]
    if draft is None or draft.version != state.version:
        draft = Draft(state)
    draft.now_ns = now_ns
    inadmissible = rule.handler(draft, event, now_ns)
    then = None
    if draft.wakes_scheduler and not isinstance(event, Disconnected):
        then = Match(event.wall_ns, event.used_bytes if isinstance(event, Tick) else None)
    if isinstance(event, OrderAll):
        rule = _rule_of_all(event)
    return finish(
        draft,
        must_apply=rule.must_apply,
        durable=rule.durable,
        reserve=rule.reserve,
        then=then,
        inadmissible=inadmissible or frozenset(),
    )
