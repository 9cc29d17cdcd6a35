"""Classes and shares of compute: the asked ones reach requests, jobs and leases."""

from __future__ import annotations

from typing import Any

import pytest

from nodemgr.core.model.effects import SubmitAnswered
from nodemgr.core.model.entities import DenyCode, Quota, TaskClass
from nodemgr.core.scheduler import shares
from tests.core.world import Node

LS, NORMAL, BE = TaskClass

ASKED = [
    # quota's class, quota's share, class named, share named -> class, share
    (NORMAL, None, None, None, NORMAL, None),
    (NORMAL, None, NORMAL, None, NORMAL, None),
    (NORMAL, 40, None, None, NORMAL, 40),
    (NORMAL, 40, None, 30, NORMAL, 30),
    (NORMAL, None, None, 30, NORMAL, 30),
    (BE, None, None, None, BE, 100),
    (BE, 40, None, None, BE, 40),
    (LS, 40, BE, None, BE, 40),
    (LS, None, NORMAL, None, NORMAL, None),
    (NORMAL, None, BE, None, BE, 100),
]


@pytest.mark.parametrize(("of_quota", "percent", "named", "asked", "gets", "share"), ASKED)
def test_what_a_request_leaves_out_is_the_quotas(
    of_quota: TaskClass,
    percent: int | None,
    named: TaskClass | None,
    asked: int | None,
    gets: TaskClass,
    share: int | None,
) -> None:
    quota = Quota(1, compute_percent=percent, task_class=of_quota)
    assert shares.asked(quota, named, asked) == (gets, share)


def test_a_class_or_share_above_the_quota_is_refused_at_once() -> None:
    node = Node()
    node.quota("alice", 2, compute_percent=40)
    denials = []
    for pid, wished in enumerate(({"task_class": LS}, {"percent": 41}, {"percent": 40}), 10):
        node.asks("alice", pid, **wished)  # type: ignore[arg-type]
        denials.append(node.denied(pid))
    assert [denied and (denied.code, denied.reason) for denied in denials] == [
        (
            DenyCode.CLASS_ABOVE_LIMIT,
            "class latency-sensitive asked, but the highest class of alice is normal: ask for that"
            " one, or an admin for more (nodemgr quota set alice --class)",
        ),
        (
            DenyCode.COMPUTE_ABOVE_LIMIT,
            "41% of each GPU asked, but alice may have at most 40%: ask for less with --compute, or"
            " an admin for more (nodemgr quota set alice --compute)",
        ),
        None,
    ]
    assert [task.run.compute_percent for task in node.state.tasks.values()] == [40]


@pytest.mark.parametrize(
    ("wished", "code", "words"),
    [
        ({"task_class": LS}, DenyCode.CLASS_ABOVE_LIMIT, "the highest class of alice is normal"),
        ({"compute_percent": 41}, DenyCode.COMPUTE_ABOVE_LIMIT, "at most 40%"),
        ({"compute_percent": 10, "gpus": 0}, DenyCode.BAD_REQUEST, "leave --class and --compute"),
        ({"task_class": BE, "gpus": 0}, DenyCode.BAD_REQUEST, "leave --class and --compute"),
    ],
)
def test_a_job_with_a_class_or_share_that_it_cannot_have_is_refused(
    wished: dict[str, Any], code: DenyCode, words: str
) -> None:
    node = Node()
    node.quota("alice", 2, compute_percent=40)
    assert node.submits("alice", **{"gpus": 1, **wished}) is None
    (answered,) = node.of(SubmitAnswered)
    assert answered.code is code
    assert words in answered.reason


def test_a_lease_has_the_share_of_its_request() -> None:
    node = Node(1)
    node.quota("alice", 1, task_class=LS, compute_percent=40)
    node.asks("alice", 1, task_class=BE, percent=30, deadline_ms=60_000, gated=True)
    task, process = node.state.tasks["t1"], node.state.processes["unix:1:1"]
    assert (task.run.task_class, task.run.compute_percent, task.granted_percent) == (BE, 30, 30)
    assert (task.run.deadline_ms, task.is_plain, process.gated) == (60_000, False, True)


def test_a_jobs_lease_has_the_share_of_its_submission() -> None:
    node = Node(1)
    node.quota("alice", 1, task_class=BE, compute_percent=40)
    node.submits("alice", gpus=1, compute_percent=30, deadline_ms=60_000)
    job = node.state.jobs["j1"]
    assert (job.run.task_class, job.run.compute_percent) == (BE, 30)
    task = next(iter(node.state.tasks.values()))
    assert (task.run.task_class, task.granted_percent, task.run.deadline_ms) == (BE, 30, 60_000)


def test_a_job_without_a_gpu_has_no_share() -> None:
    node = Node(1)
    node.quota("alice", 1, task_class=BE, compute_percent=40)
    node.submits("alice", gpus=0)
    run = node.state.jobs["j1"].run
    assert (run.task_class, run.compute_percent) == (NORMAL, None)
