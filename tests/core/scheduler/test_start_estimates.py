"""Start estimates: by limits, by earlier runs of the same command, and without any knowledge."""

from __future__ import annotations

from typing import NamedTuple

from nodemgr.core.requests.notify import listing
from nodemgr.core.scheduler.start_estimates import StartEstimate, start_estimates
from tests.core.scheduler.test_backfill import node, submit
from tests.core.world import Node, S


class Took(NamedTuple):
    quarter_ms: int
    median_ms: int
    three_quarters_ms: int


def never(_env: str, _command: str) -> None:
    return None


def took(env: str, command: str) -> Took | None:
    """alice's trainings alone have a history."""
    return Took(40_000, 60_000, 90_000) if (env, command) == ("alice", "python train.py") else None


def by_job(node: Node, expected: dict[str, StartEstimate]) -> dict[str, tuple[int, int, int, bool]]:
    """The estimates by job, in seconds from now."""
    told = {}
    for request_id, row in expected.items():
        times = [
            (time_ns - node.now_ns) // S for time_ns in (row.low_ns, row.likely_ns, row.high_ns)
        ]
        told[node.state.requests[request_id].job_id or request_id] = (
            times[0],
            times[1],
            times[2],
            row.by_history,
        )
    return told


def test_time_limits_tell_when_each_of_a_queue_starts_at_the_latest() -> None:
    busy = node(2)
    submit(busy, "bob", 1, 100)
    submit(busy, "bob", 1, 30)
    first, second, third = (submit(busy, "carol", gpus, 50) for gpus in (1, 2, 1))
    busy.now_ns += 10 * S
    assert by_job(busy, start_estimates(busy.state, busy.now_ns, never, 100)) == {
        first: (20, 20, 20, False),
        second: (90, 90, 90, False),
        third: (140, 140, 140, False),
    }


def test_what_a_command_took_before_is_an_estimate_with_its_spread_and_a_limit_bounds_it() -> None:
    busy = node(1)
    submit(busy, "alice", 1)
    first, second = submit(busy, "alice", 1, 50), submit(busy, "bob", 1)
    busy.now_ns += 10 * S
    expected = by_job(busy, start_estimates(busy.state, busy.now_ns, took, 100))
    assert expected == {first: (30, 50, 80, True), second: (70, 100, 130, True)}


def test_a_run_longer_than_most_is_expected_to_end_as_the_slowest_did_and_then_is_unknown() -> None:
    busy = node(1)
    submit(busy, "alice", 1)
    waits = submit(busy, "bob", 1)
    busy.now_ns += 70 * S
    assert by_job(busy, start_estimates(busy.state, busy.now_ns, took, 100)) == {
        waits: (20, 20, 20, True)
    }
    busy.now_ns += 30 * S
    assert start_estimates(busy.state, busy.now_ns, took, 100) == {}


def test_behind_one_of_whom_nothing_is_known_nothing_is_known() -> None:
    busy = node(2)
    submit(busy, "bob", 1, 100)
    submit(busy, "bob", 1)
    known, unknown, behind = (
        submit(busy, "carol", 1, 50),
        submit(busy, "carol", 2),
        submit(busy, "bob", 1, 5),
    )
    assert by_job(busy, start_estimates(busy.state, busy.now_ns, never, 100)) == {
        known: (100, 100, 100, False)
    }
    assert {unknown, behind} <= set(busy.queued_jobs())


def test_interactive_waiters_are_told_too_and_an_env_has_its_jobs_one_after_the_other() -> None:
    busy = node(2)
    busy.quota("alice", 1)
    submit(busy, "alice", 1, 100)
    submit(busy, "bob", 1, 200)
    own = submit(busy, "alice", 1, 40)
    busy.asks("carol", 10)
    expected = start_estimates(busy.state, busy.now_ns, never, 100)
    assert by_job(busy, expected) == {own: (100, 100, 100, False), "r4": (200, 200, 200, False)}


def test_only_the_first_of_a_long_queue_are_counted() -> None:
    busy = node(1)
    submit(busy, "bob", 1, 100)
    jobs = [submit(busy, "bob", 1, 10) for _ in range(5)]
    assert list(by_job(busy, start_estimates(busy.state, busy.now_ns, never, 2))) == jobs[:2]


def test_a_waiter_is_told_the_next_end_that_is_known() -> None:
    busy = node(2)
    submit(busy, "bob", 1, 7_200, name="eval")
    submit(busy, "bob", 1)
    busy.asks("alice", 10, 1)
    told = busy.told(10)
    assert told is not None
    assert (
        told.why
        == "needs 1 GPU, 0 free; next known end 00:13 UTC: bob/eval, time"
        " limit; bob/j1 holds GPU 0 since 22:13 UTC; bob/j2 holds GPU 1 since 22:13 UTC"
    )


def test_of_equal_ends_always_the_same_one_is_told() -> None:
    busy = node(8)
    for number in range(8):
        submit(busy, "bob", 1, 7_200, name=f"eval{number}")
    busy.asks("alice", 10, 1)
    told = busy.told(10)
    assert told is not None
    assert "next known end 00:13 UTC: bob/eval0, time limit" in told.why


def test_who_waits_for_his_own_tasks_is_told_their_next_known_end() -> None:
    busy = node(3)
    busy.quota("bob", 1)
    submit(busy, "alice", 1, 60, name="others")
    submit(busy, "bob", 1, 7_200, name="eval")
    submit(busy, "bob", 1)
    ((_, standing),) = listing(busy.state, busy.now_ns)
    assert (
        standing.why
        == "needs 1 GPU of the 1 in bob's quota, 0 left: waits for its own"
        " tasks; `--memory SIZE` would share a GPU where SIZE is free; next known end 00:13 UTC:"
        " bob/eval, time limit"
    )


def test_a_recall_ends_the_wait_for_a_gpu_above_a_least_number() -> None:
    """It was made for the first request, and has 6 s left; the second is served by it as well."""
    busy = Node(2)
    for env in ("alice", "bob"):
        busy.quota(env, 2)
    busy.asks("alice", 1, 1, most=2, elastic=True)
    busy.passes(5_000)
    assert busy.gpus_of(1) == [0, 1]
    first = submit(busy, "bob", 1, 60)
    second = submit(busy, "bob", 1, 60)
    busy.passes(4_000)
    assert by_job(busy, start_estimates(busy.state, busy.now_ns, never, 100)) == {
        first: (6, 6, 6, False),
        second: (66, 66, 66, False),
    }
