"""Any events, in any order: the core does what the plain node does.

It keeps every promise at each step. World.happens asserts after each step that invariants hold,
that no grant grew beyond a GPU or a quota, and that the rows that were saved give the same state
again (promise 3). Here the outcome is compared with tests/core/plain.py as well.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nodemgr.core.model.entities import TaskState
from tests.core import plain
from tests.core.twin import TwinNode
from tests.core.world import GIB, gpu, key
from tests.support.examples import TIMES, examples

SIZES_GIB = (80, 80, 40)
ENVS = ("alice", "bob", "carol")
RARELY = st.sampled_from([False, False, False, True])


Choices = st.DataObject | random.Random
T = TypeVar("T")


def pick(data: Choices, options: Sequence[T]) -> T:
    """One of them, drawn by Hypothesis here and by a seeded walk in test_walks.py."""
    return (
        data.choice(options)
        if isinstance(data, random.Random)
        else data.draw(st.sampled_from(options))
    )


class Core(RuleBasedStateMachine):
    """A busy node: bob holds two GPUs of three, alice one."""

    def __init__(self) -> None:
        super().__init__()
        self.node = TwinNode(0, placement="spread")
        self.node.gpus_are([gpu(index, size) for index, size in enumerate(SIZES_GIB)])
        self.plain = plain.PlainNode([size * GIB for size in SIZES_GIB])
        self.lost: set[int] = set()
        self.stopped: set[int] = set()
        self.pids = 0
        self.env_of: dict[int, str] = {}
        self.token_of: dict[int, str] = {}
        self.set_quota("alice", 1, 40, "normal")
        self.set_quota("bob", 2, None, "normal")
        self.ask("bob", 2, None, None, udp=False)
        self.ask("alice", 1, None, None, udp=False)

    # -- envs, processes, requests --

    def holders(self) -> list[int]:
        return sorted(pid for task in self.plain.tasks for pid in task.members)

    def waiters(self) -> list[int]:
        return sorted(pid for request in self.plain.queue for pid in request.askers)

    def on_unix(self, pids: list[int]) -> list[int]:
        return [pid for pid in pids if pid not in self.plain.udp]

    def may_stop(self) -> list[int]:
        """The waiters over UDP, which lose their place by silence.

        (A waiter on the UNIX socket could be served while it is silent; whether it is found stalled
        within this second or the next depends on the other events of that second.)
        """
        return self.holders() + [pid for pid in self.waiters() if pid in self.plain.udp]

    def may_leave(self, pids: list[int]) -> list[int]:
        """Without those that leave a task of which nothing was heard for long.

        The task is found stalled at the same moment, and which comes first depends on other events.
        """
        return [
            pid
            for pid in pids
            if (task := self.plain.task_of(pid)) is None
            or task.members == [pid]
            or any(
                self.plain.now - self.plain.heard[other] < plain.TIMEOUT_S
                for other in task.members
                if other != pid
            )
        ]

    def known_on_unix(self) -> list[int]:
        return self.on_unix(sorted({*self.holders(), *self.waiters(), *self.plain.left}))

    # -- rules --

    @rule(
        env=st.sampled_from(ENVS),
        gpus=st.integers(0, 3),
        gib=st.sampled_from([None, 20, 40, 60, 120]),
        rank=st.sampled_from(["high", "normal", "normal", "low"]),
    )
    def set_quota(self, env: str, gpus: int, gib: int | None, rank: str) -> None:
        self.plain.set_quota(env, plain.Quota(gpus, None if gib is None else gib * GIB, rank))
        self.node.quota(env, gpus, gib, priority=rank)

    @rule(env=st.sampled_from(ENVS), sure=RARELY)
    def remove_quota(self, env: str, sure: bool) -> None:
        if not sure:
            return
        self.plain.remove_quota(env)
        self.node.removes(env)

    @rule(
        env=st.sampled_from(ENVS),
        gpus=st.sampled_from([None, None, 1, 1, 2, 3, 4, 0]),
        gib=st.sampled_from([None, None, None, 10, 30, 50]),
        wait=st.sampled_from([None, None, None, 0, 3, 8]),
        udp=st.sampled_from([False, False, False, True]),
    )
    def ask(self, env: str, gpus: int | None, gib: int | None, wait: int | None, udp: bool) -> None:
        self.pids += 1
        if (gib is not None or udp) and gpus != 0:
            # what is free on several GPUs at once is known at one moment only: the plain node knows
            # it always
            gpus = 1
        self._ask(self.pids, env, gpus, gib, f"token{self.pids}", wait, udp)

    @precondition(lambda self: self.plain.tasks or self.plain.queue)
    @rule(data=st.data(), udp=st.sampled_from([False, False, False, True]))
    def join(self, data: Choices, udp: bool) -> None:
        """Another process of a task, or of a request that waits."""
        groups = [(task.env, task.token) for task in self.plain.tasks] + [
            (request.env, request.token) for request in self.plain.queue
        ]
        env, token = pick(data, groups)
        waits = any((request.env, request.token) == (env, token) for request in self.plain.queue)
        self.pids += 1
        self._ask(self.pids, env, 1, None, token, None, udp and not waits)

    @precondition(lambda self: self.plain.left)
    @rule(data=st.data())
    def ask_anew(self, data: Choices) -> None:
        """One that left its lease and lives on."""
        pid = pick(data, sorted(self.plain.left))
        if pid not in self.waiters():
            self._ask(
                pid, self.env_of[pid], 1, None, f"anew{pid}.{self.plain.numbers}", None, udp=False
            )

    def _ask(
        self,
        pid: int,
        env: str,
        gpus: int | None,
        gib: int | None,
        token: str,
        wait: int | None,
        udp: bool,
    ) -> None:
        self.env_of[pid], self.token_of[pid] = env, token
        self.stopped.discard(pid)
        used = {
            index: self.plain.used.get((env, index), 0) // GIB for index in range(len(SIZES_GIB))
        }
        self.plain.ask(env, pid, gpus, None if gib is None else gib * GIB, token, wait, udp)
        wait_ms = None if wait is None else wait * 1_000
        self.node.asks(
            env, pid, gpus, gib=gib, token=token, wait_ms=wait_ms, udp=udp, used_gib=used
        )

    @precondition(lambda self: self.known_on_unix())
    @rule(
        data=st.data(),
        unreclaimed=st.dictionaries(st.sampled_from([0, 1, 2]), st.integers(1, 10), max_size=1),
    )
    def die(self, data: Choices, unreclaimed: dict[int, int]) -> None:
        pids = self.may_leave(self.known_on_unix())
        if not pids:
            return
        pid = pick(data, pids)
        self.plain.dies(pid, {index: size * GIB for index, size in unreclaimed.items()})
        self.node.dies(pid, unreclaimed)

    @precondition(lambda self: self.holders() or self.waiters())
    @rule(data=st.data())
    def release(self, data: Choices) -> None:
        pids = self.may_leave(self.holders() + self.waiters())
        if not pids:
            return
        pid = pick(data, pids)
        self.plain.leaves(pid)
        self.node.releases(self.env_of[pid], pid, udp=pid in self.plain.udp)

    @precondition(lambda self: self.on_unix(self.waiters()))
    @rule(data=st.data())
    def cancel(self, data: Choices) -> None:
        pid = pick(data, self.on_unix(self.waiters()))
        self.plain.stop_waiting(pid)
        self.plain.settle()
        self.node.cancels(self.env_of[pid], pid)

    @precondition(lambda self: self.on_unix(self.waiters()))
    @rule(data=st.data(), comes_back=st.booleans())
    def disconnect(self, data: Choices, comes_back: bool) -> None:
        pid = pick(data, self.on_unix(self.waiters()))
        (request,) = [request for request in self.plain.queue if pid in request.askers]
        if pid not in request.away:
            request.away[pid] = self.plain.now
        self.plain.settle()
        self.node.disconnects(pid)
        if comes_back:
            self.come_back(pid)

    @precondition(lambda self: any(request.away for request in self.plain.queue))
    @rule(data=st.data())
    def reconnect(self, data: Choices) -> None:
        self.come_back(
            pick(data, sorted(pid for request in self.plain.queue for pid in request.away))
        )

    def come_back(self, pid: int) -> None:
        (request,) = [request for request in self.plain.queue if pid in request.askers]
        request.away.pop(pid)
        self.plain.heard[pid] = self.plain.now
        self.plain.settle()
        udp = pid in self.plain.udp
        used = {
            index: self.plain.used.get((request.env, index), 0) // GIB
            for index in range(len(SIZES_GIB))
        }
        self.node.asks(self.env_of[pid], pid, 1, token=self.token_of[pid], udp=udp, used_gib=used)

    @precondition(lambda self: self.may_stop())
    @rule(data=st.data())
    def stop(self, data: Choices) -> None:
        """SIGSTOP: from now on it is silent. Of its whole task, since else nothing comes of it."""
        pid = pick(data, self.may_stop())
        task = self.plain.task_of(pid)
        self.stopped |= {pid} if task is None else set(task.members)

    @precondition(lambda self: self.stopped)
    @rule(data=st.data(), by_word=st.booleans())
    def go_on(self, data: Choices, by_word: bool) -> None:
        pid = pick(data, sorted(self.stopped))
        self.stopped.discard(pid)
        task = self.plain.task_of(pid)
        if task is not None and task.stalled:
            self.plain.hears(pid)
            if by_word:
                self.node.raises_its_word(pid)
            else:
                self.node.beats_again(self.env_of[pid], pid)

    @rule(seconds=st.integers(1, 6))
    def time_passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.plain.second(self.stopped)
            self.node.passes(1_000, silent=self.stopped)
            assert self._seen() == self._expected()  # it woke up by itself for all that was due

    @precondition(lambda self: self.plain.memory)
    @rule(data=st.data(), part=st.integers(0, 4), shared=st.integers(0, 4))
    def use(self, data: Choices, part: int, shared: int) -> None:
        """The env's processes have a part of a grant in use, as the next second's figures show.

        `shared`: the part of what nothing is kept for that tasks without named memory use. The
        ledger lets them have no more, and the others no more than their caps.
        """
        env, index = pick(data, sorted(self.plain.memory))
        memory, kept = self.plain.memory[env, index], self.plain.reserved(env, index)
        loose = max(0, memory - kept) * shared // 4 // GIB * GIB
        if not self.plain.active(env, index):
            loose = 0  # without a figure the node knows no more than the grant's size
        gib = max(memory * part // 4, loose) // GIB
        self.plain.used[env, index] = gib * GIB
        self.plain.shared[env, index] = self.node.unkept[env, f"GPU-{index}"] = loose
        self.node.uses(env, index, gib)
        self.time_passes(1)

    @precondition(lambda self: self.plain.lost)
    @rule(data=st.data(), part=st.integers(0, 3))
    def driver_reads(self, data: Choices, part: int) -> None:
        pid, index = pick(data, sorted(self.plain.lost))
        gib = self.plain.lost[pid, index].memory * part // 4 // GIB
        self.plain.lost[pid, index].memory = gib * GIB
        if gib == 0:
            del self.plain.lost[pid, index]
        self.plain.settle()
        self.node.driver_shows(pid, index, gib)

    @rule(index=st.integers(0, 2), sure=RARELY)
    def lose_or_restore(self, index: int, sure: bool) -> None:
        if not sure and index not in self.lost:
            return
        self.lost ^= {index}
        self.plain.lose_or_restore(index, healthy=index not in self.lost)
        self.node.gpus_are([gpu(i, size) for i, size in enumerate(SIZES_GIB) if i not in self.lost])

    @rule(index=st.integers(0, 2), drained=st.booleans())
    def drain_or_resume(self, index: int, drained: bool) -> None:
        self.plain.drain(index, drained=drained)
        if drained:
            self.node.drains(index)
        else:
            self.node.undrains(index)

    @rule(index=st.integers(0, 2), sure=RARELY)
    def report_failure(self, index: int, sure: bool) -> None:
        """At the third one the GPU is drained, if another is usable."""
        if not sure:
            return
        self.plain.report_failure(index)
        self.node.reports_failure(index)

    @precondition(lambda self: self.plain.tasks or self.plain.queue)
    @rule(data=st.data(), sure=RARELY)
    def admin_releases(self, data: Choices, sure: bool) -> None:
        if not sure:
            return
        number = pick(data, [row.number for row in (*self.plain.tasks, *self.plain.queue)])
        self.plain.admin_releases(number)
        self.node.admin_releases(f"t{number}")
        self.node.admin_releases(f"r{number}")

    @rule()
    def restart(self) -> None:
        self.plain.restart()
        self.plain.settle()
        self.node.restart()

    # -- what is compared --

    @invariant()
    def settled(self) -> None:
        """After what is due at this moment."""
        self.node.used = {
            (env, f"GPU-{index}"): used for (env, index), used in self.plain.used.items()
        }
        self.node.unkept = {
            (env, f"GPU-{index}"): shared for (env, index), shared in self.plain.shared.items()
        }
        self.node.passes(0, silent=self.stopped)
        self.plain.tick(self.stopped)
        self.node.ticks()  # sooner than it asked for is always right
        self.node.passes(0, silent=self.stopped)
        assert self._seen() == self._expected()

    def _seen(self) -> dict[str, Any]:
        state = self.node.state
        return {
            "held": {
                number(task.task_id): (
                    [state.gpus[uuid].index for uuid in task.gpus],
                    sorted(int(member.split(":")[1]) for member in task.processes),
                    task.state is TaskState.STALLED,
                )
                for task in state.tasks.values()
            },
            "queue": [number(request.request_id) for request, _ in state.waiting()],
            "askers": {
                number(request.request_id): sorted(
                    int(asker.process.split(":")[1]) for asker in request.askers
                )
                for request in state.requests.values()
            },
            "grants": {
                (grant.env, state.gpus[grant.uuid].index): (grant.memory_bytes, grant.limit_bytes)
                for grant in state.grants.values()
            },
            "lost": {
                (unreclaimed.process, state.gpus[unreclaimed.uuid].index): (
                    unreclaimed.memory_bytes,
                    unreclaimed.alive,
                )
                for unreclaimed in state.unreclaimed.values()
            },
        }

    def _expected(self) -> dict[str, Any]:
        return {
            "held": {
                task.number: (task.gpus, sorted(task.members), task.stalled)
                for task in self.plain.tasks
            },
            "queue": [request.number for request in self.plain.in_order()],
            "askers": {request.number: sorted(request.askers) for request in self.plain.queue},
            "grants": {
                (env, index): (memory, self.plain.limit(env, index))
                for (env, index), memory in self.plain.memory.items()
            },
            "lost": {
                (key(pid), index): (lost.memory, lost.alive)
                for (pid, index), lost in self.plain.lost.items()
            },
        }


def number(row: str) -> int:
    return int(row[1:])


TestCore = Core.TestCase
TestCore.settings = settings(
    max_examples=examples(20),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.skipif(TIMES >= 10, reason="TestCore has at least as many examples then")
class TestCoreAtLength(Core.TestCase):
    """TestCore with five times its examples."""

    settings = settings(TestCore.settings, max_examples=examples(100))
