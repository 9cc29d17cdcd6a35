"""Failures of GPUs: which evidence counts, who is told, what is drained, where jobs go."""

from __future__ import annotations

import random

import pytest

from nodemgr.core.model import events
from nodemgr.core.model.effects import Publish, SendNote, StartJob
from nodemgr.core.model.entities import (
    MAX_EVIDENCE,
    MAX_FAILURES,
    Cause,
    Evidence,
    FailureKind,
    JobState,
    TaskClass,
)
from nodemgr.core.placement import xids
from nodemgr.core.scheduler import preference
from nodemgr.core.views import gpu_health
from tests.core.world import GIB, Node, S, gpu
from tests.support.examples import examples

HOUR_MS = 3_600_000
DAY_NS = 24 * 3600 * S
OF_ANOTHER = "a job of another environment failed beside it"


def node(gpus: int = 4, **config: object) -> Node:
    made = Node(gpus, **config)
    made.quota("a", gpus)
    made.quota("b", gpus)
    return made


def rate(made: Node, index: int) -> float:
    return made.state.outlook[f"GPU-{index}"].rate_per_hour


def names(made: Node) -> list[str]:
    return [effect.name for effect in made.of(Publish)]


# -- evidence --


@pytest.mark.parametrize("xid", [13, 31, 32, 43, 45, 68, 69, 109, 119, 63, 92, 0, -1, 10**9])
def test_an_xid_that_a_program_can_cause_is_no_evidence(xid: int) -> None:
    assert xids.of_hardware(xid) is None


def test_xids_of_the_hardware_are_evidence_in_words() -> None:
    assert xids.of_hardware(79) == "XID 79: fell off the bus"
    assert {48, 64, 74, 79, 94, 95, 140} <= set(xids.HARDWARE)


def test_a_failure_is_kept_with_its_time_and_evidence() -> None:
    made = node()
    made.fails(2, 48)
    (row,) = made.state.failures.values()
    assert (row.uuid, row.kind, row.wall_ns) == ("GPU-2", FailureKind.XID, made.wall_ns)
    assert row.evidence == (Evidence("XID 48: uncorrectable memory error (double bit ECC)"),)
    assert names(made) == ["gpu.failed"]


def test_events_within_a_minute_are_one_failure() -> None:
    """One fault of the memory has several XIDs, and the GPU may vanish as well."""
    made = node()
    made.fails(1, 48)
    made.fails(1, 95, after_ms=10_000)
    made.fails(1, 95, after_ms=10_000)
    made.loses(1)
    (row,) = made.state.failures.values()
    assert len(row.evidence) == 3
    made.fails(1, 48)
    assert len(made.state.failures) == 2


def test_a_gpu_that_vanishes_alone_has_failed_and_all_at_once_have_not() -> None:
    made = node(3)
    made.gpus_are([])
    assert not made.state.failures, "the driver ended, or was unloaded"
    made.gpus_are([gpu(0), gpu(1), gpu(2)])
    made.loses(1)
    assert [row.kind for row in made.state.failures.values()] == [FailureKind.VANISHED]


def test_a_drained_gpu_may_be_taken_out() -> None:
    made = node(3)
    made.drains(1)
    made.loses(1)
    assert not made.state.failures


def test_an_administrators_word_is_a_failure_of_its_own() -> None:
    made = node()
    made.fails(1)
    made.reports_failure(1, "the fan is loud")
    assert [row.by for row in made.state.failures.values()] == ["", "root"]
    assert made.state.failures["f2"].evidence == (Evidence("reported by root: the fan is loud"),)


def test_the_records_are_bounded() -> None:
    made = node(drain_failures=0)
    for _ in range(MAX_FAILURES + 5):
        made.fails(0)
    assert len(made.state.failures) == MAX_FAILURES
    for xid in xids.HARDWARE:
        made.fails(0, xid, after_ms=1)
    assert max(len(row.evidence) for row in made.state.failures.values()) == MAX_EVIDENCE
    made.happens(events.GpuFault("GPU-1", FailureKind.ECC, "x" * 10_000, made.wall_ns))


def test_a_fault_of_an_unknown_gpu_is_nothing() -> None:
    made = node()
    made.happens(events.GpuFault("GPU-9", FailureKind.XID, "XID 79", made.wall_ns))
    made.happens(events.RepairGpu("GPU-9", "root", "", made.wall_ns))
    made.happens(events.DrainGpu("GPU-9", "root", "", made.wall_ns))
    made.happens(events.ResumeGpu("GPU-9", "root", made.wall_ns))
    made.happens(events.ReportFailure("GPU-9", "root", "", made.wall_ns))
    assert not made.state.failures


def test_a_gpu_that_a_restart_missed_comes_back_with_its_record() -> None:
    """The edge restores no row of a GPU that is away and holds nothing (service.py)."""
    made = node(3)
    made.fails(1)
    made.drains(1)
    made.loses(1)
    gone = {("gpu", "GPU-1"): made.store.pop(("gpu", "GPU-1"))}
    made.restart()
    assert "GPU-1" not in made.state.gpus
    assert not made.state.outlook
    made.gpus_are([gpu(0), gpu(1), gpu(2)])
    assert gone
    assert made.state.gpus["GPU-1"].drained
    assert rate(made, 1) > rate(made, 0)


def test_a_new_gpu_takes_no_record_of_one_that_is_away() -> None:
    made = node(3)
    made.fails(1)
    made.loses(1)
    made.store.pop(("gpu", "GPU-1"))
    made.restart()
    made.gpus_are([gpu(0), gpu(2), gpu(3)])
    assert {"GPU-1", "GPU-3"} <= set(made.state.gpu_records)


# -- rates --


def test_auto_is_spread_until_a_failure_is_recorded() -> None:
    made = node()
    assert preference.in_force(made.state, "auto") == "spread"
    made.fails(0)
    assert preference.in_force(made.state, "auto") == "reliable"
    made.repairs(0)
    assert preference.in_force(made.state, "auto") == "spread"
    assert not made.state.outlook


def test_a_user_who_kills_own_jobs_moves_no_rate() -> None:
    made = node()
    made.fails(3)
    before = dict(made.state.outlook)
    for _ in range(20):
        job = made.submits("a")
        assert job is not None
        made.begins(job)
        made.job_ends(job, exit_code=None, signal=9)
    assert made.state.outlook == before
    assert len(made.state.failures) == 1


# -- requests with a class --


@pytest.mark.parametrize(("has_failed", "chosen"), [(False, 1), (True, 0)])
def test_a_latency_sensitive_request_avoids_a_gpu_on_which_it_would_fail(
    has_failed: bool, chosen: int
) -> None:
    made = Node(2)
    for env in ("a", "b"):
        made.quota(env, 1, 10, task_class=TaskClass.LATENCY_SENSITIVE)
    made.asks("b", 10, percent=30, expected_ms=HOUR_MS)
    assert made.gpus_of(10) == [0]
    for _ in range(9 * has_failed):
        made.fails(1, after_ms=48 * HOUR_MS)
    made.now_ns += DAY_NS
    assert made.state.gpus["GPU-1"].usable
    made.asks("a", 11, percent=30, expected_ms=10 * HOUR_MS)
    assert made.gpus_of(11) == [chosen], "else the one with the most compute left"


@pytest.mark.parametrize("jump_ns", [-20 * 365 * DAY_NS, 20 * 365 * DAY_NS])
def test_a_jump_of_the_wall_clock_moves_no_rate(jump_ns: int) -> None:
    made, calm = node(), node()
    made.wall_ns += jump_ns
    for each in (made, calm):
        each.fails(0)
        each.now_ns += 30 * DAY_NS
        each.happens(events.ServiceTime(each.wall_ns))
        each.fails(1)
    assert made.state.outlook == calm.state.outlook
    assert rate(made, 1) > rate(made, 0) > rate(made, 2), "the older failure counts less"


def test_a_boot_sets_no_age_back() -> None:
    """The monotonic clock begins anew, the service clock goes on from the store."""
    made = node()
    made.fails(0)
    made.now_ns += 30 * DAY_NS
    made.happens(events.ServiceTime(made.wall_ns))
    before = rate(made, 0)
    made.now_ns = 5 * S
    made.restart()
    assert rate(made, 0) == pytest.approx(before)
    made.fails(1)
    assert rate(made, 1) > rate(made, 0)


def test_all_gpus_bad_still_serve() -> None:
    made = node(3, drain_failures=0)
    for index in range(3):
        made.reports_failure(index)
    made.now_ns += 3 * DAY_NS
    made.asks("a", 1, 3)
    assert made.granted(1) is not None


# -- placement --


def test_after_a_failure_a_request_gets_another_gpu_and_the_record_says_why() -> None:
    made = node()
    made.fails(0)
    made.asks("a", 1, 1)
    (task,) = made.state.tasks.values()
    assert task.gpus == ("GPU-1",)
    line = made.state.records[task.task_id].chosen
    assert line.startswith("reliable: the GPUs with the fewest failures, as no time is known")


def test_a_short_job_leaves_the_reliable_gpus_to_others() -> None:
    made = node()
    made.fails(2)
    made.now_ns += DAY_NS  # it failed lately until then
    job = made.submits("a", gpus=1, time_limit_ms=HOUR_MS // 4)
    assert made.of(StartJob)[0].gpus == ("GPU-2",)
    assert job is not None
    task_id = made.state.jobs[job].task_id
    assert made.state.records[task_id or ""].chosen.startswith("reliable: 1 x 0.25 h is short")
    made.submits("b", gpus=1, time_limit_ms=48 * HOUR_MS)
    assert made.of(StartJob)[0].gpus == ("GPU-0",)


def test_each_attempt_in_the_history_says_why_its_gpus_were_chosen() -> None:
    made = node(2)
    job = made.submits("a", gpus=1, max_restarts=1)
    assert job is not None
    made.begins(job)
    made.fails(0)
    made.job_ends(job, exit_code=1)
    made.passes(20_000)
    made.begins(job)
    made.job_ends(job)
    first, second = made.history[job].job.attempts
    assert first.chosen == "spread: most remaining memory first"
    assert second.chosen.startswith("reliable: the GPUs with the fewest failures")


def test_an_attempt_without_gpus_has_no_choice() -> None:
    made = node(1)
    job = made.submits("a", gpus=0)
    assert job is not None
    made.begins(job)
    made.job_ends(job)
    assert made.history[job].job.attempts[0].chosen == ""


def test_the_quotas_policy_comes_before_the_queues_and_the_nodes() -> None:
    made = node(3)
    made.quota("a", 3, placement="index")
    made.asks("b", 1, 1)
    made.dies(1)
    made.fails(0)
    made.asks("a", 2, 1)
    assert made.state.tasks["t2"].gpus == ("GPU-0",), "the index counts alone"
    assert made.state.records["t2"].chosen == "index: lowest index first"


def test_without_failures_nothing_is_written_about_the_choice() -> None:
    made = node()
    made.asks("a", 1, 1)
    assert made.state.records["t1"].chosen == ""


# -- drains --


def test_a_drained_gpu_gets_no_new_task_and_its_tasks_go_on() -> None:
    made = node(2)
    made.asks("a", 1, 1)
    made.drains(0, "fan")
    assert "t1" in made.state.tasks
    made.asks("b", 2, 1)
    assert made.state.tasks["t2"].gpus == ("GPU-1",)
    made.asks("b", 3, 2, wait_ms=0)
    assert made.denied(3) is not None
    made.dies(1)
    made.asks("a", 4, 2)
    assert made.told(4) is not None
    made.dies(2)
    made.undrains(0)
    assert made.granted(4) is not None


def test_a_new_note_of_a_drained_gpu_replaces_the_old_one() -> None:
    made = node(2)
    made.drains(0, "fan")
    made.drains(0)
    assert made.state.gpu_records["GPU-0"].why == "fan"
    made.drains(0, "riser")
    assert made.state.gpu_records["GPU-0"].why == "riser"


def test_a_flapping_gpu_is_drained_after_three_failures_in_an_hour() -> None:
    made = node()
    made.fails(1)
    made.fails(1)
    assert not made.state.gpus["GPU-1"].drained
    made.fails(1)
    assert made.state.gpus["GPU-1"].drained
    assert names(made) == ["gpu.failed", "gpu.drained"]
    assert made.state.gpu_records["GPU-1"].why == "3 failures within an hour"
    (drained,) = [effect for effect in made.of(Publish) if effect.name == "gpu.drained"]
    assert drained.fields["warning"] == (
        "GPU 1 is drained (3 failures within an hour): "
        "nodemgr gpu repaired 1 brings it back after a repair"
    )
    made.repairs(1, "new riser")
    assert not made.state.gpus["GPU-1"].drained
    assert not made.state.failures
    assert made.state.gpu_records["GPU-1"].why == "new riser"


def test_three_failures_in_a_day_drain_nothing() -> None:
    made = node()
    for _ in range(5):
        made.fails(1, after_ms=HOUR_MS)
    assert not made.state.gpus["GPU-1"].drained


def test_the_last_usable_gpu_is_drained_by_an_administrator_alone() -> None:
    made = node(2)
    made.drains(0)
    for _ in range(6):
        made.fails(1)
    assert not made.state.gpus["GPU-1"].drained
    published = [effect.name for effect in made.of(Publish)]
    assert "gpu.drained" not in published
    made.drains(1)
    assert made.state.gpus["GPU-1"].drained


def test_one_event_names_a_last_gpu_that_flaps() -> None:
    made, found = node(1), []
    for _ in range(6):
        made.fails(0)
        found += names(made)
    assert found.count("gpu.flapping") == 1


# -- tasks and jobs --


def test_tasks_on_the_gpu_are_told_once() -> None:
    made = node()
    made.asks("a", 1, 1)
    made.fails(0, 94)
    (note,) = made.of(SendNote)
    assert note.text.startswith("GPU 0 (simulated) failed: XID 94: contained")
    made.fails(0, 95, after_ms=1_000)
    assert not made.of(SendNote)


def test_a_job_whose_gpu_failed_comes_back_on_another_one() -> None:
    made = node(2, placement="index")
    job = made.submits("a", gpus=1, time_limit_ms=HOUR_MS)
    assert job is not None
    assert made.of(StartJob)[0].gpus == ("GPU-0",)
    made.begins(job)
    made.fails(0)
    made.job_ends(job, exit_code=1)
    paused = made.state.jobs[job]
    assert (paused.state, paused.attempts[-1].cause) == (JobState.PAUSED, Cause.GPU_LOST)
    row = made.state.failures["f1"]
    beside = f"{job}, attempt 1, failed beside it"
    assert row.evidence[-1] == Evidence(job_id=job, attempt=1)
    failed = made.state.gpus["GPU-0"]
    for env, shown in ((None, beside), ("a", beside), ("b", OF_ANOTHER)):
        evidence = gpu_health.row(made.state, failed, env)["last_failure_evidence"]
        assert evidence == [row.evidence[0].what, shown]
    made.passes(20_000)
    again = made.state.jobs[job]
    assert again.state is JobState.STARTING
    assert again.attempts[-1].gpus == ("GPU-1",), "index alone would choose GPU 0"


def test_a_job_that_goes_on_beside_a_failure_is_not_restarted() -> None:
    made = node(2)
    job = made.submits("a")
    assert job is not None
    made.begins(job)
    made.fails(0)
    made.job_ends(job, exit_code=0)
    assert made.job(job).state is JobState.DONE


def test_a_job_that_starts_within_a_failure_and_fails_by_it_comes_back() -> None:
    """The events of a minute are one failure; a later attempt on the GPU is told of the next."""
    made = node(1)
    made.fails(0, 79)
    made.passes(10_000)
    job = made.submits("a", max_restarts=0)
    assert job is not None
    made.begins(job)
    made.fails(0, 79, after_ms=10_000)
    assert len(made.state.failures) == 1
    assert made.job(job).attempts[-1].lost_gpu == "GPU-0"
    made.job_ends(job, exit_code=1)
    assert made.job(job).state is JobState.PAUSED


def test_a_task_is_told_once_of_a_failure_with_many_events() -> None:
    made = node(1)
    made.asks("a", 1, 1)
    made.passes(1_000)
    made.fails(0, 79)
    assert len(made.of(SendNote)) == 1
    made.fails(0, 48, after_ms=10_000)
    assert made.of(SendNote) == []


def test_a_job_that_needs_all_gpus_does_not_wait_for_others() -> None:
    made = node(2)
    job = made.submits("a", gpus=2)
    assert job is not None
    made.begins(job)
    made.fails(0)
    made.job_ends(job, exit_code=1)
    made.passes(20_000)
    assert made.state.jobs[job].state is JobState.STARTING


# -- random walks --


@pytest.mark.parametrize("seed", range(examples(8)))
def test_any_order_of_failures_drains_and_repairs_keeps_the_promises(seed: int) -> None:
    """World.happens checks every step, and that the stored rows give the same state again."""
    dice = random.Random(seed)
    made = node(4, ageing_ms=0)
    made.quota("b", 2, 80 * 2)
    pids, lost, jobs = 0, set[int](), list[str]()
    for _ in range(60):
        index = dice.randrange(4)
        move = dice.randrange(12)
        if move < 2:
            pids += 1
            made.asks(dice.choice("ab"), pids, dice.choice([1, 1, 2]), udp=dice.random() < 0.1)
        elif move == 2 and pids:
            made.dies(dice.randint(1, pids))
        elif move == 3:
            limit = dice.choice([None, HOUR_MS // 4, 24 * HOUR_MS])
            name = made.submits(dice.choice("ab"), gpus=dice.choice([1, 2]), time_limit_ms=limit)
            jobs += [name] if name is not None else []
        elif move == 4:
            for name in [name for name in jobs if name in made.state.jobs]:
                if made.state.jobs[name].state is JobState.STARTING:
                    made.begins(name)
        elif move == 5:
            running = [
                name
                for name in jobs
                if name in made.state.jobs and made.state.jobs[name].state is JobState.RUNNING
            ]
            if running:
                made.job_ends(dice.choice(running), exit_code=dice.choice([0, 1]))
        elif move == 6:
            made.fails(index, dice.choice(list(xids.HARDWARE)), after_ms=dice.choice([1, 90_000]))
        elif move == 7:
            lost ^= {index}
            made.gpus_are([gpu(at) for at in range(4) if at not in lost])
        elif move == 8:
            dice.choice([made.drains, made.repairs, made.reports_failure])(index, "note")
        elif move == 9:
            made.undrains(index)
        elif move == 10:
            made.wall_ns += dice.choice([-1, 1]) * 1000 * DAY_NS
            made.happens(events.ServiceTime(made.wall_ns))
        else:
            made.passes(dice.choice([1_000, 20_000]))
            if dice.random() < 0.3:
                made.restart()
    assert sum(grant.memory_bytes for grant in made.state.grants.values()) <= 4 * 80 * GIB
