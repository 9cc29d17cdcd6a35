"""Jobs that a head assigns: one answer for each key, one attempt, kept until it is acknowledged."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from nodemgr.core.lifecycle import assignments, job_actions
from nodemgr.core.model import events
from nodemgr.core.model.effects import StartJob, SubmitAnswered
from nodemgr.core.model.entities import (
    FINAL,
    UNDER_WAY,
    Assignment,
    Cause,
    FailureKind,
    JobState,
    QueueRow,
    TaskClass,
)
from nodemgr.core.requests.notify import Standings
from tests.core.world import Node, S, submission
from tests.support.examples import examples

KEY = "hq/1/c1/1"


def node(gpus: int = 2, **config: int) -> Node:
    made = Node(gpus, **config)
    made.quota("a", gpus)
    return made


def row(made: Node, key: str = KEY) -> Assignment:
    return made.state.assignments[key]


def starts(made: Node) -> list[str]:
    return [effect.job_id for effect in made.of(StartJob)]


def reason(made: Node) -> str:
    return made.of(SubmitAnswered)[0].reason


def told(made: Node) -> tuple[str, str]:
    """Why the first that waits does so."""
    request, _ = next(made.state.waiting())
    standing = Standings(made.state, made.now_ns).of(request)
    return standing.cause.value, standing.why


# -- one answer for each key --


def test_a_key_that_is_said_again_is_the_same_job_until_it_is_acknowledged() -> None:
    made = node()
    assert made.assigns("a", gpus=1) == "j1"
    assert starts(made) == ["j1"]
    for _ in range(2):
        assert made.assigns("a", gpus=1) == "j1"
        assert starts(made) == []
    made.begins("j1")
    made.job_ends("j1")
    assert made.assigns("a", gpus=1) == "j1"
    assert starts(made) == []
    assert made.state.jobs == {}
    assert (row(made).state, row(made).began) == (JobState.DONE, True)
    made.restart()
    made.history.clear()  # its bounds are another matter
    assert made.assigns("a", gpus=1) == "j1"
    assert starts(made) == []


def test_an_acknowledged_key_starts_nothing_once_its_number_is_past() -> None:
    made = node()
    made.assigns("a", gpus=1)
    made.begins("j1")
    made.job_ends("j1", 3)
    made.acknowledges(KEY, below=2)
    assert made.state.assignments == {}
    made.restart()
    assert made.assigns("a", gpus=1) is None
    assert "is over" in reason(made)
    assert made.state.assignments == {}
    assert made.assigns("a", "hq/1/c2/1", 2, gpus=1) == "j2"
    assert made.assigns("a", "other/1/c1/1", 1, gpus=1) == "j3", "heads count each for itself"


def test_the_number_below_which_all_is_over_never_goes_back() -> None:
    made = node()
    made.acknowledges(below=5)
    made.acknowledges(below=3)
    assert made.assigns("a", number=4) is None
    assert made.assigns("a", number=5) == "j1"


def test_a_job_without_an_end_is_not_acknowledged() -> None:
    made = node()
    made.assigns("a", gpus=1)
    made.acknowledges(KEY, "hq/1/unknown/1", below=9)
    assert row(made).job_id == "j1"
    assert made.assigns("a", gpus=1) == "j1", "a row has its answer, whatever its number"


def test_another_head_acknowledges_nothing_of_this_one() -> None:
    made = node()
    made.assigns("a", gpus=9)
    made.acknowledges(KEY, head="other", below=9)
    assert row(made).is_over
    made.acknowledges(KEY)
    assert made.assigns("a", gpus=1) is None, "its key may arrive again"
    made.acknowledges(below=2)
    assert made.state.assignments == {}


@pytest.mark.parametrize("refusal", ["", "no user ann here"])
def test_a_refusal_is_an_answer_that_stays(refusal: str) -> None:
    """Else a message that arrives twice could begin what the head has given to another node."""
    made = node()
    assert made.assigns("a", gpus=1 if refusal else 9, refusal=refusal) is None
    why = reason(made)
    assert refusal in why
    made.quota("a", 2)
    for _ in range(2):
        assert made.assigns("a", gpus=1) is None
        assert reason(made) == why
        made.restart()
    assert (row(made).state, row(made).began, row(made).why) == (JobState.WITHDRAWN, False, why)
    assert made.state.jobs == {}
    made.acknowledges(KEY, below=2)
    assert made.state.assignments == {}


def test_a_node_keeps_a_bounded_number_of_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignments, "MAX_ASSIGNMENTS", 2)
    made = node()
    for number in (1, 2):
        assert made.assigns("a", f"hq/1/c{number}/1", number, gpus=0)
    assert made.assigns("a", "hq/1/c3/1", 3, gpus=0) is None
    assert "not acknowledged" in reason(made)
    assert "hq/1/c3/1" not in made.state.assignments
    made.job_ends("j1")
    made.acknowledges("hq/1/c1/1", below=2)
    assert made.assigns("a", "hq/1/c3/1", 3, gpus=0) == "j3"


# -- its place in the queue --


def test_its_time_at_the_head_counts_in_its_queue() -> None:
    made = node(1)
    busy = made.submits("a", gpus=1)
    made.now_ns += 5 * S
    made.submits("a", gpus=1)
    made.now_ns += 5 * S
    made.assigns("a", "hq/1/c1/1", 1, gpus=1, waited_ns=2 * S)
    made.assigns("a", "hq/1/c2/1", 2, gpus=1, waited_ns=7 * S)
    assert made.queued_jobs() == ["j4", "j2", "j3"]
    made.restart()
    assert made.queued_jobs() == ["j4", "j2", "j3"]
    assert busy == "j1"


# -- one attempt --


@pytest.mark.parametrize(
    ("end", "state", "began"),
    [
        ({"exit_code": 0}, JobState.DONE, True),
        ({"exit_code": 7}, JobState.FAILED, True),
        ({"why": "gone", "cause": Cause.SUPERVISOR_LOST}, JobState.FAILED, True),
        ({"why": "down", "cause": Cause.NODE_DOWN}, JobState.FAILED, True),
        ({"why": "no room", "cause": Cause.NOT_STARTED}, JobState.FAILED, False),
        ({"why": "no directory", "cause": Cause.CANNOT_RUN}, JobState.FAILED, False),
        ({"why": "too long", "cause": Cause.TIME_LIMIT}, JobState.FAILED, True),
    ],
)
def test_each_end_is_the_heads_to_judge(
    end: dict[str, object], state: JobState, began: bool
) -> None:
    made = node()
    made.assigns("a", gpus=1)
    made.job_ends("j1", **{"exit_code": None, **end})
    assert made.state.jobs == {}
    assert (row(made).state, row(made).began) == (state, began)
    attempt = row(made).attempt
    assert attempt is not None
    assert attempt.log_tail == "the last line\n"


def test_a_queue_with_restarts_gives_it_none() -> None:
    made = node()
    made.happens(events.SetQueue(QueueRow("again", 50, None, 5), "root", made.wall_ns))
    made.assigns("a", gpus=1, priority="again")
    made.job_ends("j1", 1)
    assert row(made).state is JobState.FAILED


def test_one_that_never_began_keeps_its_place() -> None:
    made = node(1)
    made.assigns("a", gpus=1)
    made.gives_back(("j1", 1))
    assert starts(made) == ["j1"]
    made.begins("j1")
    made.job_ends("j1")
    assert row(made).state is JobState.DONE
    attempt = row(made).attempt
    assert attempt is not None
    assert attempt.number == 2


def test_a_gpu_that_fails_just_after_it_is_the_cause_of_its_end() -> None:
    made = node()
    made.assigns("a", gpus=1)
    made.begins("j1")
    (task,) = made.state.tasks.values()
    made.asks("a", 40, 1, token=task.token)
    made.job_ends("j1", 1)
    assert made.job("j1").state is JobState.PAUSED
    made.happens(events.GpuFault(task.gpus[0], FailureKind.XID, "XID 79", made.wall_ns))
    attempt = row(made).attempt
    assert attempt is not None
    assert (row(made).state, attempt.cause) == (JobState.FAILED, Cause.GPU_LOST)
    assert made.state.jobs == {}


def test_a_preempted_one_is_over_here() -> None:
    made = Node(1)
    made.quota("a", 1, task_class=TaskClass.BEST_EFFORT)
    made.quota("b", 1, task_class=TaskClass.LATENCY_SENSITIVE)
    made.assigns("a", gpus=1, task_class=TaskClass.BEST_EFFORT)
    made.begins("j1")
    made.asks("b", 50, 1, task_class=TaskClass.LATENCY_SENSITIVE)
    assert made.job("j1").state is JobState.STOPPING
    made.job_ends("j1", None, signal=15)
    attempt = row(made).attempt
    assert attempt is not None
    assert (row(made).state, attempt.cause) == (JobState.FAILED, Cause.PREEMPTED)
    assert made.gpus_of(50) == [0]


# -- orders --


@pytest.mark.parametrize("kind", [events.HoldJob, events.UnholdJob, events.RequeueJob])
@pytest.mark.parametrize("gpus", [1, 2])
def test_orders_of_this_node_are_refused(kind: type[events.HoldJob], gpus: int) -> None:
    made = node(1)
    made.quota("a", 2)
    made.assigns("a", gpus=1)
    if gpus == 2:  # it waits
        made.assigns("a", "hq/1/c2/1", 2, gpus=1)
    event = kind(f"j{gpus}", "root", made.wall_ns)
    why = job_actions.objection(made.state, event)
    assert why is not None
    assert "a job of the cluster of hq" in why
    before = made.state.jobs[f"j{gpus}"]
    made.happens(event)
    assert made.state.jobs[f"j{gpus}"] == before
    move = events.MoveJob(f"j{gpus}", "low", False, "root", made.wall_ns)
    assert job_actions.objection(made.state, move) == why


def test_an_ended_one_is_not_queued_again_here() -> None:
    made = node()
    made.assigns("a", gpus=1)
    made.job_ends("j1", 1)
    made.requeues("j1")
    assert made.state.jobs == {}


def test_a_withdrawal_says_whether_it_began() -> None:
    made = node(1)
    made.assigns("a", gpus=1)
    made.begins("j1")
    made.assigns("a", "hq/1/c2/1", 2, gpus=1)
    made.withdraws("j2")
    made.withdraws("j1")
    assert (row(made, "hq/1/c2/1").state, row(made, "hq/1/c2/1").began) == (
        JobState.WITHDRAWN,
        False,
    )
    assert not row(made).is_over, "until its process has ended"
    made.job_ends("j1", None, signal=15)
    assert (row(made).state, row(made).began) == (JobState.WITHDRAWN, True)


def test_with_its_environment_it_ends() -> None:
    made = node(1)
    made.assigns("a", gpus=1)
    made.assigns("a", "hq/1/c2/1", 2, gpus=1)
    made.removes("a")
    assert row(made, "hq/1/c2/1").state is JobState.WITHDRAWN
    made.job_ends("j1", None, signal=9)
    assert row(made).state is JobState.WITHDRAWN


# -- after a restart --


def test_after_a_restart_it_waits_until_its_head_names_it_again() -> None:
    made = node(1)
    made.submits("a", gpus=1)
    made.begins("j1")
    made.assigns("a", gpus=1)
    made.assigns("a", "hq/1/c2/1", 2, gpus=1)
    made.submits("a", gpus=1)
    made.restart()
    made.job_ends("j1")
    assert starts(made) == ["j4"], "others go on"
    made.job_ends("j4")
    assert starts(made) == []
    cause, line = told(made)
    assert cause == "unconfirmed"
    assert "waits for the word of hq" in line
    made.assigns("a", "hq/1/c2/1", 2, gpus=1)
    assert starts(made) == ["j3"]


def test_one_under_way_goes_on_and_its_end_counts() -> None:
    made = node(1)
    made.assigns("a", gpus=1)
    made.begins("j1")
    made.restart()
    made.job_ends("j1")
    assert row(made).state is JobState.DONE
    assert made.state.unconfirmed == {}


def test_one_that_had_not_begun_at_the_restart_waits_too() -> None:
    made = node(1)
    made.assigns("a", gpus=1)
    made.restart()
    made.gives_back(("j1", 1))
    assert starts(made) == []
    made.assigns("a", gpus=1)
    assert starts(made) == ["j1"]


def test_a_sleeping_environment_wakes_for_a_confirmed_job() -> None:
    made = node(1)
    made.assigns("a", gpus=1)
    made.restart()
    made.gives_back(("j1", 1))
    for pid in (31, 32):
        made.asks("a", pid, 1, gib=80)
    made.assigns("a", gpus=1)
    made.dies(31)
    made.dies(32)
    assert made.state.jobs["j1"].state is JobState.STARTING


# -- walks --


class Walk:
    """A node and its head, with messages that are lost, doubled and late; kills at any commit."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.node = node(2)
        self.numbers = 0
        self.open: dict[str, int] = {}
        """Assignments of which the head knows no end."""
        self.unanswered: dict[str, int] = {}
        self.settled: set[str] = set()
        self.said: list[tuple[str, int]] = []
        """Every message that was ever sent: the network may deliver it again."""
        self.begun: Counter[str] = Counter()
        self.jobs: dict[str, set[str]] = {}

    def deliver(self, key: str, number: int) -> None:
        job_id = self.node.assigns("a", key, number, gpus=self.dice.choice((0, 1, 2, 3)))
        if job_id is not None:
            self.jobs.setdefault(key, set()).add(job_id)
        if self.dice.random() < 0.7:
            self.unanswered.pop(key, None)

    def new(self) -> None:
        self.numbers += 1
        key = f"hq/1/c{self.numbers}/1"
        self.open[key] = self.unanswered[key] = self.numbers
        self.said.append((key, self.numbers))
        if self.dice.random() < 0.7:
            self.deliver(key, self.numbers)

    def again(self) -> None:
        if self.said:
            self.deliver(*self.dice.choice(self.said))

    def acknowledge(self) -> None:
        """The head reads the ends that there are, stores them, and says so."""
        rows = self.node.state.assignments
        over = [key for key in sorted(self.open) if key in rows and rows[key].is_over]
        for key in over:
            self.settled.add(key)
            self.unanswered.pop(key, None)
            del self.open[key]
        below = min(self.unanswered.values(), default=self.numbers + 1)
        for _ in range(self.dice.choice((0, 1, 2))):
            self.node.acknowledges(*over, below=below)

    def begin(self) -> None:
        for job in list(self.node.state.jobs.values()):
            if job.state is JobState.STARTING and self.dice.random() < 0.5:
                self.begun[job.assigned] += 1
                self.node.begins(job.job_id)

    def end(self) -> None:
        for job in list(self.node.state.jobs.values()):
            if job.state in UNDER_WAY and self.dice.random() < 0.5:
                if job.attempts[-1].started_wall_ns is None:
                    self.node.gives_back((job.job_id, job.attempt))
                else:
                    self.node.job_ends(job.job_id, self.dice.choice((0, 1)))

    def withdraw(self) -> None:
        if self.node.state.jobs:
            self.node.withdraws(self.dice.choice(sorted(self.node.state.jobs)))

    def kill(self) -> None:
        self.node.restart()

    def check(self) -> None:
        assert all(count == 1 for count in self.begun.values()), self.begun
        assert all(len(found) == 1 for found in self.jobs.values()), self.jobs
        for key in self.settled:
            kept = self.node.state.assignments.get(key)
            assert kept is None or kept.is_over, "an end that was stored is the end"


@pytest.mark.parametrize("seed", range(examples(15)))
def test_a_walk_begins_nothing_twice_and_loses_nothing(seed: int) -> None:
    walk = Walk(random.Random(seed))
    moves = (
        walk.new, walk.new, walk.again, walk.again, walk.acknowledge, walk.begin, walk.begin,
        walk.end, walk.end, walk.withdraw, walk.kill,
    )  # fmt: skip
    for _ in range(80):
        walk.dice.choice(moves)()
        walk.check()
    for _ in range(len(walk.open) * 3 + 3):  # the calm: the head says again what is open
        for key, number in list(walk.open.items()):
            walk.deliver(key, number)
        walk.begin()
        walk.end()
    while walk.node.state.jobs:
        walk.begin()
        walk.end()
    walk.acknowledge()
    walk.check()
    assert walk.open == {}
    walk.node.acknowledges(*walk.settled, below=walk.numbers + 1)
    assert walk.node.state.assignments == {}
    for key, number in walk.said:
        walk.deliver(key, number)
    walk.check()
    assert walk.node.state.jobs == {}


def test_an_assignment_is_one_job_and_its_submission_says_no_more() -> None:
    made = node()
    made.assigns("a", gpus=1)
    job = made.state.jobs["j1"]
    assert (job.assigned, job.max_restarts, job.after, job.indices) == (KEY, 0, (), ())
    assert submission("a").assigned is None
    assert job.state not in FINAL
