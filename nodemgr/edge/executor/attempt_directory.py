"""The directory of one attempt of a job: written for its supervisor, and read back.

Knows: the files that csrc/jobs/jobs.h names, the other end of them. Must not know: processes,
launchers, the consequence of a reading.

A directory appears whole, by a rename, and has room for all that will be written of the attempt: a
disk that fills up later loses no end. The process that renames `free` owns the attempt. The content
of that file is the boot in which it was made.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from client_plugin.messages.form import stated
from nodemgr.core.model.entities import Cause, HostFigures, ProcessKey, RunSpec
from nodemgr.edge.executor import leaf_limits
from nodemgr.edge.executor.interface import RunOrder
from nodemgr.edge.host import descriptors
from nodemgr.edge.kernel.processes import process_key

FREE, GIVEN_UP, LOG = "free", "claim.manager", "log"
RECORD_LINE_BYTES, LIMIT_BYTES, BOOT_BYTES = 512, 32, 64
RECORD_LINES = 3
MAX_TAIL_BYTES = 4_096
MAX_ORDER_BYTES = 8 * 2**20
FACTS_BYTES = 1_024
"""The first bytes of an order hold all fields but the user's own text."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.]{0,63}", re.ASCII)
_ENDED = (
    r"ended\.(?P<wall>[0-9]{1,20})(?::(?P<boot>[0-9]{1,20}))?\.(?P<exit>[0-9]{1,3}|-)\.(?P<signal>[0-9]{1,3}|-)"
    r"\.(?P<cause>[0-5])"
)
_CLAIM = re.compile(
    rf"claim\.(?:(?P<pid>[0-9]{{1,10}})\.(?P<ticks>[0-9]{{1,20}})(?:\.{_ENDED})?|manager)", re.ASCII
)
CAUSES = (
    Cause.OWN, Cause.CANNOT_RUN, Cause.TIME_LIMIT, Cause.NOT_STARTED, Cause.NODE_DOWN,
    Cause.HOST_MEMORY)  # fmt: skip
"""The causes in a supervisor's numbering (csrc/jobs/jobs.h, enum nm_cause)."""
MAX_EXIT_CODE, MAX_SIGNAL = 255, 64
NOT_WRITTEN = "the disk did not take how it ended"
CLOSED_LOG = (
    b"\nnodemgr: an earlier version's client in the container wrote this log; the job has ended\n"
)


@dataclass(frozen=True, slots=True)
class Claim:
    """The owner of the attempt; without a supervisor the manager owns it and gave it up."""

    supervisor: ProcessKey | None


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of an earlier order that the manager needs again.

    `place`: where it is run, "" the node. `env_dir`: where its processes look for their
    environment; "" if it is unknown.
    """

    uid: int | None
    gid: int | None
    place: str
    env_dir: str
    leaf: str = ""
    """Its cgroup on the node, ENV/JOB.ATTEMPT; "": an earlier version wrote the order."""
    signal: int = 0
    """The signal that it gets so long before its end; 0: it gets none."""
    signal_ms: int = 0


@dataclass(frozen=True, slots=True)
class Beginning:
    wall_ns: int
    pid: int
    ticks: int
    audit: int = 0
    """The number of the audit session of its processes alone; 0: they have none."""
    boot_ns: int | None = None
    """By CLOCK_BOOTTIME; None: an earlier version's supervisor wrote it."""


@dataclass(frozen=True, slots=True)
class End:
    wall_ns: int
    exit_code: int | None
    signal: int | None
    cause: Cause
    why: str
    boot_ns: int | None = None


def is_job_name(name: str) -> bool:
    """A job's id is a directory's name too: nothing that leads elsewhere."""
    return _NAME.fullmatch(name) is not None


def jobs(jobs_dir: Path) -> list[str]:
    """All that have a directory."""
    return [name for name in _entries(jobs_dir) if is_job_name(name)]


def attempts(jobs_dir: Path) -> Iterator[tuple[str, int]]:
    """All that have a directory."""
    for job in jobs(jobs_dir):
        yield from ((job, number) for number in attempts_of(jobs_dir, job))


def attempts_of(jobs_dir: Path, job: str) -> list[int]:
    """The attempts of one job, from its own directory alone."""
    return [int(name) for name in _entries(jobs_dir / job) if name.isascii() and name.isdigit()]


def _entries(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


class AttemptFiles:
    """The files of (job, attempt) below `jobs_dir`."""

    def __init__(self, jobs_dir: Path, job_id: str, attempt: int) -> None:
        if not is_job_name(job_id):
            raise ValueError(f"{job_id!r} is no job's name")
        self.name = f"{job_id}/{attempt}"
        self.directory = jobs_dir / job_id / str(attempt)
        self.log, self.record_path = self.directory / LOG, self.directory / "record"

    def exist(self) -> bool:
        return self.directory.is_dir()

    def write(self, order: RunOrder, grace_ms: int, boot: str, log_bytes: int = 0) -> None:
        """All of them at once.

        `log_bytes`: the room that its log may take, 0 any. Raises OSError where the disk refuses,
        ValueError for what no program can be given.
        """
        text = _order_text(order, grace_ms, log_bytes)
        self.directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self.directory.with_name(f".{self.directory.name}")
        if fresh.exists():  # another manager died over it
            shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        try:
            content = {
                "order": text, "record": b" " * (RECORD_LINES * RECORD_LINE_BYTES),
                FREE: boot.encode(), LOG: b"",
                "limit": _limit_text(order.run.time_limit_ms),
            }  # fmt: skip
            for name, data in content.items():
                _write(fresh / name, data)
            fresh.rename(self.directory)
        except OSError:
            shutil.rmtree(fresh, ignore_errors=True)
            raise

    def claim(self) -> Claim | None:
        """The claim on the attempt; None: it has not begun, and any supervisor may begin it."""
        for name in _entries(self.directory):
            if found := _CLAIM.fullmatch(name):
                return Claim(
                    process_key(int(found["pid"]), int(found["ticks"])) if found["pid"] else None
                )
        return None

    def give_up(self) -> bool:
        """Take the attempt back, so that it cannot begin. False: it has begun."""
        try:
            (self.directory / FREE).rename(self.directory / GIVEN_UP)
        except OSError:
            return False
        return True

    def claim_for(self, supervisor: ProcessKey) -> bool:
        """The attempt is this process's from now on, or was already.

        False: another process has it, or it is over.
        """
        _, pid, ticks = supervisor.split(":")
        try:
            (self.directory / FREE).rename(self.directory / f"claim.{pid}.{ticks}")
        except OSError:
            claim = self.claim()
            return claim is not None and claim.supervisor == supervisor
        return True

    def limit(self, time_limit_ms: int | None) -> None:
        """Writes another time limit; a supervisor reads it at its next signal. Raises OSError."""
        descriptor = self._open("limit", os.O_WRONLY)
        try:
            os.pwrite(descriptor, _limit_text(time_limit_ms), 0)
        finally:
            os.close(descriptor)

    def limit_ms(self) -> int | None:
        """The present time limit; None: it has none, or the file cannot be read."""
        try:
            descriptor = self._open("limit", os.O_RDONLY)
        except OSError:
            return None
        try:
            return _number(os.pread(descriptor, LIMIT_BYTES, 0).decode("ascii", "replace").strip())
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def sealed_order(self) -> int:
        """A copy of the order in memory, for a supervisor in a container; the caller's to close.

        Raises OSError.
        """
        with open(self.directory / "order", "rb") as file:
            text = file.read(MAX_ORDER_BYTES + 1)
        copy = descriptors.memory("nodemgr-order")
        try:
            os.write(copy, text)
            os.lseek(copy, 0, os.SEEK_SET)
            fcntl.fcntl(
                copy,
                fcntl.F_ADD_SEALS,
                fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL,
            )
        except OSError:
            os.close(copy)
            raise
        return copy

    def _open(self, name: str, flags: int) -> int:
        """Open without blocking: a process that has the file open may hold a lease on it."""
        return os.open(self.directory / name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)

    def begun_wall_ns(self) -> int:
        """When it was claimed, by the kernel's clock; 0 where that is not known."""
        for name in _entries(self.directory):
            if _CLAIM.fullmatch(name):
                with contextlib.suppress(OSError):
                    return (self.directory / name).stat().st_ctime_ns
        return 0

    def is_given_up(self) -> bool:
        """Whether the attempt has not begun and cannot begin any more.

        False: it has begun, or the disk refuses.
        """
        if self.give_up() or not self.exist():
            return True
        claim = self.claim()
        return claim is not None and claim.supervisor is None

    def remove(self) -> None:
        """Remove the directory; a process that still has a file of it open holds no disk."""
        for name in _entries(self.directory):
            self._cut(name, 0)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _cut(self, name: str, most_bytes: int) -> None:
        """Never waits: a process that has the file open may hold a lease on it."""
        with contextlib.suppress(OSError):
            descriptor = self._open(name, os.O_WRONLY)
            try:
                if os.fstat(descriptor).st_size > most_bytes:
                    os.ftruncate(descriptor, most_bytes)
            finally:
                os.close(descriptor)

    def boot(self) -> str:
        """The boot in which it was made; empty where that cannot be read."""
        for name in _entries(self.directory):
            if name == FREE or _CLAIM.fullmatch(name):
                with contextlib.suppress(OSError):
                    descriptor = self._open(name, os.O_RDONLY)
                    try:
                        return os.read(descriptor, BOOT_BYTES).decode("ascii", "replace")
                    finally:
                        os.close(descriptor)
        return ""

    def forget_order(self) -> None:
        """Removes the order of an attempt that is over: its variables may have secrets."""
        with contextlib.suppress(OSError):
            (self.directory / "order").unlink()

    def facts(self) -> Facts:
        """The facts of the order, as the manager wrote it; empty if the order is gone."""
        said: dict[str, str] = {}
        with contextlib.suppress(OSError), open(self.directory / "order", "rb") as file:
            for entry in file.read(FACTS_BYTES).split(b"\0"):
                key, _, value = entry.decode("utf-8", "replace").partition("=")
                said.setdefault(key, value)
        uid, gid = (_number(said.get(key, "")) for key in ("uid", "gid"))
        place, env_dir, leaf = (said.get(key, "") for key in ("place", "env_dir", "leaf"))
        early = (_number(said.get(key, "")) or 0 for key in ("signal", "signal_ms"))
        return Facts(uid, gid, place, env_dir, leaf, *early)

    def record(self) -> tuple[Beginning | None, End | None]:
        """The record as far as it is written.

        If the disk did not take the end, the name of the claim has it.
        """
        data = b""
        with contextlib.suppress(OSError), open(self._open("record", os.O_RDONLY), "rb") as file:
            data = file.read(2 * RECORD_LINE_BYTES)
        end = _end(_line(data, 1))
        if end is None:
            end = next(
                (
                    _end_by_name(found)
                    for name in _entries(self.directory)
                    if (found := _CLAIM.fullmatch(name))
                ),
                None,
            )
        return _beginning(_line(data, 0)), end

    def host_figures(self) -> HostFigures | None:
        """Its use of the host, which its supervisor read from its cgroup; None: it had none."""
        data = b""
        with contextlib.suppress(OSError), open(self._open("record", os.O_RDONLY), "rb") as file:
            data = file.read(RECORD_LINES * RECORD_LINE_BYTES)
        words = _line(data, 2)
        numbers = [number for word in words[1:] if (number := _number(word)) is not None]
        if words[:1] != ["used"] or len(numbers) != 4:
            return None
        cpu_us, memory_bytes, read_bytes, written_bytes = numbers
        return HostFigures(cpu_us // 1_000, memory_bytes or None, read_bytes, written_bytes)

    def open_log(self) -> int:
        """Raises FileNotFoundError, OSError."""
        try:
            return self._open(LOG, os.O_RDONLY)
        except BlockingIOError:
            raise FileNotFoundError(
                errno.ENOENT, "its owner keeps it from being read", str(self.directory / LOG)
            ) from None

    def log_size_bytes(self) -> int:
        """The size of the log, dropped parts included."""
        try:
            return os.stat(self.log, follow_symlinks=False).st_size
        except OSError:
            return 0

    def room_bytes(self) -> int:
        """The room of all its files on the disk."""
        room = 0
        for name in _entries(self.directory):
            with contextlib.suppress(OSError):
                room += os.stat(self.directory / name, follow_symlinks=False).st_blocks * 512
        return room

    def log_room_bytes(self) -> int:
        """The log's room on the disk.

        It excludes a dropped middle and includes blocks that are reserved behind the end.
        """
        try:
            status = os.stat(self.directory / LOG, follow_symlinks=False)
        except OSError:
            return 0
        return status.st_blocks * 512

    def bound_log(self, most_bytes: int) -> None:
        """When the attempt has ended.

        Our supervisor keeps the log within `most_bytes` (0: any). A supervisor in a container that
        an earlier version gave the files may be any program of that user: its log is replaced, so
        that a process that still has the old file open writes to no log.
        """
        self._cut("record", RECORD_LINES * RECORD_LINE_BYTES)
        self._cut("limit", LIMIT_BYTES)
        if most_bytes == 0 or self.log_room_bytes() <= 2 * most_bytes:
            return
        fresh = self.directory / f".{LOG}"
        self._cut(LOG, 0)
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
            line = stated(
                f"the output was dropped: it took more than twice the {most_bytes} bytes of "
                "job_log_bytes",
                "print less, or an administrator raises it",
            )
            _write(fresh, f"nodemgr: {line}\n".encode())
            fresh.rename(self.directory / LOG)

    def close_log(self) -> None:
        """With a last line, since an earlier version gave the file to a container."""
        with contextlib.suppress(OSError):
            descriptor = self._open(LOG, os.O_WRONLY | os.O_APPEND)
            try:
                os.write(descriptor, CLOSED_LOG)
            finally:
                os.close(descriptor)

    def end_log(self, line: str) -> None:
        """Adds the line, once: a manager that was killed may have done it."""
        text = f"nodemgr: {line}\n".encode()
        with contextlib.suppress(OSError):
            descriptor = self._open(LOG, os.O_RDWR | os.O_APPEND)
            try:
                size = os.fstat(descriptor).st_size
                last = os.pread(descriptor, len(text), max(0, size - len(text)))
                if last != text:
                    os.write(descriptor, (b"" if last[-1:] in (b"", b"\n") else b"\n") + text)
            finally:
                os.close(descriptor)

    def log_tail(self) -> str:
        """The last of its output; each control character except the end of a line as `\\x1b`."""
        try:
            descriptor = self.open_log()
        except OSError:
            return ""
        try:
            size = os.fstat(descriptor).st_size
            data = os.pread(descriptor, MAX_TAIL_BYTES, max(0, size - MAX_TAIL_BYTES))
        except OSError:
            return ""
        finally:
            os.close(descriptor)
        text = data.decode("utf-8", "backslashreplace").replace("\r", "\n").expandtabs()
        written = (
            char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode()
            for char in text
        )
        return "".join(written)[-MAX_TAIL_BYTES:]


def _order_text(order: RunOrder, grace_ms: int, log_bytes: int) -> bytes:
    """The order in the form that csrc/jobs/order.c reads."""
    env_dir = next(
        (
            entry.partition("=")[2]
            for entry in order.environ
            if entry.startswith("NODEMGR_ENV_DIR=")
        ),
        "",
    )
    facts = {
        "job": f"{order.job_id}:{order.attempt}",
        "user": order.user,
        "uid": order.uid,
        "gid": order.gid,
        "grace_ms": grace_ms,
        **_signal_of(order.run),
        "log_bytes": log_bytes,
        "place": order.run.place,
        "umask": order.umask,
        "env_dir": env_dir,
        "leaf": f"{order.env}/{order.job_id}.{order.attempt}",
        "cwd": order.cwd,
    }
    entries = ["nodemgr-order 1", *(f"{key}={value}" for key, value in facts.items())]
    entries += [f"limit={limit}" for limit in leaf_limits.of_run(order.run)]
    entries += [f"env_limit={limit}" for limit in order.env_limits]
    entries += (
        [f"arg={word}" for word in order.argv]
        + [f"env={variable}" for variable in order.environ]
        + ["end"]
    )
    if any("\0" in entry for entry in entries) or not order.argv:
        raise ValueError(
            "its command, directory or environment has a NUL in it, or there is no command"
        )
    text = b"".join(entry.encode("utf-8", "surrogateescape") + b"\0" for entry in entries)
    if len(text) > MAX_ORDER_BYTES:
        raise ValueError(
            f"its command and environment have {len(text)} bytes, at most {MAX_ORDER_BYTES} are "
            "taken"
        )
    return text


def _signal_of(run: RunSpec) -> dict[str, int]:
    if run.signal is None:
        return {}
    number = signal.Signals[f"SIG{run.signal.name}"]
    return {"signal": int(number), "signal_ms": run.signal.before_ms}


def _limit_text(time_limit_ms: int | None) -> bytes:
    """The text at its fixed place: a process that has the file open reads the new one."""
    text = b"" if time_limit_ms is None else b"%d\n" % time_limit_ms
    return text.ljust(LIMIT_BYTES)


def _write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)


def _line(data: bytes, number: int) -> list[str]:
    """The words of a line that is whole; of any other none."""
    line = data[number * RECORD_LINE_BYTES : (number + 1) * RECORD_LINE_BYTES]
    return (
        line[:-2].decode("utf-8", "replace").split()
        if len(line) == RECORD_LINE_BYTES and line.endswith(b".\n")
        else []
    )


def _number(word: str, most: int = 2**63 - 1) -> int | None:
    """The number, or None if it is none from 0 to `most`, the largest that the store takes.

    A supervisor in a container can have written any word.
    """
    number = int(word) if word.isascii() and word.isdigit() and len(word) < 20 else most + 1
    return number if number <= most else None


def said_beginning(text: str) -> Beginning | None:
    """A supervisor in a container said it; None: it is none."""
    return _beginning(text.split())


def said_end(text: str) -> End | None:
    return _end(text.split())


def record_line(fact: Beginning | End) -> tuple[bytes, int]:
    """The line of the record, as csrc/jobs/supervise.c writes it, and its place."""
    if isinstance(fact, Beginning):
        text = f"started {_times(fact)} {fact.pid} {fact.ticks} {fact.audit}"
    else:
        code, number = ("-" if value is None else value for value in (fact.exit_code, fact.signal))
        text = f"ended {_times(fact)} {code} {number} {CAUSES.index(fact.cause)} {fact.why}"
    line = text.encode("utf-8", "replace")[: RECORD_LINE_BYTES - 2].ljust(RECORD_LINE_BYTES - 2)
    return line + b".\n", 0 if isinstance(fact, Beginning) else RECORD_LINE_BYTES


def _times(fact: Beginning | End) -> str:
    return f"{fact.wall_ns}" if fact.boot_ns is None else f"{fact.wall_ns}:{fact.boot_ns}"


def _beginning(words: list[str]) -> Beginning | None:
    """started WALL_NS[:BOOT_NS] PID TICKS AUDIT"""
    if words[:1] != ["started"] or len(words) != 5:
        return None
    wall, _, boot = words[1].partition(":")
    numbers = [number for word in (wall, *words[2:]) if (number := _number(word)) is not None]
    if len(numbers) != 4:
        return None
    wall_ns, pid, ticks, audit = numbers
    return Beginning(wall_ns, pid, ticks, audit, _number(boot))


def _end(words: list[str]) -> End | None:
    """ended WALL_NS[:BOOT_NS] EXIT|- SIGNAL|- CAUSE WHY…"""
    wall, _, boot = "".join(words[1:2]).partition(":")
    wall_ns = _number(wall) if len(words) >= 5 and words[0] == "ended" else None
    if wall_ns is None:
        return None
    why = "".join(char if char.isprintable() else "?" for char in " ".join(words[5:]))
    cause = _number(words[4], len(CAUSES) - 1)
    return End(
        wall_ns,
        _number(words[2], MAX_EXIT_CODE),
        _number(words[3], MAX_SIGNAL),
        CAUSES[cause or 0],
        why,
        _number(boot),
    )


def _end_by_name(claim: re.Match[str]) -> End | None:
    if claim["wall"] is None:
        return None
    exit_code, number = (
        None if claim[key] == "-" else int(claim[key]) for key in ("exit", "signal")
    )
    why = NOT_WRITTEN if exit_code is None and number is None else ""
    cause, boot_ns = CAUSES[int(claim["cause"])], _number(claim["boot"] or "")
    return End(int(claim["wall"]), exit_code, number, cause, why, boot_ns)
