"""The GPUs of a node that Slurm lends: open while a pilot of the head lives here, closed else.

Knows: the pilot that is registered, its process, its beats. Must not know: Slurm's commands, the
head's reasons.

Closed means: each GPU is drained by order of Slurm, which a restart of the manager keeps. A program
that asks waits meanwhile. The identity of the pilot is stored: the next manager goes on with it if
its process still lives.

With notice (the head wants the node back, Slurm's signal) nothing new is granted, best-effort jobs
are ended at once, and the pilot ends when the node is empty; near the end of its time what runs is
ended, and what still has a GPU KILL_S before it is killed. Without notice (the pilot is gone, of
which its pidfd tells at once, or has not beaten for MISSED ticks of this manager) what has a GPU is
killed at once. A job of the head that is ended so keeps its place, and uses up no restart.

Where Slurm knows the GPUs, it gives a pilot some of them by name (SLURM_JOB_GPUS). Those alone are
opened; where it names none, all are.

A pilot is registered if the head has named its number before, and once: one that was lost is not
taken again.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from typing import Any

from nodemgr.core.model import events
from nodemgr.core.model.entities import BY_LENDER, UNDER_WAY, ProcessKey, TaskClass
from nodemgr.core.model.values import value
from nodemgr.edge.api.verb_table import ADMIN, Speaker, verb
from nodemgr.edge.engine.daemon import Daemon
from nodemgr.edge.engine.informer import NewsKinds
from nodemgr.edge.host import stderr_log
from nodemgr.edge.kernel import processes
from nodemgr.edge.rpc.operation import Argument, OperationError, flag, integer

META = "pool.pilot"
BY = BY_LENDER
NOT_GIVEN = f"{BY} has not given this GPU to the cluster"
RETURNS = f"this node goes back to {BY}"
OPENED: NewsKinds = frozenset({("added", "gpu")})
TICK_S = 1.0
MISSED = 3
"""Ticks, not seconds: a manager that was stopped itself does not blame the pilot."""
RETURN = 10
"""So many ticks has the stored pilot to find a manager that has begun."""
END_S = 15
"""So long before the last moment the node ends what runs; its own grace is within."""
KILL_S = 5
STEP = "slurmstepd"
MAX_S = 10**9
MAX_NAMES = 1_024


def _names(value: object) -> tuple[str, ...]:
    is_list = isinstance(value, list) and len(value) <= MAX_NAMES
    if not is_list or not all(isinstance(one, str) and 0 < len(one) <= 80 for one in value):  # type: ignore[attr-defined]
        raise OperationError("must be a list of indices and uuids of GPUs")
    return tuple(value)  # type: ignore[arg-type]


HOLD = {
    "pilot": Argument(integer(1, 2**62), required=True),
    "pid": Argument(integer(1, 2**31), required=True),
    "left_s": Argument(integer(0, MAX_S), required=True),
    "leaves": Argument(flag),
    "gpus": Argument(_names),
}


@value
class HeldPilot:
    number: int
    pid: int
    ticks: int
    """The start of its process: another one of this pid is not it."""
    gpus: tuple[str, ...] = ()
    """The GPUs that Slurm gave it, by index or uuid; none: all."""

    @property
    def key(self) -> ProcessKey:
        return processes.process_key(self.pid, self.ticks)


def is_step(pid: int) -> bool:
    """Whether root's slurmstepd is among its ancestors. A name alone can be anybody's."""
    for one in processes.ancestors(pid):
        with contextlib.suppress(OSError):
            name = os.path.basename(os.readlink(f"/proc/{one}/exe")).removesuffix(" (deleted)")
            owners = {os.stat(f"/proc/{one}{of}").st_uid for of in ("", "/exe")}
            if name == STEP and owners == {0}:
                return True
    return False


class PoolGate:
    """The verb of pilots, and the facts for the head; nothing on a node that is not lent."""

    def __init__(
        self, daemon: Daemon, is_lent: bool, stir: Callable[[], None], away: Callable[[], str]
    ) -> None:
        """`stir`: the head is to hear of a change. `away`: why it hears nothing."""
        self._daemon, self._is_lent, self._stir, self._away = daemon, is_lent, stir, away
        self._held: HeldPilot | None = None
        self._closes_ns = 0
        self._leaves = False
        """The head or Slurm wants the node back."""
        self._is_ended = False
        """All that runs was told to end."""
        self._users: tuple[ProcessKey, ...] = ()
        """The processes with a GPU then."""
        self._expected: frozenset[int] = frozenset()
        """The numbers that the head named."""
        self._missed = 0
        self._waits = False
        self._asked_wall_ns = 0
        """Since when a program waits."""
        self._closed = f"{BY} has this node"
        self._timer: Any = None
        daemon.informer.subscribe(lambda _cause, _news: self._close_new(), OPENED)

    def begin(self) -> None:
        if not self._is_lent:
            return
        stored = self._daemon.journal.meta().get(META)
        if stored is not None:
            told = json.loads(stored)
            held = HeldPilot(**told | {"gpus": tuple(told.get("gpus", ()))})
            if processes.start_ticks(held.pid) == held.ticks:
                self._held, self._closes_ns = held, self._now_ns() + MAX_S * 10**9
                self._missed = MISSED - RETURN
                self._watch(held)
            else:
                self._lose("it ended while no manager ran")
        self._tick()

    def _watch(self, held: HeldPilot) -> None:
        def gone(_key: ProcessKey) -> None:
            if self._held == held:
                self._lose(f"process {held.pid} ended")

        if not self._daemon.processes.watch(held.key, gone):
            gone(held.key)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _now_ns(self) -> int:
        return self._daemon.clock.monotonic_ns()

    def facts(self) -> dict[str, Any]:
        """For the head's hello and reports."""
        if not self._is_lent:
            return {}
        held = self._held
        left_ms = None if held is None else max(0, self._closes_ns - self._now_ns()) // 10**6
        pilot = 0 if held is None else held.number
        return {"pool": {"pilot": pilot, "left_ms": left_ms, "waits": self._waits}}

    # -- the pilot --

    @verb("pool_hold", ADMIN, HOLD, changes=True)
    def hold(self, who: Speaker, given: dict[str, Any]) -> dict[str, Any]:
        """Registers a pilot; said again, it is the pilot's beat. The answer: may it end?

        The kernel names the caller. It speaks for itself, from a step of Slurm; root and the user
        of this manager may say it for any process.
        """
        caller, what = who.caller, ""
        if caller is not None and caller.uid not in (0, os.geteuid()):
            if caller.pid != given["pid"]:
                what = f"process {caller.pid} is not the pilot that it names ({given['pid']})"
            elif self._held is None and not is_step(caller.pid):
                what = f"process {caller.pid} is in no step of Slurm"
        if what:
            raise OperationError(what, "let Slurm start the pilot", "refused")
        ticks = processes.start_ticks(given["pid"])
        if not self._is_lent or ticks is None:
            why = "Slurm does not lend this node" if ticks is not None else "the pilot is gone"
            raise OperationError(why, "set slurm_pool = true in its settings", "refused")
        named, held = given.get("gpus", ()), self._held
        pilot = HeldPilot(given["pilot"], given["pid"], ticks, named)
        if unknown := sorted({*named} - self._names_here()):
            raise OperationError(
                f"pilot {pilot.number} names GPU {unknown[0]}, and this node has none of that name",
                "compare gres.conf with nodemgr status",
                "refused",
            )
        if held is not None and held != pilot:
            raise OperationError(
                f"pilot {held.number} lives here already (process {held.pid})",
                "end one of the two",
                "refused",
            )
        if held is None and pilot.number not in self._expected:
            raise OperationError(
                f"the head has not named pilot {pilot.number} to this node",
                f"it does while it waits for that pilot{self._with_reason()}",
                "refused",
            )
        self._missed = 0
        self._closes_ns = self._now_ns() + given["left_s"] * 10**9
        if held is None:
            self._open(pilot)
        if given.get("leaves"):
            self._leave()
        if self._leaves and self._is_empty():
            self._forget()
            return {"ends": True}
        return {"ends": False}

    @verb("pool_state", ADMIN)
    def state(self, _who: Speaker, _given: dict[str, Any]) -> dict[str, Any]:
        """For Slurm's Epilog: is the node empty, and without a pilot?"""
        pilot = 0 if self._held is None else self._held.number
        return {"lent": self._is_lent, "pilot": pilot, "empty": self._is_empty()}

    def _with_reason(self) -> str:
        why = self._away()
        return f"; the head is away ({why})" if why else ""

    def expect(self, numbers: tuple[int, ...]) -> None:
        """The head's word."""
        self._expected = frozenset(numbers)

    def return_node(self, number: int) -> None:
        """The head's word."""
        if self._held is not None and self._held.number == number:
            self._leave()

    # -- open, closing, closed --

    def _names_here(self) -> set[str]:
        gpus = self._daemon.state.gpus.values()
        return {name for gpu in gpus for name in (str(gpu.index), gpu.uuid)}

    def _is_given(self, uuid: str) -> bool:
        """Whether the pilot that is held has this GPU."""
        if self._held is None:
            return False
        names, gpu = self._held.gpus, self._daemon.state.gpus.get(uuid)
        return not names or gpu is None or bool({str(gpu.index), uuid} & {*names})

    def _open(self, pilot: HeldPilot) -> None:
        self._held, self._leaves, self._is_ended = pilot, False, False
        self._expected -= {pilot.number}
        self._watch(pilot)
        self._daemon.journal.remember(META, json.dumps(
            {"number": pilot.number, "pid": pilot.pid, "ticks": pilot.ticks, "gpus": pilot.gpus}
        ))  # fmt: skip
        state = self._daemon.state
        for uuid, record in list(state.gpu_records.items()):
            if record.drained_by == BY and self._is_given(uuid):
                self._submit(events.ResumeGpu(uuid, BY, self._wall_ns()))
        stderr_log.say(f"pilot {pilot.number} of the pool holds this node: its GPUs are open")
        self._close_new()
        self._stir()

    def _close_new(self) -> None:
        """Closes what must not be open: a GPU that was just found, or opened by hand."""
        if not self._is_lent:
            return
        if self._held is None:
            self._shut(self._closed)
        elif self._leaves:
            self._shut(RETURNS)
        elif self._held.gpus:
            self._shut(NOT_GIVEN, lambda uuid: not self._is_given(uuid))

    def _leave(self) -> None:
        """No new grant; what else runs goes on, until the end of the time is near."""
        if not self._leaves:
            self._leaves = True
            self._shut(RETURNS)
            self._end_jobs(TaskClass.BEST_EFFORT)

    def _forget(self) -> None:
        self._held, self._leaves = None, False
        self._daemon.journal.remember(META, None)
        self._closed = f"{BY} has this node"
        self._shut(self._closed)
        self._stir()

    def _note_asked(self) -> None:
        """The reason, also in the line of a program that waits."""
        at = time.gmtime(self._asked_wall_ns // 10**9)
        self._closed = f"{BY} has this node; asked for it at {at.tm_hour:02}:{at.tm_min:02} UTC"
        if why := self._away():
            self._closed = f"{BY} has this node, and the head that asks for it is away ({why})"

    def _shut(self, note: str, is_it: Callable[[str], bool] = lambda _uuid: True) -> None:
        records = self._daemon.state.gpu_records
        for uuid, gpu in list(self._daemon.state.gpus.items()):
            if not is_it(uuid):
                continue
            record = records.get(uuid)
            if not gpu.drained or (record is not None and (record.drained_by, record.why) != (
                BY, note) and record.drained_by == BY):  # fmt: skip
                self._submit(events.DrainGpu(uuid, BY, note, self._wall_ns()))

    def _lose(self, why: str) -> None:
        """Without notice."""
        stderr_log.say(
            f"the pilot of the pool is lost ({why}): the GPUs of this node are closed, and what "
            "runs is ended",
            "jobs of the cluster keep their places",
        )
        self._forget()
        self._end_all()
        self._kill()

    def _kill(self) -> None:
        """No grace for what had a GPU; of a job the rest has it."""
        for key in self._living():
            self._daemon.processes.kill(key)

    def _living(self) -> list[ProcessKey]:
        """Of the processes that were to end: without a lease they may still use a GPU."""
        return [key for key in self._users if key in self._daemon.state.processes]

    def _end_all(self) -> None:
        state = self._daemon.state
        self._is_ended = True
        with_lease = (key for task in state.tasks.values() for key in task.processes)
        self._users = (*with_lease, *(row.process for row in state.unreclaimed.values()))
        self._end_jobs(*TaskClass)
        for task in list(state.tasks.values()):
            if task.job_id is None:
                self._submit(events.ReleaseTask(task.task_id, BY, self._wall_ns()))

    def _end_jobs(self, *classes: TaskClass) -> None:
        for job in list(self._daemon.state.jobs.values()):
            if job.state in UNDER_WAY and job.run.task_class in classes:
                self._submit(
                    events.RequeueJob(
                        job.job_id, BY, self._wall_ns(), by_admin=True, node_taken=True
                    )
                )

    def _is_empty(self) -> bool:
        """A task ends before its processes: what they have of a GPU is unreclaimed until then."""
        state = self._daemon.state
        if state.tasks or state.unreclaimed or self._living():
            return False
        return not any(job.state in UNDER_WAY for job in state.jobs.values())

    def _submit(self, event: Any) -> None:
        self._daemon.submit(event)

    def _wall_ns(self) -> int:
        return self._daemon.clock.wall_ns()

    # -- time --

    def _tick(self) -> None:
        self._timer = self._daemon.loop.call_later(TICK_S, self._tick)
        self._missed += 1
        held = self._held
        waits = held is None and any(
            request.job_id is None for request in self._daemon.state.requests.values()
        )
        if waits != self._waits:
            self._waits, self._asked_wall_ns = waits, self._wall_ns()
            self._stir()
        if waits:
            self._note_asked()
        self._close_new()  # also with a new reason
        if held is None:
            return
        if processes.start_ticks(held.pid) != held.ticks:
            self._lose(f"process {held.pid} ended")
        elif self._missed > MISSED:
            self._lose(f"process {held.pid} has not spoken for {MISSED} s")
        elif self._closes_ns - self._now_ns() < END_S * 10**9 and not self._is_ended:
            self._leave()
            self._end_all()
        elif self._closes_ns - self._now_ns() < KILL_S * 10**9:
            self._kill()
