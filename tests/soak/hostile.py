"""Two environments on one GPU; one of them has a hostile process.

Knows: what the other environment, and the manager, must not notice. Must not know: what the hostile
process does (tests/ledger/hostile.py).
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

from nodemgr.simulator import SimulatedNode
from tests.shim.world import GIB, compiled
from tests.soak.node import CONTEXT_BYTES, WAIT_LIMIT_S
from tests.support.limits import until
from tests.support.manager import Manager

PROGRAM = Path(__file__).resolve().parents[1] / "ledger" / "hostile.py"
GRANT_BYTES = 1 * GIB


def _racers(manager: Manager, env: str, seed: int) -> subprocess.Popen[str]:
    command = ["nice", "-n", "10", str(compiled("race_threads.c")), "3", "0", str(seed)]
    return manager.spawn(env, command, NODEMGR_SIM_GROUP=env)


def _line(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    line = program.stdout.readline()
    assert line, program.communicate()[1]
    return line


def _stop(racers: subprocess.Popen[str]) -> tuple[int, str]:
    """How often it was granted something, and what it said to its user."""
    assert racers.stdin is not None
    racers.stdin.write("\n")
    racers.stdin.flush()
    successes = int(_line(racers).split()[0])
    _, stderr = racers.communicate(timeout=WAIT_LIMIT_S)
    assert racers.returncode == 0, stderr
    return successes, stderr


def _has_its_grant(manager: Manager, env: str) -> bool:
    """Whether it gets all of its grant. A dead process's words in its ledger count for a second."""
    held = manager.hold(env, "-b", str(GRANT_BYTES - CONTEXT_BYTES), "-s", "0")
    held.communicate(timeout=WAIT_LIMIT_S)
    return held.returncode == 0


def beside_a_hostile_process(manager: Manager, seconds: float, seed: int) -> int:
    """The number of hostile acts. AssertionError if another process noticed one."""
    for env in ("alice", "bob"):
        manager.quota(env, 1, memory_bytes=GRANT_BYTES)
    with SimulatedNode.open(manager.run_dir / "sim") as node:
        bystander, neighbour = _racers(manager, "bob", seed), _racers(manager, "alice", seed + 1)
        until(lambda: len(node.books()[0].processes) == 2, "both at work")
        hostile = manager.spawn(
            "alice", [sys.executable, "-I", str(PROGRAM), str(seconds), str(seed)]
        )
        assert _line(hostile) == "granted\n"
        done = _line(hostile).split()
        assert done[0] == "done", done

        (bob,) = (task for task in manager.status()["tasks"] if task["env"] == "bob")
        assert (bob["state"], bob["pids"]) == ("running", [bystander.pid])
        successes, said = _stop(bystander)
        assert successes > 0
        assert "lost" not in said, said
        assert "taken back" not in said, said
        assert 0 < node.group(0, "bob")[1] <= GRANT_BYTES - CONTEXT_BYTES
        _stop(neighbour)  # after all refusals it lives, and ends well
        hostile.kill()
        hostile.communicate()

        until(lambda: manager.status()["tasks"] == [], "no task")
        for env in ("alice", "bob"):
            until(partial(_has_its_grant, manager, env), f"the whole grant of {env}")
    return int(done[1])
