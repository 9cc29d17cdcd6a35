"""The step engine: an event, the core's step, its commit, its effects, in this order.

Knows: the order of a step, and that each kind of effect has one handler. Must not know: the work
of a handler, the reason of a decision (core), the format of a packet, a row or a ledger.

All code here runs in the loop's thread and never blocks. Slow work (NVML, checkpoints) has its own
thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from nodemgr.core.manager import Transition, step
from nodemgr.core.model import effects, events
from nodemgr.core.model.entities import Uuid
from nodemgr.core.model.transitions import TransitionRefused
from nodemgr.core.model.values import replace
from nodemgr.edge.engine.foundation import Foundation
from nodemgr.edge.engine.informer import QUEUE_CHANGED, ClusterInformer, News
from nodemgr.edge.host import stderr_log
from nodemgr.edge.host.measures import STEP_S, Histogram
from nodemgr.edge.ledger.native_ledger import LedgerError

STORE_RETRY_S = 1.0
FULL = 1 << 62
"""The figure of a grant with no room."""

Handlers = Mapping[type, Callable[[Any], None]]
"""The handler of each kind of effect that a part carries out."""


class LedgerSteps(Protocol):
    """The ledgers' part of a step."""

    def facts(self, planned: Iterable[effects.Effect]) -> Mapping[str, str | None]:
        """The facts about ledgers that belong into the commit of these effects."""

    def claim(self, planned: Iterable[effects.Effect]) -> Collection[tuple[str, Uuid]]:
        """Keeps memory for the step's tasks before it is stored, or says which grants lack it."""

    def refused(self) -> None:
        """The store refused the step that `facts` was called for."""


class StepEngine:
    """Steps the core. It also is the scheduler loop's Matcher: a pass is a step."""

    def __init__(self, base: Foundation) -> None:
        self._loop, self._clock, self._state = base.loop, base.clock, base.state
        self._journal = base.journal
        self._store_retry: asyncio.TimerHandle | None = None
        self._figures_due = False
        """The next pass needs the figures of the watched grants."""
        self._stepping = False
        self.step_time = Histogram(STEP_S)
        """Of the stored steps: the decision, the commit, the effects, the events."""
        self._stored: Transition | None = None
        """The current step's stored transition, until it is applied to the state."""
        self._news: list[News] = []
        """Resources that the applied step added, changed or removed."""

    def begin(
        self,
        handlers: Handlers,
        ledgers: LedgerSteps,
        informer: ClusterInformer,
        applied: tuple[Callable[[Iterable[effects.Save]], None], ...],
        settled: tuple[Callable[[], None], ...],
        unkept_bytes: Callable[[], Mapping[tuple[str, Uuid], int]],
        recovered: Callable[[], None],
        pass_took: Callable[[int], None],
    ) -> None:
        """The parts that a step calls, once, before the first event. None of them steps the core.

        `applied` is called with the step's rows after its effects, before its events are published,
        and `settled` after its news: launch gates and timers follow the new state. `unkept_bytes`:
        the used bytes of the grants that the core watches, beyond what is kept for tasks.
        `recovered`: the store can be written again. `pass_took` takes the time (ns) of each pass.
        """
        self._handlers, self._ledgers, self._informer = handlers, ledgers, informer
        self._applied, self._settled = applied, settled
        self._unkept_bytes, self._pass_took = unkept_bytes, pass_took
        self._journal.subscribe(self._retry_store_later, recovered)
        if self._journal.fault is not None:
            self._retry_store_later()

    # -- steps --

    def submit(self, event: events.Event) -> bool:
        """Step the core.

        Returns False if the store cannot be written, or the core refused its own change of a state.
        """
        assert not self._stepping, "an effect steps the core"
        began_ns = self._clock.monotonic_ns()
        self._stepping = True
        try:
            try:
                transition = self._decided(event, began_ns)
            except TransitionRefused as error:  # a fault of the core must not end the manager
                stderr_log.fault(f"in the step of {type(event).__name__}", error)
                return False
            for failed in transition.failed:
                stderr_log.fault(f"in the decision about {failed.entry}", failed.cause)
            if not self._is_stored(transition):
                return False
            self._stored = transition
            self._carry_out(transition.effects)
            for applied in self._applied:
                applied(transition.saved)
        finally:
            self._stepping = False
        self._journal.publish()
        if transition.then is not None:
            self._figures_due = self._figures_due or transition.then.unkept_bytes is not None
            self._news.append(QUEUE_CHANGED)
        news, self._news = self._news, []
        self._informer.notify(type(event).__name__, news)
        for settled in self._settled:
            settled()
        self.step_time.observe(self._clock.monotonic_ns() - began_ns)
        return True

    def _decided(self, event: events.Event, now_ns: int) -> Transition:
        """The core's step; again where memory that it keeps for a task was taken meanwhile."""
        transition = step(self._state, event, now_ns)
        short = self._claimed(transition)
        if short and isinstance(event, events.Acquire):
            full = {uuid: FULL for _, uuid in short}
            event = replace(event, unkept_bytes={**event.unkept_bytes, **full})
        elif short and isinstance(event, events.Match) and event.unkept_bytes is not None:
            full_of = dict.fromkeys(short, FULL)
            event = replace(event, unkept_bytes={**event.unkept_bytes, **full_of})
        else:
            return transition
        transition.discard()
        transition = step(self._state, event, now_ns)
        self._claimed(transition)
        return transition

    def _claimed(self, transition: Transition) -> Collection[tuple[str, Uuid]]:
        try:
            return self._ledgers.claim(transition.effects)
        except BaseException:
            transition.discard()
            raise

    def _is_stored(self, transition: Transition) -> bool:
        """Whether the store has it; else it has happened nowhere."""
        is_stored = False
        try:
            is_stored = self._journal.write(
                transition.saved,
                transition.published,
                must_hold=transition.must_apply,
                durable=transition.durable,
                reserved=transition.reserve,
                facts=self._ledgers.facts(transition.effects),
            )
        finally:
            if not is_stored:
                transition.discard()
        if not is_stored:
            self._ledgers.refused()
        return is_stored

    def _carry_out(self, planned: Iterable[effects.Effect]) -> None:
        """Answers and ledgers first, then the state, then the other effects."""
        for effect in planned:
            if type(effect) not in effects.PROMPT:
                self.apply_stored()
            self._do(effect)
        self.apply_stored()

    def apply_stored(self) -> None:
        """Apply the stored step to the state, once.

        This precedes the first effect that may read the state.
        """
        stored, self._stored = self._stored, None
        if stored is not None:
            self._news = self._informer.news(self._state, stored.saved)
            stored.apply()

    def _do(self, effect: effects.Effect) -> None:
        kind = type(effect)
        try:
            self._handlers[kind](effect)
        except (OSError, LedgerError) as error:  # one failed effect must not prevent the others
            stderr_log.say(
                f"{kind.__name__} failed: {error}", "`nodemgr doctor` looks for the cause"
            )
        except Exception as error:
            stderr_log.fault(f"in {kind.__name__}", error)

    # -- scheduling passes (scheduler_loop.Matcher) --

    def is_queued(self) -> bool:
        """Whether anything awaits a pass.

        A grant below its quota also waits for free memory, a shrunk task for free compute, an
        elastic task for idle GPUs, an elastic grant for more memory.
        """
        state = self._state
        return bool(
            state.requests
            or state.unsettled
            or state.shrunk
            or state.elastics
            or state.elastic_grants
        )

    def run_pass(self) -> None:
        """Grants free memory to waiting requests."""
        figures = self._unkept_bytes() if self._figures_due else None
        self._figures_due = False
        began_ns = self._clock.monotonic_ns()
        self.submit(events.Match(self._clock.wall_ns(), figures))
        self._pass_took(self._clock.monotonic_ns() - began_ns)

    # -- the store --

    def _retry_store_later(self) -> None:
        if self._store_retry is None:
            self._store_retry = self._loop.call_later(STORE_RETRY_S, self._retry_store)

    def _retry_store(self) -> None:
        self._store_retry = None
        if not self._journal.retry():
            self._retry_store_later()
