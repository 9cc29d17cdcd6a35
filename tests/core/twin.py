"""A node whose events also go to a twin, which a restart made of the store's rows.

Knows: which tables a restart forgets, and who brings their rows back. The twin has those rows too;
all other tables must be the same, and so must its decision. State that a restart loses and a
decision reads is thus a failing walk, or a row of FORGOTTEN with the reason why it may be lost.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any

from nodemgr.core.lifecycle.restart import restore
from nodemgr.core.manager import Draft, Transition, step
from nodemgr.core.model import encoding, events
from nodemgr.core.state.node_state import DECLARED, Table
from tests.core.world import Node
from tests.support.examples import TIMES

FORGOTTEN = {
    "connections": "each client connects again",
    "process_of_connection": "each client connects again",
    "away": "every waiter is away until it connects again",
    "standings": "each waiter's place and reason are sent again when it connects",
    "timers": "every deadline starts anew",
    "agenda": "every deadline starts anew",
    "wants_figures": "the next pass asks for figures again",
    "set_aside": "a decision that fails sets its entry aside again",
    "violations": "the next audit finds them again",
    "unbooked": "the next audit finds them again",
    "progress": "the task's next report brings it",
    "silent_jobs": "a job whose processes are silent is found so again",
    "idle_since": "an idle task's time starts anew",
    "idle_warned": "an idle task is warned anew",
    "calm_since": "a GPU's quiet time starts anew",
    "left_until": "memory of a process that left a GPU is charged at once",
    "declined_until": "an elastic task may be offered a GPU again at once",
    "lowerings": "an elastic grant is ordered to shrink again",
    "room_since": "a GPU's time with room starts anew",
    "unconfirmed": "each head names its jobs again",
    "launch_hosts": "each launch host is reported again",
    "parted": "a task whose process runs another program is called stalled",
    "reserved": "the next pass finds them again",
    "outlook": "the rates of failures are estimated anew, as of the restart",
}
CLOCKS = ("service_ahead_ns", "queue_ahead_ns", "stamped_ns", "version")
"""They go on from the last stored time, or start anew; numbers stay unique and in order."""


EVERY = 4 if TIMES == 1 else 1
"""A restart costs as much as some events: a deep run makes one after each event."""


class TwinNode(Node):
    _events = 0

    def _step(self, event: events.Event) -> Transition:
        self._events += 1
        if self._events % EVERY:
            return super()._step(event)
        twin = self._twin()
        made = step(self.state, event, self.now_ns)
        again = step(twin, event, self.now_ns)
        assert _rows(again) == _rows(made)
        if self._is_shuffled():
            assert _sorted(again.effects) == _sorted(made.effects)
            assert _sorted(again.published) == _sorted(made.published)
        else:
            assert again.effects == made.effects
            assert again.published == made.published
        if (then := made.then or again.then) is not None and again.then != made.then:
            again.apply()  # a restart forgets which envs need no visit: a pass more finds nothing
            more = step(twin, then, self.now_ns)
            assert (more.saved, more.effects, more.published) == ([], [], [])
        return made

    def _is_shuffled(self) -> bool:
        """Every other twin has its rows in another order: nothing a step says depends on it.

        So the rows that an undone step dropped may come back behind all others.
        """
        return bool(self._events // EVERY % 2)

    def _twin(self) -> Draft:
        rows = [
            (kind, key, encoding.decode(kind, data)) for (kind, key), data in self.store.items()
        ]
        twin = restore(self.config, rows, self.now_ns)
        for name in DECLARED:
            if name not in FORGOTTEN:
                assert _plain(getattr(twin, name)) == _plain(getattr(self.state, name)), name
        for name in (*FORGOTTEN, "deadlines", *CLOCKS):
            value = getattr(self.state, name)
            if isinstance(value, Table):
                getattr(twin, name).clear()
                getattr(twin, name).update(value)
            else:
                setattr(twin, name, copy.copy(value))
        if self._is_shuffled():
            _shuffle(twin, random.Random(self._events))
        return twin


def _rows(made: Transition) -> dict[tuple[str, str], object]:
    """The rows of a step are one transaction: their order means nothing."""
    rows = {(save.kind, save.key): save.value for save in made.saved}
    assert len(rows) == len(made.saved)
    return rows


def _shuffle(state: Draft, dice: random.Random) -> None:
    for name in DECLARED:
        table = getattr(state, name)
        if isinstance(table, Table):
            rows = list(table.items())
            dice.shuffle(rows)
            table.clear()
            table.update(rows)


def _sorted(told: Sequence[object]) -> list[str]:
    return sorted(map(repr, told))


def _plain(table: dict[Any, Any]) -> dict[Any, Any]:
    """Members of a group are compared as a set: their order is that of their arrival."""
    return {key: set(value) if isinstance(value, dict) else value for key, value in table.items()}
