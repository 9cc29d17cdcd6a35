"""The ledgers of all envs: created, recovered after a restart, kept equal to the core's state.

Knows: which memory files belong to which env, and where /proc lists them for a living process.
Must not know: the reason for a limit.

A file lives while a process maps it. After a restart the manager recovers an env's usage file from
the service manager that kept it, else from the env's processes: from their descriptors, else from
their mappings, else from REJOIN. It accepts only a file with the device and inode in the store.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import NamedTuple, Protocol

from nodemgr.core.model.entities import GENERATIONS, ProcessKey, Suspension, Uuid
from nodemgr.core.state.node_state import State
from nodemgr.edge.kernel.processes import LONG_TIMEOUT_S, owner_of, within
from nodemgr.edge.ledger.native_ledger import (
    CAPS,
    BeatReading,
    Ledger,
    LedgerError,
    OtherLayoutError,
    SlotHold,
    SlotState,
)

FileId = tuple[int, int]
"""Device and inode."""
Slots = dict[str, list[int]]
"""Slots of ledgers, by env."""
MEMFD_PREFIX = "/memfd:nodemgr-"
MOST_PROCESSES, MOST_DESCRIPTORS, MOST_MAPPINGS = 64, 4_096, 50_000
"""Search limits for a ledger: a process may have any number of them."""
RETAINED_LIMITS = 8
"""Limits files remembered per env: a slow process may still hold an older one."""
HOLDS = {
    Suspension.NONE: SlotHold.NONE,
    Suspension.SUSPENDING: SlotHold.HELD,
    Suspension.SUSPENDED: SlotHold.AWAY,
    Suspension.RESUMING: SlotHold.HELD,
}


@dataclass(frozen=True, slots=True)
class LedgerFiles:
    """The files of a ledger, as the store keeps them."""

    usage: FileId
    limits: tuple[FileId, ...]
    """Newest first: each manager creates a new one for the same usage file."""

    def to_json(self) -> str:
        return json.dumps({"usage": self.usage, "limits": self.limits})

    @classmethod
    def from_json(cls, text: str) -> LedgerFiles:
        value = json.loads(text)
        return cls(tuple(value["usage"]), tuple(tuple(file) for file in value["limits"]))


class LedgerRow(NamedTuple):
    """A GPU in an env's ledger."""

    row: int
    uuid: Uuid
    total_bytes: int
    limit_bytes: int


class Cap(NamedTuple):
    """The memory that a ledger keeps for a task on some rows, and the most that it has."""

    task_id: str
    rows: tuple[int, ...]
    kept_bytes: int
    most_bytes: int


class Slot(NamedTuple):
    slot: int
    generation: int
    state: SlotState
    capped: str = ""
    """The task with the cap that bounds its process; empty: none."""
    hold: SlotHold = SlotHold.NONE
    """For `rebuild` alone."""


class Keeper(Protocol):
    """Holds descriptors for the next manager (systemd.ServiceManager)."""

    def keep(self, name: str, fd: int) -> None: ...

    def drop(self, name: str) -> None: ...


class NoKeeper:
    """Holds nothing."""

    def keep(self, name: str, fd: int) -> None: ...

    def drop(self, name: str) -> None: ...


NO_KEEPER = NoKeeper()
NO_TASKS: Mapping[str, int] = {}


def stored_name(env: str, file: FileId) -> str:
    """The keeper's name for one of an env's files."""
    return f"ledger-{env}-{file[1]}"


def file_id(fd: int) -> FileId:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _files_of(ledger: Ledger, older_limits: tuple[FileId, ...] = ()) -> LedgerFiles:
    limits_fd, usage_fd = ledger.fds
    limits = (file_id(limits_fd), *older_limits)[:RETAINED_LIMITS]
    return LedgerFiles(file_id(usage_fd), limits)


class Ledgers:
    """One ledger per env that has processes on the UNIX socket."""

    def __init__(
        self, remember: Callable[[str, LedgerFiles], None], keeper: Keeper = NO_KEEPER
    ) -> None:
        """`remember` stores an env's files before any client gets them; `keeper` then holds them.

        A step's commit may store them instead.
        """
        self._remember = remember
        self._keeper = keeper
        self._ledgers: dict[str, Ledger] = {}
        self._files: dict[str, LedgerFiles] = {}
        self._caps: dict[str, dict[str, int]] = {}
        """By env: the number of each task's cap."""
        self.of_other_layouts: set[str] = set()
        """Envs with a ledger of an earlier version: their clients can map no ledger of this one."""
        self._spare: Ledger | None = None
        self._prepared: dict[str, Ledger] = {}
        self._handed_over: list[tuple[str, int]] = []
        """(name, descriptor) pairs from the keeper that no env has adopted yet."""

    def __contains__(self, env: str) -> bool:
        return env in self._ledgers

    def envs(self) -> Iterator[str]:
        return iter(self._ledgers)

    def get(self, env: str) -> Ledger | None:
        return self._ledgers.get(env)

    def prepare(self, env: str) -> LedgerFiles | None:
        """The files of the ledger that the next `open` gives the env.

        They are for the commit of the step that opens it. None: the env has a ledger, or
        descriptors or memory are exhausted.
        """
        if env in self._ledgers:
            return None
        if env not in self._prepared:
            self.make_spare()
            if self._spare is None:
                return None
            self._prepared[env], self._spare = self._spare, None
        return _files_of(self._prepared[env])

    def drop_prepared(self) -> None:
        """The step's commit failed: the files are not stored."""
        for ledger in self._prepared.values():
            ledger.close()
        self._prepared.clear()

    def open(self, env: str) -> None:
        """Give the env an empty ledger if it has none: the prepared one, or a new one.

        The prepared one is stored already. Raises LedgerError if descriptors or memory are
        exhausted.
        """
        if env in self._prepared:
            ledger = self._prepared.pop(env)
            self._enter(env, ledger, _files_of(ledger))
        elif env not in self._ledgers:
            ledger, self._spare = self._spare or Ledger.create(), None
            self._remember_and_enter(env, ledger, _files_of(ledger))

    def make_spare(self) -> None:
        """Creates a ledger for the next env ahead of its grant, with the pages of its first slots.

        The creation takes longer than the rest of a grant.
        """
        if self._spare is None:
            with contextlib.suppress(LedgerError):
                self._spare = Ledger.create()
                self._spare.clear_slot(0, GENERATIONS - 1)

    def close(self, env: str) -> None:
        """Closes the env's ledger. The step's commit has deleted its files from the store."""
        ledger = self._ledgers.pop(env, None)
        if ledger is not None:
            ledger.close()
            self._caps.pop(env, None)
            self._drop(env, self._files.pop(env), ())

    def forget_all(self) -> None:
        """Closes all ledgers when the manager stops. The files live on in the clients."""
        for ledger in self._ledgers.values():
            ledger.close()
        self._ledgers.clear()
        if self._spare is not None:
            self._spare.close()
        self.drop_prepared()

    def _remember_and_enter(self, env: str, ledger: Ledger, files: LedgerFiles) -> None:
        try:
            self._remember(env, files)
        except BaseException:
            ledger.close()
            raise
        self._enter(env, ledger, files)

    def _enter(self, env: str, ledger: Ledger, files: LedgerFiles) -> None:
        self._ledgers[env] = ledger
        self._files[env] = files
        for fd in ledger.fds:
            self._keeper.keep(stored_name(env, file_id(fd)), fd)
        self._drop(env, files, (files.usage, files.limits[0]))

    def _drop(self, env: str, files: LedgerFiles, but: tuple[FileId, ...]) -> None:
        for file in {files.usage, *files.limits}.difference(but):
            self._keeper.drop(stored_name(env, file))

    # -- after a restart --

    def hand_over(self, stored: list[tuple[str, int]]) -> None:
        """Stores the keeper's descriptors."""
        self._handed_over = stored

    def adopt_stored(self, env: str, files: LedgerFiles) -> bool:
        """Adopts the env's ledger from the keeper; False: the keeper had none, or another one."""
        wanted = {files.usage, *files.limits}
        fitting = [(name, fd) for name, fd in self._handed_over if file_id(fd) in wanted]
        self._handed_over = [stored for stored in self._handed_over if stored not in fitting]
        if self.adopt(env, files, [fd for _, fd in fitting]):
            return True
        for name, _ in fitting:
            self._keeper.drop(name)
        return False

    def refuse_rest(self) -> None:
        """Drops and closes the keeper's descriptors that no env adopted."""
        for name, fd in self._handed_over:
            self._keeper.drop(name)
            os.close(fd)
        self._handed_over = []

    def adopt_from_processes(self, env: str, files: LedgerFiles, pids: Iterable[int]) -> bool:
        """Adopts the env's ledger from one of its living processes; False: none has it."""
        return any(
            self.adopt(env, files, list(fds))
            for pid in islice(pids, MOST_PROCESSES)
            if (fds := _open_files_of(pid, files))
        )

    def adopt(self, env: str, files: LedgerFiles, fds: list[int]) -> bool:
        """Adopts the ledger if these descriptors are its files.

        Closes every descriptor not used.
        """
        usage = next((fd for fd in fds if file_id(fd) == files.usage), None)
        limits = next((fd for wanted in files.limits for fd in fds if file_id(fd) == wanted), None)
        taken: set[int] = set()
        if usage is not None and limits is not None and env not in self._ledgers:
            try:
                ledger = Ledger.adopt(limits, usage)
                taken = {limits, usage}
                self._remember_and_enter(env, ledger, _files_of(ledger, files.limits))
            except OtherLayoutError:
                self.of_other_layouts.add(env)
            except LedgerError:
                pass
        for fd in fds:
            if fd not in taken:
                os.close(fd)
        return bool(taken)

    def rebuild(
        self, env: str, rows: Iterable[LedgerRow], slots: Iterable[Slot], caps: Iterable[Cap] = ()
    ) -> None:
        """Writes the core's rows, caps and slots to an adopted or a new ledger.

        The recovered limits file may be older than some slots: its process never met the last
        manager. So the slots of the core's processes are always kept. All other used slots are
        cleared.
        """
        ledger, slots = self._ledgers[env], list(slots)
        for slot_number in set(range(ledger.slots_used)).difference(slot.slot for slot in slots):
            ledger.clear_slot(slot_number, ledger.slot_generation(slot_number))
        for row in rows:
            ledger.set_row(row.row, row.uuid, row.total_bytes)
            ledger.set_limit(row.row, row.limit_bytes)
        for cap in caps:
            self.set_cap(env, cap)
        for slot in slots:
            self.set_slot(env, slot)
            self.set_hold(env, slot.slot, slot.hold)

    # -- the core's orders; an env without a ledger is in recovery: rebuild() applies the state
    # later --

    def set_limit(self, env: str, row: LedgerRow) -> None:
        if ledger := self._ledgers.get(env):
            ledger.set_row(row.row, row.uuid, row.total_bytes)
            ledger.set_limit(row.row, row.limit_bytes)

    def lower_limit(self, env: str, row: int, least_bytes: int) -> int | None:
        """The limit that holds from now on; None: the env has no ledger."""
        ledger = self._ledgers.get(env)
        return None if ledger is None else ledger.lower_limit(row, least_bytes)

    def set_cap(self, env: str, cap: Cap) -> None:
        """(A task beyond the last number has none: it shares what is kept for nobody.)"""
        ledger, numbers = self._ledgers.get(env), self._caps.setdefault(env, {})
        if ledger is None:
            return
        number = numbers.get(cap.task_id)
        if number is None:
            taken = set(numbers.values())
            number = next((free for free in range(1, CAPS) if free not in taken), None)
        if number is not None:
            numbers[cap.task_id] = number
            ledger.set_cap(number, cap.kept_bytes, cap.most_bytes, cap.rows)

    def drop_cap(self, env: str, task_id: str) -> None:
        number = self._caps.get(env, {}).pop(task_id, None)
        if number is not None and (ledger := self._ledgers.get(env)):
            ledger.set_cap(number, 0, 0, ())

    def set_slot(self, env: str, slot: Slot) -> None:
        if ledger := self._ledgers.get(env):
            cap = self._caps.get(env, {}).get(slot.capped, 0)
            ledger.set_slot(slot.slot, slot.generation, slot.state, cap)

    def begin_slot(self, env: str, slot: Slot) -> None:
        if ledger := self._ledgers.get(env):
            ledger.clear_slot(slot.slot, (slot.generation - 1) % GENERATIONS)
            self.set_slot(env, slot)

    def set_hold(self, env: str, slot: int, hold: SlotHold) -> None:
        """Whether the driver holds the calls of the slot's process."""
        if ledger := self._ledgers.get(env):
            ledger.set_hold(slot, hold)

    def clear_slot(self, env: str, slot: int, generation: int) -> None:
        if ledger := self._ledgers.get(env):
            ledger.clear_slot(slot, generation)

    def set_correction(
        self, env: str, row: int, correction_bytes: int, of_tasks: Mapping[str, int] = NO_TASKS
    ) -> None:
        """`of_tasks`: the parts of it that are of tasks with a cap."""
        if ledger := self._ledgers.get(env):
            ledger.set_correction(row, correction_bytes)
            for task_id, number in self._caps.get(env, {}).items():
                ledger.set_cap_correction(number, row, of_tasks.get(task_id, 0))

    # -- figures --

    def used(self, env: str, row: int) -> int:
        """Bytes that the env's processes hold on a GPU, including the driver's correction."""
        ledger = self._ledgers.get(env)
        return ledger.used(row) if ledger is not None else 0

    def unkept(self, env: str, row: int) -> int:
        """The part of `used` that is beyond what is kept for its task."""
        ledger = self._ledgers.get(env)
        return ledger.unkept(row) if ledger is not None else 0

    def has_room(self, env: str, row: int, limit_bytes: int | None) -> bool:
        """Whether all that is promised on the row is within this limit; None: the present one."""
        ledger = self._ledgers.get(env)
        if ledger is None:
            return True
        most_bytes = ledger.limit(row) if limit_bytes is None else limit_bytes
        return ledger.promised(row) <= most_bytes

    def slot_used(self, env: str, row: int, slot: int) -> int:
        ledger = self._ledgers.get(env)
        return ledger.slot_used(row, slot) if ledger is not None else 0

    def is_unsuspendable(self, env: str, slot: int) -> bool:
        ledger = self._ledgers.get(env)
        return ledger is not None and ledger.is_unsuspendable(slot)

    def peak(self, env: str, slots: Sequence[int], generations: Sequence[int]) -> int | None:
        """The most that these processes had together on one GPU; None: the env has no ledger."""
        ledger = self._ledgers.get(env)
        return None if ledger is None else ledger.peak(slots, generations)

    def was_refused(self, env: str, slot: int, generation: int) -> bool:
        """Whether the process noted that an allocation was refused for lack of memory."""
        ledger = self._ledgers.get(env)
        return ledger is not None and ledger.was_refused(slot, generation)

    # -- beats --

    def read_beats(self, now_ns: int, before_ns: int) -> Iterator[tuple[str, BeatReading]]:
        for env, ledger in self._ledgers.items():
            yield env, ledger.read_beats(now_ns, before_ns)

    def heard_ns(self, env: str, slot: int) -> int:
        """0 for an env without a ledger."""
        ledger = self._ledgers.get(env)
        return ledger.heard_ns(slot) if ledger is not None else 0


def _open_files_of(pid: int, files: LedgerFiles) -> list[int]:
    """New descriptors on ledger files that a process has open or mapped; [] without both files.

    A process can delay the kernel's list of its mappings, by a file system of its own.
    """
    try:
        path = f"/proc/{pid}/maps"
        return within(lambda: _find_files_of(pid, files), path, owner_of(path), LONG_TIMEOUT_S)
    except OSError:
        return []


def _find_files_of(pid: int, files: LedgerFiles) -> list[int]:
    wanted = {files.usage, *files.limits}
    found: dict[FileId, int] = {}
    for path in (*_descriptors(pid), *_mappings(pid)):
        identity, fd = _opened(path, wanted.difference(found))
        if identity is not None:
            found[identity] = fd
        if files.usage in found and len(found) > 1:
            return list(found.values())
    for fd in found.values():
        os.close(fd)
    return []


def _opened(path: str, wanted: set[FileId]) -> tuple[FileId | None, int]:
    """The wanted file behind a /proc link, and a descriptor on it; (None, -1): another file.

    The link can lead to any file: a device with side effects on open, or a file that blocks. So the
    function opens it only after the kernel has reported a memory file with a wanted inode.
    """
    try:
        seen = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None, -1
    try:
        if _mount_of(seen) == _memory_mount() and (identity := file_id(seen)) in wanted:
            return identity, os.open(f"/proc/self/fd/{seen}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        pass
    finally:
        os.close(seen)
    return None, -1


def _mount_of(fd: int) -> str:
    """The mount id, "" without one. Raises OSError."""
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
        return next((line.split()[1] for line in file if line.startswith("mnt_id:")), "")


@lru_cache(maxsize=1)
def _memory_mount() -> str:
    """The id of the kernel's internal mount, which holds all memory files and no others."""
    fd = os.memfd_create("nodemgr-probe")
    try:
        return _mount_of(fd)
    finally:
        os.close(fd)


def _descriptors(pid: int) -> list[str]:
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            paths = [entry.path for entry in islice(entries, MOST_DESCRIPTORS)]
    except OSError:
        return []
    return [path for path in paths if _links_to_memfd(path)]


def _links_to_memfd(path: str) -> bool:
    try:
        return os.readlink(path).startswith(MEMFD_PREFIX)
    except OSError:
        return False


def _mappings(pid: int) -> list[str]:
    """Paths of mapped memory files, for a program that closed its descriptors.

    Root may open them.
    """
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            lines = [line for line in islice(file, MOST_MAPPINGS) if MEMFD_PREFIX in line]
    except OSError:
        return []
    ranges = [re.match(r"0*([0-9a-f]+)-0*([0-9a-f]+) ", line) for line in lines]
    return [f"/proc/{pid}/map_files/{match[1]}-{match[2]}" for match in ranges if match]


# -- the last sign of life of each process: a packet, or its beat word in its env's ledger. A
# process in a ledger raises its word there each beat and sends nothing. A UDP client sends packets,
# as does a process that waits. The words are a client's: any change of a word is a sign of life.


class Silence(NamedTuple):
    """The result of one reading."""

    silent: frozenset[ProcessKey]
    """The processes without a beat for the timeout."""
    oldest_ns: int | None
    """When the first of the others was heard; None: there are none."""
    woken: list[ProcessKey]
    """Members of stalled tasks or jobs with a word that has moved since the last reading."""


class Beats:
    """The last beat of every process that holds or waits."""

    def __init__(self, state: State, ledgers: Ledgers) -> None:
        self._state = state
        self._ledgers = ledgers
        self.packets: dict[ProcessKey, int] = {}
        """When the watch of each process began, or its last packet. The transports write here."""
        self._over_udp: set[ProcessKey] = set()

    def watch(self, key: ProcessKey, now_ns: int, *, over_udp: bool) -> None:
        self.packets[key] = now_ns
        if over_udp:
            self._over_udp.add(key)

    def unwatch(self, key: ProcessKey) -> None:
        self.packets.pop(key, None)
        self._over_udp.discard(key)

    def get(self, key: ProcessKey, default: int) -> int:
        """When it was last heard, as of the last reading."""
        packet_ns = self.packets.get(key, default)
        process = self._state.processes.get(key)
        if process is None or process.slot is None:
            return packet_ns
        word_ns = self._ledgers.heard_ns(process.env, process.slot)
        return word_ns if word_ns > packet_ns else packet_ns

    def woken(self, now_ns: int) -> list[ProcessKey]:
        """Looks at all words; see Silence.woken."""
        return [*self._keys(self._read(now_ns, 0)[0]), *self._heard_of_jobs()]

    def _heard_of_jobs(self) -> list[ProcessKey]:
        """One process of each stalled job that was heard since; its slot in the ledger is live."""
        return [
            key
            for task_id, (since_ns, _) in self._state.silent_jobs.items()
            for key in self._state.tasks[task_id].processes
            if self.get(key, 0) > since_ns
        ]

    def silence(self, now_ns: int, timeout_ns: int) -> Silence:
        """Looks at all words and at the packets of those that have no word."""
        before_ns = now_ns - timeout_ns + 1
        woken, still, oldest_ns = self._read(now_ns, before_ns)
        # a process in a ledger may have sent packets instead
        by_packet = [
            *self._keys(still),
            *self._over_udp,
        ]
        heard_ns = [(self.packets.get(key, now_ns), key) for key in by_packet]
        silent = frozenset([key for last_ns, key in heard_ns if last_ns < before_ns])
        others_ns = [last_ns for last_ns, _ in heard_ns if last_ns >= before_ns]
        if oldest_ns is not None:
            others_ns.append(oldest_ns)
        heard = [*self._keys(woken), *self._heard_of_jobs()]
        return Silence(silent, min(others_ns, default=None), heard)

    def _read(self, now_ns: int, before_ns: int) -> tuple[Slots, Slots, int | None]:
        """(moved slots of stalled tasks, slots unmoved since before_ns, oldest other move)."""
        woken: Slots = {}
        still: Slots = {}
        oldest_ns: int | None = None
        for env, reading in self._ledgers.read_beats(now_ns, before_ns):
            if reading.woken:
                woken[env] = reading.woken
            if reading.still:
                still[env] = reading.still
            if reading.oldest_ns is not None:
                oldest_ns = (
                    reading.oldest_ns if oldest_ns is None else min(oldest_ns, reading.oldest_ns)
                )
        return woken, still, oldest_ns

    def _keys(self, slots: Mapping[str, list[int]]) -> list[ProcessKey]:
        """The processes of these slots: one pass over all processes, only if there are slots."""
        if not slots:
            return []
        wanted = {(env, slot) for env, some in slots.items() for slot in some}
        return [
            process.key
            for process in self._state.processes.values()
            if (process.env, process.slot) in wanted
        ]
