"""Progress of the task's work: as the program reports it, else counted steps of optimizers.

Knows: the bounds of a report, and which of the two counts. Must not know: any framework, and when
the client sends it (csrc/client/talk.c: with the beats, at most once a second).

A program that reports `done` itself counts for itself: counted steps are ignored from then on.
"""

from __future__ import annotations

import os
import time
from typing import Any

from . import lease, stderr

MOST = 2**53
"""The most parts; above it a float has no exact number."""
COUNT_STEPS = "NODEMGR_COUNT_STEPS"
FRACTIONS = 1_000_000
"""The whole of a work that is reported in fractions: `nodemgr_progress(0.25, 1.0)`."""
PERIOD_S = 0.25
"""Counted steps go to the library no more often: a step costs a read of the clock."""

_steps = 0
_total = 0
_reports_itself = False
_next_s = 0.0
_is_told = False


def report(done: Any = None, total: Any = None) -> None:
    """Reports the parts that are done, of `total`; `total` alone is the number of counted steps."""
    global _reports_itself, _total
    numbers = whole(done, total)
    if numbers is None:
        _say_wrong(done, total)
        return
    if done is None:
        _total = numbers[1]
        numbers = (min(_steps, _total), _total)
    else:
        _reports_itself = True
    _send(*numbers)


def _say_wrong(done: Any, total: Any) -> None:
    """Once: a program that counts past its total would print a line for each step."""
    global _is_told
    if not _is_told:
        _is_told = True
        stderr.say_once(
            f"nodemgr_progress({repr(done)[:40]}, {repr(total)[:40]}) is no progress and is "
            "ignored",
            "pass numbers with 0 <= done <= total and total above 0",
        )


def whole(done: Any, total: Any) -> tuple[int, int] | None:
    """Both as whole numbers, 0 for an unknown total; None: they cannot be meant."""
    known = [number for number in (done, total) if number is not None]
    if not known or not all(_is_number(number) for number in known):
        return None
    if total is not None and not 0 < total <= MOST:
        return None
    if done is not None and not 0 <= done <= (MOST if total is None else total):
        return None
    if all(number == int(number) for number in known):
        return int(done or 0), int(total or 0)
    if total is None:
        return int(done), 0
    return int((done or 0) / total * FRACTIONS), FRACTIONS


def _is_number(value: Any) -> bool:
    """Also those of numpy and torch on the CPU; no NaN, no infinity."""
    try:
        return bool(-MOST <= value <= MOST)
    except Exception:
        return False


def wanted() -> bool:
    """Whether the environment asks for counted steps, or the job has a forecast to compare."""
    return lease.setting("progress") == "1" or os.environ.get(COUNT_STEPS) == "1"


def step(*_args: Any, **_kwargs: Any) -> None:
    """One step of an optimizer: a hook of PyTorch's optimizers."""
    count(1)


step._torchdynamo_disable = True  # type: ignore[attr-defined]  # compiled code must not trace it


def count(steps: int) -> None:
    """So many steps more."""
    global _steps, _next_s
    _steps += steps
    now_s = time.monotonic()
    if now_s >= _next_s and not _reports_itself:
        _next_s = now_s + PERIOD_S
        _send(min(_steps, _total or _steps), _total)


def expect(steps: int) -> None:
    """The framework knows how many steps come from now on."""
    global _total
    if not _reports_itself and 0 < _steps + steps <= MOST:
        _total = _steps + steps


def _send(done: int, total: int) -> None:
    lease.report_progress(done, total)
