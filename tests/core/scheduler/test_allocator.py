"""Which GPUs a request gets: each line of the table of docs/allocation.md.

Also the order within a line, and the two faults of the table's source.
"""

from __future__ import annotations

import pytest

from nodemgr.core.model.entities import DenyCode, TaskClass
from nodemgr.core.placement.orders import ORDERS
from nodemgr.core.scheduler.allocator import (
    Ask,
    Candidate,
    Choice,
    Shortage,
    choose,
    refusal,
)


def gpu(
    index: int,
    *,
    used: bool = False,
    tasks: int = 0,
    remaining: int = 80,
    need: int = 40,
    **more: bool,
) -> Candidate:
    return Candidate(f"GPU-{index}", index, used, tasks, remaining, 0 if used else need, **more)


def ask(gpus: int, quota: int, *, memory: int | None = None, max_tasks: int = 8) -> Ask:
    return Ask(gpus, quota, memory, max_tasks)


def picked(answer: Choice | Shortage) -> tuple[list[int], list[int]] | Shortage:
    """Indices of the fresh and of the reused GPUs, in their order."""
    if isinstance(answer, Shortage):
        return answer
    return [gpu.number for gpu in answer.fresh], [gpu.number for gpu in answer.reused]


@pytest.mark.parametrize(
    ("gpus", "quota", "node", "explicit", "code"),
    [
        (1, 0, 4, True, DenyCode.NO_GPU),
        (0, 4, 4, True, DenyCode.NO_GPU),
        (0, 0, 4, False, DenyCode.NO_GPU),
        (3, 2, 4, True, DenyCode.OVER_QUOTA),
        (3, 2, 2, True, DenyCode.OVER_QUOTA),
        (5, 8, 4, True, DenyCode.MORE_THAN_NODE),
        (4, 8, 4, True, None),
        (2, 2, 4, False, None),
        (2, 2, 1, False, None),
    ],
)
def test_what_can_never_be_served_is_refused(
    gpus: int, quota: int, node: int, explicit: bool, code: DenyCode | None
) -> None:
    assert refusal(gpus, quota, node, explicit=explicit) == code


TABLE = {
    "an empty node: the first n": (ask(2, 4), [gpu(0), gpu(1), gpu(2)], ([0, 1], [])),
    "no slots left: the used one with the fewest tasks": (
        ask(1, 2),
        [gpu(0, used=True, tasks=3), gpu(1, used=True, tasks=1), gpu(2)],
        ([], [1]),
    ),
    "no slots left, equal tasks: the one with most remaining memory": (
        ask(1, 2),
        [
            gpu(0, used=True, tasks=1, remaining=10),
            gpu(1, used=True, tasks=1, remaining=30),
            gpu(2),
        ],
        ([], [1]),
    ),
    "no slots left, all equal: the lowest index": (
        ask(1, 2),
        [gpu(1, used=True, tasks=1), gpu(0, used=True, tasks=1)],
        ([], [0]),
    ),
    "no slots left: n of used": (
        ask(2, 3),
        [gpu(0, used=True, tasks=5), gpu(1, used=True, tasks=2), gpu(2, used=True, tasks=1)],
        ([], [2, 1]),
    ),
    "a slot left: a fresh GPU before a used one": (
        ask(1, 2),
        [gpu(0, used=True, tasks=1), gpu(1, tasks=7)],
        ([1], []),
    ),
    "fresh: most remaining memory first": (
        ask(1, 1),
        [gpu(0, remaining=40), gpu(1, remaining=70)],
        ([1], []),
    ),
    "fresh, equal memory: fewest tasks": (ask(1, 1), [gpu(0, tasks=2), gpu(1, tasks=1)], ([1], [])),
    "fresh, all equal: the lowest index": (ask(1, 1), [gpu(1), gpu(0)], ([0], [])),
    "fresh only with fewer than max_tasks_per_gpu tasks": (
        ask(1, 1, max_tasks=2),
        [gpu(0, tasks=2), gpu(1, tasks=1)],
        ([1], []),
    ),
    "max_tasks_per_gpu does not limit reuse": (
        ask(1, 1, max_tasks=2),
        [gpu(0, used=True, tasks=9)],
        ([], [0]),
    ),
    "fresh only with room for the grant": (
        ask(1, 1),
        [gpu(0, remaining=39), gpu(1, remaining=40)],
        ([1], []),
    ),
    "room to the byte is room": (ask(1, 1), [gpu(0, remaining=40)], ([0], [])),
    "fresh only within the env's remaining memory": (
        ask(2, 3, memory=40),
        [gpu(0), gpu(1), gpu(2, used=True, tasks=1)],
        ([0], [2]),
    ),
    "a smaller need may still fit the env's remaining memory": (
        ask(1, 2, memory=20),
        [gpu(0, remaining=80), gpu(1, remaining=60, need=10), gpu(2, used=True, tasks=1)],
        ([1], []),
    ),
    "the first in order leaves too little of the env's memory for another: a smaller one": (
        ask(2, 2, memory=90),
        [gpu(0, need=60), gpu(1, remaining=40), gpu(2, remaining=40)],
        ([1, 2], []),
    ),
    "the first in order is passed over only if it leaves too little for the others": (
        ask(3, 3, memory=110),
        [
            gpu(0, need=60),
            gpu(1, remaining=70, need=50),
            gpu(2, remaining=50, need=30),
            gpu(3, remaining=40, need=30),
        ],
        ([1, 2, 3], []),
    ),
    "the smallest are fewer than n within the env's memory: the missing from used": (
        ask(3, 4, memory=90),
        [gpu(0, need=60), gpu(1), gpu(2, remaining=40), gpu(3, used=True, tasks=1)],
        ([1, 2], [3]),
    ),
    "fewer fresh than n: all of them, and the missing from used": (
        ask(3, 3),
        [gpu(0, used=True, tasks=1), gpu(1, used=True, tasks=4), gpu(2), gpu(3, remaining=0)],
        ([2], [0, 1]),
    ),
    "too few of both: shortage of the node's": (
        ask(2, 2),
        [gpu(0), gpu(1, remaining=0)],
        Shortage.NODE,
    ),
    "no GPU at all": (ask(1, 1), [], Shortage.NODE),
    "more used than a lowered quota allows: reuse": (
        ask(1, 1),
        [gpu(0, used=True, tasks=2), gpu(1, used=True, tasks=1), gpu(2)],
        ([], [1]),
    ),
    "no more fresh ones than slots are left, though more would do": (
        ask(2, 2),
        [gpu(0, used=True, tasks=1), gpu(1), gpu(2)],
        ([1], [0]),
    ),
    "kept for an earlier request: not fresh": (
        ask(1, 1),
        [gpu(0, reserved=True), gpu(1, remaining=50)],
        ([1], []),
    ),
    "kept for an earlier request: reused all the same": (
        ask(1, 1),
        [gpu(0, used=True, reserved=True)],
        ([], [0]),
    ),
    "everything kept: shortage of the node's": (ask(1, 1), [gpu(0, reserved=True)], Shortage.NODE),
    "named memory that no fresh GPU's grant could hold": (
        ask(1, 1),
        [gpu(0, big_enough=False), gpu(1)],
        ([1], []),
    ),
    "named memory is not free where it is used": (
        ask(1, 2),
        [gpu(0, used=True, tasks=1, has_free=False), gpu(1, used=True, tasks=5)],
        ([], [1]),
    ),
    "named memory is free nowhere: waits for its own env": (
        ask(1, 1),
        [gpu(0, used=True, has_free=False)],
        Shortage.LEDGER,
    ),
    "only the env's memory quota is short": (
        ask(2, 2, memory=40),
        [gpu(0), gpu(1)],
        Shortage.QUOTA_MEMORY,
    ),
    "the quota's memory and the compute of its own GPUs are short": (
        ask(2, 2, memory=20)._replace(percent=50),
        [gpu(0, used=True)._replace(free_percent=0), gpu(1), gpu(2)],
        Shortage.QUOTA_MEMORY,
    ),
    "both the quota's memory and the node are short": (
        ask(2, 2, memory=0),
        [gpu(0), gpu(1, remaining=0)],
        Shortage.NODE,
    ),
}


@pytest.mark.parametrize("line", TABLE)
def test_the_table(line: str) -> None:
    asked, gpus, answer = TABLE[line]
    assert picked(choose(asked, gpus)) == answer


def test_where_fewer_than_slots_qualify_the_reused_make_up_for_all_that_are_missing() -> None:
    """The patent's figure hands out n - slots reused GPUs: 3 - 2 = 1, so 2 GPUs instead of 3."""
    gpus = [gpu(0), gpu(1, remaining=0), gpu(2, used=True, tasks=1), gpu(3, used=True, tasks=2)]
    assert picked(choose(ask(3, 4), gpus)) == ([0], [2, 3])


def test_what_could_be_served_later_waits_and_does_not_fail() -> None:
    """The patent fails where its client chart says "keep asking"."""
    assert choose(ask(1, 1), [gpu(0, remaining=0)]) is Shortage.NODE


@pytest.mark.parametrize(("policy", "index"), [("spread", 2), ("pack", 1), ("index", 0)])
def test_the_order_of_fresh_gpus_is_a_policy(policy: str, index: int) -> None:
    gpus = [gpu(0, remaining=60), gpu(1, remaining=40, tasks=1), gpu(2, remaining=80)]
    assert picked(choose(ask(1, 1), gpus, ORDERS[policy].key)) == ([index], [])


# -- compute --


def with_compute(*percents: int, releasable: int = 0) -> list[Candidate]:
    """GPUs with so much compute left; all else is equal."""
    return [
        Candidate(f"GPU-{number}", number, False, 1, 80, 10, True, True, False, left, releasable)
        for number, left in enumerate(percents)
    ]


def endangered(gpus: list[Candidate], *numbers: int) -> list[Candidate]:
    return [gpu._replace(is_endangered=gpu.number in numbers) for gpu in gpus]


LS, NORMAL, BE = TaskClass

COMPUTE = {
    "the source's example: the one with the most left": (
        LS, 30, with_compute(80, 40, 100, 10), [2]
    ),
    "a GPU that has it is preferred to one where best effort gives it up": (
        LS, 30, with_compute(20, 30, releasable=70), [1]
    ),
    "need 35, 20 free, best effort holds 40: taken": (
        LS, 35, with_compute(20, releasable=40), [0]
    ),
    "need 35, 20 free, best effort holds 14: it waits": (
        LS, 35, with_compute(20, releasable=14), None
    ),
    "the placement policy decides between equals": (LS, 30, with_compute(50, 50), [0]),
    "normal takes nothing from others": (NORMAL, 35, with_compute(20, 35), [1]),
    "best effort takes nothing from others": (BE, 35, with_compute(20, 34), None),
    "best effort goes by the policy": (BE, 10, with_compute(20, 90), [0]),
    "the shortest predicted time, for best effort": (
        BE, 10, [
            gpu._replace(time_ms=time_ms)
            for gpu, time_ms in zip(with_compute(50, 50, 50), (None, 90, 60), strict=True)
        ], [2],
    ),
    "a GPU on which it would probably fail comes after the others": (
        LS, 30, endangered(with_compute(80, 40, 100), 2), [0]
    ),
    "it is given if no other has the compute": (
        LS, 50, endangered(with_compute(20, 40, 60), 2), [2]
    ),
    "it is preferred to a GPU where best effort gives the compute up": (
        LS, 30, endangered(with_compute(20, 30, releasable=70), 1), [1]
    ),
    "where all are alike the one with the most left": (
        LS, 30, endangered(with_compute(80, 100), 0, 1), [1]
    ),
    "for normal and best effort the mark alone changes nothing": (
        BE, 30, endangered(with_compute(50, 50), 0), [0]
    ),
    "a whole GPU beside nothing": (NORMAL, 100, with_compute(99, 100), [1]),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPUTE)
def test_compute(name: str) -> None:
    task_class, percent, gpus, chosen = COMPUTE[name]
    ask = Ask(1, 4, None, 8, percent=percent, task_class=task_class)
    answer = choose(ask, gpus)
    if chosen is None:
        assert answer is Shortage.NODE
    else:
        assert isinstance(answer, Choice)
        assert [gpu.number for gpu in answer.fresh] == chosen


def test_a_gpu_of_the_env_is_reused_only_with_enough_compute() -> None:
    used = [gpu._replace(used=True) for gpu in with_compute(20, 40)]
    ask = Ask(1, 2, None, 8, percent=30)
    answer = choose(ask, used)
    assert isinstance(answer, Choice)
    assert [gpu.number for gpu in answer.reused] == [1]
    assert choose(ask._replace(percent=50), used) is Shortage.COMPUTE
