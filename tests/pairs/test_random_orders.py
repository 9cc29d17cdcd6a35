"""Orders in any order, as people type them: none fails inside, and the node is whole after all."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.pairs.driver import Driver
from tests.support.examples import examples
from tests.support.manager import Manager

pytestmark = pytest.mark.slow
ORDERS = 120
ENVS = ("alice", "bob")
TASK, JOB, GPU = "TASK", "JOB", "GPU"
"""Each stands for one of those that there are."""
WORDS: tuple[tuple[str, ...], ...] = (
    ("suspend", TASK), ("resume", TASK), ("resume", TASK), ("keep", TASK, "--for", "1min"),
    ("release", TASK), ("gpu", "drain", GPU), ("gpu", "resume", GPU),
    ("gpu", "resume", GPU), ("queue", "hold", JOB), ("queue", "unhold", JOB),
    ("queue", "requeue", JOB), ("queue", "move", JOB, "low"), ("queue", "move", JOB, "--first"),
    ("queue", "withdraw", JOB), ("queue", "withdraw", JOB), ("queue",), ("status",), ("history",),
    ("quota", "set", "alice", "--gpus", "1"), ("quota", "set", "alice", "--gpus", "2"),
    ("quota", "set", "bob", "--class", "latency-sensitive", "--compute", "100%"),
    ("quota", "set", "bob", "--compute", "none"), ("quota", "set", "bob", "--memory", "1GiB"),
    ("quota", "set", "alice", "--idle", "10min", "--when-idle", "suspend"),
)  # fmt: skip
OPTIONS: tuple[tuple[str, ...], ...] = (
    (), ("--gpus", "1"), ("--gpus", "2"), ("--gpus", "1-2"), ("--gpus", "0"), ("--hold",),
    ("--time", "1h", "--gpus", "1"), ("--array", "0-2", "--gpus", "1"), ("--priority", "low"),
    ("--memory", "128MiB", "--gpus", "1"),
)  # fmt: skip


def orders(node: Driver, dice: random.Random) -> None:
    """One order, or one more program or job. A refusal is an answer."""
    kind = dice.random()
    if kind < 0.15:
        node.asks(dice.choice(ENVS), mib=dice.choice((128, 768)))
    elif kind < 0.35:
        held = ("--", "/bin/sh", "-c", f"read line < {node.gate}")
        node.says("submit", "--env", dice.choice(ENVS), *dice.choice(OPTIONS), *held, rc=None)
    else:
        status = node.manager.status()
        named = {
            TASK: [row["id"] for row in status["tasks"]],
            JOB: [row["id"] for row in status["queue"] + status["jobs"] if row["job"]],
            GPU: ["0", "1"],
        }
        words = dice.choice(WORDS)
        if all(named.get(word, True) for word in words):
            said = [dice.choice(named[word]) if word in named else word for word in words]
            node.says(*said, rc=None)


@pytest.mark.parametrize("seed", range(examples(2)))
def test_a_walk_of_orders(seed: int, make_manager: Callable[..., Manager]) -> None:
    node, dice = Driver(make_manager(simulate="2x1GiB")), random.Random(seed)
    for number in range(ORDERS):
        orders(node, dice)
        if number % 40 == 39:
            node.manager.kill()
            node.manager.start()
        node.is_sound()
    for gpu in ("0", "1"):
        node.says("gpu", "resume", gpu, rc=None)
    for env in ENVS:
        node.says("quota", "set", env, "--gpus", "2", "--compute", "none", "--memory", "none")
        node.says("queue", "withdraw", "--all-of", env, rc=None)
    for program in node.programs:
        program.kill()
    last = node.submits("alice", "--gpus", "2", script="true")
    node.starts(last)
    node.is_sound()
