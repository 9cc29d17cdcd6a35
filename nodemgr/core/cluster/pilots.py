"""The rows of a pool on Slurm: pilots and their states, as a table; what Slurm and nodes report.

Knows: what a head stores of a pilot. Must not know: Slurm's commands; how many pilots are wanted.

A pilot is a job of Slurm by which the head borrows one whole node. Slurm's list is evidence about
pilots alone. Whether GPUs may be used is the word of the node, whose GPUs are closed without a
living pilot: so a wrong or an empty list starts nothing twice.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from nodemgr.core.model.transitions import Targets
from nodemgr.core.model.values import value


class PilotStage(enum.StrEnum):
    ASKED = "asked"
    """The store has it, and sbatch is run once. Its answer is not known."""
    QUEUED = "queued"
    """Slurm has it."""
    STARTED = "started"
    """Slurm has given it a node, whose manager has not registered it yet."""
    HELD = "held"
    """The node's manager has registered it: the GPUs are open."""
    RETURNING = "returning"
    """The node gets no job, and is to end the pilot when it is empty."""
    ENDING = "ending"
    """It is cancelled by its name until Slurm lists it no more."""
    GONE = "gone"
    """The row leaves the state."""


COMING = (PilotStage.ASKED, PilotStage.QUEUED, PilotStage.STARTED)


class PilotEvent(enum.StrEnum):
    ASK = "ask"
    ADOPT = "adopt"
    TAKEN = "taken"
    REFUSED = "refused"
    RUNS = "runs"
    REGISTERED = "registered"
    GIVE_BACK = "give back"
    CLOSED = "closed"
    CANCEL = "cancel"
    UNLISTED = "unlisted"


_ASKED, _QUEUED, _STARTED = PilotStage.ASKED, PilotStage.QUEUED, PilotStage.STARTED
_HELD, _RETURNING, _ENDING = PilotStage.HELD, PilotStage.RETURNING, PilotStage.ENDING
_GONE = PilotStage.GONE
_OPENED = "The manager of the node says that it holds this pilot."
_CANCELLED = "It is not needed any more, or it has not registered in time."

PILOTS: Mapping[tuple[PilotStage | None, PilotEvent], Targets[PilotStage]] = {
    (None, PilotEvent.ASK): Targets((_ASKED,), "The queue needs another node."),
    (None, PilotEvent.ADOPT): Targets(
        (_HELD,), "A node holds a pilot that a head asked for after its store was copied."
    ),
    (_ASKED, PilotEvent.TAKEN): Targets((_QUEUED,), "sbatch or Slurm's list says so."),
    (_ASKED, PilotEvent.REFUSED): Targets((_GONE,), "sbatch refused it."),
    **{(stage, PilotEvent.RUNS): Targets((_STARTED,), "Slurm lists it so.")
       for stage in (_ASKED, _QUEUED)},
    **{(stage, PilotEvent.REGISTERED): Targets((_HELD,), _OPENED)
       for stage in (_ASKED, _QUEUED, _STARTED)},
    (_ENDING, PilotEvent.REGISTERED): Targets(
        (_RETURNING,), "It was to be cancelled, and a node has opened its GPUs meanwhile."
    ),
    (_HELD, PilotEvent.GIVE_BACK): Targets(
        (_RETURNING,), "It is idle, its time ends, or a person drains the node."
    ),
    **{(stage, PilotEvent.CLOSED): Targets((_ENDING,), "The node holds this pilot no more.")
       for stage in (_HELD, _RETURNING)},
    **{(stage, PilotEvent.CANCEL): Targets((_ENDING,), _CANCELLED)
       for stage in (_QUEUED, _STARTED)},
    **{(stage, PilotEvent.UNLISTED): Targets((_GONE,), "Slurm has not listed it several times.")
       for stage in PilotStage if stage is not _GONE},
}  # fmt: skip


@value
class Pilot:
    number: int
    asked_ns: int
    stage: PilotStage = PilotStage.ASKED
    node: str = ""
    """The node that was asked for, until one has registered it; "": any."""
    since_ns: int = 0
    """The time of its stage."""
    unlisted: int = 0
    """So many lists of Slurm in a row had it not."""
    idle_ns: int | None = None
    """Since when the node has nothing to do, while it is held."""


@value
class PoolFacts:
    """A node of a pool, about itself."""

    pilot: int
    """The pilot that it holds; 0: none, and its GPUs are closed."""
    closes_ns: int | None = None
    """The time at which the node must be empty, on the head's clock; None: it is not known."""
    waits: bool = False
    """A program waits there for GPUs, which are closed."""


@value
class PoolConfig:
    """The administrator's words about a pool."""

    partition: str = ""
    min_nodes: int = 0
    max_nodes: int = 1
    gpus: int = 0
    """The GPUs of one of its nodes."""
    has_gres: bool = False
    """Slurm knows the GPUs, and a pilot asks for them."""
    time_limit_s: int = 86_400
    """Of one pilot; later another one is asked for."""
    notice_s: int = 300
    """So long before its end a node gets no job any more."""
    grace_s: int = 30
    """Between Slurm's signal and its kill."""
    idle_return_s: int = 600
    rest_s: int = 30
    """Between two changes."""
    register_s: int = 120
    """A pilot that has not registered so long after its start is cancelled."""
    always: tuple[str, ...] = ()
    """Nodes that keep a pilot."""
    options: tuple[str, ...] = ()
    """Further options of sbatch: account, qos, constraint."""
    directory: str = ""
    """A pilot starts a manager in DIRECTORY/NODE where none runs; "": the node has its own."""
    simulate: str = ""
    """For a trial: the GPUs of such a manager."""
    user: str = ""
    """The user whose jobs pilots are; "": the head's own."""


@value
class PoolMemory:
    """The facts about a pool that a restart forgets."""

    changed_ns: int | None = None
    """The time of the last change of its size."""
    failures: int = 0
    """Pilots in a row that Slurm refused, or that did not register."""
    until_ns: int = 0
    """No pilot is asked for before."""
    fault: str = ""


@value
class ListedPilot:
    """A pilot in Slurm's list."""

    number: int
    runs: bool
    node: str = ""


@value
class AskSlurm:
    """An effect: run sbatch for this pilot, once."""

    number: int
    node: str


@value
class CancelPilots:
    """An effect: cancel them by name."""

    numbers: tuple[int, ...]


@value
class ReturnNode:
    """An effect: the node is to end this pilot when it is empty."""

    node: str
    pilot: int


PoolEffect = AskSlurm | CancelPilots | ReturnNode
