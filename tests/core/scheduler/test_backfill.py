"""Jobs with time limits on a whole node: allowed and forbidden overtaking.

Also the cost of a pass that serves no request.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodemgr.core.manager import step
from nodemgr.core.model import events
from nodemgr.core.model.entities import JobState
from nodemgr.core.requests import notify
from nodemgr.core.scheduler import placement
from tests.core.scheduler.test_plan import Entry, in_order
from tests.core.world import GIB, WALL, Node, S, gpu, submission
from tests.support.examples import examples

ENVS = ("alice", "bob", "carol")


def node(gpus: int = 4, **config: Any) -> Node:
    """Every env may have every GPU, with any other holdings; no tasks share a GPU."""
    made = Node(gpus, **config)
    for env in ENVS:
        made.quota(env, 100)
    return made


def submit(node: Node, env: str, gpus: int, limit_s: int | None = None, **more: Any) -> str:
    job_id = node.submits(
        env, gpus=gpus, time_limit_ms=None if limit_s is None else limit_s * 1_000, **more
    )
    assert job_id is not None
    return job_id


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The env of each request for which the node's GPUs are looked at, in order."""
    envs: list[str] = []
    judge = placement.judge

    def counted(draft: Any, request: Any, reserved: Any, figures: Any) -> placement.PlacementResult:
        envs.append(request.env)
        return judge(draft, request, reserved, figures)

    monkeypatch.setattr(placement, "judge", counted)
    return envs


def quickly(node: Node, event: events.Event) -> None:
    """With ten thousand jobs, a check of everything takes minutes."""
    following: events.Event | None = event
    while following is not None:
        transition = step(node.state, following, node.now_ns)
        transition.apply()
        following = transition.then


def runs(node: Node, job_id: str) -> list[int] | None:
    """The GPUs that it runs on."""
    job = node.state.jobs[job_id]
    if job.state is not JobState.STARTING:
        return None
    return [node.state.gpus[uuid].index for uuid in job.attempts[-1].gpus]


def test_a_short_job_may_have_what_a_gang_cannot_use_yet() -> None:
    busy = node()
    submit(busy, "alice", 3, 100)
    gang = submit(busy, "bob", 4, 50)
    long = submit(busy, "carol", 1, 101)
    short = submit(busy, "carol", 1, 100)
    assert (runs(busy, gang), runs(busy, long), runs(busy, short)) == (None, None, [3])


def test_what_is_unknown_does_not_matter_where_a_gang_waits_for_something_else_in_any_case() -> (
    None
):
    busy = node()
    submit(busy, "alice", 2, 100)
    busy.asks("bob", 10, 1)
    gang = submit(busy, "carol", 4, 50)
    assert runs(busy, gang) is None
    assert runs(busy, submit(busy, "carol", 1, 101)) is None
    assert runs(busy, submit(busy, "carol", 1, 100)) == [3]


def test_time_passes_and_what_was_short_is_so_no_more() -> None:
    busy = node()
    first = submit(busy, "alice", 3, 100)
    gang = submit(busy, "bob", 4, 50)
    busy.now_ns += 60 * S
    late = submit(busy, "carol", 1, 41)
    in_time = submit(busy, "carol", 1, 40)
    assert (runs(busy, late), runs(busy, in_time)) == (None, [3])
    busy.now_ns += 40 * S
    busy.job_ends(in_time)
    busy.job_ends(first)
    assert runs(busy, gang) == [0, 1, 2, 3]


def test_beside_a_gang_whose_start_is_sure_a_job_without_a_limit_may_have_what_it_leaves() -> None:
    busy = node(8)
    submit(busy, "alice", 5, 100)
    gang = submit(busy, "bob", 6, 50)
    beside = [submit(busy, "carol", 1) for _ in range(3)]
    assert runs(busy, gang) is None
    assert [runs(busy, job) for job in beside] == [[5], [6], None]


@pytest.mark.parametrize("unknown", ["no limit", "interactive", "overdue", "lost process"])
def test_where_an_end_is_unknown_a_gang_keeps_all_that_it_could_use(unknown: str) -> None:
    busy = node()
    submit(busy, "alice", 2, 100)
    if unknown == "interactive":
        busy.asks("alice", 10, 3)
    elif unknown == "lost process":
        busy.asks("bob", 10, 1)
        busy.dies(10, {2: 5})
    else:
        submit(busy, "bob", 1, 10 if unknown == "overdue" else None)
    busy.now_ns += 20 * S
    gang = submit(busy, "carol", 2, 50)
    short = submit(busy, "bob", 1, 1)
    assert (runs(busy, gang), runs(busy, short)) == (None, None)


def test_a_gang_keeps_no_gpu_while_one_that_it_needs_is_lost() -> None:
    """It takes its place again when the GPU is back."""
    busy = node(4)
    busy.loses(0)
    gang = submit(busy, "alice", 4, 50)
    one = submit(busy, "bob", 1, 1)
    assert runs(busy, one) == [1]
    busy.gpus_are([gpu(index) for index in range(4)])
    assert runs(busy, submit(busy, "bob", 1)) is None
    busy.job_ends(one)
    assert runs(busy, gang) == [0, 1, 2, 3]


def test_who_shares_gpus_keeps_them_from_the_first_end_on() -> None:
    busy = Node(2)
    busy.quota("half", 2, 80)
    busy.quota("whole", 2)
    busy.quota("third", 2, 50)
    first = submit(busy, "half", 2, 100)
    gang = submit(busy, "whole", 2, 50)
    assert submit(busy, "third", 1, 101)
    short = submit(busy, "third", 1, 100)
    assert runs(busy, short) is not None, "beside half's job, and gone with it"
    assert busy.queued_jobs() == [gang, "j3"]
    busy.now_ns += 100 * S
    busy.job_ends(short)
    busy.job_ends(first)
    assert runs(busy, gang) == [0, 1]


def test_jobs_of_one_env_are_planned_one_after_the_other_within_its_quota() -> None:
    busy = node(4)
    busy.quota("alice", 2)
    submit(busy, "bob", 3, 100)
    first, second = submit(busy, "alice", 2, 50), submit(busy, "alice", 2, 50)
    beside = submit(busy, "carol", 1)
    assert [runs(busy, job) for job in (first, second, beside)] == [
        None,
        None,
        [3],
    ], "alice never has more than two"
    busy.now_ns += 100 * S
    busy.job_ends("j1")
    assert [runs(busy, job) for job in (first, second)] == [[0, 1], None]
    busy.now_ns += 50 * S
    busy.job_ends(first)
    assert runs(busy, second) == [0, 1]


def test_who_is_away_keeps_his_gpus_from_now_on() -> None:
    busy = node(2)
    submit(busy, "alice", 1, 100)
    busy.asks("bob", 10, 2)
    busy.disconnects(10)
    assert runs(busy, submit(busy, "carol", 1, 50)) == [1], "bob could not be served yet"
    busy = node(1)
    holder = submit(busy, "alice", 1, 100)
    busy.asks("bob", 10, 1)
    busy.disconnects(10)
    busy.job_ends(holder)
    assert runs(busy, submit(busy, "carol", 1, 1)) is None


def test_beyond_the_depth_nobody_is_planned_and_everything_is_kept() -> None:
    for depth, served in ((2, None), (3, [3])):
        busy = node(backfill_depth=depth)
        submit(busy, "alice", 3, 100)
        submit(busy, "bob", 4, 50)
        submit(busy, "bob", 3, 50)
        assert runs(busy, submit(busy, "carol", 1, 10)) == served


def test_a_gang_of_eight_is_not_starved_by_a_stream_of_small_jobs() -> None:
    busy = node(8)
    small = [submit(busy, "alice", 1, 60) for _ in range(8)]
    gang = submit(busy, "bob", 8, 600)
    waited_s = 0
    while runs(busy, gang) is None:
        busy.now_ns += 10 * S
        waited_s += 10
        small += [submit(busy, "carol", 1, limit) for limit in (5, 60, 600)]
        ended = [
            job
            for job in small
            if (row := busy.state.jobs.get(job)) and row.task_id and _over(busy, row.task_id)
        ]
        for job in ended:
            busy.job_ends(job)
    assert waited_s == 60
    assert len(busy.queued_jobs()) > 0


def _over(node: Node, task_id: str) -> bool:
    task = node.state.tasks[task_id]
    return task.since_ns + (task.run.time_limit_ms or 0) * 1_000_000 <= node.now_ns


ENTRIES = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 4), st.integers(1, 9), st.booleans()),
    min_size=1,
    max_size=8,
)


@given(ENTRIES, st.integers(2, 4), st.sampled_from([1, 2, 100]))
@settings(deadline=None, max_examples=examples(40))
def test_given_true_limits_no_job_starts_later_than_in_strict_order(
    rows: list[tuple[int, int, int, bool]], gpus: int, depth: int
) -> None:
    """The node itself, one task a GPU, equal GPUs; a job without a limit ends at its own time."""
    comes, entries = 0, []
    for name, (gap, wants, lasts, known) in enumerate(rows):
        comes += gap
        entries.append(Entry(name, comes, min(wants, gpus), lasts, known))
    busy = node(gpus, backfill_depth=depth)
    replay(busy, entries)
    strict = in_order(entries, gpus)
    assert all(
        entry.starts is not None and entry.starts <= strict[entry.name] for entry in entries
    ), (entries, strict)


def replay(busy: Node, entries: list[Entry]) -> None:
    """Fills in each start, in whole seconds; an entry's name says its env."""
    begin_ns = busy.now_ns
    jobs: dict[str, Entry] = {}
    ends: dict[str, int] = {}
    moments = {entry.comes for entry in entries}
    while moments:
        now = min(moments)
        moments.discard(now)
        busy.now_ns = begin_ns + now * S
        for job_id in [job_id for job_id, end in ends.items() if end == now]:
            busy.job_ends(job_id)
        for entry in entries:
            if entry.comes == now:
                job_id = submit(
                    busy, ENVS[entry.name % 3], entry.units, entry.lasts if entry.known else None
                )
                jobs[job_id] = entry
        for job_id, entry in jobs.items():
            if entry.starts is None and runs(busy, job_id) is not None:
                entry.starts = now
                ends[job_id] = now + entry.lasts
                moments.add(now + entry.lasts)


def in_order_within(entries: list[Entry], gpus: int, quotas: tuple[int, ...]) -> dict[int, int]:
    """The result of test_plan.in_order, within the quotas of the entries' envs."""
    starts: dict[int, int] = {}
    running: list[tuple[int, Entry]] = []
    clock = 0
    for entry in entries:
        clock = max(clock, entry.comes)
        while True:
            others = [other for end, other in running if end > clock]
            own = sum(other.units for other in others if other.name % 3 == entry.name % 3)
            if (
                sum(other.units for other in others) + entry.units <= gpus
                and own + entry.units <= quotas[entry.name % 3]
            ):
                break
            clock = min(end for end, _ in running if end > clock)
        running.append((clock + entry.lasts, entry))
        starts[entry.name] = clock
    return starts


OWN = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 5), st.integers(1, 9)), min_size=1, max_size=10
)


@given(OWN, st.integers(2, 5), st.tuples(*[st.integers(1, 5)] * 3))
@settings(deadline=None, max_examples=examples(40))
def test_given_true_limits_no_job_starts_later_than_in_strict_order_within_the_quotas(
    rows: list[tuple[int, int, int]], gpus: int, quotas: tuple[int, ...]
) -> None:
    """Requests that wait for their own env's tasks are planned like any other.

    This holds for any quotas and any size of the node.
    """
    comes, entries = 0, []
    for name, (gap, wants, lasts) in enumerate(rows):
        comes += gap
        entries.append(Entry(name, comes, min(wants, gpus, quotas[name % 3]), lasts))
    busy = node(gpus)
    for env, quota in zip(ENVS, quotas, strict=True):
        busy.quota(env, quota)
    replay(busy, entries)
    strict = in_order_within(entries, gpus, quotas)
    assert all(
        entry.starts is not None and entry.starts <= strict[entry.name] for entry in entries
    ), (entries, strict)


def test_ten_thousand_jobs_behind_one_lease_are_one_question_and_wake_nobody(
    asked: list[str],
) -> None:
    busy = node(1)
    busy.quota("bob", 1)
    holder = submit(busy, "alice", 1)
    many = tuple(submission("bob", ref=number, gpus=1) for number in range(10_000))
    for event in (
        events.SubmitJobs(many, WALL),
        events.SubmitJobs((submission("carol", gpus=1),), WALL),
    ):
        quickly(busy, event)
    assert busy.state.wake_ns() is None
    asked.clear()
    busy.passes(3_600_000)
    assert (busy.wakes, asked) == (0, [])
    quickly(busy, events.Match(WALL))
    assert len(asked) == 1, "carol needs no look: the only GPU is kept"
    asked.clear()
    *_, (last, standing) = notify.listing(busy.state, busy.now_ns)
    assert (last.env, standing.position, len(asked)) == (
        "carol",
        10_001,
        3,
    ), "bob's first, his others, carol"
    assert standing.why == "needs 1 GPU, 0 free; alice/j1 holds GPU 0 since 22:13 UTC"
    assert notify.Standings(busy.state, busy.now_ns).of(last) == standing
    asked.clear()
    quickly(busy, events.JobEnded(holder, 1, 0, None, "", False, "", None, WALL))
    assert len(busy.queued_jobs()) == 10_000
    assert len(asked) == 2, (
        "one is served, carol waits for the GPU; what is short of its quota needs no look at the"
        " node"
    )


def test_jobs_that_all_ask_differently_are_looked_at_so_many_times_for_each_env(
    asked: list[str],
) -> None:
    busy = node(2, backfill_depth=5)
    busy.quota("bob", 2, 80)
    busy.asks("bob", 10, 1, gib=40)
    submit(busy, "alice", 1)
    for number in range(30):
        submit(busy, "bob", 2, memory_bytes=GIB + number)
    submit(busy, "carol", 1)
    asked.clear()
    busy.happens(events.Match(WALL))
    assert 1 <= asked.count("bob") <= 5


def test_one_envs_blocked_jobs_hide_nobody_elses() -> None:
    busy = Node(0)
    busy.gpus_are([gpu(0), gpu(1, 16)])
    for env in ENVS:
        busy.quota(env, 2)
    submit(busy, "alice", 1, memory_bytes=40 * GIB)
    many = tuple(
        submission("bob", ref=number, gpus=1, memory_bytes=40 * GIB) for number in range(300)
    )
    quickly(busy, events.SubmitJobs(many, WALL))  # GPU 1 is too small for them, for ever
    quickly(busy, events.SubmitJobs((submission("carol", gpus=1),), WALL))
    assert runs(busy, "j302") == [1]


def test_nobody_takes_out_of_his_envs_quota_what_another_of_it_waits_for() -> None:
    busy = node(4)
    busy.quota("alice", 2)
    holder = submit(busy, "bob", 3, 50)
    gang = submit(busy, "alice", 2, 20)
    beside = [submit(busy, "alice", 1, limit) for limit in (200, 50)]
    assert [runs(busy, job) for job in beside] == [
        None,
        None,
    ], "one that ended late would cost the gang its place"
    busy.now_ns += 50 * S
    busy.job_ends(holder)
    assert len(runs(busy, gang) or ()) == 2


@pytest.mark.parametrize(("limit", "place"), [(20, [3]), (21, None)])
def test_one_that_is_surely_over_before_its_envs_earlier_job_can_start_goes_first(
    limit: int, place: list[int] | None
) -> None:
    """Over is the forced end, 30 s after the limit."""
    busy = node(4)
    busy.quota("alice", 2)
    submit(busy, "bob", 3, 50)
    gang = submit(busy, "alice", 2, 20)
    short = submit(busy, "alice", 1, limit)
    assert (runs(busy, gang), runs(busy, short)) == (None, place)


def test_its_earlier_job_may_wait_behind_a_gang_of_another_env() -> None:
    busy = node(2)
    busy.quota("alice", 2)
    submit(busy, "alice", 1, 25)
    gang = submit(busy, "bob", 2, 60)
    unlimited = submit(busy, "alice", 1)
    short = submit(busy, "alice", 1, 8)
    assert [runs(busy, job) for job in (gang, unlimited, short)] == [None, None, [1]]


def test_a_forecast_is_not_sure_to_end() -> None:
    busy = node(2)
    busy.quota("alice", 2)
    submit(busy, "alice", 1, 25)
    submit(busy, "bob", 2, 60)
    submit(busy, "alice", 1)
    assert runs(busy, submit(busy, "alice", 1, expected_ms=8_000)) is None


def test_who_waits_for_his_own_env_comes_first_all_the_same_when_it_gives_something_back() -> None:
    """carol's jobs are planned for the end of alice's two; alice's next is before them."""
    busy = node(3)
    busy.quota("alice", 2)
    holder = submit(busy, "alice", 2, 50)
    own = submit(busy, "alice", 1, 80)
    two = submit(busy, "carol", 2, 30)
    assert runs(busy, submit(busy, "bob", 1, 51)) is None
    short = submit(busy, "bob", 1, 50)
    assert runs(busy, short) == [2]
    busy.now_ns += 50 * S
    busy.job_ends(short)
    busy.job_ends(holder)
    assert [len(runs(busy, job) or ()) for job in (own, two)] == [1, 2]


def test_who_waits_for_his_own_env_may_take_more_than_it_gives_back() -> None:
    busy = node(4)
    holder = submit(busy, "carol", 3, 50)
    busy.quota("carol", 4)
    four = submit(busy, "carol", 4, 30)
    submit(busy, "alice", 2, 90)
    assert runs(busy, submit(busy, "bob", 1, 51)) is None
    busy.now_ns += 50 * S
    busy.job_ends(holder)
    assert len(runs(busy, four) or ()) == 4


# Requests that wait for their own env's tasks.


def test_a_job_that_waits_for_its_own_task_is_planned_for_that_tasks_end() -> None:
    """A node of 8, quotas of 8: bob's job without a limit must not make alice's wait for it."""
    busy = node(8)
    busy.quota("alice", 8)
    own = submit(busy, "alice", 1, 6)
    eight = submit(busy, "alice", 8, 5)
    seven, late, in_time = (
        submit(busy, "bob", 7),
        submit(busy, "carol", 1, 7),
        submit(busy, "carol", 1, 6),
    )
    assert [runs(busy, job) for job in (eight, seven, late)] == [None] * 3
    assert runs(busy, in_time) == [1]
    busy.now_ns += 4 * S
    busy.job_ends(own)
    busy.job_ends(in_time)
    assert len(runs(busy, eight) or ()) == 8


def unknown() -> tuple[Node, int, str]:
    """alice holds one GPU of 8 for an unknown time, and waits for 5 of the 5 that she may have."""
    busy = node(8)
    busy.quota("alice", 5)
    busy.asks("alice", 10, 1)
    return busy, 10, submit(busy, "alice", 5, 50)


def test_without_a_limit_on_the_own_task_no_job_without_a_limit_has_what_it_needs_beside_it() -> (
    None
):
    busy, own, five = unknown()
    beside = [submit(busy, "bob", 1) for _ in range(4)]
    assert [runs(busy, job) is None for job in beside] == [
        False,
        False,
        False,
        True,
    ], "7 are idle, 4 of them are held"
    busy.quota("dave", 8)
    busy.asks("dave", 20, 1)
    assert busy.gpus_of(20) is None, "nor an interactive request"
    limited = submit(busy, "carol", 2, 1_000_000)
    assert runs(busy, limited) is not None, "they do not lie idle: one with a limit gives them back"
    busy.job_ends(limited)
    busy.dies(own)
    assert len(runs(busy, five) or ()) == 5


def test_once_its_env_has_room_nothing_that_delays_it_goes_before_it() -> None:
    busy, own, five = unknown()
    limited = submit(busy, "bob", 4, 100)
    assert runs(busy, limited) is not None
    busy.dies(own)
    assert runs(busy, five) is None
    assert runs(busy, submit(busy, "carol", 4, 101)) is None
    assert len(runs(busy, submit(busy, "carol", 3)) or ()) == 3
    busy.now_ns += 100 * S
    busy.job_ends(limited)
    assert len(runs(busy, five) or ()) == 5


def test_where_some_ends_are_known_one_that_ends_before_goes_first() -> None:
    busy = node(8)
    busy.quota("alice", 5)
    busy.asks("alice", 10, 1)
    own = submit(busy, "alice", 1, 60)
    four = submit(busy, "alice", 4, 50)
    beside = submit(busy, "bob", 3, 1_000)
    assert runs(busy, beside) is not None, "6 are idle, and 3 of them are held"
    late, in_time = submit(busy, "carol", 1, 61), submit(busy, "carol", 1, 60)
    assert (runs(busy, late), len(runs(busy, in_time) or ())) == (None, 1)
    busy.now_ns += 60 * S
    busy.job_ends(in_time)
    assert runs(busy, late) is None, "the own task is overdue: it ends soon"
    busy.job_ends(own)
    assert len(runs(busy, four) or ()) == 4


def test_while_the_own_task_is_overdue_nothing_goes_before_it() -> None:
    busy = node(4)
    busy.quota("alice", 3)
    own = submit(busy, "alice", 1, 60)
    three = submit(busy, "alice", 3, 50)
    busy.now_ns += 61 * S
    assert runs(busy, submit(busy, "bob", 1, 1)) is None
    busy.job_ends(own)
    assert len(runs(busy, three) or ()) == 3


def test_an_env_that_submits_more_of_one_kind_than_its_quota_holds_no_idle_gpu() -> None:
    """Its tasks give back what its next job needs."""
    busy = node(8)
    busy.quota("alice", 5)
    backlog = [submit(busy, "alice", 2) for _ in range(50)]
    assert [runs(busy, job) is not None for job in backlog[:3]] == [True, True, False]
    assert [runs(busy, submit(busy, "bob", 1)) is not None for _ in range(4)] == [True] * 4


def test_what_is_held_is_enough_for_all_that_wait_behind_an_envs_first() -> None:
    busy = node(8)
    busy.quota("alice", 5)
    submit(busy, "alice", 2)
    submit(busy, "alice", 2)
    submit(busy, "alice", 2)
    five = submit(busy, "alice", 5)
    assert [runs(busy, submit(busy, "bob", 1)) is not None for _ in range(4)] == [
        True,
        True,
        True,
        False,
    ]
    for job_id in ("j1", "j2", "j3"):
        busy.job_ends(job_id)
    assert len(runs(busy, five) or ()) == 5


def test_two_equal_jobs_that_may_run_beside_each_other_are_both_provided_for() -> None:
    busy = node(6)
    busy.quota("alice", 4)
    three = submit(busy, "alice", 3)
    two = [submit(busy, "alice", 2) for _ in range(2)]
    assert [runs(busy, submit(busy, "bob", 1)) is not None for _ in range(3)] == [True, True, False]
    busy.job_ends(three)
    assert [len(runs(busy, job) or ()) for job in two] == [2, 2]


@pytest.mark.parametrize(
    ("gpus", "limit_s", "starts"),
    [(2, None, True), (3, 17, False), (3, None, False), (4, 16, True), (4, 17, False)],
)
def test_all_of_an_envs_backlog_with_limits_is_planned_behind_its_first(
    gpus: int, limit_s: int | None, starts: bool
) -> None:
    """alice's first has 4 GPUs from 6 to 16, her second 6 from then on; she never has more."""
    busy = node(8)
    busy.quota("alice", 6)
    submit(busy, "alice", 4, 6)
    first, second = submit(busy, "alice", 4, 10), submit(busy, "alice", 6, 10)
    assert [runs(busy, job) for job in (first, second)] == [None, None]
    assert (runs(busy, submit(busy, "bob", gpus, limit_s)) is not None) is starts


@pytest.mark.parametrize(("depth", "memory_bytes"), [(1, None), (100, GIB)])
@pytest.mark.parametrize(
    ("gpus", "limit_s", "starts"), [(2, None, True), (3, None, False), (3, 7, False), (4, 6, True)]
)
def test_behind_a_backlog_that_is_not_planned_its_env_may_take_its_quota(
    depth: int, memory_bytes: int | None, gpus: int, limit_s: int | None, starts: bool
) -> None:
    """alice's first has 4 GPUs from 6 on.

    Her second is beyond the depth, or shares GPUs: it may start at any time after that.
    """
    busy = node(8, backfill_depth=depth)
    busy.quota("alice", 6)
    submit(busy, "alice", 4, 6)
    first, second = (
        submit(busy, "alice", 4, 10),
        submit(busy, "alice", 2, 10, memory_bytes=memory_bytes),
    )
    assert [runs(busy, job) for job in (first, second)] == [None, None]
    assert (runs(busy, submit(busy, "bob", gpus, limit_s)) is not None) is starts


def test_a_gpu_that_a_job_without_a_limit_shares_has_no_known_end() -> None:
    busy = node(4)
    busy.quota("alice", 1)
    own = [submit(busy, "alice", 1, limit, memory_bytes=GIB) for limit in (60, None)]
    busy.passes(0)
    busy.quota("alice", 4)
    four = submit(busy, "alice", 4, 50)
    assert [runs(busy, job) for job in (*own, four)] == [[0], [0], None]
    assert runs(busy, submit(busy, "bob", 1)) is None
    assert runs(busy, submit(busy, "bob", 1, 1_000)) is not None, (
        "not planned for the end of the other one"
    )


@pytest.mark.parametrize(
    ("gpus", "limit_s", "starts"),
    [(4, None, True), (5, None, False), (5, 101, False), (6, 100, True)],
)
def test_behind_a_planned_job_without_a_limit_its_env_may_take_its_quota_and_no_more(
    gpus: int, limit_s: int | None, starts: bool
) -> None:
    busy = node(8)
    busy.quota("alice", 4)
    submit(busy, "alice", 2, 100)
    first, second = submit(busy, "alice", 4), submit(busy, "alice", 3)
    assert [runs(busy, job) for job in (first, second)] == [None, None]
    assert (runs(busy, submit(busy, "bob", gpus, limit_s)) is not None) is starts
