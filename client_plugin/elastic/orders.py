"""Values that go into the plan of an elastic task (events), and those that come out (orders).

Knows: no process, no socket, no clock. Times are seconds of the monotonic clock.
"""

from __future__ import annotations

from typing import NamedTuple, Tuple, Union


class Checkpoint(NamedTuple):
    """The script's checkpoint: how often a new one was seen, and which of them is complete."""

    seen: int
    complete: int
    """The number of the newest complete one; 0: there is none."""
    written_s: float
    """When that one was written."""


NO_CHECKPOINT = Checkpoint(0, 0, 0.0)

# -- events --


class GpuOffered(NamedTuple):
    """The lease has one more GPU."""

    gpu: str


class GpuRecalled(NamedTuple):
    """A GPU is asked back until `deadline_s`."""

    gpu: str
    deadline_s: float


class GpuWithdrawn(NamedTuple):
    """A recall is taken back."""

    gpu: str


class LeaseRejoined(NamedTuple):
    """The manager came back: it may have missed the last words. `gpus`: the lease's GPUs now."""

    gpus: Tuple[str, ...]


class TaskLost(NamedTuple):
    """The lease is over."""


class EndAsked(NamedTuple):
    """The leader was asked by a signal to end."""

    signal: int
    grace_s: float


class Coming(NamedTuple):
    """The script of a worker has imported `nodemgr_client.elastic`: a hello is to come."""

    worker: int


class Parked(NamedTuple):
    """A spare has come to its first use of a GPU, and waits for one."""

    worker: int


class NoRoom(NamedTuple):
    """The host has no memory for this spare, which was not started."""

    worker: int


class Hello(NamedTuple):
    """A worker has built its model and waits to be a member."""

    worker: int
    phase: int


class Resized(NamedTuple):
    """A worker's collective of this generation works, and it has the state."""

    worker: int
    generation: int


class Failed(NamedTuple):
    """A worker's collective of this generation is broken."""

    worker: int
    generation: int


class Leaving(NamedTuple):
    """A worker that is not in this generation has done its last step."""

    worker: int
    generation: int


class BlockFailed(NamedTuple):
    """A worker has left the block of this phase by an exception; its process may go on."""

    worker: int
    phase: int
    step: int
    """The step in which it failed, from 1."""
    own: int
    """The same of this worker's own steps: 1 if it never completed one."""


class Done(NamedTuple):
    """A worker's loop of this phase is over."""

    worker: int
    phase: int


class Quit(NamedTuple):
    """A worker's program has left the loop of this phase before its last step."""

    worker: int
    phase: int


class Saved(NamedTuple):
    """A worker has written the training's checkpoint, or has read it."""

    worker: int
    step: int
    """Of the checkpoint, from 1."""


class Died(NamedTuple):
    """A worker's process has ended. `code`: its exit code, or the negative signal."""

    worker: int
    code: int


class TimePassed(NamedTuple):
    """Time has passed."""


PlanEvent = Union[
    GpuOffered, GpuRecalled, GpuWithdrawn, LeaseRejoined, TaskLost, EndAsked, Coming, Parked,
    NoRoom, Hello, Resized, Failed, Leaving, BlockFailed, Done, Quit, Saved, Died,
    TimePassed,
]  # fmt: skip

# -- orders --


class StartWorker(NamedTuple):
    """Start a worker process. Its rank and size are those of torchrun's variables.

    `gpu`: empty for a spare.
    """

    worker: int
    gpu: str
    rank: int
    size: int
    round: int


class GiveGpu(NamedTuple):
    """A spare that is parked gets this GPU, and is an ordinary worker from then on."""

    worker: int
    gpu: str


class Members(NamedTuple):
    """Send a generation: `members` by rank, to `receivers`."""

    generation: int
    members: Tuple[Tuple[int, str], ...]
    receivers: Tuple[int, ...]
    root: int
    state: bool
    now: bool
    phase: int


class Formed(NamedTuple):
    """Every member of this generation has formed it."""

    generation: int


class Over(NamedTuple):
    """Send that a phase is over already."""

    worker: int
    phase: int


class Signal(NamedTuple):
    """Send a signal to a worker's process group."""

    worker: int
    signal: int


class Accept(NamedTuple):
    """A worker runs on this offered GPU."""

    gpu: str


class Decline(NamedTuple):
    """This offered GPU is of no use now."""

    gpu: str


class Left(NamedTuple):
    """No process of the task is on this GPU any more."""

    gpu: str


class Report(NamedTuple):
    """Print a line. `key`: its row in client_plugin/messages/elastic.py."""

    key: str
    worker: int = -1
    gpu: str = ""
    size: int = 0
    code: int = 0


class Finish(NamedTuple):
    """The task has ended. `code`: exit code, or the negative signal."""

    code: int


PlanOrder = Union[
    StartWorker, GiveGpu, Members, Formed, Over, Signal, Accept, Decline, Left, Report, Finish,
]  # fmt: skip
