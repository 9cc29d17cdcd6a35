"""The ledgers of all envs: made, found again after a restart, kept in step with the core's books.

Knows: which memory files belong to which env, and where a living process shows them. Must not know: why a limit is what it is.

The files live as long as somebody maps them, so after a restart the manager takes an env's usage file back from the service
manager that kept it, else from the env's processes: from their descriptors, else from their mappings, else from what comes
with REJOIN. Only the file whose inode the store remembers is believed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import NamedTuple, Protocol

from nodemgr.core.model.entities import GENERATIONS, Uuid
from nodemgr.edge.ledger.native_ledger import BeatReading, Ledger, LedgerError, SlotState

FileId = tuple[int, int]
"""Device and inode."""
MEMFD_PREFIX = "/memfd:nodemgr-"
MOST_PROCESSES, MOST_DESCRIPTORS, MOST_MAPPINGS = 64, 4_096, 50_000
"""That are looked at for a ledger: a stranger may have any number of them."""
RETAINED_LIMITS = 8
"""Limits files of earlier managers that a slow process may still hold."""


@dataclass(frozen=True, slots=True)
class LedgerFiles:
    """What the store remembers of a ledger."""

    usage: FileId
    limits: tuple[FileId, ...]
    """The newest first: each manager makes a new one for the same usage file."""

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


class Slot(NamedTuple):
    slot: int
    generation: int
    state: SlotState


class Keeper(Protocol):
    """Who holds descriptors for the next manager (systemd.ServiceManager)."""

    def keep(self, name: str, fd: int) -> None: ...

    def drop(self, name: str) -> None: ...


class NoKeeper:
    """Nobody does."""

    def keep(self, name: str, fd: int) -> None: ...

    def drop(self, name: str) -> None: ...


NO_KEEPER = NoKeeper()


def stored_name(env: str, file: FileId) -> str:
    """Of one of an env's files in the keeper's hands."""
    return f"ledger-{env}-{file[1]}"


def file_id(fd: int) -> FileId:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


class Ledgers:
    """One ledger per env that has processes on the UNIX socket."""

    def __init__(self, remember: Callable[[str, LedgerFiles | None], None], keeper: Keeper = NO_KEEPER) -> None:
        """`remember` stores an env's files before any client gets them; `keeper` has them from then on."""
        self._remember = remember
        self._keeper = keeper
        self._ledgers: dict[str, Ledger] = {}
        self._files: dict[str, LedgerFiles] = {}
        self._spare: Ledger | None = None
        self._handed_over: list[tuple[str, int]] = []
        """(name, descriptor): what an earlier manager left with the keeper, and nobody has adopted yet."""

    def __contains__(self, env: str) -> bool:
        return env in self._ledgers

    def envs(self) -> Iterator[str]:
        return iter(self._ledgers)

    def get(self, env: str) -> Ledger | None:
        return self._ledgers.get(env)

    def open(self, env: str) -> None:
        """A new, empty one, unless there is one. Raises LedgerError where descriptors or memory are out."""
        if env not in self._ledgers:
            ledger, self._spare = self._spare, None
            self._enter(env, ledger or Ledger.create(), ())

    def make_spare(self) -> None:
        """For the next env that needs one, with the pages of its first slots: made while nobody waits for it, since it takes
        longer than the rest of a grant."""
        if self._spare is None:
            with contextlib.suppress(LedgerError):
                self._spare = Ledger.create()
                self._spare.clear_slot(0, GENERATIONS - 1)

    def close(self, env: str) -> None:
        ledger = self._ledgers.pop(env, None)
        if ledger is not None:
            ledger.close()
            self._drop(env, self._files.pop(env), ())
            self._remember(env, None)

    def forget_all(self) -> None:
        """At the manager's end: the files live on in the clients."""
        for ledger in self._ledgers.values():
            ledger.close()
        self._ledgers.clear()
        if self._spare is not None:
            self._spare.close()

    def _enter(self, env: str, ledger: Ledger, older_limits: tuple[FileId, ...]) -> None:
        limits_fd, usage_fd = ledger.fds
        files = LedgerFiles(file_id(usage_fd), (file_id(limits_fd), *older_limits)[:RETAINED_LIMITS])
        try:
            self._remember(env, files)
        except BaseException:
            ledger.close()
            raise
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
        """What the keeper had for us."""
        self._handed_over = stored

    def adopt_stored(self, env: str, files: LedgerFiles) -> bool:
        """Takes the env's ledger from the keeper's hands; False: it had none, or not this one."""
        wanted = {files.usage, *files.limits}
        fitting = [(name, fd) for name, fd in self._handed_over if file_id(fd) in wanted]
        self._handed_over = [stored for stored in self._handed_over if stored not in fitting]
        if self.adopt(env, files, [fd for _, fd in fitting]):
            return True
        for name, _ in fitting:
            self._keeper.drop(name)
        return False

    def refuse_rest(self) -> None:
        """What nobody adopted is of no use any more."""
        for name, fd in self._handed_over:
            self._keeper.drop(name)
            os.close(fd)
        self._handed_over = []

    def adopt_from_processes(self, env: str, files: LedgerFiles, pids: Iterable[int]) -> bool:
        """Takes the env's ledger back from one of its living processes; False: none shows it."""
        return any(self.adopt(env, files, list(fds)) for pid in islice(pids, MOST_PROCESSES) if (fds := _open_files_of(pid, files)))

    def adopt(self, env: str, files: LedgerFiles, fds: list[int]) -> bool:
        """Takes it back from these descriptors if they are its files; they are closed otherwise."""
        usage = next((fd for fd in fds if file_id(fd) == files.usage), None)
        limits = next((fd for wanted in files.limits for fd in fds if file_id(fd) == wanted), None)
        taken: set[int] = set()
        if usage is not None and limits is not None and env not in self._ledgers:
            with contextlib.suppress(LedgerError):
                ledger = Ledger.adopt(limits, usage)
                taken = {limits, usage}
                self._enter(env, ledger, files.limits)
        for fd in fds:
            if fd not in taken:
                os.close(fd)
        return bool(taken)

    def rebuild(self, env: str, rows: Iterable[LedgerRow], slots: Iterable[Slot]) -> None:
        """Says everything again that the core's books say, on an adopted or a new ledger.

        The limits file that came back may be older than some slots (of a process that never heard of the last manager): the words
        of the core's processes stay whatever it says of them. What is nobody's any more was not cleared in time.
        """
        ledger, slots = self._ledgers[env], list(slots)
        for slot_number in set(range(ledger.slots_used)).difference(slot.slot for slot in slots):
            ledger.clear_slot(slot_number, ledger.slot_generation(slot_number))
        for row in rows:
            ledger.set_row(row.row, row.uuid, row.total_bytes)
            ledger.set_limit(row.row, row.limit_bytes)
        for slot in slots:
            ledger.set_slot(slot.slot, slot.generation, slot.state)

    # -- the core's orders; an env without a ledger is being recovered, and rebuilt from the same books later --

    def set_limit(self, env: str, row: LedgerRow) -> None:
        if ledger := self._ledgers.get(env):
            ledger.set_row(row.row, row.uuid, row.total_bytes)
            ledger.set_limit(row.row, row.limit_bytes)

    def set_slot(self, env: str, slot: Slot) -> None:
        if ledger := self._ledgers.get(env):
            ledger.set_slot(slot.slot, slot.generation, slot.state)

    def begin_slot(self, env: str, slot: int, generation: int) -> None:
        if ledger := self._ledgers.get(env):
            ledger.clear_slot(slot, (generation - 1) % GENERATIONS)
            ledger.set_slot(slot, generation, SlotState.LIVE)

    def clear_slot(self, env: str, slot: int, generation: int) -> None:
        if ledger := self._ledgers.get(env):
            ledger.clear_slot(slot, generation)

    def set_correction(self, env: str, row: int, correction_bytes: int) -> None:
        if ledger := self._ledgers.get(env):
            ledger.set_correction(row, correction_bytes)

    # -- figures --

    def used(self, env: str, row: int) -> int:
        """Bytes that the env's processes hold on a GPU, the driver's correction included."""
        ledger = self._ledgers.get(env)
        return ledger.used(row) if ledger is not None else 0

    def slot_used(self, env: str, row: int, slot: int) -> int:
        ledger = self._ledgers.get(env)
        return ledger.slot_used(row, slot) if ledger is not None else 0

    # -- beats --

    def read_beats(self, now_ns: int, before_ns: int) -> Iterator[tuple[str, BeatReading]]:
        for env, ledger in self._ledgers.items():
            yield env, ledger.read_beats(now_ns, before_ns)

    def heard_ns(self, env: str, slot: int) -> int:
        """0 for an env whose ledger is not there."""
        ledger = self._ledgers.get(env)
        return ledger.heard_ns(slot) if ledger is not None else 0


def _open_files_of(pid: int, files: LedgerFiles) -> list[int]:
    """Descriptors of our own on the ledger's files that a process holds open or has mapped; [] unless both are found."""
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
    """One of these files behind a link of a process's, and a descriptor on it; (None, -1): it is none of them.

    A process can show any file under this name: a device, whose opening does something; a file that answers when it likes. So
    it is not opened before the kernel itself has said that it is a memory file, and which.
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
    """Raises OSError."""
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
        return next((line.split()[1] for line in file if line.startswith("mnt_id:")), "")


@lru_cache(maxsize=1)
def _memory_mount() -> str:
    """The kernel's own, where all memory files are and nothing else can be."""
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
    """For a program that closed descriptors it did not know: what it maps, which root may open."""
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            lines = [line for line in islice(file, MOST_MAPPINGS) if MEMFD_PREFIX in line]
    except OSError:
        return []
    ranges = [re.match(r"0*([0-9a-f]+)-0*([0-9a-f]+) ", line) for line in lines]
    return [f"/proc/{pid}/map_files/{match[1]}-{match[2]}" for match in ranges if match]
