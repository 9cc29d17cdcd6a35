"""Starts the runner: a small program of ours that starts this container's jobs.

A verb that submits a job or looks after one calls it.

Knows: where the runner lies, when it is needed. Must not know: how it works, the jobs. Only a verb
of `nodemgr` starts it; the programs of the container's users do not.
"""

from __future__ import annotations

import os

from client_plugin.ways import locations
from client_plugin.ways.faults import Fault, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from client_plugin.ways.choice import Way, Whom

PROGRAM = os.path.join(
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
    "_bin",
    "nodemgr-runner",
)
START_TIMEOUT_S = 40


def check(way: Way) -> None:
    """Checks that jobs can run here. Raises Fault."""
    if not way.ask("job_place")["place"]:
        raise Fault(
            "this verb is for containers",
            "on the node itself jobs are submitted by the node's own nodemgr",
        )
    fault = _start()
    if fault:
        raise Fault(f"no job can run in this container: {fault}")


def ensure(whom: Whom) -> None:
    """Jobs of this place wait and there is no runner: starts one.

    A failure is one line.
    """
    from client_plugin.ways import choice

    try:
        told = choice.users_way(whom).ask("job_place")
    except Fault:
        return  # the requested verb does not depend on it
    if told["place"] and told["waits"]:
        fault = _start(locations.around_us())
        if fault:
            say(f"jobs wait here and nothing can start them: {fault}")


def _start(*arguments: str) -> str:
    """Why it could not; empty where it runs. Without arguments it only ends again."""
    import subprocess

    try:
        done = subprocess.run(
            [PROGRAM, *arguments], env={}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, timeout=START_TIMEOUT_S, check=False, cwd="/",
        )  # fmt: skip
    except FileNotFoundError:
        return f"{PROGRAM} is not there, or this image has no glibc: use an image that has it"
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return said[-1] if said else f"{PROGRAM} ends with {done.returncode}"
