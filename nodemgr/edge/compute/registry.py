"""The launch gates of all GPUs: created at the first gated grant, kept equal to the core's state.

Knows: which process has which slot of which page, and the figures of the last reading. Must not
know: sockets, timers, the reason for a share.

A restarted manager begins with fresh pages, and each process gets a slot with the answer to its
REJOIN. Until then the processes take turns in the old pages, where gates open by themselves. A page
whose words cannot be right is replaced by a page for each env: another fault there proves that a
process of this env wrote it, since no other process has the page.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from nodemgr.core.model.entities import (
    WHOLE_PERCENT,
    Process,
    ProcessKey,
    Suspension,
    Task,
    TaskClass,
    TaskState,
    Uuid,
)
from nodemgr.core.state.node_state import State
from nodemgr.core.views.figures import GateUse
from nodemgr.edge.compute.launch_gate import (
    GateClass,
    GateState,
    LaunchGate,
    LaunchGateError,
    SlotWords,
    TurnsFault,
)

CLASSES = {
    TaskClass.LATENCY_SENSITIVE: GateClass.LATENCY_SENSITIVE,
    TaskClass.NORMAL: GateClass.NORMAL,
    TaskClass.BEST_EFFORT: GateClass.BEST_EFFORT,
}
DEFAULT_WINDOW_NS, URGENT_WINDOW_NS = 4_000_000, 100_000
"""The most work in flight; and where latency-sensitive work shares the GPU."""
LONE_WINDOW_NS = 50_000_000
"""The same for a task alone on its GPU.

Within 1 ms it would use half of the GPU: a launch would wait for the end of the work before it.
"""
CALM_NS, MOST_CALM_NS = 10_000_000_000, 600_000_000_000
"""How long envs stay on pages of their own after a fault; each further fault doubles it."""


class GateFiles(NamedTuple):
    """A process's part of the gates of its GPUs, as a GRANT carries it."""

    slots: tuple[int, ...]
    """One for each of the task's GPUs."""
    fds: tuple[int, ...]
    """For each GPU two: shares and turns."""
    threads: int | None = None
    """The percentage of threads that the process may have, where MPS divides the GPUs."""


class Garbled(NamedTuple):
    """A page with words that cannot be right."""

    uuid: Uuid
    fault: TurnsFault
    culprit: ProcessKey | None
    """A process of the only env on the page; None: several envs have the page."""


class Reading(NamedTuple):
    """The figures of one process on one GPU since the last reading."""

    process: ProcessKey
    uuid: Uuid
    used_ns: int
    elapsed_ns: int
    in_flight: bool
    waited_ns: int
    """How long it has waited in the gate by now; 0: it does not wait."""
    is_open: bool = True
    """Its gate is open: it waits for other processes, if at all."""


@dataclass(slots=True)
class _GatePage:
    gate: LaunchGate
    env: str | None
    """The only env on it; None: it is for all."""
    keys: dict[int, ProcessKey] = field(default_factory=dict)
    """By slot."""


@dataclass(slots=True)
class _GateSlot:
    """A process on a page."""

    page: _GatePage
    slot: int
    env: str
    words: SlotWords
    since_ns: int
    read_ns: int
    used_ns: int = 0
    use: GateUse | None = None


def words_of(task: Task, process: Process, *, paused: bool = False) -> SlotWords:
    """The words of a process in the gate, by its task."""
    share = task.granted_percent
    number = int(task.task_id[1:])
    if process.fenced:
        state = GateState.FENCED
    elif task.suspension is not Suspension.NONE:
        state = GateState.SUSPENDED
    elif share == 0 or task.state is TaskState.STALLED:
        state = GateState.CLOSED
    elif paused:
        state = GateState.PAUSED
    else:
        state = GateState.OPEN
    percent = WHOLE_PERCENT if share is None else share
    return SlotWords(percent, CLASSES[task.run.task_class], state, number)


class Gates:
    """All launch gates of the node. None exists while no gated process holds a lease."""

    def __init__(self) -> None:
        self._pages: dict[Uuid, list[_GatePage]] = {}
        self._slots: dict[ProcessKey, dict[Uuid, _GateSlot]] = {}
        self._rows: dict[ProcessKey, tuple[Process | None, Task | None]] = {}
        """The rows that the words of a process were written from."""
        self._split_until_ns: dict[Uuid, int] = {}
        """GPUs whose envs have a page each."""
        self._calm_ns: dict[Uuid, int] = {}
        """How long each such GPU was or is separate since its last fault."""
        self._paused: frozenset[tuple[str, Uuid]] = frozenset()
        """Tasks whose gate on a GPU is closed for a while (overuse.py)."""
        self.spatial = False
        """MPS divides the GPUs: a grant brings a percentage of threads, and no turns are taken."""

    def __bool__(self) -> bool:
        return bool(self._slots)

    def __contains__(self, key: ProcessKey) -> bool:
        return key in self._slots

    # -- slots --

    def place(self, task: Task, process: Process, now_ns: int) -> GateFiles | None:
        """Slots for a process on all GPUs of its task; None: a page is full.

        Raises LaunchGateError where no page can be made.
        """
        slots = self._slots.setdefault(process.key, {})
        try:
            for uuid in slots.keys() - set(task.gpus):
                self._leave(uuid, slots.pop(uuid))
            for uuid in task.gpus:
                if not self._enter(uuid, task, process, now_ns):
                    self.remove(process.key)
                    return None
        except LaunchGateError:
            self.remove(process.key)
            raise
        self._tune(task.gpus)
        found = [slots[uuid] for uuid in task.gpus]
        fds = tuple(fd for place in found for fd in place.page.gate.fds)
        threads = task.run.compute_percent if self.spatial else None
        return GateFiles(tuple(place.slot for place in found), fds, threads)

    def _enter(self, uuid: Uuid, task: Task, process: Process, now_ns: int) -> bool:
        """Whether the process has a slot on the GPU now."""
        slots = self._slots[process.key]
        words = self._words(uuid, task, process)
        place = slots.get(uuid)
        if place is not None:
            _write(place, words)
            return True
        page = self._page(uuid, process.env, now_ns)
        slot = page.gate.give(words)
        if slot is None:
            return False
        page.keys[slot] = process.key
        slots[uuid] = _GateSlot(page, slot, process.env, words, now_ns, now_ns)
        return True

    def _words(self, uuid: Uuid, task: Task, process: Process) -> SlotWords:
        return words_of(task, process, paused=(task.task_id, uuid) in self._paused)

    def _page(self, uuid: Uuid, env: str, now_ns: int) -> _GatePage:
        owner = env if uuid in self._split_until_ns else None
        pages = self._pages.setdefault(uuid, [])
        page = next((page for page in pages if page.env == owner), None)
        if page is None:
            page = _GatePage(LaunchGate.create(), owner)
            page.gate.beat(now_ns)
            pages.append(page)
        return page

    def remove(self, key: ProcessKey) -> None:
        """The process is dead, or has no gate any more."""
        slots = self._slots.pop(key, {})
        self._rows.pop(key, None)
        for uuid, place in slots.items():
            self._leave(uuid, place)
        self._tune(slots)

    def _leave(self, uuid: Uuid, place: _GateSlot) -> None:
        page = place.page
        page.gate.clear(place.slot)
        del page.keys[place.slot]
        if not page.keys:
            page.gate.close()
            self._pages[uuid].remove(page)
            if not self._pages[uuid]:
                del self._pages[uuid]

    def divide(self, *, spatial: bool) -> None:
        """By MPS, or by turns."""
        if spatial != self.spatial:
            self.spatial = spatial
            self._tune(list(self._pages))

    def pause(self, paused: frozenset[tuple[str, Uuid]]) -> bool:
        """Whether this changes a gate; `settle` writes it."""
        is_new, self._paused = paused != self._paused, paused
        return is_new

    @property
    def paused_tasks(self) -> frozenset[str]:
        return frozenset(task_id for task_id, _ in self._paused)

    def share(self, task_id: str, percent: int) -> None:
        """Writes the share of a task before its row is stored; `settle` opens its gate."""
        number = int(task_id[1:])
        for slots in self._slots.values():
            for place in slots.values():
                words = place.words
                if words.group == number:
                    closes = percent == 0 and words.state is GateState.OPEN
                    state = GateState.CLOSED if closes else words.state
                    _write(place, words._replace(share_percent=percent, state=state))

    def settle(self, state: State, *, anew: bool = False) -> None:
        """Writes the words of all processes whose rows have changed; removes the dead.

        It is called after each step. `anew`: also those whose rows are the same.
        """
        changed = False
        for key in list(self._slots):
            process = state.processes.get(key)
            task = None if process is None else state.tasks.get(process.task_id)
            rows = process, task
            before = self._rows.get(key)
            if before is not None and before[0] is process and before[1] is task and not anew:
                continue
            changed = True
            if process is None or not process.gated:
                self.remove(key)
            else:
                self._rows[key] = rows
                self._follow(key, process, task)
        if changed:
            self._tune(list(self._pages))

    def _follow(self, key: ProcessKey, process: Process, task: Task | None) -> None:
        for uuid, place in self._slots[key].items():
            if task is not None and uuid in task.gpus:
                _write(place, self._words(uuid, task, process))
            else:  # it left its lease and lives on
                _write(place, place.words._replace(state=GateState.FENCED))

    def _tune(self, uuids: Iterable[Uuid]) -> None:
        for uuid in uuids:
            for page in self._pages.get(uuid, ()):
                words = [self._slots[key][uuid].words for key in page.keys.values()]
                urgent = any(one.gate_class is GateClass.LATENCY_SENSITIVE for one in words)
                shared = len({one.group for one in words}) > 1
                window_ns = _window_ns(urgent, shared)
                page.gate.tune(window_ns, spatial=self.spatial)

    def close(self) -> None:
        """Closes all pages when the manager stops. The files live on in the clients."""
        for pages in self._pages.values():
            for page in pages:
                page.gate.close()
        self._pages.clear()
        self._slots.clear()
        self._rows.clear()

    # -- once in a while --

    def beat(self, now_ns: int) -> None:
        for pages in self._pages.values():
            for page in pages:
                page.gate.beat(now_ns)

    def read(self, now_ns: int) -> list[Reading]:
        """The figures of all processes since the last reading."""
        found = []
        for key, slots in self._slots.items():
            for uuid, place in slots.items():
                use = place.page.gate.use(place.slot)
                elapsed_ns = max(1, now_ns - place.read_ns)
                used_ns = min(elapsed_ns, max(0, use.used_ns - place.used_ns))
                before_ns = place.since_ns if place.use is None else place.use.active_ns
                active_ns = min(now_ns, max(use.last_activity_ns, before_ns))  # never back
                place.use = GateUse(round(100 * used_ns / elapsed_ns), active_ns)
                place.read_ns, place.used_ns = now_ns, use.used_ns
                since_ns = use.waiting_since_ns
                waited_ns = max(1, now_ns - since_ns) if since_ns else 0
                in_flight = use.in_flight_ns > 0
                is_open = place.words.state is GateState.OPEN
                found.append(Reading(key, uuid, used_ns, elapsed_ns, in_flight, waited_ns, is_open))
        return found

    def uses(self) -> Mapping[tuple[ProcessKey, Uuid], GateUse]:
        """The figures of the last reading."""
        return {
            (key, uuid): place.use
            for key, slots in self._slots.items()
            for uuid, place in slots.items()
            if place.use is not None
        }

    # -- pages that cannot be believed --

    def check(self, now_ns: int) -> list[Garbled]:
        found = []
        for uuid, pages in self._pages.items():
            for page in pages:
                fault, slot = page.gate.check(now_ns)
                if fault is not TurnsFault.NONE:
                    found.append(Garbled(uuid, fault, self._culprit(uuid, page, slot)))
        return found

    def _culprit(self, uuid: Uuid, page: _GatePage, slot: int | None) -> ProcessKey | None:
        envs = {self._slots[key][uuid].env for key in page.keys.values()}
        if len(envs) != 1:
            return None
        by_slot = page.keys.get(-1 if slot is None else slot)
        return by_slot if by_slot is not None else next(iter(page.keys.values()))

    def holders(self) -> dict[Uuid, ProcessKey | None]:
        """The holder of the token of each page that several envs have; None: no process.

        Empty where MPS divides the GPUs: there are no turns.
        """
        if self.spatial:
            return {}
        return {
            uuid: page.keys.get(page.gate.holder)
            for uuid, pages in self._pages.items()
            for page in pages
            if len({self._slots[key][uuid].env for key in page.keys.values()}) > 1
        }

    @property
    def separated(self) -> Container[Uuid]:
        """The GPUs whose envs have a page each."""
        return self._split_until_ns.keys()

    def split(self, uuid: Uuid, now_ns: int) -> list[ProcessKey]:
        """A page for each env; returns the processes that need another GRANT."""
        before_ns = self._calm_ns.get(uuid, 0)
        calm_ns = self._calm_ns[uuid] = min(MOST_CALM_NS, 2 * before_ns) or CALM_NS
        self._split_until_ns[uuid] = now_ns + calm_ns
        return self._retire(uuid)

    def merge(self, now_ns: int) -> list[ProcessKey]:
        """One page for all envs of each GPU that has been calm; returns the same."""
        calm = [uuid for uuid, until_ns in self._split_until_ns.items() if until_ns <= now_ns]
        moved: list[ProcessKey] = []
        for uuid in calm:
            if len(self._pages.get(uuid, ())) > 1:
                moved += self._retire(uuid)
            del self._split_until_ns[uuid]
        return list(dict.fromkeys(moved))

    def _retire(self, uuid: Uuid) -> list[ProcessKey]:
        pages = self._pages.pop(uuid, [])
        for page in pages:
            page.gate.retire()
            page.gate.close()
        return [key for key, slots in self._slots.items() if slots.pop(uuid, None) is not None]


def _write(place: _GateSlot, words: SlotWords) -> None:
    if words != place.words:
        place.page.gate.set(place.slot, words)
        place.words = words


def _window_ns(urgent: bool, shared: bool) -> int:
    if not shared:
        return LONE_WINDOW_NS
    return URGENT_WINDOW_NS if urgent else DEFAULT_WINDOW_NS
