"""Words of nodes to a head: sessions, ends, refusals, silence, lost stores, a copy as a head."""

from __future__ import annotations

import pytest

from nodemgr.core.cluster import events
from nodemgr.core.cluster.entities import ClusterJob, ClusterStage
from nodemgr.core.cluster.events import NodeAnswer
from nodemgr.core.cluster.messages import Assign, GiveBack, to_say
from nodemgr.core.cluster.state import restore
from nodemgr.core.model.entities import RETAINED_ATTEMPTS, Cause, JobState
from nodemgr.core.model.values import replace
from tests.core.cluster.test_passes import Head, S


def given(*, nodes: int = 2, restarts: int = 0) -> tuple[Head, str]:
    """A job that is assigned to gn1."""
    head = Head(**{f"gn{n}": 4 for n in range(1, nodes + 1)})
    head.happens(events.Submit((ClusterJob("", "a", "ann", 1, None, restarts),)))
    head.passes()
    return head, "c1"


def says(head: Head, node: str = "gn1") -> list[object]:
    return list(to_say(head.state, node))


def restarted(head: Head) -> Head:
    head.state = restore("hq", list(head.state.rows()), head.state.config)
    return head


# -- what is said --


def test_an_assignment_is_said_until_the_node_has_answered() -> None:
    head, job = given()
    for _ in range(2):
        (word,) = says(head)
        assert isinstance(word, Assign)
        assert (word.row.key, word.row.number, word.refuse) == ("hq/1/c1/1", 1, False)
        restarted(head)
        assert says(head) == [], "a node that has not been asked is told nothing"
        head.syncs("gn1", session=2)
    head.reports("gn1", head.answer(job), session=2)
    assert says(head) == []


def test_a_node_that_waits_for_a_word_gets_it() -> None:
    head, job = given()
    head.answers["gn1"] = [head.answer(job, confirmed=False)]
    head.syncs("gn1", session=2)
    (word,) = says(head)
    assert isinstance(word, Assign)
    head.reports("gn1", head.answer(job), session=2)
    assert says(head) == []


def test_a_job_that_is_withdrawn_before_the_node_has_answered_is_to_be_refused() -> None:
    head, job = given()
    head.happens(events.Withdraw(job))
    (word,) = says(head)
    assert isinstance(word, Assign)
    assert word.refuse
    head.reports("gn1", head.answer(job))
    assert says(head) == [GiveBack("hq/1/c1/1")], "it had it already"
    (done,) = head.reports("gn1", head.answer(job, over=True, state=JobState.WITHDRAWN))
    assert done == events.Acknowledge("gn1", ("hq/1/c1/1",), 2)
    assert head.state.jobs == {}


def test_an_answer_with_a_smaller_number_is_awaited_before_it_counts_as_given() -> None:
    head, first = given(nodes=1)
    second = head.submits(1)
    head.passes()
    (done,) = head.reports("gn1", head.answer(second, over=True, began=True, state=JobState.DONE))
    assert done.below == 1, "the first has no answer"
    head.reports("gn1", head.answer(first))
    third = head.submits(1)
    head.passes()
    head.reports("gn1", head.answer(third))
    (done,) = head.reports("gn1", head.answer(first, over=True, began=True, state=JobState.DONE))
    assert done.below == 4


# -- sessions --


def test_words_of_an_earlier_session_and_words_that_were_overtaken_mean_nothing() -> None:
    head, job = given()
    began = head.answer(job, began=True)
    head.reports("gn1", began, session=7)
    assert head.stage(job) is ClusterStage.ASSIGNED
    head.others["gn1"] = (("a", 3),)
    head.reports("gn1", number=5)
    head.others["gn1"] = ()
    for number in (5, 4):
        head.reports("gn1", began, number=number)
    assert head.state.nodes["gn1"].others == (("a", 3),)
    assert head.stage(job) is ClusterStage.ASSIGNED
    head.happens(events.Silent("gn1", 7))
    assert "gn1" in head.state.sessions
    head.happens(events.Silent("gn1", 1))
    head.reports("gn1", began, number=9)
    assert head.stage(job) is ClusterStage.ASSIGNED


def test_an_unknown_node_is_nobody() -> None:
    head, _ = given()
    before = dict(head.state.nodes)
    head.happens(events.Synced("gn9", 1, "g", "b", 5, 8, (), ()))
    head.happens(events.NodeReport("gn9", 1, 1, 8, (), ()))
    assert head.state.nodes == before


def test_silence_ends_nothing_and_begins_nothing_elsewhere() -> None:
    head, job = given()
    head.begins(job)
    head.happens(events.Silent("gn1", 1))
    head.now_ns += 10**6 * S
    head.passes()
    assert head.node_of(job) == "gn1"
    assert head.stage(job) is ClusterStage.RUNNING


def test_a_new_session_without_an_end_of_the_last_one_begins_anew() -> None:
    head, job = given()
    head.answers["gn1"] = [head.answer(job, confirmed=False)]
    head.syncs("gn1", session=2)
    assert head.state.to_confirm == {"hq/1/c1/1": "gn1"}
    head.answers["gn1"] = []
    head.syncs("gn1", session=3)
    assert head.state.to_confirm == {}


def test_an_answer_with_another_key_is_not_the_answer() -> None:
    head, job = given()
    over = head.answer(job, over=True, began=True, state=JobState.DONE)
    head.reports("gn1", replace(over, key="hq/1/c9/1"))
    head.reports("gn2", over)
    assert head.stage(job) is ClusterStage.ASSIGNED


# -- ends --


@pytest.mark.parametrize(
    ("cause", "restarts", "stage"),
    [
        (Cause.OWN, 0, None),
        (Cause.OWN, 1, ClusterStage.QUEUED),
        (Cause.TIME_LIMIT, 5, None),
        (Cause.NODE_DOWN, 0, ClusterStage.QUEUED),
        (Cause.GPU_LOST, 0, ClusterStage.PAUSED),
        (Cause.PREEMPTED, 0, ClusterStage.PAUSED),
    ],
)
def test_the_cause_of_a_bad_end_says_what_follows(
    cause: Cause, restarts: int, stage: ClusterStage | None
) -> None:
    head, job = given(restarts=restarts)
    head.begins(job)
    before = head.state.jobs[job].queued_ns
    head.now_ns += S
    head.ends(job, JobState.FAILED, cause=cause)
    left = head.state.jobs.get(job)
    assert (None if left is None else left.stage) == stage
    if left is not None:
        assert (left.queued_ns != before) == (cause is Cause.OWN), "its own fault costs its place"
    if stage is ClusterStage.PAUSED:
        head.happens(events.ClockMoved())
        assert head.stage(job) is ClusterStage.PAUSED
        head.now_ns += 60 * S
        head.happens(events.ClockMoved())
        assert head.stage(job) is ClusterStage.QUEUED


def test_the_next_attempt_has_another_key_and_number() -> None:
    head, job = given()
    head.begins(job)
    head.ends(job, JobState.FAILED, cause=Cause.NODE_DOWN)
    head.passes()
    (word,) = [word for node in ("gn1", "gn2") for word in says(head, node)]
    assert isinstance(word, Assign)
    assert (word.row.key, word.row.number) == ("hq/1/c1/2", 2)


@pytest.mark.parametrize("is_refusal", [True, False])
def test_a_node_that_cannot_begin_a_job_is_avoided(is_refusal: bool) -> None:
    head, job = given()
    how = {"state": JobState.WITHDRAWN} if is_refusal else {"state": JobState.FAILED}
    head.reports("gn1", head.answer(job, over=True, is_refusal=is_refusal, **how))
    assert head.state.jobs[job].avoids == ("gn1",)
    head.passes()
    assert head.node_of(job) == "gn2"
    head.reports("gn2", head.answer(job, over=True, is_refusal=is_refusal, **how))
    assert head.state.jobs == {}, "no node is left"


def test_a_withdrawal_on_the_node_is_an_end() -> None:
    head, job = given()
    head.begins(job)
    head.ends(job, JobState.WITHDRAWN)
    assert head.state.jobs == {}


def test_an_end_that_is_known_is_acknowledged_again() -> None:
    head, job = given()
    end = head.answer(job, over=True, began=True, state=JobState.DONE)
    for _ in range(2):
        (done,) = head.reports("gn1", end)
        assert done.keys == ("hq/1/c1/1",)
    restarted(head)
    head.answers["gn1"] = [end]
    (done,) = head.syncs("gn1", session=2)
    assert done.keys == ("hq/1/c1/1",)


# -- lost nodes --


def test_another_store_of_a_node_is_not_told_what_the_first_one_was() -> None:
    """It would begin again what may be running."""
    head, job = given()
    head.syncs("gn1", session=2, generation="g2")
    assert says(head) == []
    head.happens(events.NodeLost("gn1"))
    assert head.stage(job) is ClusterStage.QUEUED
    head.passes()
    assert head.state.jobs[job].attempt == 2


def test_a_node_that_speaks_is_not_lost() -> None:
    head, job = given()
    head.happens(events.NodeLost("gn1"))
    assert head.node_of(job) == "gn1"


def test_a_node_that_was_given_up_and_comes_back_ends_what_it_has() -> None:
    head, job = given()
    began = head.answer(job, began=True)
    head.reports("gn1", began)
    head.happens(events.Silent("gn1", 1))
    head.happens(events.NodeLost("gn1"))
    head.passes()
    assert head.node_of(job) == "gn2"
    head.answers["gn1"] = [began]
    head.syncs("gn1", session=2)
    assert says(head) == [GiveBack(began.key)]
    over = NodeAnswer(began.key, 1, True, True, False, True, JobState.WITHDRAWN)
    (done,) = head.reports("gn1", over, session=2)
    assert done.keys == (began.key,)
    assert says(head) == []
    assert head.node_of(job) == "gn2", "its other attempt goes on"


# -- a head that is a copy --


@pytest.mark.parametrize("knows", ["below", "a key"])
def test_a_head_that_is_an_older_copy_gives_no_job(knows: str) -> None:
    """A job of its queue may be running on a node that it was given to after the copy."""
    head, job = given()
    new = NodeAnswer("hq/1/c7/1", 9, False, True, False, True, JobState.QUEUED)
    head.answers["gn2"] = [new] if knows == "a key" else []
    head.happens(events.Silent("gn2", 1))
    head.syncs("gn2", session=2, below=10 if knows == "below" else 0)
    assert "gn2" not in head.state.sessions
    assert says(head, "gn2") == []
    later = head.submits(1)
    head.passes()
    assert head.node_of(later) is None
    head.begins(job)
    head.ends(job)
    assert job not in head.state.jobs, "what it knows goes on"
    restarted(head)
    head.syncs("gn1", session=2)
    head.passes()
    assert head.node_of(later) is None


def test_what_a_node_may_know_of_this_head_is_no_copy() -> None:
    head, _ = given()
    head.syncs("gn1", session=2, below=2)
    assert not head.state.counters[""].is_copy


# -- starts --


def test_each_start_is_kept_with_its_node_and_its_end() -> None:
    """Not an attempt that was refused; also over restarts of the head, and a node that is lost."""
    head, job = given(nodes=3, restarts=1)
    head.ends(job, JobState.WITHDRAWN, began=False, is_refusal=True)
    head.passes()
    head.begins(job)
    restarted(head)
    head.syncs("gn2", session=2)
    head.reports("gn2", head.answer(job, over=True, began=True, state=JobState.FAILED,
                                    exit_code=3, ran_ms=9, node_job="j7"), session=2)  # fmt: skip
    restarted(head)
    for name in head.state.nodes:
        head.syncs(name, session=3)
    head.passes()
    head.reports("gn2", head.answer(job, began=True, node_job="j8"), session=3)
    assert (head.state.jobs[job].attempt, head.state.jobs[job].starts) == (3, 1)
    head.happens(events.Silent("gn2", 3))
    head.happens(events.NodeLost("gn2", 70))
    restarted(head)
    for name in ("gn1", "gn3"):
        head.syncs(name, session=4)
    head.passes()
    node = head.node_of(job)
    assert node is not None
    head.reports(node, head.answer(job, over=True, began=True, state=JobState.DONE, exit_code=0,
                                   ended_wall_ns=90), session=4)  # fmt: skip
    past = head.ended[job].job.past
    assert [(one.number, one.node, one.node_job, one.exit_code) for one in past] == [
        (1, "gn2", "j7", 3), (2, "gn2", "j8", None), (3, node, "", 0),
    ]  # fmt: skip
    assert [one.ended_wall_ns for one in past] == [0, 70, 90]
    assert past[1].why == "gn2 was lost"


def test_the_last_starts_are_kept_and_all_are_counted() -> None:
    head, job = given(restarts=30)
    for _ in range(RETAINED_ATTEMPTS + 5):
        head.ends(job, JobState.FAILED, exit_code=1)
        head.passes()
    past = head.state.jobs[job].past
    assert [one.number for one in past] == list(range(6, RETAINED_ATTEMPTS + 6))
