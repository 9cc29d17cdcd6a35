"""The interface of the queue to the executor of jobs: calls and reports.

Knows: the verbs and reports. Must not know: the implementation (this node's launcher, a
stand-in, a cluster's engine).

The queue calls `create` once for each attempt that the store lists as started, and trusts the
listener's reports. A job has an id; one start of it is (job_id, attempt). Every verb is idempotent
for an attempt. No verb waits. No verb raises on a fault of the job: `ended` reports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from nodemgr.core.model.entities import Cause, HostFigures, ProcessKey, RunSpec, Uuid
from nodemgr.messages import doctor

AttemptState = Literal["unknown", "starting", "running", "ended"]


LIMIT_OPTIONS = {"cpu": "--cpus", "memory": "--host-memory"}
"""By the controller of each limit."""


def nothing() -> None:
    """In place of a caller that waits."""


@dataclass(frozen=True, slots=True)
class RunOrder:
    """The complete description of an attempt. The executor adds nothing."""

    job_id: str
    attempt: int
    env: str
    run: RunSpec
    gpus: tuple[Uuid, ...]
    """The GPUs of its lease; empty for a job without a GPU."""
    user: str
    uid: int
    gid: int
    argv: tuple[str, ...]
    cwd: str
    environ: tuple[str, ...]
    """The process's whole environment, "K=V"."""
    umask: int = 0o022
    env_limits: tuple[str, ...] = ()
    """Of its environment's cgroup (leaf_limits.of_env)."""


@dataclass(frozen=True, slots=True)
class Status:
    """The known state of an attempt.

    Ended: an exit code, a signal, or `why` (never ran, or lost).
    """

    state: AttemptState
    pid: int | None = None
    started_wall_ns: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    why: str = ""
    """The reason, as readable text; empty: the process ended by itself."""
    cause: Cause = Cause.OWN
    started_boot_ns: int | None = None
    host: HostFigures | None = None


class ExecutorListener(Protocol):
    """Receives reports in the manager's loop, never from within a verb.

    Each attempt starts at most once and ends exactly once. Both reports may repeat for attempts
    that were adopted or created again. `boot_ns`: the time by CLOCK_BOOTTIME; None: now.
    """

    def started(
        self, job_id: str, attempt: int, pid: int | None, wall_ns: int, boot_ns: int | None = None
    ) -> None: ...

    def ended(
        self,
        job_id: str,
        attempt: int,
        status: Status,
        log_tail: str,
        wall_ns: int,
        boot_ns: int | None = None,
    ) -> None:
        """No process of this attempt runs any more."""

    def requeued_before_start(self, job_id: str, attempt: int, why: str) -> None:
        """This attempt did not begin and cannot begin now.

        The job returns to its place in the queue for another attempt. `launch_host_changed` reports
        its place as down first, or the job returns at once.
        """

    def launch_host_changed(self, place: str, is_up: bool, why: str) -> None:
        """Jobs can start in this place from now on, or cannot (`why`, readable text).

        The queue creates nothing in a place not reported up. Each factory reports its places when
        it starts.
        """


class NoLimits(NamedTuple):
    """Limits that do not hold."""

    why: str
    options: Sequence[str] = tuple(LIMIT_OPTIONS.values())
    """Those that name them."""

    def is_of_all(self) -> bool:
        return len(self.options) > 1

    def are_named_by(self, run: RunSpec) -> bool:
        named = zip(LIMIT_OPTIONS.values(), (run.cpus, run.host_memory_bytes), strict=True)
        return any(value is not None and option in self.options for option, value in named)

    def of_jobs(self) -> str:
        if self.is_of_all():
            return doctor.JOBS_WITHOUT_LIMITS(why=self.why)
        return doctor.JOBS_WITHOUT_ONE_LIMIT(option=self.options[0], why=self.why)

    def of_command(self) -> str:
        verb = "do" if self.is_of_all() else "does"
        return f"{' and '.join(self.options)} {verb} not limit this command: {self.why}"


class ResourceFactory(Protocol):
    def state(self) -> tuple[bool, str]:
        """(a job can start now, the launcher or the reason why not)."""

    def no_limits(self, place: str) -> NoLimits | None:
        """The limits that a job or a command there does not have; None: it has all."""

    def create(self, order: RunOrder) -> None:
        """Begins the attempt; returns at once.

        `ended` reports a failed start, `requeued_before_start` a missing launcher or runner.
        """

    def withdraw(self, job_id: str, attempt: int, why: str, *, warns: bool = False) -> None:
        """Ends the attempt: asks, waits, then forces it.

        `warns`: with the signal that its run names before, if it names one.
        Does nothing for an ended or unknown attempt.
        """

    def limit(self, job_id: str, attempt: int, time_limit_ms: int | None) -> None:
        """Changes the time limit of an attempt, counted from its start; None: no limit.

        Does nothing for an ended or unknown attempt.
        """

    def scope(self) -> str:
        """The directory of the environments' cgroups; empty: not known, or there is none."""

    def limit_cgroups(
        self, limits: Sequence[tuple[str, str]], then: Callable[[], None] = nothing
    ) -> None:
        """Writes limits of cgroups, each by its name below the scope (leaf_limits).

        `then` is called when all are written or cannot be.
        """

    def enter(
        self, env: str, process: ProcessKey, limits: Sequence[str],
        then: Callable[[str | None], None],
    ) -> None:  # fmt: skip
        """Moves a process of the node into a limited cgroup of its own, among those of its env.

        `then` gets the reason why it stays where it is; None: it is there.
        """

    def delete(self, job_id: str) -> None:
        """The job is final: its orders and logs may be deleted."""

    def logs(self, job_id: str, attempt: int | None = None) -> int:
        """A read-only descriptor of the attempt's output (None: the last attempt).

        Caller closes it. Raises FileNotFoundError.
        """

    def room_bytes(self, job_id: str) -> int:
        """Disk space of the output of all attempts that is still stored."""

    def names(self) -> list[str]:
        """All jobs with files left, in the store or not. A new job must not reuse such a name."""

    def job_of(self, pids: Sequence[int]) -> str | None:
        """The job that runs below one of these processes of this node; None: no job."""

    def adopt(self, expected: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
        """Take over the attempts that the store lists as started.

        Called after a restart, before any other verb. `started` is reported again for one that
        runs, `ended` for one that has ended or was lost. Returns those that have not begun and
        cannot begin any more. Unexpected attempts do not begin; those that run go on (`strays`).
        """

    def strays(self) -> list[tuple[str, int]]:
        """Unexpected attempts that run here.

        `withdraw` ends one; `create` of the same attempt takes it.
        """

    def close(self) -> None:
        """Closes the interface. Running jobs go on."""
