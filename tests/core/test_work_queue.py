"""The queues, against lists that are counted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodemgr.core import work_queue
from nodemgr.core.work_queue import Fifo, WorkQueue

RANKS = (("high", 300), ("normal", 200), ("low", 100))


def test_ranks_go_before_times() -> None:
    queue = WorkQueue(RANKS)
    for name, entry in (("low", "a"), ("normal", "b"), ("high", "c"), ("normal", "d")):
        queue.insert(name, entry)
    assert list(queue) == ["c", "b", "d", "a"]
    assert [queue.position(entry) for entry in queue] == [1, 1, 2, 1]
    assert list(queue.names()) == ["high", "normal", "low"]


def test_peek_shows_what_pop_takes() -> None:
    queue = WorkQueue(RANKS)
    assert (queue.peek(), queue.pop()) == (None, None)
    queue.insert("low", "a")
    queue.insert("high", "b")
    assert (queue.peek(), queue.pop(), queue.pop(), queue.pop()) == ("b", "b", "a", None)


def test_a_queue_is_made_on_demand_after_all_others() -> None:
    queue = WorkQueue(RANKS)
    queue.insert("nightly", "a")
    queue.insert("low", "b")
    assert list(queue) == ["b", "a"]
    assert list(queue.entries("nightly")) == ["a"]
    assert list(queue.entries("unheard of")) == []


def test_queues_of_one_rank_are_served_by_name() -> None:
    queue = WorkQueue((("b", 1), ("a", 1)))
    queue.insert("b", "1")
    queue.insert("a", "2")
    assert list(queue) == ["2", "1"]


def test_an_entry_waits_once() -> None:
    queue = WorkQueue(RANKS)
    queue.insert("low", "a")
    with pytest.raises(ValueError, match="a waits already"):
        queue.insert("high", "a")
    with pytest.raises(ValueError, match="a waits already"):
        queue._queues["low"].insert("a")


def test_who_does_not_wait_has_no_place() -> None:
    queue = WorkQueue(RANKS)
    for ask in (queue.withdraw, queue.position):
        with pytest.raises(KeyError):
            ask("a")


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.integers(0, 40)),
        st.tuples(st.just("withdraw"), st.integers(0, 40)),
        st.tuples(st.just("pop"), st.just(0)),
    ),
    max_size=120,
)


@given(OPERATIONS)
@settings(max_examples=150, deadline=None)
def test_a_queue_is_a_list(operations: list[tuple[str, int]]) -> None:
    """With blocks of four bits, so that blocks, spans and renumbering all come into play."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work_queue, "BLOCK_BITS", 4)
        patch.setattr(work_queue, "SPAN_BLOCKS", 2)
        queue, plain = Fifo(), list[str]()
        for operation, number in operations:
            entry = f"r{number}"
            if operation == "insert" and entry not in plain:
                queue.insert(entry)
                plain.append(entry)
            elif operation == "withdraw" and entry in plain:
                queue.withdraw(entry)
                plain.remove(entry)
            elif operation == "pop":
                assert queue.pop() == (plain.pop(0) if plain else None)
            assert list(queue) == plain
            assert len(queue) == len(plain)
            assert [queue.position(entry) for entry in plain] == list(range(1, len(plain) + 1))


def test_a_long_lived_queue_does_not_grow() -> None:
    queue = Fifo()
    queue.insert("first")
    for number in range(20_000):
        queue.insert(str(number))
        queue.withdraw(str(number))
    assert len(queue._blocks) < 10
    assert queue.position("first") == 1
