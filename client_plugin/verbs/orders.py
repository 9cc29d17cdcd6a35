"""What may follow `nodemgr queue`: orders to jobs, and to queues.

Knows: the options of each, the line that tells what came of it. Must not know: whether an order makes sense, which the manager decides.
"""

from __future__ import annotations

from client_plugin.verbs import kinds, tables
from client_plugin.verbs.parser import JSON, RUN_DIR, Option, Said, Verb, mistake
from client_plugin.verbs.queue import UNDER, standing
from client_plugin.ways import choice
from client_plugin.ways.faults import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from client_plugin.verbs.parser import Kind

MAX_RANK = 1_000_000
AS_USER = Option("--env", kind=kinds.ENV, help="As a user of this environment.")


def _order(verb: str, done: str) -> Callable[[Said], int]:
    """An order that names one job, and no more."""

    def run(said: Said) -> int:
        choice.way_to(said.job, said.whom()).ask(f"job_{verb}", job=said.job)
        say(f"{said.job} {done}")
        return 0

    return run


def _position(said: Said) -> int:
    told = choice.way_to(said.job, said.whom()).ask("job_show", job=said.job)
    if said.as_json:
        tables.print_json(told)
        return 0
    for row in told["jobs"]:
        print(tables.printable(f"{row.get('job') or row['id']}: {standing(row)}"))
    return 0


def _move(said: Said) -> int:
    if (said.queue is None) is not said.first:
        mistake(said.verb, "say either the queue to whose end it goes, or --first for the front of its own")
    choice.way_to(said.job, said.whom()).ask("job_move", job=said.job, queue=said.queue, first=said.first)
    say(f"{said.job} is moved to the {'front of its queue' if said.first else f'end of queue {said.queue}'}")
    return 0


def _create(said: Said) -> int:
    choice.admins_way(said.whom()).ask("queue_create", queue=said.queue, rank=said.rank, cap=said.cap)
    say(f"queue {said.queue} has rank {said.rank}" + (f" and takes {said.cap} at most" if said.cap is not None else ""))
    return 0


def _remove(said: Said) -> int:
    choice.admins_way(said.whom()).ask("queue_rm", queue=said.queue)
    say(f"queue {said.queue} is removed")
    return 0


def _one(kind: Kind) -> Option:
    return Option("job", kind=kind, required=True)


def _verb(name: str, run: Callable[[Said], int], *options: Option, text: str = "") -> Verb:
    return Verb(f"queue {name}", UNDER[name], run, (*options, RUN_DIR), text=text)


VERBS = {
    "position": _verb("position", _position, _one(kinds.JOB_OR_REQUEST), AS_USER, JSON,
                      text="Of an array's name: of all its jobs. r17: of a waiting request. Its place, why it waits, how it ended."),
    "withdraw": _verb("withdraw", _order("withdraw", "is withdrawn"), _one(kinds.JOB_OR_REQUEST), AS_USER),
    "hold": _verb("hold", _order("hold", "is held"), _one(kinds.JOB), AS_USER),
    "free": _verb("free", _order("free", "is freed"), _one(kinds.JOB), AS_USER),
    "move": _verb("move", _move, _one(kinds.JOB), Option("queue", kind=kinds.QUEUE),
                  Option("--first", help="To the front of its queue (for admins)."), AS_USER),
    "requeue": _verb("requeue", _order("requeue", "waits again"), _one(kinds.JOB_OR_ENDED), AS_USER),
    "create": _verb(
        "create", _create, Option("queue", kind=kinds.QUEUE, required=True),
        Option("--rank", kind=kinds.count(1, MAX_RANK), required=True, help="The higher, the sooner: high 300, normal 200, low 100."),
        Option("--cap", kind=kinds.count(0, MAX_RANK), help="So many may wait in it at most; more are refused."),
    ),
    "rm": _verb("rm", _remove, Option("queue", kind=kinds.QUEUE, required=True)),
}  # fmt: skip
