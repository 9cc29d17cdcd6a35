"""The only door to what executes jobs: what the queue may ask of it, and what it tells.

Knows: the words of that conversation. Must not know: who is behind the door (this node's launcher, a stand-in, a cluster's engine).

The queue says `create` once for each attempt that the store already calls started, and believes what the `Listener` hears. A
job is named by its id, one start of it by (job_id, attempt); every verb may be said again for the same attempt and then does
nothing new. No verb waits, none raises for what is the job's own fault: that is an end, and `Listener.ended` tells it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from nodemgr.core.model.entities import Cause

AttemptState = Literal["unknown", "starting", "running", "ended"]


@dataclass(frozen=True, slots=True)
class RunOrder:
    """What is to be run, all of it: whoever carries it out adds nothing."""

    job_id: str
    attempt: int
    env: str
    user: str
    uid: int
    gid: int
    argv: tuple[str, ...]
    cwd: str
    environ: tuple[str, ...]
    """The process's whole environment, "K=V"."""
    time_limit_ms: int | None = None
    place: str = ""
    """Where: empty for the node itself, else a container, as ENV/UID/CONTAINER."""
    umask: int = 0o022


@dataclass(frozen=True, slots=True)
class Capacity:
    """What there is, and what was done with it since the manager began."""

    nodes: int
    gpus: int
    running: int
    """Attempts that were created and have not ended."""
    started: int
    """Attempts whose process ran."""
    ended: int
    failed: int
    """Of those that ended: never ran, were lost, ended by a signal or with another exit code than 0."""


@dataclass(frozen=True, slots=True)
class Status:
    """One attempt, as far as it is known. Ended: an exit code, or a signal, or neither and `why` (it never ran, or was lost)."""

    state: AttemptState
    pid: int | None = None
    started_wall_ns: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    why: str = ""
    """In a person's words; empty: its process ended by itself."""
    cause: Cause = Cause.OWN


class ExecutorListener(Protocol):
    """Who is told, in the manager's loop and never from within a verb: each attempt starts at most once and ends exactly once.
    Of attempts that were adopted, or created again, both may be told again."""

    def started(self, job_id: str, attempt: int, pid: int | None, wall_ns: int) -> None: ...

    def ended(self, job_id: str, attempt: int, status: Status, log_tail: str, wall_ns: int) -> None:
        """Nothing of this attempt runs any more."""

    def requeued_before_start(self, job_id: str, attempt: int, why: str) -> None:
        """Nobody began this attempt, and now nobody can: the job goes back to its place in the queue, and is created again as another
        attempt. Said after `launch_host_changed` has told that its place is down, or it would come again at once."""

    def launch_host_changed(self, place: str, is_up: bool, why: str) -> None:
        """Jobs can be started there from now on, or cannot (`why`, for people). Nothing is created for a place that was not told
        to be up; each factory tells of its places when it begins."""


class ResourceFactory(Protocol):
    def nodes(self) -> int: ...

    def capacity(self) -> Capacity: ...

    def state(self) -> tuple[bool, str]:
        """Whether a job could be started now, and by whom, or why not."""

    def create(self, order: RunOrder) -> None:
        """Begins the attempt; returns at once. `ended` tells where it could not, `requeued_before_start` where nobody is there who could
        try."""

    def withdraw(self, job_id: str, attempt: int, why: str) -> None:
        """Ends it: asks, waits a little, then insists. An attempt that ended or that nobody knows: nothing."""

    def update(self, job_id: str, attempt: int, time_limit_ms: int | None) -> None:
        """Another limit for its time, counted from its start; None: none."""

    def status(self, job_id: str, attempt: int) -> Status: ...

    def delete(self, job_id: str) -> None:
        """The job is final: what it left (orders, logs) may go."""

    def logs(self, job_id: str, attempt: int | None = None) -> int:
        """A descriptor of the attempt's output (None: of the last one), read-only, the caller's to close. Raises FileNotFoundError."""

    def room_bytes(self, job_id: str) -> int:
        """What the output of all its starts takes of the disk, as far as it is still there."""

    def names(self) -> list[str]:
        """Of all jobs, known to the store or not, of which something is left: another job of that name would be taken for it."""

    def job_of(self, pids: Sequence[int]) -> str | None:
        """The job that runs below one of these processes of this node; None: no job does."""

    def adopt(self, expected: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
        """After a restart, before any other verb: of each attempt that the store calls started, `started` is told again if it
        runs, and `ended` if it has ended or was lost. Returns those that nobody has begun, and that nobody can begin any more.
        Attempts that nobody expects are not begun, and those of them that run go on (`strays`)."""

    def strays(self) -> list[tuple[str, int]]:
        """Attempts that run here and were not expected. `withdraw` ends one; `create` of the same attempt takes it over."""

    def close(self) -> None:
        """The manager ends; what runs goes on."""
