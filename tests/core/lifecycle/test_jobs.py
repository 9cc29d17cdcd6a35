"""The life of a job, without edges: each event's effect on it, its lease and its dependents."""

from __future__ import annotations

from typing import Any

import pytest

from client_plugin.messages.form import MessageLine
from nodemgr.core.lifecycle import job_actions, jobs
from nodemgr.core.manager import Transition, step
from nodemgr.core.model import encoding, endings, events
from nodemgr.core.model.effects import (
    ForgetJob,
    OpenLedger,
    Save,
    SetLimit,
    StartJob,
    StopJob,
    SubmitAnswered,
)
from nodemgr.core.model.entities import (
    AWAITED_BYTES,
    JOB_ROW_BYTES,
    LOG_TAIL_CHARACTERS,
    MS,
    RETAINED_ATTEMPTS,
    RETAINED_HISTORY_ENTRIES,
    Attempt,
    Cause,
    DenyCode,
    HistoryEntry,
    Job,
    JobPayload,
    JobState,
    PredictedRun,
    QueueRow,
    Request,
    Resize,
    RunSpec,
    TaskState,
)
from nodemgr.core.model.values import replace
from nodemgr.core.requests import matching, notify
from nodemgr.core.state.node_state import Groups
from tests.core.world import GIB, WALL, Node, gpu, key, seen, submission


def node_of(gpus: int = 2, quota: int = 2, **config: object) -> Node:
    node = Node(gpus, **config)
    node.quota("alice", quota)
    return node


def submitted(node: Node, env: str = "alice", **more: object) -> str:
    job_id = node.submits(env, **more)
    assert job_id is not None
    return job_id


def refusal(node: Node, env: str = "alice", **more: object) -> tuple[DenyCode | None, str]:
    assert node.submits(env, **more) is None
    (answer,) = node.of(SubmitAnswered)
    return answer.code, answer.reason


# A life.


def test_a_job_is_started_when_there_is_room_and_is_done_with_its_process() -> None:
    node = node_of()
    job_id = submitted(node, gpus=2)
    (start,) = node.of(StartJob)
    assert (start.job_id, start.attempt, start.gpus, start.spec_id) == (
        job_id,
        1,
        ("GPU-0", "GPU-1"),
        "s1",
    )
    assert node.job(job_id).state is JobState.STARTING
    node.begins(job_id)
    assert node.job(job_id).state is JobState.RUNNING
    assert [event["pid"] for event in node.published("job.started")] == [4_001]
    node.job_ends(job_id)
    assert node.of(ForgetJob) == [ForgetJob(job_id, "alice")]
    assert (node.state.jobs, node.state.specs, node.state.tasks) == ({}, {}, {})
    over = node.history[job_id]
    assert (over.job.state, over.job.attempts[0].exit_code, over.job.attempts[0].log_tail) == (
        JobState.DONE,
        0,
        "the last line\n",
    )
    assert (over.spec.spec_id, over.spec.user) == ("s1", "ann")


def test_nothing_is_started_before_it_is_stored_as_starting() -> None:
    node = node_of()
    job_id = submitted(node)
    assert [save.value.state for save in node.effects if getattr(save, "kind", "") == "job"][
        -1
    ] is JobState.STARTING
    assert node.of(StartJob)[0].job_id == job_id


def test_its_processes_join_its_lease_by_the_token() -> None:
    node = node_of()
    job_id = submitted(node, gpus=2)
    node.begins(job_id)
    node.asks("alice", 50, 1, token=_token(node, job_id))
    granted = node.granted(50)
    assert granted is not None
    assert (granted.task.gpus, granted.task.task_id) == (
        ("GPU-0", "GPU-1"),
        node.job(job_id).task_id,
    )
    node.asks("alice", 51, token="another", ancestors=(50,))
    assert node.task(51) == node.task(50)


def test_a_process_of_its_tree_that_lost_its_environment_is_part_of_it() -> None:
    """No process of the job has joined yet, so only its supervisor names its job."""
    node = node_of()
    job_id = submitted(node, gpus=2)
    node.begins(job_id)
    node.asks("alice", 50, 1, token="lost", ancestors=(49, 48), job_id=job_id)
    task = node.task(50)
    assert task is not None
    assert (task.task_id, task.gpus) == (node.job(job_id).task_id, ("GPU-0", "GPU-1"))
    node.asks("alice", 51, 1, token="lost too", ancestors=(47,), job_id=job_id)
    assert node.task(51) == node.task(50)


def test_who_is_part_of_a_job_that_holds_nothing_asks_for_himself() -> None:
    node = node_of()
    node.quota("bob", 2)
    plain, over = submitted(node, gpus=0), submitted(node, gpus=1)
    node.begins(plain)
    node.begins(over)
    foreign = node.job(over).task_id
    node.asks("alice", 50, 1, ancestors=(48,), job_id=plain)
    node.asks("bob", 51, 1, ancestors=(47,), job_id=over)
    node.job_ends(over)
    node.asks("alice", 52, 1, ancestors=(46,), job_id=over)
    for pid in (50, 51, 52):
        task = node.task(pid)
        assert task is not None
        assert (task.job_id, task.task_id != foreign) == (None, True)


def _token(node: Node, job_id: str) -> str:
    return jobs.start_of(node.state, node.state.jobs[job_id]).token


def test_a_ledger_that_is_opened_after_the_grant_has_its_limits() -> None:
    node = node_of(quota=1)
    job_id = submitted(node, gpus=1)
    assert node.of(SetLimit) == []
    node.asks("alice", 50, token=_token(node, job_id))
    assert (len(node.of(OpenLedger)), [limit.limit_bytes for limit in node.of(SetLimit)]) == (
        1,
        [80 * GIB],
    )


def test_the_lease_outlives_its_processes_and_their_silence() -> None:
    node = node_of()
    job_id = submitted(node, gpus=1)
    node.begins(job_id)
    node.asks("alice", 50, token=_token(node, job_id))
    node.passes(60_000, silent=[50])
    task = node.task(50)
    assert task is not None
    assert task.state is TaskState.RUNNING
    node.dies(50)
    assert list(node.state.tasks) == [node.job(job_id).task_id]
    node.asks("alice", 51, token=_token(node, job_id))
    assert node.gpus_of(51) == [0]


def test_a_job_over_an_hour_wakes_nobody() -> None:
    node = node_of(quota=1)
    submitted(node, gpus=1)
    for _ in range(20):
        submitted(node, gpus=1)
    node.passes(3_600_000)
    assert node.wakes == 0


def test_a_silent_member_over_udp_is_reclaimed_and_the_job_goes_on() -> None:
    node = node_of()
    job_id = submitted(node, gpus=1)
    node.asks("alice", 50, token=_token(node, job_id), udp=True, used_gib={0: 0, 1: 0})
    assert node.granted(50) is not None
    node.passes(10_000, silent=[50])
    assert node.task(50, udp=True) is None
    assert node.job(job_id).task_id in node.state.tasks


def test_who_outlives_the_jobs_end_is_fenced() -> None:
    node = node_of()
    job_id = submitted(node)
    node.asks("alice", 50, token=_token(node, job_id))
    node.job_ends(job_id)
    assert node.fenced(50) is not None
    assert node.state.processes[key(50)].fenced


def test_a_guessed_token_gets_nothing_of_the_job() -> None:
    node = node_of()
    node.quota("alice", 2)
    guessed = f"{1:016x}{0:08x}{1:08x}"
    node.asks("alice", 40, 1, token=guessed)
    job_id = submitted(node, gpus=1)
    assert _token(node, job_id) != guessed
    node.asks("alice", 41, 1, token=guessed)
    assert node.task(41) == node.task(40)


def test_each_attempt_has_a_token_of_its_own() -> None:
    node = node_of()
    job_id = submitted(node, max_restarts=1)
    first = _token(node, job_id)
    node.job_ends(job_id, 1)
    assert _token(node, job_id) != first


# Ends that are no good ends.


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ({"exit_code": 3}, "exit code 3"),
        ({"exit_code": None, "signal": 9}, "ended by signal 9"),
        ({"exit_code": None}, "its end was not reported"),
    ],
)
def test_a_failure_goes_to_the_end_of_its_queue_with_its_reason(
    end: dict[str, object], why: str
) -> None:
    node = node_of(1, 1)
    first, second = submitted(node, max_restarts=3), submitted(node)
    node.begins(first)
    node.job_ends(first, **end)  # type: ignore[arg-type]
    assert (node.job(second).state, node.job(first).state) == (JobState.STARTING, JobState.QUEUED)
    assert (node.job(first).why, node.job(first).restarts, node.job(first).attempts[0].why) == (
        why,
        1,
        why,
    )
    assert node.published("job.queued")[0]["reason"] == why


def test_it_is_tried_so_often_and_then_has_failed() -> None:
    node = node_of()
    job_id = submitted(node, max_restarts=2)
    for attempt in (1, 2, 3):
        assert node.job(job_id).attempt == attempt
        node.job_ends(job_id, 1)
    assert (node.job(job_id).state, node.job(job_id).why, node.job(job_id).restarts) == (
        JobState.FAILED,
        "exit code 1",
        2,
    )
    assert [attempt.number for attempt in node.job(job_id).attempts] == [1, 2, 3]


def test_restarts_are_switched_off() -> None:
    node = node_of()
    job_id = submitted(node, max_restarts=0)
    node.job_ends(job_id, 1)
    assert node.job(job_id).state is JobState.FAILED


def test_what_is_hopeless_is_not_tried_again() -> None:
    node = node_of()
    job_id = submitted(node, max_restarts=3)
    node.job_ends(job_id, None, why="command not found: pyhton", cause=Cause.CANNOT_RUN)
    assert (node.job(job_id).state, node.job(job_id).why) == (
        JobState.FAILED,
        "command not found: pyhton",
    )


def test_a_stale_or_unknown_attempt_says_nothing() -> None:
    node = node_of()
    job_id = submitted(node)
    node.job_ends(job_id, 1)
    before = node.job(job_id)
    node.job_ends(job_id, 0, attempt=1)
    node.job_ends("j99", 0, attempt=1)
    node.begins(job_id, attempt=1)
    assert node.job(job_id) == before


def test_being_told_twice_is_being_told_once() -> None:
    node = node_of()
    job_id = submitted(node)
    node.begins(job_id)
    before = node.rows()
    node.begins(job_id)
    assert (node.rows(), node.published("job.started")) == (before, [])


def test_what_is_remembered_of_a_job_has_a_bound() -> None:
    node = node_of()
    job_id = submitted(node, max_restarts=100)
    for _ in range(RETAINED_ATTEMPTS + 5):
        node.job_ends(job_id, 1, log_tail="x" * 10_000)
    job = node.job(job_id)
    assert [attempt.number for attempt in job.attempts] == list(range(7, 17))
    assert {len(attempt.log_tail) for attempt in job.attempts[:-1]} == {LOG_TAIL_CHARACTERS}
    for _ in range(RETAINED_HISTORY_ENTRIES):
        node.requeues(job_id)
        node.job_ends(job_id, None, signal=15)
    assert len(node.job(job_id).deeds) == RETAINED_HISTORY_ENTRIES


# Submitting.


def test_an_array_is_many_jobs_under_one_name() -> None:
    node = node_of(4, 4)
    assert node.submits("alice", gpus=1, array=(0, 3, 7)) == "j1"
    assert sorted(node.state.jobs) == ["j1.0", "j1.3", "j1.7"]
    assert [start.array_index for start in node.of(StartJob)] == [0, 3, 7]
    assert len({start.token for start in node.of(StartJob)}) == 3
    assert list(node.state.specs) == ["s1"]
    node.withdraws("j1")
    assert {job.state for job in node.state.jobs.values()} == {JobState.STOPPING}


def test_the_same_key_is_the_same_job_as_long_as_it_lives() -> None:
    node = node_of()
    assert [node.submits("alice", key="k", array=array) for array in ((), (), (1,))] == [
        "j1",
        "j1",
        "j1",
    ]
    node.quota("bob", 1)
    assert node.submits("bob", key="k") == "j2"
    node.job_ends("j1")
    assert node.submits("alice", key="k", array=(0, 1)) == "j3"
    assert node.submits("alice", key="k") == "j3"


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        ({"gpus": 3}, DenyCode.OVER_QUOTA, "3 GPUs asked, but the quota of alice is 2"),
        (
            {"gpus": 1, "memory_bytes": 200 * GIB},
            DenyCode.MEMORY_ABOVE_LIMIT,
            "200.0 GiB per GPU asked",
        ),
        (
            {"priority": "urgent"},
            DenyCode.UNKNOWN_QUEUE,
            "there is no queue urgent: there are high, normal, low",
        ),
        ({"after": ("j7",)}, DenyCode.UNKNOWN_JOB, "alice has no job j7"),
        (
            {"after": ("j7",), "ended": {"j7": JobState.FAILED}},
            DenyCode.UNKNOWN_JOB,
            "j7, which it waits for, failed",
        ),
        (
            {"after": ("j7",), "ended": {"j7.3": JobState.WITHDRAWN}},
            DenyCode.UNKNOWN_JOB,
            "j7, which it waits for, was withdrawn",
        ),
        ({"array": (1, 1)}, DenyCode.BAD_REQUEST, "different numbers"),
        ({"array": (-1,)}, DenyCode.BAD_REQUEST, "different numbers"),
        ({"array": (1 << 31,)}, DenyCode.BAD_REQUEST, "different numbers"),
        (
            {"array": tuple(range(11))},
            DenyCode.TOO_MANY_JOBS,
            "alice has 0 jobs that wait or run, and 10 are the most",
        ),
        ({"gpus": -1}, DenyCode.BAD_REQUEST, "a number of GPUs must be 0 or more"),
        ({"gpus": 0, "memory_bytes": 1}, DenyCode.BAD_REQUEST, "a job without a GPU has none"),
        ({"memory_bytes": 0}, DenyCode.BAD_REQUEST, "memory must be more than nothing"),
        ({"time_limit_ms": 0}, DenyCode.BAD_REQUEST, "a time limit must be more than nothing"),
        ({"max_restarts": -1}, DenyCode.BAD_REQUEST, "a number of restarts must be 0 or more"),
    ],
)
def test_what_cannot_be_is_refused_with_one_line(
    asked: dict[str, object], code: DenyCode, words: str
) -> None:
    node = node_of(max_env_jobs=10)
    said, reason = refusal(node, **asked)
    assert said is code
    assert words in reason
    assert "\n" not in reason
    assert (node.state.jobs, node.state.specs) == ({}, {})


def test_an_unknown_environment_has_no_jobs() -> None:
    assert refusal(Node(), "nobody")[0] is DenyCode.UNKNOWN_ENV


def test_a_job_without_a_command_is_none() -> None:
    empty = JobPayload((), "/", ())
    assert refusal(node_of(), payload=empty) == (
        DenyCode.BAD_REQUEST,
        "the job must have a command",
    )


def test_more_than_the_node_has_is_refused() -> None:
    assert refusal(node_of(2, 9), gpus=3)[0] is DenyCode.MORE_THAN_NODE


def test_the_node_has_its_bound_too() -> None:
    node = node_of(max_jobs=2)
    node.quota("bob", 1)
    submitted(node, "bob")
    submitted(node)
    code, reason = refusal(node)
    assert (code, reason) == (
        DenyCode.TOO_MANY_JOBS,
        "this node has 2 jobs that wait or run, and 2 are the most: wait for some to end",
    )


def test_who_names_no_gpus_gets_the_default() -> None:
    node = node_of(4, 3)
    assert node.job(submitted(node)).run.gpus == 3
    node.quota("bob", 3, default_gpus=1)
    assert node.job(submitted(node, "bob")).run.gpus == 1
    node.quota("carol", 0)
    assert refusal(node, "carol")[0] is DenyCode.NO_GPU


def test_a_job_without_a_gpu_runs_beside_everything() -> None:
    node = node_of(1, 1)
    submitted(node, gpus=1)
    node.quota("carol", 0)
    job_id = submitted(node, "carol", gpus=0)
    (start,) = node.of(StartJob)
    assert (start.gpus, node.job(job_id).task_id) == ((), None)
    node.begins(job_id)
    node.restart()
    node.job_ends(job_id)
    assert node.job(job_id).state is JobState.DONE


def test_of_jobs_without_a_gpu_a_bounded_number_runs_at_once() -> None:
    """An env's own bound delays no other env; the node's bound keeps the order."""
    node = node_of(1, 1, max_env_cpu_jobs=2, max_cpu_jobs=3)
    node.quota("bob", 1)
    mine = [submitted(node, gpus=0, max_restarts=1) for _ in range(4)]
    his = [submitted(node, "bob", gpus=0) for _ in range(2)]
    with_gpu = submitted(node, gpus=1)

    def started() -> list[str]:
        return [job_id for job_id in (*mine, *his) if node.job(job_id).state is not JobState.QUEUED]

    assert started() == [*mine[:2], his[0]]
    assert node.job(with_gpu).state is JobState.STARTING
    lines = {request.job_id: row.why for request, row in notify.listing(node.state, node.now_ns)}
    assert lines[mine[2]].endswith(
        "jobs of alice without a GPU: 2 run, as many as may (max_env_cpu_jobs); waits for one of"
        " them to end"
    )
    assert lines[his[1]].endswith(
        "jobs of this node without a GPU: 3 run, as many as may (max_cpu_jobs); waits for one of"
        " them to end"
    )
    node.restart()
    node.job_ends(his[0])
    assert started() == [*mine[:2], *his], "alice's were there before, and may not"
    node.begins(mine[0])
    node.job_ends(mine[0], exit_code=1)
    assert node.job(mine[2]).state is JobState.STARTING, "who failed is behind those who wait"
    assert node.job(mine[0]).state is JobState.QUEUED
    node.withdraws(mine[3])
    node.job_ends(mine[1])
    assert node.job(mine[0]).state is JobState.STARTING


def test_jobs_do_not_share_the_gpu_of_their_environment_unless_they_name_their_memory() -> None:
    node = node_of(1, 1)
    first, second = submitted(node), submitted(node)
    assert [node.job(job_id).state for job_id in (first, second)] == [
        JobState.STARTING,
        JobState.QUEUED,
    ]
    node.job_ends(first)
    assert node.job(second).state is JobState.STARTING
    node = node_of(1, 1)
    both = [submitted(node, memory_bytes=30 * GIB) for _ in range(2)]
    node.passes(0)
    assert [node.job(job_id).state for job_id in both] == [JobState.STARTING, JobState.STARTING]
    third = submitted(node, memory_bytes=30 * GIB)
    node.passes(0)
    assert node.job(third).state is JobState.QUEUED


# Waiting for others.


def test_a_job_waits_for_another_to_end_well() -> None:
    node = node_of()
    first = submitted(node, gpus=1)
    second = submitted(node, gpus=1, after=(first,))
    assert node.job(second).state is JobState.DEPENDENCY
    node.job_ends(first)
    assert node.job(second).state is JobState.STARTING


def test_a_restart_of_the_other_is_no_end() -> None:
    node = node_of()
    first = submitted(node, gpus=1, max_restarts=1)
    second = submitted(node, gpus=1, after=(first,))
    node.job_ends(first, 1)
    assert node.job(second).state is JobState.DEPENDENCY


def test_who_waits_for_what_failed_is_withdrawn_and_so_on_down_the_chain() -> None:
    node = node_of()
    first = last = submitted(node, max_restarts=0)
    chain = [first]
    for _ in range(1_500):  # longer than Python's stack
        last = submitted_quietly(node, after=(last,))
        chain.append(last)
    node.job_ends(first, 1)
    assert node.state.jobs == {}
    assert node.job(chain[1]).why == (
        "j1, which it waits for, failed: mend that one and submit both again"
    )
    assert node.job(chain[2]).why == (
        "j2, which it waits for, was withdrawn: submit it again, without that one or with a new one"
    )


def submitted_quietly(node: Node, **more: object) -> str:
    """Without the checks of each step, which count everything anew."""
    from nodemgr.core.manager import step

    transition = step(
        node.state, events.SubmitJobs((submission("alice", **more),), WALL), node.now_ns
    )
    transition.apply()
    for save in transition.saved:
        node._save(save)
    return str(transition.effects[-1].job_id)  # type: ignore[union-attr]


def test_a_job_waits_for_all_of_an_array() -> None:
    node = node_of()
    node.submits("alice", gpus=1, array=(0, 1))
    last = submitted(node, gpus=1, after=("j1",), ended={"j1.2": JobState.DONE})
    node.job_ends("j1.0")
    assert (node.job(last).state, node.job(last).after) == (JobState.DEPENDENCY, ("j1",))
    node.job_ends("j1.1")
    assert node.job(last).state is JobState.STARTING


def test_one_element_that_fails_ends_the_wait_for_its_array() -> None:
    node = node_of()
    node.submits("alice", gpus=1, array=(0, 1), max_restarts=0)
    last = submitted(node, gpus=1, after=("j1", "j1.0"))
    node.job_ends("j1.0")
    node.job_ends("j1.1", 1)
    assert (node.job(last).state, node.job(last).why) == (
        JobState.WITHDRAWN,
        "j1.1, which it waits for, failed: mend that one and submit both again",
    )


def test_an_array_that_waits_for_an_array_costs_no_more_than_both() -> None:
    node = node_of()
    for after in ((), ("j1",)):
        submitted_quietly(node, gpus=1, array=tuple(range(10_000)), after=after)
    assert {awaited: [*waiters] for awaited, waiters in node.state.dependents.items()} == {
        "j1": ["j2"]
    }


def test_so_many_pairs_of_who_waits_and_for_whom_are_taken() -> None:
    node = node_of(4, 1)
    others = tuple(submitted_quietly(node, gpus=1) for _ in range(11))
    code, reason = refusal(node, array=tuple(range(10_000)), after=others)
    assert code is DenyCode.BAD_REQUEST
    assert reason.endswith("let one job wait for them, and the array for that")
    assert node.submits("alice", gpus=1, array=tuple(range(1_000)), after=others) is not None


def payload(size_bytes: int) -> JobPayload:
    return JobPayload(("true",), "/", ("A=" + "x" * (size_bytes - 10),))


def test_the_jobs_of_an_env_have_so_many_bytes_and_an_arrays_payload_counts_once() -> None:
    row = JOB_ROW_BYTES
    node = node_of(4, 1, max_env_job_bytes=4 * row + 1_000)
    node.submits("alice", gpus=1, payload=payload(600), array=(0, 1, 2))
    assert node.state.job_bytes == {"alice": 3 * row + 600}
    code, reason = refusal(node, gpus=1, payload=payload(401))
    assert code is DenyCode.TOO_MANY_JOBS
    assert (
        "(max_env_job_bytes): wait for some to end, withdraw some, or submit with fewer variables"
        in reason
    )
    submitted(node, gpus=1, payload=payload(400))
    node.restart()
    node.withdraws("j1")
    assert node.state.job_bytes == {"alice": 2 * row + 1_000}, "one of them runs"
    node.job_ends("j1.0")
    assert node.state.job_bytes == {"alice": row + 400}


@pytest.mark.parametrize("text", ["x", "\x1b", "\U0001f600"])
def test_a_job_of_any_shape_counts_at_least_as_much_as_its_rows_have(text: str) -> None:
    """The bound in bytes holds for the store, whatever an environment writes."""
    uuids = tuple(f"GPU-{number:036}" for number in range(8))
    entry = HistoryEntry(WALL, text * 40, MessageLine(text * 100))
    attempt = Attempt(9, WALL, WALL, uuids, 1, None, text * 200, text * 4_096, chosen=text * 200)
    resized = replace(attempt, resizes=(Resize(WALL, uuids[0], 1, 2, text * 100),) * 50)
    predicted = (PredictedRun("NVIDIA " * 8, WALL, 100, WALL, WALL, WALL, 100),) * 4
    run = RunSpec(
        text * 200, 8, WALL, WALL, "place" * 8, predicted=predicted, memory_most_bytes=WALL
    )
    bare = Job(
        "j123456789.999999999", "environment" * 4, text * 64, run, "user" * 8, "s123456789",
        "queue" * 8, WALL, JobState.QUEUED, key="a" * 64, request_id="r123456789",
        entered_wall_ns=WALL, queued_ns=WALL, why=text * 200, after=("j123456789.999999999",) * 20,
    )  # fmt: skip
    for job in (
        bare,
        replace(bare, deeds=(entry,) * 32),
        replace(bare, attempts=(attempt,) * 10),
        replace(bare, attempts=(resized,) * 10, deeds=(entry,) * 32),
    ):
        request = Request(
            "r123456789", job.env, "", job.run, job.priority, 10**9, WALL, WALL, None, (),
            job_id=job.job_id, queued_ns=WALL, avoids=uuids,
        )  # fmt: skip
        stored = len(encoding.encode("job", job)) + len(encoding.encode("request", request))
        assert stored <= job.row_bytes


def test_a_job_counts_for_those_that_it_waits_for() -> None:
    node = node_of(4, 1)
    first = submitted(node, gpus=1)
    node.submits("alice", gpus=1, payload=payload(100), after=(first,))
    there = node.state.job_bytes["alice"]
    assert there == 2 * JOB_ROW_BYTES + AWAITED_BYTES + 100 + submission("alice").payload.size_bytes
    node.job_ends(first)
    assert node.state.job_bytes["alice"] == JOB_ROW_BYTES + 100


def test_an_ended_job_is_not_run_again_beyond_the_bytes_of_its_env() -> None:
    node = node_of(4, 1, max_env_job_bytes=JOB_ROW_BYTES + 1_000)
    job = submitted(node, gpus=1, payload=payload(900))
    node.job_ends(job)
    submitted(node, gpus=1, payload=payload(200))
    event = events.RequeueJob(job, "ann", WALL, node.history[job].job, node.history[job].spec)
    assert "(max_env_job_bytes)" in (job_actions.objection(node.state, event) or "")


def test_a_payload_is_saved_once_and_is_not_in_the_state() -> None:
    node = node_of()
    job = submitted(node, payload=payload(50))
    assert [save for save in node.effects if isinstance(save, Save) and save.kind == "payload"] == [
        Save("payload", "s1", payload(50))
    ]
    assert node.state.specs["s1"].payload_bytes == 50
    node.job_ends(job)
    assert not [save for save in node.effects if isinstance(save, Save) and save.kind == "payload"]


def test_a_job_that_waits_for_two_which_end_in_one_step_is_withdrawn_once() -> None:
    """The first fails; the second waited for it, the third for both."""
    node = node_of(4, 2)
    first = submitted(node, gpus=1)
    second = submitted(node, gpus=2, after=(first,))
    third = submitted(node, gpus=1, after=(first, second))
    node.job_ends(first, 1, cause=Cause.CANNOT_RUN)
    assert node.state.jobs == {}
    assert [event["job"] for event in node.published("job.withdrawn")] == [second, third]


def test_what_ended_well_before_is_not_waited_for() -> None:
    node = node_of()
    assert (
        node.job(submitted(node, after=("j9",), ended={"j9": JobState.DONE})).state
        is JobState.STARTING
    )


def test_nobody_waits_for_another_environments_job() -> None:
    node = node_of()
    node.quota("bob", 1)
    other = submitted(node, "bob", gpus=1)
    assert refusal(node, after=(other,)) == (
        DenyCode.UNKNOWN_JOB,
        f"alice has no job {other}: name a job that waits, runs or has ended well (nodemgr queue,"
        " nodemgr history)",
    )


# Orders.


def test_a_held_job_waits_for_its_order() -> None:
    node = node_of()
    job_id = submitted(node, hold=True)
    assert (node.job(job_id).state, node.queued_jobs()) == (JobState.HELD, [])
    node.frees(job_id)
    assert node.job(job_id).state is JobState.STARTING
    assert [entry.what for entry in node.job(job_id).deeds] == ["submitted, held", "unheld"]


def test_hold_takes_it_out_of_the_queue_and_unhold_puts_it_at_the_end() -> None:
    node = node_of(1, 1)
    running, *waiting = [submitted(node) for _ in range(4)]
    node.holds(waiting[0])
    assert node.queued_jobs() == waiting[1:]
    assert node.job(waiting[0]).why == "held by root (uid 0)"
    node.frees(waiting[0])
    assert node.queued_jobs() == [*waiting[1:], waiting[0]]
    assert node.job(running).state is JobState.STARTING


def test_a_held_job_that_waits_for_another_goes_on_waiting_for_it() -> None:
    node = node_of()
    first = submitted(node, gpus=1)
    second = submitted(node, gpus=1, after=(first,), hold=True)
    node.job_ends(first)
    assert node.job(second).state is JobState.HELD
    third = submitted(node, gpus=1, after=(second,))
    node.holds(third)
    node.frees(third)
    assert node.job(third).state is JobState.DEPENDENCY


def test_withdrawn_while_it_waits() -> None:
    node = node_of(1, 1)
    submitted(node)
    for job_id in (submitted(node), submitted(node, hold=True), submitted(node, after=("j1",))):
        node.withdraws(job_id)
        assert (node.job(job_id).state, node.job(job_id).why) == (
            JobState.WITHDRAWN,
            "root (uid 0) withdrew it",
        )
    assert node.queued_jobs() == []


def test_withdrawn_while_it_runs() -> None:
    node = node_of()
    job_id = submitted(node)
    node.begins(job_id)
    node.withdraws(job_id)
    assert node.of(StopJob) == [StopJob(job_id, 1, "root (uid 0) withdrew it")]
    assert node.job(job_id).state is JobState.STOPPING
    node.job_ends(job_id, None, signal=15)
    assert (node.job(job_id).state, node.job(job_id).attempts[0].signal) == (JobState.WITHDRAWN, 15)


def test_requeued_while_it_runs() -> None:
    node = node_of(1, 1)
    first, second = submitted(node), submitted(node)
    node.begins(first)
    node.requeues(first)
    assert len(node.of(StopJob)) == 1
    node.job_ends(first, 0)
    assert (node.job(second).state, node.job(first).state, node.job(first).restarts) == (
        JobState.STARTING,
        JobState.QUEUED,
        0,
    )


def test_withdrawn_while_it_is_requeued() -> None:
    node = node_of()
    job_id = submitted(node)
    node.requeues(job_id)
    node.withdraws(job_id)
    node.job_ends(job_id, 0)
    assert node.job(job_id).state is JobState.WITHDRAWN


def test_a_job_that_ended_runs_again_under_its_name() -> None:
    node = node_of()
    job_id = submitted(node, max_restarts=0, key="k")
    node.job_ends(job_id, 1)
    node.requeues(job_id)
    assert node.history == {}
    assert (node.of(StartJob)[0].attempt, node.job(job_id).restarts) == (2, 0)
    node.job_ends(job_id, 0)
    assert [attempt.exit_code for attempt in node.job(job_id).attempts] == [1, 0]
    assert node.job(job_id).state is JobState.DONE


def test_moved_to_another_queue() -> None:
    node = node_of(1, 1)
    _, second, third = [submitted(node) for _ in range(3)]
    node.moves(third, "high")
    assert node.queued_jobs() == [third, second]
    assert node.job(third).deeds[-1].what == "moved to high"
    held = submitted(node, hold=True)
    node.moves(held, "low")
    assert node.job(held).priority == "low"


@pytest.mark.parametrize(
    ("state", "order", "words"),
    [
        ("running", "hold", "j1 is starting: withdraw it, or requeue it"),
        ("running", "free", "j1 is not held: it is starting, and needs no unhold"),
        ("running", "move", "j1 is starting: withdraw it, or requeue it"),
        ("queued", "free", "j2 is not held: it is queued, and needs no unhold"),
        ("queued", "requeue", "j2 waits already (queued): `nodemgr queue position j2` says why"),
        ("queued", "move", "there is no queue urgent: there are high, normal, low"),
        (
            "queued",
            "nowhere",
            "the job's new place is missing: name a queue, or the front of its own",
        ),
        ("held", "hold", "j3 is held already: `nodemgr queue unhold j3` lets it start"),
        ("held", "front", "j3 is in no queue, since it is held: unhold it first"),
        (
            "waiting for j3",
            "front",
            "j5 is in no queue, since it waits for other jobs (--after): move it when they have"
            " ended well",
        ),
        ("stopping", "withdraw", "j4 is being ended already: wait for its end (nodemgr wait j4)"),
        ("stopping", "requeue", "j4 is being ended already: wait for its end (nodemgr wait j4)"),
        ("stopping", "hold", "j4 is being ended: withdraw it, or requeue it"),
        ("unknown", "withdraw", "no job j9 waits or runs: `nodemgr queue` shows them"),
        ("unknown", "requeue", "no job j9 waits or runs: `nodemgr queue` shows them"),
    ],
)
def test_an_order_that_makes_no_sense_is_objected_to_and_does_nothing(
    state: str, order: str, words: str
) -> None:
    node = node_of()
    submitted(node, gpus=2)
    submitted(node, gpus=2)
    submitted(node, hold=True)
    submitted(node, gpus=0)
    node.withdraws("j4")
    submitted(node, after=("j3",))
    job_id = {
        "running": "j1",
        "queued": "j2",
        "held": "j3",
        "stopping": "j4",
        "waiting for j3": "j5",
        "unknown": "j9",
    }[state]
    event: job_actions.JobAction = {
        "hold": events.HoldJob(job_id, "ann", WALL),
        "free": events.UnholdJob(job_id, "ann", WALL),
        "requeue": events.RequeueJob(job_id, "ann", WALL),
        "withdraw": events.WithdrawJob(job_id, "ann", WALL),
        "move": events.MoveJob(job_id, "urgent", False, "ann", WALL),
        "nowhere": events.MoveJob(job_id, None, False, "ann", WALL),
        "front": events.MoveJob(job_id, None, True, "ann", WALL),
    }[order]
    assert job_actions.objection(node.state, event) == words
    before = node.rows()
    assert node.happens(event) == []
    assert node.rows() == before


def test_an_order_to_an_array_is_for_those_it_makes_sense_for() -> None:
    node = node_of(1, 1)
    node.submits("alice", gpus=1, array=(0, 1, 2))
    node.holds("j1")
    assert [node.job(f"j1.{index}").state.value for index in range(3)] == [
        "starting",
        "held",
        "held",
    ]


# Quotas, GPUs, admins.


def test_a_quota_lowered_for_a_moment_fails_no_job() -> None:
    node = node_of(1, 2)
    node.gpus_are([gpu(0), gpu(1)])
    running, waiting, held = (
        submitted(node, gpus=2, max_restarts=1),
        submitted(node, gpus=2),
        submitted(node, gpus=2, hold=True),
    )
    follower = submitted(node, gpus=1, after=(waiting,))
    node.quota("alice", 1)
    assert node.job(running).state is JobState.STARTING
    assert [node.job(job_id).state for job_id in (waiting, follower)] == [
        JobState.QUEUED,
        JobState.DEPENDENCY,
    ]
    *_, (_, standing) = notify.listing(node.state, node.now_ns)
    why = "needs 2 GPUs, but the quota of alice is 1 now: waits until an admin raises it"
    assert (standing.position, standing.why) == (1, why)
    node.frees(held)
    node.requeues(running)
    node.job_ends(running)
    assert node.queued_jobs() == [waiting, held, running], "whatever brings a job back to its queue"
    short = submitted(node, gpus=1)
    assert node.job(short).state is JobState.STARTING, (
        "it blocks no other job, nor one of its own env"
    )
    assert node.submits("alice", gpus=2) is None, "a submission above the quota is refused as ever"
    node.restart()
    assert node.queued_jobs() == [waiting, held, running]
    node.job_ends(short)
    node.quota("alice", 2)
    assert node.job(waiting).state is JobState.STARTING
    node.job_ends(waiting)
    assert node.job(follower).state is JobState.QUEUED


def test_a_job_above_its_lowered_quota_is_not_named_as_first_of_its_environment() -> None:
    """The env's own task uses the whole lowered quota, so scheduling passes skip the env."""
    node = node_of(1, 2)
    node.gpus_are([gpu(0), gpu(1)])
    submitted(node, gpus=1)
    above = submitted(node, gpus=2)
    node.quota("alice", 1)
    submitted(node, gpus=1)
    submitted(node, gpus=1)
    _, first, second = notify.listing(node.state, node.now_ns)
    assert "0 left: waits for its own tasks" in first[1].why
    assert f"{first[0].job_id} of its own environment comes first" in second[1].why
    assert above not in first[1].why + second[1].why


def test_a_job_that_waits_for_its_own_tasks_hears_that_named_memory_would_share() -> None:
    """It would: the same job with its memory starts at once."""
    node = node_of(1, 2)
    node.gpus_are([gpu(0), gpu(1)])
    submitted(node, gpus=1)
    submitted(node, gpus=1)
    waiting = submitted(node, gpus=1)
    _, standing = next(iter(notify.listing(node.state, node.now_ns)))
    assert standing.why.endswith("; `--memory SIZE` would share a GPU where SIZE is free")
    node.withdraws(waiting)
    named = submitted(node, gpus=1, memory_bytes=GIB)
    node.passes(0)
    assert node.job(named).state is JobState.STARTING


@pytest.mark.parametrize("parent_ends", [False, True])
def test_a_requeued_job_waits_for_a_parent_that_has_not_ended(parent_ends: bool) -> None:
    node = node_of(1, 2)
    parent = submitted(node)
    child = submitted(node, after=(parent,))
    node.withdraws(child)
    assert node.history[child].job.after == (parent,)
    if parent_ends:
        node.job_ends(parent)
    node.requeues(child)
    if not parent_ends:
        assert (node.job(child).state, node.job(child).after) == (JobState.DEPENDENCY, (parent,))
        node.job_ends(parent)
    assert node.job(child).state is JobState.STARTING


def test_a_job_that_has_ended_is_requeued_though_its_quota_is_low() -> None:
    node = node_of(1, 2)
    node.gpus_are([gpu(0), gpu(1)])
    job_id = submitted(node, gpus=2)
    node.job_ends(job_id)
    node.quota("alice", 1)
    node.requeues(job_id)
    assert node.job(job_id).state is JobState.QUEUED
    node.quota("alice", 2)
    assert node.job(job_id).state is JobState.STARTING


def test_a_requeued_job_that_needs_more_gpus_than_the_node_has_is_refused() -> None:
    node = node_of(1, 2)
    node.gpus_are([gpu(0), gpu(1)])
    job_id = submitted(node, gpus=2)
    node.job_ends(job_id)
    over = node.history[job_id]
    bigger = events.RequeueJob(
        job_id,
        "root (uid 0)",
        WALL,
        replace(over.job, run=replace(over.job.run, gpus=3)),
        over.spec,
    )
    assert (
        job_actions.objection(node.state, bigger)
        == "3 GPUs asked, but this node has 2: ask for at most 2"
    )


def test_an_environment_that_is_removed_takes_its_jobs_along() -> None:
    node = node_of()
    running, waiting = submitted(node, gpus=2), submitted(node, gpus=1)
    follower = submitted(node, after=(waiting,))
    node.asks("alice", 50, token=_token(node, running))
    node.removes("alice")
    removed = "the quota of alice was removed by root: ask an admin for a new one"
    for job_id in (waiting, follower):  # the follower's reason is not the end of the other
        assert (node.job(job_id).state, node.job(job_id).why) == (JobState.WITHDRAWN, removed)
    assert node.fenced(50) is not None
    assert [stop.job_id for stop in node.of(StopJob)] == [running]
    assert node.state.tasks == {}
    node.restart()
    node.job_ends(running, None, signal=9)
    assert node.job(running).why == removed


def test_releasing_a_jobs_lease_or_request_withdraws_the_job() -> None:
    node = node_of(1, 1)
    running, waiting = submitted(node), submitted(node)
    node.admin_releases(node.job(running).task_id or "", env="bob")
    assert node.of(StopJob) == []
    node.admin_releases(node.job(running).task_id or "")
    assert len(node.of(StopJob)) == 1
    node.admin_releases(node.job(waiting).request_id or "")
    assert node.job(waiting).state is JobState.WITHDRAWN


def test_the_audit_fences_a_job_by_ending_it() -> None:
    node = node_of(1, 1, enforce="fence")
    node.quota("alice", 1, 10)
    job_id = submitted(node)
    node.asks("alice", 50, token=_token(node, job_id))
    for _ in range(3):
        node.audit_sees(seen(50, 0, 40, "alice"))
        node.passes(1_000)
    assert (node.job(job_id).state, node.job(job_id).then) == (JobState.STOPPING, JobState.FAILED)
    node.job_ends(job_id, None, signal=15)
    assert "beyond its charges" in node.job(job_id).why


# Queues.


def test_an_array_that_is_moved_to_the_front_stands_there_by_its_indices() -> None:
    """Also an element that had ended, and waits again."""
    node = node_of(1, 1)
    submitted(node)
    array = submitted(node, gpus=1, array=(0, 2))
    node.withdraws(f"{array}.0")
    other = submitted(node, gpus=1)
    node.requeues(f"{array}.0")
    assert node.queued_jobs() == [f"{array}.2", other, f"{array}.0"]
    node.moves(array, first=True)
    assert node.queued_jobs() == [f"{array}.0", f"{array}.2", other]


def test_of_two_that_are_given_back_one_has_its_turn_at_once() -> None:
    """The other one, which is behind it, stands before all that came later."""
    node = node_of(2, 2)
    first, second = submitted(node, gpus=1), submitted(node, gpus=1)
    third = submitted(node, gpus=2)
    node.place("alice/1000/dev", up=False)
    node.loses(1)
    node.gives_back((first, 1), (second, 1))
    assert (node.job(first).state, node.queued_jobs()) == (JobState.STARTING, [second, third])


def test_an_attempt_that_was_given_back_uses_up_no_restart() -> None:
    node = node_of(1, 1)
    job_id = submitted(node, max_restarts=1)
    node.gives_back((job_id, 1))
    assert (node.job(job_id).state, node.job(job_id).restarts) == (JobState.STARTING, 0)
    node.job_ends(job_id, 1)
    assert (node.job(job_id).state, node.job(job_id).restarts) == (JobState.STARTING, 1)
    node.job_ends(job_id, 1)
    assert node.job(job_id).state is JobState.FAILED


def test_a_queue_has_a_cap_for_jobs_and_for_waiters() -> None:
    node = node_of(1, 1)
    node.happens(events.SetQueue(QueueRow("normal", 200, 1, 0), "root", WALL))
    submitted(node)
    submitted(node)
    code, reason = refusal(node)
    assert (code, reason) == (
        DenyCode.QUEUE_FULL,
        "queue normal is full: 1 waiting, its cap is 1; try again later, or name another queue",
    )
    node.quota("bob", 1)
    node.asks("bob", 20)
    denied = node.denied(20)
    assert denied is not None
    assert denied.code is DenyCode.QUEUE_FULL
    low = submitted(node, priority="low")
    held = submitted(node, hold=True)
    assert job_actions.objection(node.state, events.UnholdJob(held, "ann", WALL)) == reason
    assert (
        job_actions.objection(node.state, events.MoveJob(low, "normal", False, "ann", WALL))
        == reason
    )


def test_a_queue_whose_cap_is_0_takes_nothing() -> None:
    node = node_of(1, 1)
    node.happens(events.SetQueue(QueueRow("normal", 200, 0, 0), "root", WALL))
    words = "queue normal takes nothing at present, its cap is 0: name another queue"
    assert refusal(node) == (DenyCode.QUEUE_FULL, words)


def test_queues_are_set_and_removed() -> None:
    node = node_of(1, 1)
    submitted(node)
    node.happens(events.SetQueue(QueueRow("night", 50, None, 0), "root", WALL))
    low, night = submitted(node, priority="low"), submitted(node, priority="night")
    assert node.queued_jobs() == [low, night]
    node.happens(events.SetQueue(QueueRow("night", 400, None, 0), "root", WALL))
    assert node.queued_jobs() == [night, low]
    node.restart()
    assert node.queued_jobs() == [night, low]
    node.happens(events.RemoveQueue("night", "root", WALL))
    assert "night" in node.state.queues
    node.withdraws(night)
    node.happens(events.RemoveQueue("night", "root", WALL))
    assert sorted(node.state.queues) == ["high", "low", "normal"]
    assert node.published("queue.removed") == [{"queue": "night", "by": "root"}]
    assert refusal(node, priority="night")[0] is DenyCode.UNKNOWN_QUEUE


@pytest.mark.parametrize(
    ("queue", "words"),
    [
        ("urgent", "there is no queue urgent: there are high, normal, low"),
        ("low", "queue low has waiting entries (1): move or withdraw them first"),
        ("high", "queue high has jobs (1): move or withdraw them first"),
        (
            "normal",
            (
                "queue normal is the queue of alice: name another one first (nodemgr quota set"
                " --priority)"
            ),
        ),
    ],
)
def test_a_queue_that_is_needed_stays(queue: str, words: str) -> None:
    from nodemgr.core.lifecycle import queue_settings

    node = node_of(1, 1)
    submitted(node, priority="low")
    submitted(node, priority="low")
    submitted(node, priority="high", hold=True)
    node.withdraws("j1")
    node.job_ends("j1", None, signal=15)
    submitted(node, priority="low")
    order = events.RemoveQueue(queue, "root", WALL)
    assert queue_settings.objection(node.state, order) == words
    assert node.happens(order) == []


# A restart of the manager.


def test_running_jobs_are_found_again_though_no_process_of_theirs_is_connected() -> None:
    node = node_of(1, 1)
    first, second = submitted(node), submitted(node)
    node.begins(first)
    node.restart()
    node.passes(600_000)
    assert [node.job(job_id).state for job_id in (first, second)] == [
        JobState.RUNNING,
        JobState.QUEUED,
    ]
    node.job_ends(first)
    assert node.job(second).state is JobState.STARTING


def test_what_was_committed_and_never_begun_is_begun_with_the_same_order() -> None:
    node = node_of()
    job_id = submitted(node, array=(4,)) + ".4"
    (start,) = node.of(StartJob)
    node.restart()
    assert jobs.start_of(node.state, node.job(job_id)) == start


def test_places_are_kept_over_a_restart_and_a_boot() -> None:
    node = node_of(1, 1)
    order = [submitted(node, gpus=1) for _ in range(12)][1:]
    node.restart()
    assert node.queued_jobs() == order
    node.now_ns = 5  # the clock of another boot
    node.restart()
    assert node.queued_jobs() == order
    order.append(submitted(node))
    node.restart()
    assert node.queued_jobs() == order


def test_a_submission_is_all_or_nothing_beside_others() -> None:
    """Many in one commit; one that is refused takes nothing from the others."""
    node = node_of()
    three = (
        submission("alice", 1, gpus=1),
        submission("alice", 2, gpus=9),
        submission("alice", 3, gpus=1, after=("j1",)),
    )
    node.happens(events.SubmitJobs(three, WALL))
    assert [(answer.ref, answer.job_id) for answer in node.of(SubmitAnswered)] == [
        (1, "j1"),
        (2, None),
        (3, "j2"),
    ]


def test_moved_to_the_front_of_a_queue() -> None:
    node = node_of(1, 1)
    _, *waiting = [submitted(node) for _ in range(4)]
    node.moves(waiting[2], first=True)
    assert node.queued_jobs() == [waiting[2], waiting[0], waiting[1]]
    node.moves(waiting[1], "high", first=True)
    node.moves(waiting[0], "high", first=True)
    assert node.queued_jobs() == [waiting[0], waiting[1], waiting[2]]
    node.restart()
    assert node.queued_jobs() == [waiting[0], waiting[1], waiting[2]]


def test_an_array_keeps_its_order_at_the_front() -> None:
    node = node_of(1, 1)
    submitted(node)
    submitted(node)
    node.submits("alice", array=(0, 1, 2))
    node.moves("j3", first=True)
    assert node.queued_jobs() == ["j3.0", "j3.1", "j3.2", "j2"]


def test_an_order_to_an_array_costs_its_elements_not_their_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node, elements = node_of(1, 1), 300
    for more in ({}, {"array": tuple(range(elements)), "key": "0" * 16}, {}):
        submitted_quietly(node, gpus=1, **more)
    asked = 0

    def count(method: Any) -> Any:
        def counted(*arguments: Any) -> Any:
            nonlocal asked
            asked += 1
            return method(*arguments)

        return counted

    def each(groups: Any, key: Any) -> Any:
        nonlocal asked
        for member in groups.get(key, ()):
            asked += 1
            yield member

    monkeypatch.setattr(Request, "__eq__", count(Request.__eq__))
    monkeypatch.setattr(Groups, "members", each)
    for event in (
        events.MoveJob("j2", None, True, "root", WALL),
        events.WithdrawJob("j2", "root", WALL),
    ):
        step(node.state, event, node.now_ns).apply()
    assert asked < 20 * elements
    assert len(node.state.jobs) == 2


# The peak of its memory.


def peaks(node: Node, job_id: str) -> list[int | None]:
    """Of its attempts."""
    job = node.history[job_id].job if job_id in node.history else node.job(job_id)
    return [attempt.peak_bytes for attempt in job.attempts]


def with_processes(*pids: int, **more: object) -> tuple[Node, str]:
    """A job under way, with these processes."""
    node = node_of()
    job_id = submitted(node, **more)
    node.begins(job_id)
    for pid in pids:
        node.asks("alice", pid, token=_token(node, job_id))
    return node, job_id


def test_an_attempt_has_the_greatest_peak_of_its_processes() -> None:
    node, job_id = with_processes(50, 51, 52)
    node.dies(50, peak_bytes=5 * GIB)
    node.releases("alice", 51, peak_bytes=7 * GIB)
    node.dies(51, peak_bytes=1 * GIB)
    assert peaks(node, job_id) == [None], "it has not ended"
    node.job_ends(job_id, peak_bytes=6 * GIB)
    assert peaks(node, job_id) == [7 * GIB]


@pytest.mark.parametrize("exit_code", [0, 3, None])
def test_the_peak_is_known_however_the_job_ends(exit_code: int | None) -> None:
    node, job_id = with_processes(50)
    node.job_ends(job_id, exit_code, peak_bytes=2 * GIB)
    if exit_code != 0:
        node.passes(endings.GPU_REPORT_NS // MS)
    assert peaks(node, job_id) == [2 * GIB]


def test_a_withdrawn_job_has_its_peak() -> None:
    node, job_id = with_processes(50)
    node.withdraws(job_id)
    node.dies(50, peak_bytes=3 * GIB)
    node.job_ends(job_id, None, signal=15)
    assert node.history[job_id].job.state is JobState.WITHDRAWN
    assert peaks(node, job_id) == [3 * GIB]


def test_each_attempt_has_a_peak_of_its_own() -> None:
    node, job_id = with_processes(50)
    node.requeues(job_id)
    node.job_ends(job_id, None, signal=15, peak_bytes=4 * GIB)
    node.begins(job_id)
    node.asks("alice", 60, token=_token(node, job_id))
    node.dies(60, peak_bytes=1 * GIB)
    node.job_ends(job_id)
    assert peaks(node, job_id) == [4 * GIB, 1 * GIB]


def test_a_process_that_left_the_lease_before_its_death_counts() -> None:
    node, job_id = with_processes(50, 51)
    node.releases("alice", 51)
    node.dies(51, peak_bytes=8 * GIB)
    node.job_ends(job_id, peak_bytes=1 * GIB)
    assert peaks(node, job_id) == [8 * GIB]


def test_a_peak_that_was_not_measured_is_not_known() -> None:
    for unknown, known in ((None, 5 * GIB), (5 * GIB, None)):
        node, job_id = with_processes(50)
        node.dies(50, peak_bytes=unknown)
        node.job_ends(job_id, peak_bytes=known)
        assert peaks(node, job_id) == [None]


def test_without_memory_in_the_ledger_there_is_no_peak() -> None:
    node, job_id = with_processes(50)
    node.dies(50)
    node.job_ends(job_id)
    on_cpu = submitted(node, gpus=0)
    node.begins(on_cpu)
    node.job_ends(on_cpu)
    assert peaks(node, job_id) == peaks(node, on_cpu) == [None]


def test_the_peak_so_far_outlives_the_manager() -> None:
    node, job_id = with_processes(50, 51)
    node.dies(50, peak_bytes=9 * GIB)
    node.restart(gone=[51])
    node.dies(51, peak_bytes=1 * GIB)
    node.job_ends(job_id)
    assert peaks(node, job_id) == [9 * GIB]


def test_an_interactive_task_keeps_no_peak() -> None:
    node = node_of()
    node.asks("alice", 50, 1)
    node.asks("alice", 51, token="another", ancestors=(50,))
    node.dies(51, peak_bytes=9 * GIB)
    task = node.task(50)
    assert task is not None
    assert task.peak_bytes == 0


def test_a_short_job_names_the_own_entry_that_keeps_it_from_backfill() -> None:
    """It would end before the wide job's start, but the quota has no room for both of its env's."""
    for has_earlier in (False, True):
        node = node_of(2, 2)
        node.quota("bob", 2)
        submitted(node, gpus=1, time_limit_ms=25_000)
        wide = submitted(node, "bob", gpus=2)
        endless = submitted(node, gpus=1) if has_earlier else ""
        short = submitted(node, gpus=1, time_limit_ms=8_000)
        lines = {
            request.job_id: standing.why
            for request, standing in notify.listing(node.state, node.now_ns)
        }
        if has_earlier:
            assert f"kept for bob/{wide}" in lines[endless]
            assert f"{endless} of its own environment comes first" in lines[short]
        else:
            assert short not in lines, "alone it starts by backfill"


class Steps(Node):
    """The jobs that each step starts."""

    def __init__(self, gpus: int, **config: int) -> None:
        self.starts: list[list[str]] = []
        super().__init__(gpus, **config)

    def _step(self, event: events.Event) -> Transition:
        transition = super()._step(event)
        starts = [each.job_id for each in transition.effects if isinstance(each, StartJob)]
        self.starts += [starts] if starts else []
        return transition


def test_a_pass_starts_some_jobs_and_the_next_ones_the_rest_in_order() -> None:
    most = matching.MOST_STARTS
    node = Steps(1, max_env_cpu_jobs=1_000)
    node.quota("alice", 1)
    node.quota("bob", 1)
    node.place(up=False)
    jobs = [node.submits("alice", gpus=0) for _ in range(2 * most + 3)]
    jobs.insert(most, node.submits("bob", gpus=1, priority="normal"))
    node.place()
    assert [len(starts) for starts in node.starts] == [most, most, 4]
    assert sorted(job for starts in node.starts for job in starts) == sorted(jobs)
    assert not node.state.requests


def test_a_request_that_may_not_wait_is_judged_behind_all_starts() -> None:
    """A request's own step is not cut off: what comes first is served, then the request."""
    node = Steps(1, max_env_cpu_jobs=1_000)
    node.quota("alice", 1)
    node.place(up=False)
    for _ in range(matching.MOST_STARTS + 1):
        node.submits("alice", gpus=0)
    node.asks("alice", 1, 1, wait_ms=0)
    assert node.gpus_of(1) == [0]
    node.place()
    assert not node.state.requests
