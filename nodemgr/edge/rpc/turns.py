"""Long work in turns of the loop, so that the requests of tasks come between.

Knows: the loop. Must not know: the work. The work is a generator that yields at the end of each
turn, and returns its result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import TypeVar

Made = TypeVar("Made")
Work = Generator[None, None, Made]


def in_turns(
    loop: asyncio.AbstractEventLoop,
    work: Work[Made],
    done: Callable[[Made], None],
    failed: Callable[[Exception], None],
) -> None:
    """Take the first turn at once; call `done` or `failed` in the last turn."""
    try:
        next(work)
    except StopIteration as end:
        done(end.value)
    except Exception as error:
        failed(error)
    else:
        loop.call_soon(in_turns, loop, work, done, failed)
