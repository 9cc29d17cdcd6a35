"""The driver's figures of each process beside the ledgers' words.

It makes the ledgers' corrections, and the input of the core's audit.

Knows: NVML's readings, the ledgers' words, the process of a PID. Must not know: which figure breaks
a rule (core/lifecycle/audit.py), how NVML is asked.

The driver's figures are older than the words by the time that a reading takes, so a process's word
counts as the larger of two looks: memory that was freed while the driver was read is no memory
beyond the books.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from nodemgr.core.model.entities import Process, ProcessKey, Uuid
from nodemgr.core.model.events import Audited, EndedUse, Seen
from nodemgr.core.state.node_state import State
from nodemgr.edge.gpu.gpu_inventory import DriverReading
from nodemgr.edge.kernel.processes import command_line, is_alive, process_key, start_ticks
from nodemgr.edge.ledger.registry import Ledgers


@dataclass(frozen=True, slots=True)
class Figure:
    """A member of an env on one GPU, by driver and ledger."""

    process: Process
    uuid: Uuid
    driver_bytes: int
    word_bytes: int
    is_settled: bool
    """Both are as they were at the reading before."""


class Auditor:
    """Remembers the last reading, for the next to agree with."""

    def __init__(
        self,
        state: State,
        ledgers: Ledgers,
        key_of_pid: Callable[[int], ProcessKey | None],
        env_of_stranger: Callable[[int], str | None],
        context_bytes: Callable[[Process, Uuid], int] = lambda _process, _uuid: 0,
    ) -> None:
        """`key_of_pid`: of those that are watched; `context_bytes`: see Seen."""
        self._state = state
        self._ledgers = ledgers
        self._key_of_pid = key_of_pid
        self._env_of_stranger = env_of_stranger
        self._context_bytes = context_bytes
        self._words: dict[tuple[ProcessKey, Uuid], tuple[int, int]] = {}
        """The figures of driver and ledger at the last reading."""
        self._ends = Ends(state, ledgers)
        self._strangers: dict[ProcessKey, tuple[str | None, str]] = {}
        """Env and command of processes that are no members."""
        self.figures: list[Figure] = []
        """The figures of the last reading."""

    def audit(self, reading: DriverReading, wall_ns: int) -> Audited:
        """Corrects the ledgers; returns what the core is to look at."""
        words = {}
        figures: list[Figure] = []
        seen: list[Seen] = []
        excess: Counter[tuple[str, int]] = Counter()
        of_tasks: Counter[tuple[str, int, str]] = Counter()
        for uuid in reading.processes.keys() & self._state.gpus.keys():
            row = self._state.gpus[uuid].index
            for env in self._ledgers.envs():
                excess[env, row] = 0
            for pid, driver_bytes in reading.processes[uuid].items():
                process = self._member(pid)
                if process is None:
                    seen += self._stranger(pid, uuid, driver_bytes)
                    continue
                before = self._words.get((process.key, uuid))
                figures.append(self._figure(process, uuid, driver_bytes))
                word_bytes = figures[-1].word_bytes
                words[process.key, uuid] = driver_bytes, word_bytes
                charged_bytes = driver_bytes if before is None else max(before[1], word_bytes)
                beyond_bytes = max(0, driver_bytes - charged_bytes)
                excess[process.env, row] += beyond_bytes
                if not process.fenced:
                    of_tasks[process.env, row, process.task_id] += beyond_bytes
                seen.append(
                    Seen(
                        process.key, pid, uuid, driver_bytes, process.env, charged_bytes,
                        command_line_of(process, self._state), self._context_bytes(process, uuid),
                    )
                )  # fmt: skip
        for found in seen:
            if found.env is not None and found.process not in self._state.processes:
                excess[found.env, self._state.gpus[found.uuid].index] += found.memory_bytes
        self._correct(excess, of_tasks)
        self._words, self.figures = words, figures
        self._strangers = {
            one.process: self._strangers[one.process]
            for one in seen
            if one.process in self._strangers
        }
        return self._judgeable(reading, seen, wall_ns)

    def _figure(self, process: Process, uuid: Uuid, driver_bytes: int) -> Figure:
        row, slot = self._state.gpus[uuid].index, process.slot
        word_bytes = 0 if slot is None else self._ledgers.slot_used(process.env, row, slot)
        is_settled = self._words.get((process.key, uuid)) == (driver_bytes, word_bytes)
        return Figure(process, uuid, driver_bytes, word_bytes, is_settled)

    def ended(self, process: Process, now_ns: int) -> None:
        """A member ended. The first reading that begins from now on judges the end."""
        self._ends.ended(process, now_ns)

    @property
    def is_waiting(self) -> bool:
        """Processes ended of which the last reading may be too old to know."""
        return bool(self._ends.waiting)

    def _judgeable(self, reading: DriverReading, seen: Sequence[Seen], wall_ns: int) -> Audited:
        # One answer for each process: one that ends meanwhile would explain its memory as a living
        # one, and be counted as ended without any.
        lives = cache(is_alive)
        ownerless_bytes = {
            uuid: self._unexplained(uuid, there_bytes, lives)
            for uuid, there_bytes in reading.ownerless_bytes.items()
            if uuid in self._state.gpus
        }
        ended = self._ends.since_last(reading, seen, self._words, lives)
        return Audited(
            frozenset(reading.processes),
            tuple(seen),
            wall_ns,
            self._beyond_tolerance(ownerless_bytes),
            ended,
            self._ends.growth({use.uuid for use in ended}, ownerless_bytes),
        )

    def _correct(
        self, excess: Counter[tuple[str, int]], of_tasks: Counter[tuple[str, int, str]]
    ) -> None:
        for (env, row), correction_bytes in excess.items():
            parts = {key[2]: part for key, part in of_tasks.items() if key[:2] == (env, row)}
            self._ledgers.set_correction(env, row, correction_bytes, parts)

    def _beyond_tolerance(self, ownerless_bytes: Mapping[Uuid, int]) -> dict[Uuid, int]:
        tolerance_bytes = self._state.config.audit_tolerance_bytes
        return {
            uuid: there_bytes if there_bytes > tolerance_bytes else 0
            for uuid, there_bytes in ownerless_bytes.items()
        }

    def _unexplained(
        self, uuid: Uuid, ownerless_bytes: int, lives: Callable[[ProcessKey], bool]
    ) -> int:
        """The bytes of no listed process that no living member's word explains.

        A word covers memory of its process that the driver shows for none: exported memory that the
        process freed, and all memory of a process that the driver cannot list, as of a manager in a
        PID namespace.
        """
        shown = {one.process.key: one for one in self.figures if one.uuid == uuid}
        row = self._state.gpus[uuid].index
        for process in self._state.processes.values():
            figure = shown.get(process.key)
            if figure is not None:
                ownerless_bytes -= max(0, figure.word_bytes - figure.driver_bytes)
            elif process.slot is not None and lives(process.key):
                ownerless_bytes -= self._ledgers.slot_used(process.env, row, process.slot)
        return max(0, ownerless_bytes)

    def _member(self, pid: int) -> Process | None:
        key = self._key_of_pid(pid)
        return None if key is None else self._state.processes.get(key)

    def _stranger(self, pid: int, uuid: Uuid, driver_bytes: int) -> Iterator[Seen]:
        """Yields nothing for a dead process.

        The driver's figure of a dead process is about to vanish, or is unreclaimed memory.
        """
        ticks = start_ticks(pid)
        if ticks is None:
            return
        key = process_key(pid, ticks)
        env, command = self._strangers.get(key) or (None, command_line(pid))
        if env is None:  # a proof may be there by now
            env = self._env_of_stranger(pid)
        self._strangers[key] = env, command
        yield Seen(key, pid, uuid, driver_bytes, env, 0, command)


class Ends:
    """The processes that ended since the last reading, and the memory that stayed behind them.

    An end counts at the first reading that began after it was known: an earlier one may have been
    made while the process lived. Until then all ends on that GPU wait.
    """

    def __init__(self, state: State, ledgers: Ledgers) -> None:
        self._state, self._ledgers = state, ledgers
        self._uses: dict[tuple[ProcessKey, Uuid], tuple[int, EndedUse]] = {}
        """PID and use of those that the driver showed, and of members that ended."""
        self._known_ns: dict[ProcessKey, int] = {}
        """Since when an end is known, of those that do not count yet."""
        self._counted: set[tuple[ProcessKey, Uuid]] = set()
        """Ends of processes that the core still has."""
        self._ownerless_bytes: dict[Uuid, int] = {}
        """Before the ends that do not count yet."""
        self.waiting: set[Uuid] = set()
        """GPUs with ends that do not count yet."""

    def ended(self, process: Process, now_ns: int) -> None:
        """A member ended. The core may forget it and its words before the next reading."""
        self._known_ns.setdefault(process.key, now_ns)
        self._note_words(process)

    def since_last(
        self,
        reading: DriverReading,
        seen: Iterable[Seen],
        words: Mapping[tuple[ProcessKey, Uuid], tuple[int, int]],
        lives: Callable[[ProcessKey], bool],
    ) -> tuple[EndedUse, ...]:
        """A process whose PID the driver still shows has not ended on that GPU.

        `words`: the figures of driver and ledger of members.
        """
        uses = {}
        for one in seen:
            _, word_bytes = words.get((one.process, one.uuid), (0, 0))
            use = EndedUse(one.uuid, one.env, max(one.memory_bytes, word_bytes), word_bytes)
            uses[one.process, one.uuid] = one.pid, use
        self._find_unseen({process for process, _ in (*uses, *self._uses)}, lives)
        ended: dict[tuple[ProcessKey, Uuid], tuple[int, EndedUse]] = {}
        for key, (pid, use) in self._uses.items():
            if key in uses:
                continue
            if use.uuid not in reading.processes or pid in reading.processes[use.uuid]:
                uses[key] = pid, use
            elif not lives(key[0]):
                ended[key] = pid, use
        for process, _ in ended:  # found only now: this reading may have been made before the end
            self._known_ns.setdefault(process, reading.at_ns + 1)
        self.waiting = {uuid for process, uuid in ended if self._known_ns[process] > reading.at_ns}
        self._uses = uses | {key: ended[key] for key in ended if key[1] in self.waiting}
        counted = {key: use for key, (_, use) in ended.items() if key[1] not in self.waiting}
        members = self._state.processes.keys()
        self._counted = {key for key in (*self._counted, *counted) if key[0] in members}
        left = {process for process, _ in self._uses}
        self._known_ns = {key: ns for key, ns in self._known_ns.items() if key in left}
        return tuple(counted.values())

    def _find_unseen(
        self, shown: Container[ProcessKey], lives: Callable[[ProcessKey], bool]
    ) -> None:
        """Ended members that the driver showed in no reading: their words are still there."""
        for key, process in self._state.processes.items():
            if key not in shown and not lives(key):
                self._note_words(process)

    def _note_words(self, process: Process) -> None:
        """The use of an ended member by its words, which stay until the core forgets it."""
        if process.slot is None or process.pid is None:
            return
        for uuid, gpu in self._state.gpus.items():
            word_bytes = self._ledgers.slot_used(process.env, gpu.index, process.slot)
            if word_bytes and (process.key, uuid) not in self._counted:
                use = EndedUse(uuid, process.env, word_bytes, word_bytes)
                self._uses.setdefault((process.key, uuid), (process.pid, use))

    def growth(self, uuids: Iterable[Uuid], ownerless_bytes: Mapping[Uuid, int]) -> dict[Uuid, int]:
        """By how much the memory of no process grew on these GPUs since the ends before.

        Nothing is known of a GPU at its first reading.
        """
        before_bytes = self._ownerless_bytes
        self._ownerless_bytes = before_bytes | {
            uuid: there_bytes
            for uuid, there_bytes in ownerless_bytes.items()
            if uuid not in self.waiting or uuid not in before_bytes
        }
        return {
            uuid: max(0, ownerless_bytes[uuid] - before_bytes[uuid])
            for uuid in uuids
            if uuid in ownerless_bytes and uuid in before_bytes
        }


def command_line_of(process: Process, state: State) -> str:
    """The command line that requested the process's task."""
    task = state.tasks.get(process.task_id)
    return "" if task is None else task.run.command
