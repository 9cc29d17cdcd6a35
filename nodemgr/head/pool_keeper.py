"""A pool in the head's loop: Slurm's list into the core, the core's effects to Slurm and to nodes.

Knows: the order of a turn, the one thread in which Slurm's commands run. Must not know: their form
(slurm.py), when a pilot is wanted (core/cluster/pool.py).

A pilot's row is stored before sbatch is run, and its word too. A turn comes after the end of the
one before, so a Slurm that is slow gets no second question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from client_plugin.messages.form import relayed
from nodemgr.core.cluster import events, pool
from nodemgr.core.cluster.pilots import (
    AskSlurm,
    CancelPilots,
    ListedPilot,
    PoolConfig,
    PoolEffect,
    ReturnNode,
)
from nodemgr.edge.host import stderr_log
from nodemgr.edge.host.clock import Clock
from nodemgr.edge.links import keys
from nodemgr.head.engine import HeadEngine, Links
from nodemgr.head.slurm import SlurmFault

TURN_S = 5.0
SOON_S = 0.5
WORD_NS = 30 * 86_400 * 1_000_000_000
"""A pilot may wait for long in Slurm's queue. The word goes with the pilot's row."""


class SlurmCommands(Protocol):
    def ask(self, number: int, node: str, word: str) -> None: ...
    def listed(self) -> tuple[ListedPilot, ...]: ...
    def cancel(self, numbers: tuple[int, ...]) -> None: ...


class PoolKeeper:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        engine: HeadEngine,
        links: Callable[[], Links | None],
        own_public: str,
        config: PoolConfig,
        slurm: SlurmCommands,
        turn_s: float = TURN_S,
    ) -> None:
        self._loop, self._clock, self._engine, self._links = loop, clock, engine, links
        self._own_public, self.config, self._slurm = own_public, config, slurm
        self._turn_s = turn_s
        self.fault = ""
        """Why Slurm did not answer last; empty: it did."""
        self._thread = ThreadPoolExecutor(1, "slurm")
        self._task: asyncio.Task[None] | None = loop.create_task(self._run())

    def close(self) -> None:
        """The loop does not run any more."""
        if self._task is not None:
            self._task.cancel()
            self._loop.run_until_complete(asyncio.gather(self._task, return_exceptions=True))
            self._task = None
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        while True:
            try:
                did = await self.turn()
            except Exception as error:  # the pool must go on
                stderr_log.fault("in the pool", error)
                did = False
            await self._rest(min(SOON_S, self._turn_s) if did else self._turn_s)

    async def _rest(self, turn_s: float) -> None:
        """Shorter if jobs come: a pool that is to grow grows now."""
        state, end_s = self._engine.state, self._loop.time() + turn_s
        number = state.counters[""].job
        while (left_s := end_s - self._loop.time()) > 0:
            await asyncio.sleep(min(SOON_S, left_s))
            if state.counters[""].job != number:
                return

    async def turn(self) -> bool:
        """Whether something was asked of Slurm."""
        listed: tuple[ListedPilot, ...] | None = ()
        if self._engine.state.pilots:
            listed = await self._listed()
        made = self._engine.happens(events.PoolTick(self.config, listed))
        effects = [] if made is None else made.draft.pool_effects
        for effect in effects:
            await self._carry_out(effect)
        return any(isinstance(effect, AskSlurm) for effect in effects)

    async def _listed(self) -> tuple[ListedPilot, ...] | None:
        try:
            listed = await self._loop.run_in_executor(self._thread, self._slurm.listed)
        except SlurmFault as fault:
            if not self.fault:
                stderr_log.say(f"the pool does not hear Slurm ({fault.line})", "nodes go on")
            self.fault = fault.line
            return None
        self.fault = ""
        return listed

    async def _carry_out(self, effect: PoolEffect) -> None:
        match effect:
            case AskSlurm(number, node):
                await self._ask(number, node)
            case CancelPilots(numbers):
                try:
                    await self._loop.run_in_executor(self._thread, self._slurm.cancel, numbers)
                except SlurmFault as fault:
                    self.fault = fault.line
            case ReturnNode(node, pilot):
                links = self._links()
                if links is not None:
                    links.say(node, "pool_return", pilot=pilot)

    async def _ask(self, number: int, node: str) -> None:
        word = keys.new_word(self._own_public)
        expires_ns = self._clock.monotonic_ns() + WORD_NS
        made = events.AddWord(word.pair.public, pool.word_of(number), expires_ns)
        fault = ""
        try:
            if self._engine.happens(made) is None:
                fault = "the head's store cannot be written"
            else:
                await self._loop.run_in_executor(
                    self._thread, self._slurm.ask, number, node, word.text
                )
        except SlurmFault as slurm:
            self.fault = slurm.line
            if not slurm.refused:
                return  # it may have been taken: the list says so
            fault = slurm.line
        self._engine.happens(events.PilotAnswered(number, fault))
        if fault:
            stderr_log.say(relayed(f"Slurm refuses pilot {number} ({fault})"), "nodemgr doctor")
