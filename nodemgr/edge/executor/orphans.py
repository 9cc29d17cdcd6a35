"""Find and end the processes that a killed supervisor left of its job.

Knows: /proc, the marks of a job's process. Must not know: attempts, launchers, the next step.

The kernel ends the job's first process with its supervisor. The others are recognised by these
marks: the session that the first one made; their audit session, which the kernel passes to every
process that they start and lets no process change; if the job has none, their environment's
variables; and descent from such a process. The variables count only for processes of the job's own
user, so a user cannot enter another user's job by name. They count only in this manager's
environment, because another manager may have a job of the same name.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator

from nodemgr.core.model.entities import ProcessKey
from nodemgr.edge.executor.attempt_directory import Beginning, Facts
from nodemgr.edge.kernel.ownership import ENV_DIR_VARIABLE, mount_namespace, outside_namespaces
from nodemgr.edge.kernel.processes import (
    RETRY_S,
    ProcessTable,
    credentials,
    process_key,
    read_within,
    stat_fields,
)

MOST_ENVIRON_BYTES = 4 * 2**20
MOST_TRIES = 5
_PARENT, _SESSION, _START = 1, 3, 19


def find(job: str, order: Facts, beginning: Beginning | None) -> list[ProcessKey]:
    """The living processes of `job` (JOB:ATTEMPT), found by the facts of its order."""
    outside = outside_namespaces()

    def is_its(pid: int) -> bool:
        if beginning is not None and beginning.audit:
            return _is_of_audit(pid, beginning.audit)
        return _says(pid, job, order.env_dir) and not (
            order.place and mount_namespace(pid) in outside
        )

    parents: dict[int, int] = {}
    found: dict[int, ProcessKey] = {}
    for pid, fields in _all():
        parents[pid] = int(fields[_PARENT])
        if _is_of_session(fields, beginning) or (_is_of_user(pid, order.uid) and is_its(pid)):
            found[pid] = process_key(pid, int(fields[_START]))
    for pid in sorted(parents):
        now = (
            stat_fields(pid)
            if pid not in found and any(above in found for above in _line_of(pid, parents))
            else None
        )
        if now is not None:
            found[pid] = process_key(pid, int(now[_START]))
    return list(found.values())


class Hunt:
    """End the processes, and look again until there are none; then call `done`.

    `done` gets the number of processes that could not be ended, and is never called from within a
    call.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        find: Callable[[], list[ProcessKey]],
        done: Callable[[int], None],
    ) -> None:
        self._loop, self._find, self._done = loop, find, done
        self._prey = ProcessTable(loop)
        self._left: set[ProcessKey] = set()
        self._tries = 0
        self._next: asyncio.Handle = loop.call_soon(self._check)

    def close(self) -> None:
        self._next.cancel()
        self._prey.close()

    def _check(self) -> None:
        refused = 0
        for key in self._find():
            if not self._prey.watch(key, self._gone):
                continue
            if self._prey.kill(key):
                self._left.add(key)
            else:
                refused += 1
                self._prey.unwatch(key)
        if self._left:
            return
        self._tries += 1
        if refused and self._tries < MOST_TRIES:
            # without a free descriptor no process can be ended either
            self._next = self._loop.call_later(RETRY_S, self._check)
        else:
            self._prey.close()
            self._done(refused)

    def _gone(self, key: ProcessKey) -> None:
        self._left.discard(key)
        if not self._left:
            self._check()


def _all() -> Iterator[tuple[int, list[bytes]]]:
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := stat_fields(int(name))):
            yield int(name), fields


def _line_of(pid: int, parents: dict[int, int]) -> Iterator[int]:
    while (pid := parents.get(pid, 0)) > 1:
        yield pid


def _is_of_session(fields: list[bytes], beginning: Beginning | None) -> bool:
    """Whether the process is of the session; a session has the PID of its maker.

    The kernel gives that PID to no other process while the session lives.
    """
    if (
        beginning is None
        or int(fields[_SESSION]) != beginning.pid
        or int(fields[_START]) < beginning.ticks
    ):
        return False
    leader = stat_fields(beginning.pid)
    return leader is None or int(leader[_START]) == beginning.ticks


def _is_of_audit(pid: int, audit: int) -> bool:
    try:
        with open(f"/proc/{pid}/sessionid", "rb", buffering=0) as file:
            return int(file.read(32)) == audit
    except (OSError, ValueError):
        return False


def _says(pid: int, job: str, env_dir: str) -> bool:
    """Whether the process's environment names the job.

    A process without the variable of its environment's directory is the job's only if the job's
    order had none either.
    """
    try:
        said = read_within(f"/proc/{pid}/environ", MOST_ENVIRON_BYTES).split(b"\0")
    except OSError:
        return False
    its = next((line for line in said if line.startswith(ENV_DIR_VARIABLE)), ENV_DIR_VARIABLE)
    directory = its.removeprefix(ENV_DIR_VARIABLE)
    return f"NODEMGR_JOB={job}".encode() in said and directory == os.fsencode(env_dir)


def _is_of_user(pid: int, uid: int | None) -> bool:
    found = credentials(pid)
    return found is not None and found.uid == uid
