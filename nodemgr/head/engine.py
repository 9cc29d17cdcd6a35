"""A head's engine: an event, the core's step, its commit, then what is said to nodes.

Knows: the order of a step, when a pass runs, when a word is said again. Must not know: why a job
gets a node (core/cluster), who gave an order (verbs.py), frames' bytes (edge/links).

A word is said when its row comes to be, and again after REPEAT_NS, until the rows ask for none. A
pass begins after the steps that can be a reason for one, and rests as long as it took.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from client_plugin.units import MAX_DURATION_MS
from nodemgr.core.cluster import events
from nodemgr.core.cluster.entities import ClusterNode, EndedJob
from nodemgr.core.cluster.events import Acknowledge, ClusterEvent
from nodemgr.core.cluster.head import ClusterTransition, step
from nodemgr.core.cluster.messages import Assign, ExpectPilots, HeadWord, to_say
from nodemgr.core.cluster.pool import BACK_WHY
from nodemgr.core.cluster.state import ClusterDraft
from nodemgr.core.model import job_ids
from nodemgr.core.model.entities import MS
from nodemgr.core.model.transitions import TransitionRefused
from nodemgr.core.model.values import replace
from nodemgr.edge.host import stderr_log
from nodemgr.edge.host.clock import Clock
from nodemgr.edge.host.measures import STEP_S, Histogram
from nodemgr.edge.links.frames import FrameTooLong
from nodemgr.edge.store.database import StoreFailed
from nodemgr.head.store import HeadStore
from nodemgr.messages import head as messages

REPEAT_NS = 2_000_000_000
REPEAT_S = 2.0
MAX_KEYS = 100
"""The most keys in one acknowledgement."""


class Links(Protocol):
    """The way to the nodes (edge/links)."""

    counts: Counter[str]

    @property
    def address(self) -> str: ...
    def say(self, node: str, kind: str, **fields: Any) -> bool: ...
    def forget(self, node: str) -> None: ...


class HeadEngine:
    """Steps the core. All is called in the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        store: HeadStore,
        state: ClusterDraft,
        links: Callable[[], Links | None],
    ) -> None:
        """`links`: None while the head listens nowhere."""
        self._loop, self._clock, self._store = loop, clock, store
        self.state, self._links = state, links
        self.on_ended: list[Callable[[EndedJob], None]] = []
        self.silent_ns: dict[str, int] = dict.fromkeys(state.nodes, clock.monotonic_ns())
        """Since when each node without a session is silent, as far as this head has seen."""
        self.pass_time, self.step_time = Histogram(STEP_S), Histogram(STEP_S)
        self.store_fault = ""
        self.behind_s = max(0, store.wall_seen_ns() - clock.wall_ns()) // 10**9
        """The wall time at the start before that of the store's last change."""
        self.ahead_s: dict[str, int] = {}
        """By node, its wall time minus this one's at its hello."""
        self._said: dict[str, dict[tuple[str, str], int]] = {}
        """By node, each word that its rows still ask for, and when it was said last."""
        self._repeat: asyncio.TimerHandle | None = None
        self._pass: asyncio.TimerHandle | None = None
        self._rest_s = 0.0
        self._resume: asyncio.TimerHandle | None = None
        self.wake()
        self._watch_pauses()

    @property
    def address(self) -> str:
        """On which it listens; empty: on none."""
        links = self._links()
        return "" if links is None else links.address

    @property
    def frames(self) -> Mapping[str, int]:
        """The counts of the links since they began; none: the head listens nowhere."""
        links = self._links()
        return {} if links is None else links.counts

    # -- a step --

    def happens(
        self, event: ClusterEvent, payloads: Sequence[dict[str, Any]] = ()
    ) -> ClusterTransition | None:
        """None: nothing has changed, since it cannot be stored. `payloads`: of new jobs."""
        began_ns = self._clock.monotonic_ns()
        try:
            made = step(self.state, event, began_ns)
        except TransitionRefused as error:  # a fault of the core must not end the head
            stderr_log.fault(f"in the step of {type(event).__name__}", error)
            return None
        before, touched = dict(made.draft.nodes.old), _touched(made.draft)
        is_reason, is_stored = _is_reason(made.draft), False
        try:
            is_stored = self._is_stored(made, payloads)
        finally:
            if not is_stored:
                made.discard()
        if not is_stored:
            return None
        made.apply()
        self._carry_out(made, touched)
        for name, node in before.items():
            self._note_node(name, node)
        if is_reason:
            self.wake()
        self._watch_pauses()
        self.step_time.observe(self._clock.monotonic_ns() - began_ns)
        return made

    def _is_stored(self, made: ClusterTransition, said: Sequence[dict[str, Any]]) -> bool:
        if all(_is_count_alone(made.draft, row) for row in made.saved):
            return True
        payloads = dict(zip(made.draft.submitted_ids, said, strict=True)) if said else {}
        now_ns, wall_ns = self._clock.monotonic_ns(), self._clock.wall_ns()
        try:
            self._store.commit(made.saved, now_ns, wall_ns, payloads)
        except StoreFailed as error:
            if not self.store_fault:
                stderr_log.say(messages.STORE_FAILS(fault=error))
            self.store_fault = str(error)
            return False
        self.store_fault = ""
        return True

    def _carry_out(self, made: ClusterTransition, touched: Iterable[str]) -> None:
        for effect in made.effects:
            self._acknowledge(effect)
        for ended in made.draft.ended.values():
            for on_ended in self.on_ended:
                on_ended(ended)
        for node in touched:
            self.speak(node)

    def _note_node(self, name: str, before: ClusterNode | None) -> None:
        after = self.state.nodes.get(name)
        was_drained = before is not None and before.drained
        if after is not None and after.drained and not was_drained and after.why != BACK_WHY:
            stderr_log.say(
                f"{name} is drained ({after.why or 'by an order'})",
                f"nodemgr node resume {name} when jobs may run there again",
            )

    # -- what is said --

    def _acknowledge(self, effect: Acknowledge) -> None:
        links = self._links()
        for at in range(0, len(effect.keys), MAX_KEYS):
            keys = list(effect.keys[at : at + MAX_KEYS])
            if links is not None:
                links.say(effect.node, "acknowledge", keys=keys, below=effect.below)

    def speak(self, node: str) -> None:
        """Says what the node's rows ask for and was not said just now."""
        links, now_ns = self._links(), self._clock.monotonic_ns()
        if links is None:
            return
        before, now = self._said.get(node, {}), {}
        for word in to_say(self.state, node):
            name = _name(word)
            at_ns = before.get(name)
            if at_ns is None or now_ns - at_ns >= REPEAT_NS:
                at_ns = now_ns
                self._say(links, node, word)
            now[name] = at_ns
        if not now:
            self._said.pop(node, None)
            return
        self._said[node] = now
        if self._repeat is None:
            self._repeat = self._loop.call_later(REPEAT_S, self._say_again)

    def _say_again(self) -> None:
        self._repeat = None
        for node in list(self._said):
            self.speak(node)

    def _say(self, links: Links, node: str, word: HeadWord) -> None:
        if isinstance(word, ExpectPilots):
            links.say(node, "pool_pilots", numbers=word.numbers)
            return
        if not isinstance(word, Assign):
            links.say(node, "give_back", key=word.key, if_waiting=word.if_waiting)
            return
        row = word.row
        payload = self._store.payload(job_ids.array_of(row.job_id) or row.job_id)
        if payload is None:
            stderr_log.say(
                f"the store has no command of {row.job_id}",
                f"cancel {row.job_id} and submit it again",
            )
            return
        waited_ms = (self._clock.monotonic_ns() - self.state.jobs[row.job_id].queued_ns) // MS
        try:
            links.say(
                node, "assign", **payload, key=row.key, number=row.number, env=row.env,
                waited_ms=min(max(0, waited_ms), MAX_DURATION_MS), refuse=word.refuse,
            )  # fmt: skip
        except FrameTooLong as error:
            stderr_log.say(
                f"{row.job_id} cannot be sent to its node ({error})", f"cancel {row.job_id}"
            )

    # -- sessions --

    def hears(self, event: events.Synced | events.NodeReport) -> None:
        node = event.node
        if isinstance(event, events.Synced):
            self._said.pop(node, None)
            was_copy = self.state.counters[""].is_copy
            self.happens(event)
            if self.state.counters[""].is_copy and not was_copy:
                stderr_log.say(
                    f"{node} knows a number that this head has not given: the head's store is an "
                    "older copy, and it gives no job",
                    "stop the head, run nodemgr head restore, and start it again",
                )
            if node in self.state.sessions:
                self.silent_ns.pop(node, None)
        elif self.happens(event) is None:
            links = self._links()
            if links is not None:  # it says all anew, when it can be stored
                links.forget(node)

    def hears_time(self, node: str, wall_ns: object) -> None:
        """The node's wall time, now; a node of an earlier version does not say it."""
        if isinstance(wall_ns, int):
            self.ahead_s[node] = (wall_ns - self._clock.wall_ns()) // 10**9

    def silent(self, node: str, session: int) -> None:
        self.silent_ns.setdefault(node, self._clock.monotonic_ns())
        self._said.pop(node, None)
        self.happens(events.Silent(node, session))

    # -- passes --

    def wake(self) -> None:
        if self._pass is None:
            self._pass = self._loop.call_later(self._rest_s, self._run_pass)

    def _run_pass(self) -> None:
        self._pass, self._rest_s = None, 0.0
        if not len(self.state.queue) and not self.state.assignments:
            return
        began_ns = self._clock.monotonic_ns()
        self.happens(events.Pass())
        took_ns = self._clock.monotonic_ns() - began_ns
        self.pass_time.observe(took_ns)
        self._rest_s = min(1.0, took_ns / 1e9)

    def _watch_pauses(self) -> None:
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None
        if self.state.paused:
            left_ns = min(self.state.paused.values()) - self._clock.monotonic_ns()
            self._resume = self._loop.call_later(max(0.01, left_ns / 1e9), self._time_passes)

    def _time_passes(self) -> None:
        self._resume = None
        self.happens(events.ClockMoved())

    def close(self) -> None:
        for timer in (self._repeat, self._pass, self._resume):
            if timer is not None:
                timer.cancel()


def _name(word: HeadWord) -> tuple[str, str]:
    if isinstance(word, Assign):
        return "refuse" if word.refuse else "assign", word.row.key
    if isinstance(word, ExpectPilots):
        return "pilots", str(word.numbers)
    return f"give_back {word.if_waiting}", word.key


def _is_count_alone(draft: ClusterDraft, row: tuple[str, str, object]) -> bool:
    """A report that changes nothing but its number, which a restart does not need."""
    kind, key, after = row
    before = draft.nodes.before(key)
    if kind != "node" or not isinstance(after, ClusterNode) or before is None:
        return False
    return replace(after, number=before.number) == before


def _touched(draft: ClusterDraft) -> Iterable[str]:
    """The nodes to which something may be to say after the open step."""
    found = {row.node for _, _, row in draft.assignments.changes() if row is not None}
    for table in (draft.to_confirm, draft.strays):
        found |= {node for _, _, node in table.changes() if node is not None}
    for _, _, job in draft.jobs.changes():
        if job is not None and job.assigned is not None:
            row = draft.assignments.get(job.assigned)
            found |= set() if row is None else {row.node}
    if draft.pilots.old:
        found |= {name for name, node in draft.nodes.items() if node.pool is not None}
    if draft.counters.old and draft.sessions.old:
        found |= set(draft.sessions)  # a restored head may speak now
    return sorted((found | set(draft.sessions.old)) & set(draft.sessions))


def _is_reason(draft: ClusterDraft) -> bool:
    """Whether a pass may find something after the open step."""
    if draft.jobs.old or draft.envs.old or draft.sessions.old or draft.shares.old:
        return True
    return any(
        old is None
        or new is None
        or (old.gpus, old.others, old.drained) != (new.gpus, new.others, new.drained)
        for _, old, new in draft.nodes.changes()
    )
