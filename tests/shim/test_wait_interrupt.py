"""Ctrl-C while the shim waits in C within `python -I`, where no hook waits."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.shim.world import World
from tests.support.limits import WAIT_LIMIT_S

PROGRAM = """
import ctypes, {more}
cuda = ctypes.{loader}("libcuda.so.1")
try:
    print("cuInit", cuda.cuInit(0), flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
print("goes on", cuda.cuInit(0), flush=True)
"""
HANDLED = "signal; signal.signal(signal.SIGINT, lambda number, frame: print('handled', flush=True))"


def started(env: World, program: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-I", "-c", program]
    return subprocess.Popen(
        command, env=env.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def waits(env: World, process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    assert process.stderr.readline() == "nodemgr: place 1: bob holds GPU 0\n"
    env.manager.await_verb("BEAT")


@pytest.mark.parametrize("loader", ["CDLL", "PyDLL"])  # without and with the GIL
def test_ctrl_c_ends_the_wait(make_world: Callable[..., World], loader: str) -> None:
    env = make_world(answer="wait")
    with started(env, PROGRAM.format(loader=loader, more="sys")) as process:
        waits(env, process)
        env.manager.answer = "grant"
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=WAIT_LIMIT_S)
    assert (process.returncode, stdout, stderr) == (0, "interrupted\ngoes on 0\n", "")
    assert "CANCEL" in env.manager.verbs()


def test_ctrl_c_that_came_to_another_thread_ends_the_wait_too(
    make_world: Callable[..., World],
) -> None:
    """The signal interrupts no system call of the waiting thread, and may come between two."""
    blocked = (
        "signal, threading; threading.Thread(target=threading.Event().wait, daemon=True).start(); "
    )
    blocked += "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])"
    env = make_world(answer="wait")
    with started(env, PROGRAM.format(loader="CDLL", more=blocked)) as process:
        waits(env, process)
        env.manager.answer = "grant"
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=WAIT_LIMIT_S)
    assert (process.returncode, stdout, stderr) == (0, "interrupted\ngoes on 0\n", "")


def test_a_handler_of_the_programs_own_runs_and_the_wait_goes_on(
    make_world: Callable[..., World],
) -> None:
    env = make_world(answer="wait")
    with started(env, PROGRAM.format(loader="CDLL", more=HANDLED)) as process:
        waits(env, process)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.readline() == "handled\n"
        env.manager.grant_waiting()
        stdout, _ = process.communicate(timeout=WAIT_LIMIT_S)
    assert stdout == "cuInit 0\ngoes on 0\n"
