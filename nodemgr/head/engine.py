"""A head's engine: an event, the core's step, its commit, then what is said to nodes.

Knows: the order of a step, when a pass runs, when a word is said again. Must not know: why a job
gets a node (core/cluster), who gave an order (verbs.py), frames' bytes (edge/links).

A word is said when its row comes to be, and again after REPEAT_NS, until the rows ask for none. A
pass begins after the steps that can be a reason for one, and rests as long as it took.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from nodemgr.core.cluster import events
from nodemgr.core.cluster.entities import ClusterJob, ClusterNode, EndedJob, GivenJob
from nodemgr.core.cluster.events import Acknowledge, ClusterEvent
from nodemgr.core.cluster.head import ClusterTransition, step
from nodemgr.core.cluster.messages import Assign, HeadWord, to_say
from nodemgr.core.cluster.state import ClusterState
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

    def say(self, node: str, kind: str, **fields: Any) -> bool: ...
    def forget(self, node: str) -> None: ...


class HeadEngine:
    """Steps the core. All is called in the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        store: HeadStore,
        state: ClusterState,
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
        self._said: dict[str, dict[tuple[str, str], int]] = {}
        """By node, each word that its rows still ask for, and when it was said last."""
        self._repeat: asyncio.TimerHandle | None = None
        self._pass: asyncio.TimerHandle | None = None
        self._rest_s = 0.0
        self._resume: asyncio.TimerHandle | None = None
        self.wake()
        self._watch_pauses()

    # -- a step --

    def happens(
        self, event: ClusterEvent, payload: dict[str, Any] | None = None
    ) -> ClusterTransition | None:
        """None: nothing has changed, since it cannot be stored. `payload`: of a new job."""
        began_ns = self._clock.monotonic_ns()
        try:
            made = step(self.state, event, began_ns)
        except TransitionRefused as error:  # a fault of the core must not end the head
            stderr_log.fault(f"in the step of {type(event).__name__}", error)
            return None
        before = {name: self.state.nodes.get(name) for name in made.draft.nodes.changes}
        if not self._is_stored(made, payload):
            return None
        made.apply()
        self._carry_out(made)
        for name, node in before.items():
            self._note_node(name, node)
        if _is_reason(made, before):
            self.wake()
        self._watch_pauses()
        self.step_time.observe(self._clock.monotonic_ns() - began_ns)
        return made

    def _is_stored(self, made: ClusterTransition, payload: dict[str, Any] | None) -> bool:
        if all(_is_count_alone(self.state, row) for row in made.saved):
            return True
        payloads = {} if payload is None else {f"c{made.draft.head.job}": payload}
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

    def _carry_out(self, made: ClusterTransition) -> None:
        for effect in made.effects:
            self._acknowledge(effect)
        for ended in made.draft.ended.values():
            for on_ended in self.on_ended:
                on_ended(ended)
        for node in _touched(self.state, made):
            self.speak(node)

    def _note_node(self, name: str, before: ClusterNode | None) -> None:
        after = self.state.nodes.get(name)
        if after is not None and after.drained and (before is None or not before.drained):
            stderr_log.say(messages.NODE_DRAINED(node=name, why=after.why or "by an order"))

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
        if not isinstance(word, Assign):
            links.say(node, "give_back", key=word.key, if_waiting=word.if_waiting)
            return
        row = word.row
        payload = self._store.payload(row.job_id)
        if payload is None:
            stderr_log.say(messages.PAYLOAD_GONE(job=row.job_id))
            return
        waited_ms = (self._clock.monotonic_ns() - self.state.jobs[row.job_id].queued_ns) // MS
        try:
            links.say(
                node, "assign", **payload, key=row.key, number=row.number, env=row.env,
                waited_ms=max(0, waited_ms), refuse=word.refuse,
            )  # fmt: skip
        except FrameTooLong as error:
            stderr_log.say(messages.PAYLOAD_TOO_LONG(job=row.job_id, error=error))

    # -- sessions --

    def hears(self, event: events.Synced | events.NodeReport) -> None:
        node = event.node
        if isinstance(event, events.Synced):
            self._said.pop(node, None)
            was_copy = self.state.counters[""].is_copy
            self.happens(event)
            if self.state.counters[""].is_copy and not was_copy:
                stderr_log.say(messages.STORE_IS_COPY(node=node))
            if node in self.state.sessions:
                self.silent_ns.pop(node, None)
        elif self.happens(event) is None:
            links = self._links()
            if links is not None:  # it says all anew, when it can be stored
                links.forget(node)

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
    return f"give_back {word.if_waiting}", word.key


def _is_count_alone(state: ClusterState, row: tuple[str, str, object]) -> bool:
    """A report that changes nothing but its number, which a restart does not need."""
    kind, key, after = row
    before = state.nodes.get(key)
    if kind != "node" or not isinstance(after, ClusterNode) or before is None:
        return False
    return replace(after, number=before.number) == before


def _touched(state: ClusterState, made: ClusterTransition) -> Iterable[str]:
    """The nodes to which something may be to say after the step."""
    draft = made.draft
    found = {row.node for row in draft.assignments.changes.values() if row is not None}
    for table in (draft.to_confirm, draft.strays):
        found |= {node for node in table.changes.values() if node is not None}
    for job in draft.jobs.changes.values():
        if isinstance(job, ClusterJob) and job.assigned is not None:
            row = state.assignments.get(job.assigned)
            found |= {row.node} if isinstance(row, GivenJob) else set()
    if "" in draft.counters.changes and draft.sessions.changes:
        found |= set(state.sessions)  # a restored head may speak now
    return sorted((found | set(draft.sessions.changes)) & set(state.sessions))


def _is_reason(made: ClusterTransition, before: dict[str, ClusterNode | None]) -> bool:
    """Whether a pass may find something after the step."""
    draft = made.draft
    if draft.jobs.changes or draft.envs.changes or draft.sessions.changes:
        return True
    return any(
        old is None
        or new is None
        or (old.gpus, old.others, old.drained) != (new.gpus, new.others, new.drained)
        for name, old in before.items()
        for new in (draft.nodes.changes[name],)
    )
