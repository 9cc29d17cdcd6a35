"""Long work in turns of the loop, so that the requests of tasks come between; owners in turn.

Knows: the loop. Must not know: the work. The work is a generator that yields at the end of each
turn, and returns its result.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from typing import Generic, TypeVar

Made = TypeVar("Made")
Work = Generator[None, None, Made]
Took = Callable[[int], None]
"""Takes the time (ns) of work that was done."""


def in_turns(
    loop: asyncio.AbstractEventLoop,
    work: Work[Made],
    done: Callable[[Made], None],
    failed: Callable[[Exception], None],
    took: Took | None = None,
) -> None:
    """Take the first turn at once; call `done` or `failed` in the last turn.

    `took` is called with the time (ns) of each later turn: its caller knows that of the first one.
    """
    try:
        next(work)
    except StopIteration as end:
        done(end.value)
    except Exception as error:
        failed(error)
    else:
        loop.call_soon(_next_turn, loop, work, done, failed, took)


def _next_turn(
    loop: asyncio.AbstractEventLoop,
    work: Work[Made],
    done: Callable[[Made], None],
    failed: Callable[[Exception], None],
    took: Took | None,
) -> None:
    began_s = loop.time()
    in_turns(loop, work, done, failed, took)
    if took is not None:
        took(int((loop.time() - began_s) * 1e9))


class InTurn(Generic[Made]):
    """Things that wait, by owner: each owner in turn, so that none waits behind another."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Made]] = {}
        """The first owner is the next one."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, owner: str, one: Made) -> None:
        self._waiting.setdefault(owner, deque()).append(one)
        self._count += 1

    def first(self) -> Made:
        """The next one, which stays."""
        return next(iter(self._waiting.values()))[0]

    def next_owner(self) -> str:
        return next(iter(self._waiting))

    def take(self) -> Made:
        """The next one; its owner is then the last."""
        owner, row = next(iter(self._waiting.items()))
        del self._waiting[owner]
        one = row.popleft()
        if row:
            self._waiting[owner] = row
        self._count -= 1
        return one
