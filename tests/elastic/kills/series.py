"""Kills at random instants: `python -m tests.elastic.kills.series [--kills 500] [--sums sockets]`.

A real manager on a simulated node, the real leader of `nodemgr run --elastic`, and workers that sum
by gloo or by the library's sockets.
A random worker, worker 0, the leader or the manager is killed; a rival asks for GPUs and gives them
back. A watchdog ends a run that hangs. Judged afterwards: each step's loss is that of one device
without kills, and within one leader's life at most the step under way was repeated.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import random
import re
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.elastic.kills import problem
from tests.elastic.led import Led
from tests.support.manager import Manager
from tests.support.udp_clients import ClientError, FakeClient

GPUS = 4
SUMS = {"gloo": "with_gloo.py", "sockets": "with_sockets.py"}
"""By kind: the script of the workers."""
CLOSE = {"sockets": 1e-9, "gloo": 1e-6}
"""PyTorch's workers add their losses in float32, and their gradients in the model's type."""
HANG_S = 180.0
PAUSE_S = 1.0
VICTIMS = {"worker": 10, "worker 0": 5, "joiner or spare": 3, "leader": 1, "manager": 2}
"""Kinds of victims, and how often each is chosen: a leader's end costs the start of all workers."""
SPARED = 0.95
"""How often the only worker with the state is spared: its end is that of the leader, too."""
LOST = 128 + signal.SIGKILL
"""The exit code of a leader whose last worker with the state was killed before a checkpoint."""
RESUMED = "the last worker with the training's state has ended"


class Hang(AssertionError):
    """The watchdog has ended a wait."""


class LeaderLife(NamedTuple):
    """The work of one leader's workers."""

    step: int
    """That of the checkpoint from which they began."""
    lines: list[dict[str, Any]]
    """Their completed steps, in the order in which they were written."""
    resumed: tuple[int, ...] = ()
    """Steps of checkpoints that were read during it."""


class KillSeries:
    """A task under kills, started again from its checkpoint whenever its leader has ended."""

    def __init__(self, manager: Manager, directory: Path, seed: int, sums: str) -> None:
        self.killed: collections.Counter[str] = collections.Counter()
        self.resumed: list[tuple[int, int]] = []
        """By life: the step of the checkpoint, and the size of the file of lines then."""
        self._read: list[tuple[int, ...]] = []
        """By life, the last one left out: the steps of checkpoints that its workers have read."""
        self.slowest_end_s = 0.0
        self._manager = manager
        self._directory = directory
        self._sums = sums
        self._chance = random.Random(seed)
        self._rival: FakeClient | None = None
        manager.quota("alice", GPUS)
        manager.quota("bob", GPUS - 1)
        self.led = self._start()

    # -- the task --

    @property
    def _checkpoint(self) -> Path:
        return self._directory / "checkpoint"

    def lines(self, begin: int = 0) -> list[dict[str, Any]]:
        """The completed steps of all workers, in the order in which they were written.

        `begin`: the place in the file.
        """
        if not self._size():
            return []
        with (self._directory / "lines").open("rb") as file:
            file.seek(begin)
            return [json.loads(line) for line in file.read().splitlines()]

    def _size(self) -> int:
        path = self._directory / "lines"
        return path.stat().st_size if path.exists() else 0

    def _start(self) -> Led:
        step = 0
        if self._checkpoint.exists():
            step = self._step_of_checkpoint()
        self.resumed.append((step, self._size()))
        words = [sys.executable, "-m", "nodemgr", "run", "--run-dir", str(self._manager.run_dir)]
        words += ["--env", "alice", "--gpus", f"1-{GPUS}", "--elastic", "--"]
        words += [sys.executable, str(Path(__file__).with_name(SUMS[self._sums]))]
        words += [str(self._checkpoint), str(self._directory / "lines")]
        return Led(self._directory, *words, own=True)

    def _step_of_checkpoint(self) -> int:
        if self._sums == "sockets":
            from client_plugin.training.tensorflow import arrays

            return int(arrays.read(str(self._checkpoint))["step"])
        import torch

        return int(torch.load(self._checkpoint, weights_only=True)["step"])

    def await_steps(self) -> None:
        """Until a step was completed from now on, by a leader's life that may be a new one."""
        size = self._size()
        self._until(lambda: self._restarted() and self._size() > size, "a step")

    def _restarted(self) -> bool:
        """True; a leader that has ended, as it must when the state is lost, is started again."""
        code = self.led.process.poll()
        if code is not None:
            self.led.end()
            assert code == LOST, f"the leader ended with {code}: {self.led.lines[-20:]}"
            self._again("state lost")
        return True

    def _again(self, why: str) -> None:
        self.killed[why] += 1
        self._check_lines(is_lost=why == "state lost")
        self._read.append(self._steps_read())
        self.led.close()
        self.led = self._start()

    def _steps_read(self) -> tuple[int, ...]:
        found = (re.search(r"goes on from \S+ at step (\d+) of", each) for each in self.led.lines)
        return tuple(int(each[1]) for each in found if each)

    def _check_lines(self, *, is_lost: bool = False) -> None:
        """No worker ended by a fault of its own, and none was late or stuck.

        `is_lost`: the last worker with the state may have been late: its GPU was recalled before
        another worker was there to receive it.
        """
        lines = self.led.lines[:-1] if is_lost else self.led.lines
        wrong = [
            line for line in lines
            if "exit code" in line or "Traceback" in line
        ]  # fmt: skip
        late = [line for line in lines if "was killed, since" in line]
        resumed = [line for line in lines if RESUMED in line]
        assert not wrong, self.led.lines[-40:]
        assert len(late) <= len(resumed), self.led.lines[-40:]

    def _until(self, is_done: Callable[[], bool], what: str) -> None:
        end_s = time.monotonic() + HANG_S
        while not is_done():
            if time.monotonic() > end_s:
                self._show_stacks()
                raise Hang(f"{what} did not come: {self.led.lines[-60:]}")
            time.sleep(0.02)

    def _show_stacks(self) -> None:
        for pid in self.led.workers().values():
            os.kill(pid, signal.SIGUSR1)
        time.sleep(1.0)

    # -- kills --

    def strike(self) -> None:
        """One kill at a random instant; sometimes before the one before it is mended."""
        if self._chance.random() < 0.4:
            self.await_steps()
        time.sleep(self._chance.random() * PAUSE_S)
        self._restarted()
        if self._chance.random() < 0.2:
            self._turn_rival()
        [kind] = self._chance.choices([*VICTIMS], [*VICTIMS.values()])
        if kind == "leader":
            self._kill_leader()
        elif kind == "manager":
            self._manager.kill()
            time.sleep(self._chance.random())
            self._manager.start()
        elif not self._kill_worker(kind):
            return
        self.killed[kind] += 1

    def _kill_worker(self, kind: str) -> bool:
        """Whether there was one."""
        living, newest = self.led.workers(), self._newest()
        holders = {each["worker"] for each in newest} & set(living)
        may = [
            number for number in living
            if (kind == "joiner or spare") == (number not in holders)
            and (kind != "worker 0" or (number, 0) in [(e["worker"], e["rank"]) for e in newest])
        ]  # fmt: skip
        if not may or (holders == set(may) and len(may) == 1 and self._chance.random() < SPARED):
            return False
        try:
            os.kill(living[self._chance.choice(may)], signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def _newest(self) -> list[dict[str, Any]]:
        """The newest lines of this leader's life: one of each worker that trains."""
        lines = self.lines(self.resumed[-1][1])
        return lines[-lines[-1]["size"] :] if lines else []

    def _kill_leader(self) -> None:
        workers = [os.pidfd_open(pid) for pid in self.led.workers().values()]
        begin_s = time.monotonic()
        self.led.send(signal.SIGKILL)
        assert self.led.end() == -signal.SIGKILL
        for descriptor in workers:
            _ended(descriptor)
        self.slowest_end_s = max(self.slowest_end_s, time.monotonic() - begin_s)
        self._again("restart")

    def _turn_rival(self) -> None:
        """The rival asks for GPUs, or gives back those that it was given."""
        rival, self._rival = self._rival, None
        if rival is None:
            self._rival = FakeClient(self._manager.env_dir("bob"))
            self._rival.ask(self._chance.randint(1, GPUS - 1))
            return
        with rival, contextlib.suppress(ClientError):  # a killed manager loses its connection
            message = {"verb": "WAIT"}
            while message["verb"] in ("WAIT", "NOTE"):
                found = rival.receive(HANG_S)
                assert found is not None, "the rival, within its quota, got no GPU"
                message = found
            assert message["verb"] in ("GRANT", "EOF"), message

    def finish(self) -> None:
        """Training goes on after the last kill; Ctrl-C ends all and leaves nothing."""
        if self._rival is not None:
            self._turn_rival()
        self.await_steps()
        self.await_steps()
        self._check_lines()
        workers = [os.pidfd_open(pid) for pid in self.led.workers().values()]
        self.led.send(signal.SIGINT)
        assert self.led.end() == -signal.SIGINT
        for descriptor in workers:
            _ended(descriptor)
        self.led.close()
        self._until(lambda: self._manager.status()["tasks"] == [], "an empty node")

    def lives(self) -> list[LeaderLife]:
        begins = [begin for _, begin in self.resumed]
        counts = [len(self.lines(begin)) for begin in begins]
        every = self.lines()
        return [
            LeaderLife(step, every[len(every) - count : len(every) - after], read)
            for (step, _), count, after, read in zip(
                self.resumed,
                counts,
                [*counts[1:], 0],
                [*self._read, self._steps_read()],
                strict=True,
            )
        ]

    def close(self) -> None:
        if self._rival is not None:
            self._rival.close()
        if self.led.process.poll() is None:
            self.led.send(signal.SIGKILL)
        self.led.close()


def _ended(descriptor: int) -> None:
    """The process ends. `descriptor`: its pidfd."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    ready = poll.poll(HANG_S * 1_000)
    os.close(descriptor)
    assert ready, f"a worker runs {HANG_S} s after the end of its leader"


# -- judgement --


def judge(lives: list[LeaderLife], close: float) -> int:
    """AssertionError: a wrong sum, or more than a step repeated. The number of steps.

    A worker that leaves may write the line of its last step late: the others do not wait for it.
    """
    losses = problem.losses(1 + max(each["step"] for life in lives for each in life.lines))
    for life in lives:
        newest, own = life.step - 1, {each["worker"]: -1 for each in life.lines}
        last = {each["worker"]: place for place, each in enumerate(life.lines)}
        for place, each in enumerate(life.lines):
            step, worker = each["step"], each["worker"]
            assert abs(each["loss"] - losses[step]) < close, each
            if step <= newest and own[worker] == -1 and step in life.resumed:
                newest = step - 1  # the state was lost, and read again by new workers
            is_late = place == last[worker] and step < newest
            assert own[worker] < step, f"worker {worker} made step {step} twice"
            assert is_late or step in (newest, newest + 1), f"after step {newest}: {each}"
            newest, own[worker] = max(newest, step), step
    return len(losses)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sums", choices=SUMS, default="gloo")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="nmk") as directory:
        print(play(Path(directory), chosen.kills, chosen.seed, chosen.sums, say=True), flush=True)


def play(directory: Path, kills: int, seed: int, sums: str, *, say: bool = False) -> str:
    """A whole series; its figures."""
    begin_s = time.monotonic()
    # a worker of a busy machine has its time to leave
    environment = {"NODEMGR_OFFER_CALM_MS": "200", "NODEMGR_RECALL_MS": "60000"}
    manager = Manager(simulate=f"{GPUS}x8GiB", environment=environment).start()
    try:
        series = KillSeries(manager, directory, seed, sums)
        try:
            series.await_steps()
            while sum(series.killed[kind] for kind in VICTIMS) < kills:
                series.strike()
                if say:
                    print(f"{time.monotonic() - begin_s:.0f} s: {dict(series.killed)}", flush=True)
            series.finish()
        finally:
            series.close()
    finally:
        manager.close()
    steps = judge(series.lives(), CLOSE[sums])
    return (
        f"{dict(series.killed)}, {steps} steps, {time.monotonic() - begin_s:.0f} s: no hang, no "
        f"wrong sum; a killed leader's workers ended within {series.slowest_end_s:.2f} s"
    )


if __name__ == "__main__":
    main()
