"""Long work in turns of the loop."""

from __future__ import annotations

import asyncio
from typing import Any

from nodemgr.edge.rpc.turns import InTurn, Work, in_turns


def outcome(work: Work[str]) -> list[object]:
    """Each result and each call of others, in the loop's order."""
    seen: list[object] = []
    loop = asyncio.new_event_loop()
    try:
        in_turns(loop, work, seen.append, seen.append)
        seen.append("the caller goes on")
        loop.call_soon(seen.append, "another")
        for _ in range(3):
            loop.run_until_complete(asyncio.sleep(0))
    finally:
        loop.close()
    return seen


def test_work_of_one_turn_is_done_at_once() -> None:
    def work() -> Work[str]:
        yield from ()
        return "done"

    assert outcome(work()) == ["done", "the caller goes on", "another"]


def test_others_come_between_two_turns() -> None:
    def work() -> Work[str]:
        yield
        yield
        return "done"

    assert outcome(work()) == ["the caller goes on", "another", "done"]


def test_the_time_of_each_later_turn_is_told() -> None:
    def work() -> Work[str]:
        yield
        yield
        return "done"

    loop, took = asyncio.new_event_loop(), list[int]()
    try:
        in_turns(loop, work(), print, print, took.append)
        assert took == [], "the caller knows that of the first one"
        for _ in range(3):
            loop.run_until_complete(asyncio.sleep(0))
    finally:
        loop.close()
    assert len(took) == 2


def test_a_fault_ends_the_work() -> None:
    fault = ValueError("no")

    def work(turns: int) -> Work[Any]:
        for _ in range(turns):
            yield
        raise fault

    assert outcome(work(0)) == [fault, "the caller goes on", "another"]
    assert outcome(work(1)) == ["the caller goes on", fault, "another"]


def test_each_owner_has_its_turn() -> None:
    waiting: InTurn[str] = InTurn()
    for owner, one in (("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1")):
        waiting.add(owner, one)
    assert waiting.first() == "a1"
    assert [waiting.take(), waiting.take()] == ["a1", "b1"]
    waiting.add("b", "b2")
    assert [waiting.take() for _ in range(len(waiting))] == ["c1", "a2", "b2", "a3"]
