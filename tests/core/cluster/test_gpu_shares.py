"""Jobs that share GPUs over nodes: the choice of the node, totals, nodes that report no shares.

The table of CLUSTER.md 6 as cases; and a plain pass that places each job by loops alone.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from nodemgr.core.cluster import events, gpu_shares
from nodemgr.core.cluster.entities import ClusterJob, ClusterStage, GivenJob, NodeGpu
from nodemgr.core.cluster.gpu_shares import used_of
from nodemgr.core.cluster.messages import Assign
from nodemgr.core.model.entities import JobState, TaskClass
from nodemgr.edge.member import node_summary
from nodemgr.head import node_words, rows
from tests.core.cluster.test_passes import EACH_CLASS, Head
from tests.core.cluster.world import ENV_BYTES, PlainNode, quota_of
from tests.core.world import Node
from tests.support.examples import seeds

FIRST, NORMAL, LAST = TaskClass
GRANT = 2
"""Of environments with so much memory on one GPU of each node."""
PART = f'{{"memory_bytes":{GRANT}}}'


def gpu(percent: int = 0, best_effort: int = 0, **more: Any) -> NodeGpu:
    """`percent`: what tasks of other environments have of it."""
    envs = (("", 0),) if percent or more.get("is_plain") else ()
    used = GRANT * len(envs)
    facts = {"room_bytes": 8 - used, "tasks": len(envs), "envs": envs} | more
    return NodeGpu(8, percent=percent, best_effort_percent=best_effort, **facts)


def site(quota: str = PART, total: int = 100, **nodes: list[NodeGpu]) -> Head:
    head = Head(**{name: len(gpus) for name, gpus in nodes.items()})
    for env in ("a", "b"):
        each_class = json.dumps(json.loads(quota) | json.loads(EACH_CLASS))
        head.happens(events.SetEnv(env, total, 1 if quota == PART else 4, each_class))
    for name, gpus in nodes.items():
        head.said[name] = tuple(gpus)
        head.others[name] = (("", sum(bool(one.tasks) for one in gpus)),)
        head.reports(name)
    return head


def share(
    head: Head, percent: int | None, task_class: TaskClass = NORMAL, gpus: int = 1,
    memory: int | None = None, env: str = "a",
) -> str:  # fmt: skip
    job = ClusterJob(
        "", env, "ann", gpus, task_class=task_class, compute_percent=percent, memory_bytes=memory
    )
    head.happens(events.Submit((job,)))
    return f"c{head.state.counters[''].job}"


@pytest.mark.parametrize(
    ("task_class", "percent", "node"),
    [
        (FIRST, 30, "gn4"),  # the most on one GPU
        (FIRST, 90, "gn4"),
        (NORMAL, 30, "gn1"),  # the least that is enough
        (NORMAL, 40, "gn1"),
        (NORMAL, 50, "gn2"),
        (NORMAL, 81, "gn4"),
        (LAST, 60, "gn2"),
    ],
)
def test_the_node_by_class_and_share(task_class: TaskClass, percent: int, node: str) -> None:
    """One GPU each; 40, 60, 60 and 100 percent are left."""
    head = site(gn1=[gpu(60)], gn2=[gpu(40)], gn3=[gpu(40)], gn4=[gpu()])
    job = share(head, percent, task_class)
    head.passes()
    assert head.node_of(job) == node


def test_ties_go_by_the_order_of_nodes() -> None:
    head = site(gn1=[gpu(30)], gn2=[gpu(20)], gn3=[gpu(20)])
    jobs = [share(head, 10, FIRST, env=env) for env in "ab"]
    head.passes()
    assert [head.node_of(job) for job in jobs] == ["gn2", "gn3"]


def test_a_share_breaks_a_whole_gpu_last_and_where_the_fewest_are() -> None:
    head = site(gn1=[gpu(), gpu()], gn2=[gpu(), gpu(is_plain=True)], gn3=[gpu(80)])
    jobs = [share(head, 20), share(head, 50, env="b")]
    head.passes()
    assert [head.node_of(job) for job in jobs] == ["gn3", "gn2"]


def test_best_effort_gives_up_its_share_to_a_latency_sensitive_job_that_fits_nowhere() -> None:
    """The source's example: 35 is needed, 20 is free, best effort holds 40."""
    head = site(gn1=[gpu(90, 5)], gn2=[gpu(80, 40)])
    plain, first = share(head, 35), share(head, 35, FIRST)
    head.passes()
    assert head.node_of(first) == "gn2"
    assert head.node_of(plain) != "gn2", "no other class takes it"


def test_tasks_without_a_share_and_with_one_stand_on_no_gpu_together() -> None:
    head = site(gn1=[gpu(is_plain=True)], gn2=[gpu(10)])
    with_share, with_memory = share(head, 10), share(head, None, memory=1, env="b")
    head.passes()
    assert [head.node_of(with_share), head.node_of(with_memory)] == ["gn2", "gn1"]


def test_one_environments_jobs_share_a_gpu_by_named_memory_alone() -> None:
    head = site(gn1=[gpu()])
    jobs = [share(head, 40), share(head, 40), share(head, 40, env="b")]
    head.passes()
    assert [head.stage(job) for job in jobs] == [
        ClusterStage.ASSIGNED, ClusterStage.ASSIGNED, ClusterStage.QUEUED,
    ]  # fmt: skip
    head = site(quota="{}", gn1=[gpu()])
    jobs = [share(head, 40, memory=3), share(head, 40, memory=5), share(head, 10, memory=1)]
    head.passes()
    assert head.node_of(jobs[1]) == "gn1", "beside the first"
    assert used_of(head.state, "a") == 1, "as the node counts"


def test_a_total_counts_gpus_that_jobs_share_once() -> None:
    head = site(quota="{}", total=1, gn1=[gpu(), gpu()], gn2=[gpu()])
    jobs = [share(head, 30, memory=2) for _ in range(4)]
    head.passes()
    assert [head.node_of(job) for job in jobs] == ["gn2", "gn2", "gn2", "gn2"]
    assert used_of(head.state, "a") == 1
    head.happens(events.Silent("gn2", 1))
    assert used_of(head.state, "a") == 4, "at most, while the node says nothing"


def test_what_the_node_reports_of_a_job_takes_the_place_of_the_guess() -> None:
    head = site(quota="{}", gn1=[gpu(), gpu()])
    jobs = [share(head, 40, memory=2), share(head, 40, memory=2)]
    head.passes()
    assert used_of(head.state, "a") == 2, "a node takes fresh GPUs first"
    together = gpu(80, tasks=2, room_bytes=0, envs=(("a", 4),), numbers=(1, 2))
    head.said["gn1"] = (together, gpu())
    head.others["gn1"] = ()
    head.begins(*jobs)
    assert used_of(head.state, "a") == 1
    whole = head.submits(1, "b")
    head.passes()
    assert head.node_of(whole) == "gn1"


def test_a_node_that_reports_no_shares_gets_whole_gpus() -> None:
    head = Head(gn1=1)
    jobs = [share(head, 40, memory=2), share(head, 40, memory=2)]
    head.passes()
    head.begins(jobs[0])
    assert used_of(head.state, "a") == 2
    third = head.submits(1)
    head.passes()
    assert head.node_of(third) is None


def test_memory_that_no_gpu_of_a_node_has_keeps_no_node() -> None:
    head = site(quota="{}", gn1=[gpu()])
    huge, small = share(head, 10, memory=9), share(head, 10, memory=8)
    head.passes()
    assert [head.node_of(huge), head.node_of(small)] == [None, "gn1"]


def test_a_share_waits_behind_a_job_that_keeps_the_node() -> None:
    """It would take a part of the GPU that the first one waits for."""
    head = site(quota="{}", gn1=[gpu(), gpu()])
    half = share(head, 40, memory=2)
    head.passes()
    head.said["gn1"] = (gpu(40, room_bytes=0, tasks=1, envs=(("a", 6),), numbers=(1,)), gpu())
    head.others["gn1"] = ()
    head.begins(half)
    wide = head.submits(2, "b")
    head.passes()
    assert head.node_of(wide) == "gn1", "ahead of its time"
    later = share(head, 40, memory=2)
    head.passes()
    assert head.node_of(later) is None


# -- a plain pass --


def plain_choice(nodes: dict[str, PlainNode], job: ClusterJob, left: int) -> str | None:
    """The node by CLUSTER.md 6, by a look at each GPU of each node. `left`: of the total."""
    fits = []
    for name, node in sorted(nodes.items()):
        row = plain_row(job, 0, name)
        gpus = node.place(row)
        used = node.used(job.env)
        part = min(node.gpus(), node.quotas[job.env][0])
        more = max(0, min(part, used + job.gpus) - used)
        if gpus is None or more > left:
            continue
        said = node.shares()
        assert said is not None
        rest = max(0 if one.is_plain else 100 - one.percent for one in said)
        idle = sum(not one.tasks for one in said)
        if job.task_class is FIRST:
            fits.append((-rest, name))
        elif idle:
            fits.append((1_000 + idle, name))
        else:
            fits.append((rest, name))
    return min(fits)[1] if fits else None


def plain_row(job: ClusterJob, number: int, node: str) -> Any:
    return GivenJob(
        number, f"hq/1/{job.job_id or 'c0'}/1", job.job_id, job.env, node, "g1", job.gpus, None,
        compute_percent=job.compute_percent, memory_bytes=job.memory_bytes,
    )  # fmt: skip


@pytest.mark.parametrize("seed", seeds(pytest.mark.slow))
def test_a_pass_with_shares_does_what_a_plain_one_does(seed: int) -> None:
    """Job after job, until the first that fits nowhere: behind it nodes are kept."""
    dice = random.Random(seed)
    nodes = {
        f"gn{n}": PlainNode(dice.choice((1, 2, 3)), fails=0) for n in range(dice.randint(1, 5))
    }
    head = Head(**{name: node.gpus() for name, node in nodes.items()})
    totals = {env: dice.choice((1, 3, 8)) for env in "ab"}
    for env, total in totals.items():
        head.happens(events.SetEnv(env, total, quota=quota_of(env)))
        for node in nodes.values():
            node.quotas[env] = (total, ENV_BYTES[env])
    for name, node in nodes.items():
        said = node.shares()
        assert said is not None
        head.said[name] = said
        head.reports(name)
    used = dict.fromkeys("ab", 0)
    for number in range(1, dice.randint(2, 20)):
        percent, memory = dice.choice(((20, 2), (50, 2), (30, None), (100, None), (None, 2)))
        env, gpus = dice.choice("ab"), dice.choice((1, 1, 2))
        job_id = share(head, percent, dice.choice((FIRST, NORMAL)), gpus, memory, env)
        job = head.state.jobs[job_id]
        chosen = plain_choice(nodes, job, totals[env] - used[env]) if job.shares else None
        if not job.shares:
            head.happens(events.Withdraw(job_id))
            continue
        head.passes()
        assert head.node_of(job_id) == chosen or chosen is None, (number, job)
        if chosen is None:
            return
        row = head.state.assignments[job.assigned or head.state.jobs[job_id].assigned or 0]
        nodes[chosen].hear(Assign(row))
        assert nodes[chosen]._takes(row.key)
        used = {one: sum(node.used(one) for node in nodes.values()) for one in "ab"}
        said = nodes[chosen].shares()
        assert said is not None
        head.said[chosen] = said
        head.begins(job_id)


# -- what a node's report says --


def said(node: Node) -> tuple[NodeGpu, ...]:
    """As the head reads it."""
    told = node_words.shares(json.loads(json.dumps(node_summary.shares(node.state, "ab", "hq"))))
    assert told is not None
    return told


def test_a_suspended_best_effort_task_has_no_share_that_it_could_give_up() -> None:
    """Its share is another's meanwhile: both together were more than a GPU, and not read."""
    node = Node(1)
    for pid, env in enumerate("ab", 1):
        node.quota(env, 1, 20)
        node.asks(env, pid, 1, task_class=LAST, percent=60)
        if env == "a":
            node.suspends("t1")
            node.is_suspended("t1")
    (gpu,) = said(node)
    assert (gpu.tasks, gpu.percent, gpu.best_effort_percent) == (2, 60, 60)


def test_a_job_on_a_drained_gpu_counts_in_its_total() -> None:
    node, head = Node(2), site(quota="{}", total=1, gn1=[gpu(), gpu()], gn2=[gpu()])
    node.quota("a", 1)
    job = share(head, 40, FIRST, memory=2)
    head.passes()
    row = head.state.assignments[head.state.jobs[job].assigned or 0]
    node.assigns("a", row.key, row.number, compute_percent=40, memory_bytes=2)
    head.said[row.node] = said(node)
    head.begins(job)
    assert used_of(head.state, "a") == 1
    for index in range(2):
        node.drains(index)
    head.sizes[row.node], head.said[row.node] = 0, said(node)
    head.reports(row.node)
    assert used_of(head.state, "a") == 1
    whole = head.submits(1)
    head.passes()
    assert head.node_of(whole) is None


def test_a_program_counts_in_its_total_beside_a_job_of_another_environment() -> None:
    """A node's count of programs has a GPU once, and a job's GPU not at all."""
    both = gpu(80, tasks=2, room_bytes=4, envs=(("a", 0), ("b", 0)))
    head = site(total=1, gn1=[both], gn2=[gpu()])
    for others in (), (("b", 1),):
        head.others["gn1"] = others
        head.reports("gn1")
        assert [used_of(head.state, env) for env in "ab"] == [1, 1]
        job = head.submits(1)
        head.passes()
        assert head.node_of(job) is None


def test_a_program_on_a_drained_gpu_counts_in_its_total() -> None:
    node, head = Node(1), site(total=1, gn1=[gpu()], gn2=[gpu()])
    node.quota("a", 1)
    node.asks("a", 1, 1)
    node.drains(0)
    head.sizes["gn1"], head.said["gn1"] = 0, said(node)
    head.reports("gn1")
    assert used_of(head.state, "a") == 1
    job = head.submits(1)
    head.passes()
    assert head.node_of(job) is None


def test_a_node_takes_as_many_tasks_on_a_gpu_as_its_settings_say() -> None:
    node = Node(1, max_tasks_per_gpu=1)
    node.quota("b", 1, 20)
    node.asks("b", 1, 1, percent=20)
    head = site(gn1=[gpu(20, most=said(node)[0].most)], gn2=[gpu()], gn3=[gpu(most=1)])
    jobs = [share(head, 10, env=env) for env in "ab"]
    head.passes()
    assert [head.node_of(job) for job in jobs] == ["gn2", "gn2"]


def test_a_grant_is_rounded_down_as_on_the_node() -> None:
    """Of 5 bytes on 2 GPUs each has 2."""
    head = site(quota='{"memory_bytes":5}', gn1=[gpu(20, room_bytes=2), gpu(20, room_bytes=2)])
    head.happens(events.SetEnv("a", 9, 2, '{"memory_bytes":5}'))
    share(head, 10)
    head.passes()
    found = gpu_shares.held(head.state, "gn1", head.state.assignments.values())
    assert found is not None
    assert found.ahead == []


def test_a_share_goes_to_no_gpu_that_a_program_of_its_node_waits_for() -> None:
    """The node keeps the GPU for the program: the job would wait there beside a free node."""
    node = Node(1)
    for env in "abc":
        node.quota(env, 1, 20)
    node.asks("b", 1, 1, percent=40)
    before = said(node)
    node.asks("c", 2, 1)
    head = site(gn1=[gpu()], gn2=[gpu()])
    head.said["gn1"], head.others["gn1"] = said(node), (("b", 1),)
    head.reports("gn1")
    job = share(head, 30)
    head.passes()
    assert head.node_of(job) == "gn2"
    assert node.assigns("a", "hq/1/c9/1", 9, compute_percent=30) is not None
    assert said(node)[0].numbers == (), "it waits"
    node.cancels("c", 2)
    assert said(node)[0].numbers == (9,)
    assert said(node)[0].is_plain == before[0].is_plain


# -- a quota that was lowered --


def lowered(head: Head, quota: str, per_node: int | None = None) -> None:
    head.happens(events.SetEnv("a", 100, per_node, quota))


NEEDS = ClusterJob("", "a", "ann", 2, task_class=FIRST, compute_percent=50, memory_bytes=4 << 30)


@pytest.mark.parametrize(
    ("per_node", "quota", "line"),
    [
        (1, "", "needs 2 GPUs on one node, but a may have at most 1 now: .* --per-node"),
        (2, '"task_class":"normal"', "needs class latency-sensitive, .* at most normal now: "),
        (2, '"compute_percent":30', "needs 50% of each GPU, .* at most 30% now: .* --compute"),
        (2, '"memory_bytes":6442450944', "needs 4 GiB on each GPU, .* at most 3 GiB now: "),
    ],
)
@pytest.mark.parametrize("reports_shares", [True, False])
def test_a_job_above_a_quota_that_was_lowered_waits_until_it_is_raised(
    per_node: int, quota: str, line: str, *, reports_shares: bool
) -> None:
    """No node is asked: each would refuse it, and it would fail."""
    head = Head(gn1=2, gn2=2)
    for name in ("gn1", "gn2") if reports_shares else ():
        head.said[name] = (NodeGpu(8 << 30, 8 << 30),) * 2
        head.reports(name)
    head.happens(events.Submit((NEEDS,)))
    lowered(head, json.dumps(json.loads(EACH_CLASS) | json.loads(f"{{{quota}}}")), per_node)
    head.passes()
    assert head.node_of("c1") is None
    assert re.search(line, rows.why(head.state, head.state.jobs["c1"], None))
    beside = head.submits(1)
    head.passes()
    assert head.node_of(beside) is not None
    head.ends(beside)
    lowered(head, EACH_CLASS)
    head.passes()
    assert head.node_of("c1") is not None


def test_a_job_whose_node_heard_of_the_lower_quota_first_waits_too() -> None:
    head = Head(gn1=2)
    head.happens(events.Submit((NEEDS,)))
    head.passes()
    lowered(head, "{}")
    refusal = {"over": True, "is_refusal": True, "state": JobState.WITHDRAWN}
    head.reports("gn1", head.answer("c1", **refusal))
    assert (head.stage("c1"), head.state.jobs["c1"].avoids) == (ClusterStage.QUEUED, ())
    lowered(head, EACH_CLASS)
    head.passes()
    assert head.node_of("c1") == "gn1"


def test_a_whole_gpu_above_the_share_of_a_quota_holds_no_plain_job_up() -> None:
    """Both stand on a GPU alone; they are of two groups of the queue."""
    head = Head(gn1=2)
    above = share(head, 100)
    plain = share(head, None)
    lowered(head, '{"compute_percent":50}')
    head.passes()
    assert [head.node_of(above), head.node_of(plain)] == [None, "gn1"]
