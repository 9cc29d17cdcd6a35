"""A node under load: a real manager, real shims, many racing programs on one grant.

Killers, restarts and changes of the quota interfere.

Knows: the manager as a process, the simulator's own books, the words of the ledger. Must not know:
how long, how many (run.py, pytest).

This holds at every instant, by the simulator's books of the GPU (contexts included, no process of
another env on it): the sum is at most the grant. While a quota is lowered: nothing is taken away,
and a grant from before the new limit's notice stands; from the first moment at which the
ledger is back within the new limit, the sum never exceeds that one again.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from nodemgr._native import ffi, lib
from nodemgr.edge.engine.ledger_controller import LEDGER_META
from nodemgr.edge.ledger.registry import FileId, LedgerFiles
from nodemgr.edge.store.database import FILE_NAME
from nodemgr.simulator import SimulatedNode
from tests.shim.world import MIB, compiled
from tests.support.limits import WAIT_LIMIT_S, until
from tests.support.manager import Manager

CONTEXT_BYTES = 64 * MIB
"""The size of the simulator's context, and the shim's reservation for one."""
MANY = 200
"""A process that has asked so often has been granted something."""
ENV = "alice"
KEPT_EVENTS = 200
"""The manager's last events in the account of a failure."""


def _ledger_files(manager: Manager) -> LedgerFiles:
    """The files of the env's ledger by the store; the manager holds a spare ledger, too."""
    with closing(sqlite3.connect(f"file:{manager.state_dir / FILE_NAME}?mode=ro", uri=True)) as db:
        ((text,),) = db.execute(
            "SELECT value FROM meta WHERE key = ?", (LEDGER_META + ENV,)
        ).fetchall()
    return LedgerFiles.from_json(text)


class Words:
    """The env's ledger as any process sees it: mapped from the manager's own descriptors."""

    def __init__(self, manager: Manager) -> None:
        files = _ledger_files(manager)
        self._native = ffi.new("struct nm_ledger *")
        fault = lib.nm_ledger_map_client(
            self._native,
            *(self._open(manager.pid, file) for file in (files.limits[0], files.usage)),
        )
        assert fault == lib.NM_LEDGER_OK, fault

    @staticmethod
    def _open(pid: int, file: FileId) -> int:
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                status = path.stat()
                if (status.st_dev, status.st_ino) == file:
                    return os.open(path, os.O_RDWR | os.O_CLOEXEC)
        raise AssertionError(f"the manager does not hold the file {file}")

    def by_slot(self) -> list[int]:
        return [
            lib.nm_ledger_slot_used(self._native, 0, slot)
            for slot in range(lib.nm_ledger_slots_used(self._native))
        ]

    def used(self) -> int:
        """By all words; without the correction, which a restarted manager writes elsewhere."""
        return sum(self.by_slot())

    def counted(self) -> int:
        """The sum of a reservation, with the correction.

        Of the manager that owns these descriptors.
        """
        return int(lib.nm_ledger_used(self._native, 0))

    def limit(self) -> int:
        return int(lib.nm_ledger_limit(self._native, 0))

    def close(self) -> None:
        lib.nm_ledger_unmap(self._native)


@dataclass
class Tally:
    """The events so far."""

    operations: int = 0
    refusals: int = 0
    children: int = 0
    kills: int = 0
    restarts: int = 0
    requotas: int = 0
    most_of_grant: float = 0.0
    """The highest peak in proportion to the limit of its time."""


@dataclass
class Load:
    """Racing programs of one env on one simulated GPU. `limit_bytes` is the grant of the moment."""

    manager: Manager
    limit_bytes: int
    threads: int
    seed: int
    tally: Tally = field(default_factory=Tally)
    racers: list[subprocess.Popen[str]] = field(default_factory=list)
    parents: set[int] = field(default_factory=set)
    """PIDs of those that have children."""

    def __post_init__(self) -> None:
        self.manager.quota(ENV, 1, memory_bytes=self.limit_bytes)
        self.node = SimulatedNode.open(self.manager.run_dir / "sim")

    # -- programs --

    def start(self, *, children: bool = False) -> subprocess.Popen[str]:
        self.seed += 1
        arguments = [str(self.threads), "0", str(self.seed), *(["children"] if children else [])]
        # the manager gets on beside them
        racer = self.manager.spawn(
            ENV, ["nice", "-n", "10", str(compiled("race_threads.c")), *arguments]
        )
        self.racers.append(racer)
        self.parents |= {racer.pid} if children else set()
        return racer

    def replace(self, racer: subprocess.Popen[str]) -> None:
        """kill -9; it had no fault of its own until then. Another takes its place."""
        racer.kill()
        _, stderr = racer.communicate()
        self._no_complaint(stderr)
        self.racers.remove(racer)
        self.tally.kills += 1
        self.start(children=racer.pid in self.parents)

    def are_at_work(self) -> bool:
        """Each of them has a context."""
        return len(self.node.books()[0].processes) >= len(self.racers)

    def stop(self) -> None:
        """All free their memory and live on: ledger and books then hold the contexts alone."""
        for racer in self.racers:
            assert racer.stdin is not None
            racer.stdin.write("\n")
            racer.stdin.flush()
        for racer in self.racers:
            assert racer.stdout is not None
            line = racer.stdout.readline()
            assert line, self._words_of(racer)
            successes, refusals, children = map(int, line.split())
            assert successes > 0 or refusals < MANY, f"{refusals} times refused, never granted"
            self.tally.operations += successes
            self.tally.refusals += refusals
            self.tally.children += children
        self.await_contexts_alone()

    def await_contexts_alone(self) -> None:
        contexts = len(self.racers) * CONTEXT_BYTES
        words = Words(self.manager)
        try:
            until(
                lambda: (words.used(), self.node.books()[0].used_bytes) == (contexts, contexts),
                "nothing but contexts",
            )
            # after a restart the manager holds back what processes may believe to have, until each
            # has rejoined
            until(
                lambda: (words.counted(), words.limit()) == (contexts, self.limit_bytes),
                "nothing held back",
            )
        except AssertionError as fault:
            raise AssertionError(
                f"{fault}: {words.used()}, {self.node.books()[0].used_bytes} for {contexts}"
            ) from None
        finally:
            words.close()

    def end(self) -> None:
        """The last of them goes: nothing is left anywhere."""
        words = Words(self.manager)
        for racer in self.racers:
            _, stderr = racer.communicate(timeout=WAIT_LIMIT_S)
            assert racer.returncode == 0, stderr
            self._no_complaint(stderr)
        self.racers.clear()
        until(lambda: words.used() == 0, "an empty ledger")
        words.close()
        assert self.node.books()[0].used_bytes == 0
        until(lambda: self.manager.status()["tasks"] == [], "no task")

    def _granted(self) -> int:
        (gpu,) = self.manager.status()["gpus"]
        return int(gpu["memory_granted_bytes"])

    def _words_of(self, racer: subprocess.Popen[str]) -> str:
        return f"a racer ended: {racer.communicate()[1]}"

    def _no_complaint(self, stderr: str) -> None:
        wrong = [line for line in stderr.splitlines() if line.startswith("racers:")]
        assert not wrong, wrong

    # -- what holds --

    def check_peak(self) -> None:
        """The sum has not exceeded the grant since that became what it is, at no instant."""
        peak = self.node.books()[0].peak_bytes
        self.tally.most_of_grant = max(self.tally.most_of_grant, peak / self.limit_bytes)
        assert peak <= self.limit_bytes, (
            f"{peak - self.limit_bytes} bytes beyond the grant of {self.limit_bytes}"
        )

    def requota(self, limit_bytes: int) -> None:
        """Changes the quota live; returns when the new limit holds for all that is there."""
        self.check_peak()
        before, self.limit_bytes = self.limit_bytes, max(self.limit_bytes, limit_bytes)
        self.manager.quota(ENV, 1, memory_bytes=limit_bytes)
        self.tally.requotas += 1
        words = Words(self.manager)
        until(lambda: words.limit() == limit_bytes, "the new limit in the ledger")
        if limit_bytes < before:
            until(lambda: words.used() <= limit_bytes, "the ledger within the lowered limit")
            # a process that knows of no restart uses the older limit: until then the manager holds
            # that to be granted
            until(
                lambda: self.tally.restarts == 0 or self._granted() <= limit_bytes,
                "all processes within the lowered limit",
            )
        words.close()
        self.check_peak()
        self.limit_bytes = limit_bytes
        self.node.reset_peaks()

    def halt(self) -> None:
        """All stop wherever they are: of none does the ledger say less than the driver holds."""
        for racer in self.racers:
            racer.send_signal(signal.SIGSTOP)
        for racer in self.racers:
            os.waitid(os.P_PID, racer.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        words = Words(self.manager)
        charged, held = words.used(), self.node.books()[0].used_bytes
        words.close()
        for racer in self.racers:
            racer.send_signal(signal.SIGCONT)
        assert held <= charged, f"{held - charged} bytes that are not in the ledger"
        self.check_peak()

    def restart_manager(self) -> None:
        """kill -9; the tasks go on, and are found again."""
        self.manager.restart()
        self.tally.restarts += 1
        self.check_peak()

    def sample(self) -> dict[str, object]:
        """After a harm: what has been done until then, and the figures of now."""
        books = self.node.books()[0]
        done = {key: getattr(self.tally, key) for key in ("kills", "restarts", "requotas")}
        return {
            "monotonic_s": round(time.monotonic(), 3),
            **done,
            "limit": self.limit_bytes,
            "books": books.used_bytes,
            "peak": books.peak_bytes,
        }

    def account(self) -> dict[str, object]:
        """The holdings by ledger and books, and the manager's latest actions."""
        words, books = Words(self.manager), self.node.books()[0]
        figures = {
            "ledger": words.counted(),
            "limit": words.limit(),
            "words_by_slot": words.by_slot(),
        }
        words.close()
        by_pid = {process.pid: process.used_bytes for process in books.processes}
        return {
            **figures,
            "books": books.used_bytes,
            "peak": books.peak_bytes,
            "books_by_pid": by_pid,
            "events": self._events()[-KEPT_EVENTS:],
        }

    def _events(self) -> list[dict[str, object]]:
        events: list[dict[str, object]] = []
        while page := self.manager.call("events", since=events[-1]["sequence"] if events else 0)[
            "events"
        ]:
            events += page
        return events

    def all_the_room_can_be_had(self) -> None:
        """With all others quiet: what is left to the byte, and not one more."""
        room = self.limit_bytes - (len(self.racers) + 1) * CONTEXT_BYTES
        for size, code in ((room + 1, 1), (room, 0)):
            held = self.manager.hold(ENV, "-b", str(size), "-s", "0")
            out, err = held.communicate(timeout=WAIT_LIMIT_S)
            assert held.returncode == code, (size, out, err)
            self.await_contexts_alone()  # it is dead, and that is known

    def close(self) -> None:
        self.node.close()

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
