"""Orders about jobs at the head: arrays as one row, dependencies, held and moved jobs."""

from __future__ import annotations

from nodemgr.core.cluster import events, job_orders
from nodemgr.core.cluster.entities import ClusterJob, ClusterStage
from nodemgr.core.cluster.messages import GiveBack, to_say
from nodemgr.core.model.entities import JobState, Ranges
from tests.core.cluster.test_passes import Head

QUEUED, HELD = ClusterStage.QUEUED, ClusterStage.HELD


class Orders(Head):
    def enters(
        self, *, gpus: int = 1, indices: Ranges = (), after: tuple[str, ...] = (),
        stage: ClusterStage = QUEUED,
    ) -> str:  # fmt: skip
        job = ClusterJob("", "a", "ann", gpus, indices=indices, after=after, stage=stage)
        self.happens(events.Submit((job,)))
        return f"c{self.state.counters[''].job}"

    def there(self) -> dict[str, str]:
        return {job.job_id: job.stage.value for job in self.state.jobs.values()}


def test_an_array_is_one_row_and_its_elements_leave_it_in_order() -> None:
    head = Orders(gn1=2, gn2=1)
    array = head.enters(indices=((0, 3), (7, 7), (9, 9)))
    later = head.enters()
    head.passes()
    assert head.state.jobs[array].indices == ((9, 9),)
    given = [row.key for row in head.state.assignments.values()]
    assert given == [f"hq/1/c1.{n}/1" for n in (0, 1, 2, 3, 7)], "two wait ahead of their time"
    head.begins("c1.0", "c1.1", "c1.2")
    head.ends("c1.0")
    head.passes()
    assert [job.job_id for job in head.state.living(array)] == [f"c1.{n}" for n in (1, 2, 3, 7, 9)]
    for n in (1, 2, 3, 7, 9):
        assert head.state.living(array)
        head.passes()
        head.ends(f"c1.{n}")
    assert head.state.living(array) == []
    assert [head.ended[f"c1.{n}"].is_last for n in (0, 1, 7, 9)] == [False] * 3 + [True]
    head.passes()
    assert head.node_of(later) is not None


def test_one_that_waits_within_a_row_is_named_alone() -> None:
    head = Orders()
    head.enters(indices=((0, 2),))
    head.happens(events.HoldWaiting("c1.1", "ann"))
    assert head.there() == {"c1": "queued", "c1.1": "held"}
    assert head.state.jobs["c1"].indices == ((0, 0), (2, 2))
    head.happens(events.Withdraw("c1.*"))
    assert head.there() == {"c1.1": "held"}
    head.happens(events.Unhold("c1"))
    head.happens(events.Withdraw("c1"))
    assert head.there() == {}
    assert not head.ended["c1"].is_last
    assert head.ended["c1.1"].is_last


def test_a_job_waits_until_others_have_ended_well() -> None:
    head = Orders(gn1=2)
    array, plain = head.enters(indices=((0, 1),)), head.enters()
    last = head.enters(after=(array, plain, "c99"))
    assert head.state.jobs[last].after == (array, plain)
    head.passes()
    head.begins("c1.0", "c1.1")
    head.ends("c1.0")
    head.passes()
    head.begins(plain)
    head.ends(plain)
    assert head.stage(last) is ClusterStage.DEPENDENCY
    head.ends("c1.1")
    assert head.stage(last) is QUEUED


def test_a_job_that_waits_in_vain_is_withdrawn_and_those_behind_it() -> None:
    head = Orders(gn1=1)
    first = head.enters()
    second = head.enters(after=(first,))
    third = head.enters(after=(second,), stage=HELD)
    head.passes()
    head.begins(first)
    head.ends(first, JobState.FAILED, exit_code=1)
    assert head.there() == {}
    assert head.ended[second].why == "c1 failed, and it waited for c1"
    assert head.ended[third].why == "c2 was withdrawn, and it waited for c2"


def test_with_an_array_end_jobs_that_waited_for_one_of_its_elements() -> None:
    """The element had no row of its own."""
    head = Orders(gn1=1)
    array, beside = head.enters(indices=((0, 4),)), head.enters()
    waits = head.enters(after=(f"{array}.3",))
    head.happens(events.Withdraw(array))
    assert head.there() == {beside: "queued"}
    assert head.ended[waits].why == "c1 was withdrawn, and it waited for c1.3"


def test_a_held_job_that_no_longer_waits_for_others_stays_held() -> None:
    head = Orders(gn1=1)
    first = head.enters()
    second = head.enters(after=(first,), stage=HELD)
    head.passes()
    head.ends(first)
    assert head.stage(second) is HELD
    head.happens(events.Unhold(second))
    assert head.stage(second) is QUEUED


def test_a_job_that_its_node_has_not_begun_comes_back_and_is_held() -> None:
    head = Orders(gn1=1)
    job = head.enters()
    head.passes()
    head.reports("gn1", head.answer(job))
    head.happens(events.HoldWaiting(job, "ann"))
    (word,) = to_say(head.state, "gn1")
    assert word == GiveBack("hq/1/c1/1", if_waiting=True)
    head.reports("gn1", head.answer(job, over=True, state=JobState.WITHDRAWN))
    assert (head.stage(job), head.state.jobs[job].held_by) == (HELD, "ann")


def test_a_job_that_has_begun_meanwhile_is_not_held() -> None:
    head = Orders(gn1=1)
    job = head.enters()
    head.passes()
    head.happens(events.HoldWaiting(job, "ann"))
    head.begins(job)
    assert (head.stage(job), head.state.jobs[job].held_by) == (ClusterStage.RUNNING, "")


def test_a_job_that_runs_is_ended_and_runs_again() -> None:
    head = Orders(gn1=1)
    job, other = head.enters(), head.enters()
    head.passes()
    head.begins(job)
    head.happens(events.Requeue(job))
    assert GiveBack("hq/1/c1/1") in to_say(head.state, "gn1")
    head.ends(job, JobState.WITHDRAWN)
    assert head.stage(job) is QUEUED
    head.passes()
    assert head.node_of(other) == "gn1"
    assert head.state.jobs[job].queued_ns > head.state.jobs[other].queued_ns


def test_to_the_front() -> None:
    head = Orders(gn1=1)
    first, array = head.enters(), head.enters(indices=((0, 1),))
    head.happens(events.ToFront(array))
    head.passes()
    assert head.state.jobs["c2.0"].assigned
    assert head.state.jobs["c2.1"].assigned, "ahead of its time"
    assert head.stage(first) is QUEUED


def test_orders_without_sense_get_a_line() -> None:
    head = Orders(gn1=1)
    runs, waits = head.enters(), head.enters()
    held = head.enters(stage=HELD)
    head.passes()
    head.begins(runs)
    head.passes()
    lines = {
        (events.HoldWaiting, runs): "c1 is running",
        (events.HoldWaiting, held): "c3 is held already",
        (events.Unhold, waits): "c2 is not held",
        (events.Requeue, held): "c3 does not run",
        (events.ToFront, held): "c3 is in no queue",
        (events.ToFront, runs): "c1 is running",
    }
    for (kind, job), line in lines.items():
        said = job_orders.objection(head.state, kind(job))
        assert said is not None
        assert said.startswith(line)
        before = head.there()
        head.happens(kind(job))
        assert head.there() == before
    head.happens(events.Withdraw(runs))
    assert "is being ended" in (job_orders.objection(head.state, events.Withdraw(runs)) or "")
