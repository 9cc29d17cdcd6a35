"""Retries with a manager that restarts: an unanswered request is sent again.

Knows: the time limit, and when the user gets a line. Must not know: the request. The caller makes
sure that a repeated request does no harm.
"""

from __future__ import annotations

import time

from client_plugin.messages import ways as messages
from client_plugin.messages.form import notice
from client_plugin.ways.faults import Away, Fault, Lost, Stopped, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Optional, TypeVar

    T = TypeVar("T")

WAIT_S = 30.0
SAY_S = 1.0
"""After this time the user gets a line with the reason."""
PAUSE_S = 0.05


RESTART_S = 10.0
"""How long a verb waits for a manager that ran here, from its last sign of life on."""


def through_restart(verb: Callable[[], T], no_wait: bool) -> T:
    """The result of `verb`, which begins anew while the manager that ran here is away.

    Raises Fault. The verb has done nothing where it raises Stopped.
    """
    began, told = time.monotonic(), False
    while True:
        try:
            return verb()
        except Stopped as away:
            left_s = RESTART_S - max(time.monotonic() - began, away.silent_s())
            if no_wait or left_s <= 0:
                raise
            if not told:
                told = True
                say(messages.TRYING_FOR(line=away.message, seconds=max(1.0, left_s)))
        time.sleep(PAUSE_S)


class RetryTimeout:
    def __init__(self, wait_s: float = WAIT_S) -> None:
        """`wait_s` 0: the first failure is the last."""
        self._wait_s = wait_s
        self.lost = False
        """A manager went away after it was asked: what it has done is not known yet."""

    def outlast(self, attempt: Callable[[], T]) -> T:
        """The result of `attempt` once a manager answers. Raises Fault."""
        began: Optional[float] = None
        told = False
        while True:
            try:
                result = attempt()
            except Away as away:
                self.lost = self.lost or isinstance(away, Lost)
                now = time.monotonic()
                began = now if began is None else began
                silent_s = away.silent_s() if isinstance(away, Stopped) and not self.lost else 0
                if max(now - began, silent_s) >= self._wait_s:
                    if not told:
                        raise
                    line = notice(f"{away.message}; given up after {now - began:.0f} s")
                    raise type(away)(line) from None
                if not told and now - began >= SAY_S:
                    told = True
                    say(messages.TRYING_FOR(line=away.message, seconds=self._wait_s))
                time.sleep(PAUSE_S)
            except Fault:
                self.lost = False
                raise
            else:
                self.lost = False
                return result
