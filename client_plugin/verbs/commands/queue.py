"""`nodemgr queue`: what waits and what runs; `nodemgr queue move|hold|…` changes it (orders)."""

from __future__ import annotations

from client_plugin.fields import PRESETS
from client_plugin.messages.form import relayed
from client_plugin.verbs import UNDER_QUEUE, VERBS
from client_plugin.verbs.arguments import kinds
from client_plugin.verbs.arguments.parser import JSON, RUN_DIR, Said, Verb, VerbOption
from client_plugin.verbs.launch import runner
from client_plugin.verbs.presentation import cells, tables
from client_plugin.verbs.presentation.tables import Column, TableRow
from client_plugin.verbs.reading import status_warnings
from client_plugin.ways import choice
from client_plugin.ways.faults import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional

NODE = Column("NODE", lambda r: r.get("node"), spare=1, optional=True)
"""Of a job of a cluster."""
WAITING = (
    Column("PLACE", cells.place, right=True),
    Column("ID", lambda r: r["id"]),
    NODE,
    Column("ENV", lambda r: r["env"]),
    Column("QUEUE", lambda r: r["priority"], spare=1),
    Column("GPUS", cells.asked_gpus, right=True),
    Column("CLASS", cells.task_class, spare=4, optional=True),
    Column("SHARE", cells.share, right=True, spare=4, optional=True),
    Column("WHO", cells.who, spare=3),
    Column("WAITED", lambda r: tables.seconds(r["waited_seconds"]), right=True, spare=2),
    Column("STARTS ABOUT", cells.expected, spare=1),
    Column("PREDICTED", cells.predicted, right=True, spare=4, optional=True),
    Column("NAME", lambda r: r["name"] or r["command"], spare=4),
    Column("WHY", tables.why, rest=True, below=True),
)
UNDER_WAY = (
    Column("ID", lambda r: r["id"]),
    Column("STATE", lambda r: r["state"]),
    NODE,
    Column("ENV", lambda r: r["env"]),
    Column("GPUS", cells.asked_gpus, right=True),
    Column("CLASS", cells.task_class, spare=4, optional=True),
    Column("SHARE", cells.share, right=True, spare=4, optional=True),
    Column("WHO", cells.who, spare=2),
    Column("SINCE", lambda r: tables.wall_time(r["since"] * 10**9), spare=3),
    Column("LIMIT", lambda r: tables.seconds(r["time_limit_seconds"]), right=True, spare=1),
    Column("PEAK", cells.peak, right=True, spare=4, optional=True),
    Column(
        "UTIL",
        lambda r: cells.figure(r, "utilization_percent", "%"),
        right=True,
        spare=4,
        optional=True,
    ),
    Column(
        "FOR",
        lambda r: tables.seconds(r.get("duration_seconds")),
        right=True,
        spare=4,
        optional=True,
    ),
    Column("PREDICTED", cells.predicted, right=True, spare=4, optional=True),
    Column("NAME", lambda r: r["name"]),
    Column("COMMAND", lambda r: r["command"], rest=True),
)
QUEUES = (
    Column("QUEUE", lambda q: q["name"]),
    Column("RANK", lambda q: q["rank"], right=True),
    Column("WAITING", lambda q: q["length"], right=True),
    Column("CAP", lambda q: q["cap"], right=True),
    Column("RESTARTS", lambda q: q["max_restarts"], right=True),
    Column(
        "USERS", lambda q: ",".join([*q["users"], *("@" + group for group in q["groups"])]) or "all"
    ),
)


def nothing_waits() -> str:
    from client_plugin.messages import status as messages
    from client_plugin.messages.form import sentence

    return sentence(messages.NOTHING_WAITS())


def run(said: Said) -> int:
    if said.inside:
        runner.ensure(said.whom())
    rows: Dict[str, TableRow] = {}
    queues: List[TableRow] = []
    store: Optional[TableRow] = None
    launcher: Optional[TableRow] = None
    for way in choice.choose(said.whom()):
        for page in choice.pages(way, "queue"):
            queues, store, launcher = page["queues"], page["store"], page.get("launcher")
            if page.get("note"):
                say(relayed(page["note"]))
            # one that moved meanwhile comes twice
            rows.update((row["id"], row) for row in page["queue"])
    waiting = [row for row in rows.values() if row["state"] not in cells.RUNS]
    running = [row for row in rows.values() if row["state"] in cells.RUNS]
    if said.as_json:
        health = {"store": store, "launcher": launcher}
        tables.print_json(
            {"schema_version": 1, "queue": waiting, "running": running, "queues": queues, **health}
        )
        return 0
    fold = cells.unfolded if said.expand else cells.folded
    tables.show(WAITING, fold(waiting), empty="" if waiting else nothing_waits())
    if running:
        print()
        tables.show(UNDER_WAY, fold(running))
    if any(
        row["cap"] is not None or row["max_restarts"] or row["users"] or row["groups"]
        for row in queues
    ) or len(queues) > len(PRESETS):
        print()
        tables.show(QUEUES, queues)
    status_warnings.say_failures(store, launcher, waiting)
    return 0


def _under(name: str) -> Verb:
    from client_plugin.verbs.commands import queue_actions

    return queue_actions.VERBS[name]


EXPAND = VerbOption(
    "--expand", help="Each job of an array on a line of its own (--json has them all in any case)."
)
VERB = Verb(
    "queue",
    VERBS["queue"],
    run,
    (VerbOption("--env", kind=kinds.ENV, help="Only this environment's."), EXPAND, RUN_DIR, JSON),
    text="Shows all that waits, in the order of service, and the jobs that run. "
    "An admin sees the node, a user the environments that the user may "
    "enter.\n\n"
    "An array is one line. A start time is an estimate (~), from time limits "
    "or from earlier runs of the same command.",
    under=UNDER_QUEUE,
    find=_under,
)
