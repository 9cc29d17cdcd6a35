"""Calls of collectives, which may never return, on a thread that can be left behind.

A generation has one caller. A broken generation is abandoned with its thread; nothing that the
abandoned call may still write into is used again. Must not know: which collective it is.
"""

from __future__ import annotations

import queue
import threading
from typing import Any, Callable, List, Optional, Tuple

from .channel import AgentChannel, Interrupted

CallOutcome = List[Tuple[Any, Optional[str]]]


class Broken(Exception):
    """A collective failed, or a newer generation holds at once: the step is repeated."""


class CollectiveThread:
    """The thread of one generation's collectives."""

    def __init__(self, channel: AgentChannel, generation: int) -> None:
        self._channel = channel
        self._generation = generation
        self._is_forming = True
        self._waiting: queue.SimpleQueue[Optional[Tuple[Callable[[], Any], CallOutcome]]] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._work, name="nodemgr collectives", daemon=True).start()

    def call(self, work: Callable[[], Any]) -> Any:
        """The result of `work`; Broken: it raised, or the wait for it was interrupted."""
        outcome: CallOutcome = []
        self._waiting.put((work, outcome))
        try:
            self._channel.wait(lambda: bool(outcome), self._generation, self._is_forming)
        except Interrupted:
            raise Broken("a newer generation") from None
        [(result, error)] = outcome
        if error is not None:
            raise Broken(error)
        return result

    def formed(self) -> None:
        """From now on only a generation that holds at once interrupts a call."""
        self._is_forming = False

    def leave(self) -> None:
        """The thread ends after the call that it is in, if that returns."""
        self._waiting.put(None)

    def _work(self) -> None:
        while True:
            order = self._waiting.get()
            if order is None:
                return
            work, outcome = order
            answer: Tuple[Any, Optional[str]]
            try:
                answer = (work(), None)
            except Exception as error:  # kept as text: a traceback would keep the group alive
                answer = (None, f"{type(error).__name__}: {error}")
            with self._channel.changed:
                outcome.append(answer)
                self._channel.changed.notify_all()
            del work, order, outcome, answer
